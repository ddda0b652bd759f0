//! Why a message was refused, and what a server answers.

use thiserror::Error;

/// One cause for each variant. `line` counts from 1 within the head (the request or status line is
/// line 1) or within the trailer section.
///
/// No peer-chosen text is repeated, so a refusal can be logged and sent as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    // Lines
    #[error("line {line} ends in LF without CR")]
    BareLineFeed { line: usize },
    #[error("more than one empty line comes before the request line")]
    EmptyLines,
    #[error("the head is longer than {limit} bytes")]
    HeadTooLong { limit: usize },
    #[error("the head has more than {limit} field lines")]
    TooManyFields { limit: usize },

    // Request line
    #[error("the request line is not `method SP target SP version`")]
    RequestLine,
    #[error("the method is longer than {limit} bytes")]
    MethodTooLong { limit: usize },
    #[error("the HTTP version is malformed")]
    Version,
    #[error("the HTTP version is neither 1.0 nor 1.1")]
    UnsupportedVersion,
    #[error("the request target is longer than {limit} bytes")]
    TargetTooLong { limit: usize },
    #[error("the request target has the byte {byte:#04x}, which must be percent-encoded")]
    TargetByte { byte: u8 },
    #[error("the request target has a form that the method does not allow")]
    TargetForm,
    #[error("the scheme of the request target is neither http nor https")]
    TargetScheme,
    #[error("the authority of the request target is not `host` or `host:port`")]
    TargetAuthority,

    // Status line
    #[error("the status line is not `version SP three digits SP reason`")]
    StatusLine,

    // Field lines
    #[error("line {line} continues the line before it (obsolete folding)")]
    FoldedLine { line: usize },
    #[error("line {line} has no colon, an empty field name, or a byte no field name may have")]
    FieldName { line: usize },
    #[error("line {line} has white space between field name and colon")]
    SpaceBeforeColon { line: usize },
    #[error("line {line} has a control byte in the field value")]
    FieldValue { line: usize },
    #[error("the connection field names more than {limit} options")]
    TooManyConnectionOptions { limit: usize },

    // Host
    #[error("an HTTP/1.1 request must have a host field")]
    HostMissing,
    #[error("the request has more than one host field")]
    HostRepeated,
    #[error("the host field is not `host` or `host:port`")]
    HostInvalid,
    #[error("the host field differs from the authority of the request target")]
    HostMismatch,

    // Framing
    #[error("content-length is not one decimal number of at most 19 digits")]
    ContentLength,
    #[error("content-length is given more than once")]
    ContentLengthRepeated,
    #[error("content-length is given with two values")]
    ContentLengthsDiffer,
    #[error("transfer-encoding and content-length are both given")]
    LengthAndEncoding,
    #[error("transfer-encoding is malformed, or `chunked` is not its only last coding")]
    TransferEncoding,
    #[error("transfer-encoding names a coding other than chunked")]
    UnknownTransferEncoding,
    #[error("transfer-encoding is given in an HTTP/1.0 message")]
    TransferEncodingInHttp10,
    #[error("a CONNECT request announces a body")]
    BodyOfConnect,
    #[error("an interim response with status {status} announces a body")]
    BodyOfInterim { status: u16 },

    // Body
    #[error("a chunk size is not hexadecimal")]
    ChunkSize,
    #[error("a chunk size has more than 16 digits or exceeds 2^63 - 1")]
    ChunkTooLarge,
    #[error("a chunk-size line is longer than {limit} bytes")]
    ChunkLineTooLong { limit: usize },
    #[error("a chunk extension has a control byte or a line end other than CR LF")]
    ChunkExtension,
    #[error("the chunk extensions of a message are longer than {limit} bytes")]
    ChunkExtensionsTooLong { limit: usize },
    #[error("the data of a chunk is not followed by CR LF")]
    ChunkEnd,
    #[error("the trailer section is longer than {limit} bytes")]
    TrailersTooLong { limit: usize },
    #[error("the trailer section has more than {limit} field lines")]
    TooManyTrailers { limit: usize },
    #[error("the peer closed before the end of the body")]
    Truncated,
}

impl Refusal {
    /// What a server answers to such a request before it closes. A client that refuses a response
    /// answers its own caller with 502 whatever the cause.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::TargetTooLong { .. } => 414,
            Self::HeadTooLong { .. }
            | Self::TooManyFields { .. }
            | Self::TooManyConnectionOptions { .. }
            | Self::TrailersTooLong { .. }
            | Self::TooManyTrailers { .. } => 431,
            Self::MethodTooLong { .. } | Self::UnknownTransferEncoding => 501,
            Self::UnsupportedVersion => 505,
            Self::BareLineFeed { .. }
            | Self::EmptyLines
            | Self::RequestLine
            | Self::Version
            | Self::TargetByte { .. }
            | Self::TargetForm
            | Self::TargetScheme
            | Self::TargetAuthority
            | Self::StatusLine
            | Self::FoldedLine { .. }
            | Self::FieldName { .. }
            | Self::SpaceBeforeColon { .. }
            | Self::FieldValue { .. }
            | Self::HostMissing
            | Self::HostRepeated
            | Self::HostInvalid
            | Self::HostMismatch
            | Self::ContentLength
            | Self::ContentLengthRepeated
            | Self::ContentLengthsDiffer
            | Self::LengthAndEncoding
            | Self::TransferEncoding
            | Self::TransferEncodingInHttp10
            | Self::BodyOfConnect
            | Self::BodyOfInterim { .. }
            | Self::ChunkSize
            | Self::ChunkTooLarge
            | Self::ChunkLineTooLong { .. }
            | Self::ChunkExtension
            | Self::ChunkExtensionsTooLong { .. }
            | Self::ChunkEnd
            | Self::Truncated => 400,
        }
    }
}
