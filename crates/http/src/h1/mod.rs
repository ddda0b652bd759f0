//! HTTP/1.1 (RFC 9112) framing over slices, for both roles, without I/O.
//!
//! A reader calls [`parse_request`] or [`parse_response`] until a head is complete, then a
//! [`BodyDecoder`] made from its [`BodyLength`] until it is finished; the next byte belongs to the
//! next message. A writer calls [`write_request`] or [`write_response`], then writes the body by
//! the returned [`BodyLength`] ([`write_chunk`], [`write_last_chunk`], or raw bytes).
//!
//! What this codec promises the parts that forward:
//! - **One owner of framing.** `content-length` and `transfer-encoding` are never in a parsed
//!   head's fields: they become [`BodyLength`], and the writers produce them from it. `host`
//!   becomes `authority`. Writers skip these names if a caller has added them, so a forwarded
//!   message cannot have two different ends or two destinations.
//! - **Strict with requests.** What two parsers could read differently (RFC 9112 section 11.2) is a
//!   [`Refusal`]; after one the connection is of no more use than to send an answer and close.
//! - **Forgiving with responses.** What nginx, HAProxy and Go take, or most of them, is taken: a length
//!   beside chunks (which win), the same length twice, LF line ends, folded lines, space behind chunk
//!   sizes. The writers send on none of it. Where the server may mean another end, its connection
//!   carries no other response.
//! - **Bytes after the end are not checked.** Bytes after a request are the next request, unless
//!   the former asks for an upgrade: then they wait until the final response is known. Unsolicited
//!   bytes after a response mean that the connection must be discarded.
//! - **Targets are not normalised.** `%00`, `%0d%0a`, `..`, `\` and malformed escapes pass through
//!   unchanged; code that decides by path normalises first. Letters beyond ASCII become escapes.

mod authority;
mod body;
mod check;
mod chunk;
mod fields;
mod framing;
mod hop_by_hop;
mod preface;
mod refusal;
mod request;
mod response;
mod scan;
pub mod syntax;
mod target;
mod trailers;
mod write;

#[cfg(test)]
mod tests;

pub use body::{BodyDecoder, Step};
pub use check::{check_fields, check_request, check_request_line, check_response};
pub use hop_by_hop::{strip_hop_by_hop, strip_hop_by_hop_of_response};
pub use preface::{HTTP2_PREFACE, looks_like_http2};
pub use refusal::Refusal;
pub use request::{Request, parse_request, parse_request_into};
pub use response::{Response, ResponseContext, parse_response};
pub use scan::HeadScanner;
pub use write::{
    CONTINUE, Connection, RequestOptions, ResponseOptions, TargetForm, write_chunk,
    write_last_chunk, write_request, write_response,
};

/// Limits of what a peer may make us hold or process. Each limit has its own [`Refusal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a whole head, from the first byte to the empty line and with it.
    pub head_bytes: usize,
    /// Field lines of a head.
    pub fields: usize,
    /// Bytes of a request target.
    pub target_bytes: usize,
    /// Bytes of one chunk-size line: the size and its extensions.
    pub chunk_line_bytes: usize,
    /// Bytes of all chunk extensions of one message.
    pub chunk_extension_total_bytes: usize,
    /// Bytes of a trailer section, with its closing empty line.
    pub trailer_bytes: usize,
    /// Field lines of a trailer section.
    pub trailer_fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 64 * 1024,
            fields: 128,
            target_bytes: 16 * 1024,
            chunk_line_bytes: 256,
            chunk_extension_total_bytes: 16 * 1024,
            trailer_bytes: 16 * 1024,
            trailer_fields: 64,
        }
    }
}

/// The version a message names. Everything but these two is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

/// How the end of a body is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    /// There is no body and no field announces one.
    None,
    /// `content-length`; 0 is written explicitly.
    Fixed(u64),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// The body of a response ends with its connection.
    UntilClose,
}

/// What looking for a message came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parsed<T> {
    /// A head; its first `consumed` input bytes are spent.
    Complete { message: T, consumed: usize },
    /// The head has not ended yet. Nothing is consumed: call again with the same bytes and more.
    Partial,
}
