//! The messages of `proto/echo.proto`.
//!
//! Written out for prost's derive, so that building needs no protoc; a test holds them against
//! the file.

/// What goes in and comes back.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EchoMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub payload: Vec<u8>,
    /// Copies that a server stream sends.
    #[prost(uint32, tag = "2")]
    pub repeat: u32,
}

/// What a client stream brought.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct StreamSummary {
    #[prost(uint64, tag = "1")]
    pub messages: u64,
    /// Bytes of the messages as they were encoded.
    #[prost(uint64, tag = "2")]
    pub message_bytes: u64,
}

/// The message with which a sidecar calls a gRPC app: `dapr.proto.common.v1.InvokeRequest`, as far
/// as it is sent back.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Invocation {
    /// An encoded `google.protobuf.Any`.
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
    #[prost(string, tag = "3")]
    pub content_type: String,
}

/// `dapr.proto.common.v1.InvokeResponse`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct InvocationAnswer {
    /// An encoded `google.protobuf.Any`.
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    #[prost(string, tag = "2")]
    pub content_type: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn the_encoding_is_that_of_the_proto_file() {
        let message = EchoMessage { payload: b"hi".to_vec(), repeat: 3 };
        assert_eq!(message.encode_to_vec(), [0x0a, 2, b'h', b'i', 0x10, 3]);
        let proto = include_str!("../proto/echo.proto");
        for field in [
            "bytes payload = 1;",
            "uint32 repeat = 2;",
            "uint64 messages = 1;",
            "uint64 message_bytes = 2;",
        ] {
            assert!(proto.contains(field), "{field}");
        }
    }
}
