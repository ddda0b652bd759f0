//! What every stream of a run carries, prepared once before it.

use tollway_http::h1::BodyLength;
use tollway_http::{Fields, Method, RequestHead, Scheme};

use crate::clients::request::{Opening, opening};
use crate::clients::varied::Varied;
use crate::error::LoadError;
use crate::options::{GrpcRequest, HttpRequest, Target, header};
use tollway_echo::frames::frame;

/// Metadata that the client or HTTP/2 decides.
const RESERVED: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "grpc-status",
    "keep-alive",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Largest message that is sent.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// A request, ready to be sent any number of times, and what its answer must be.
pub(crate) struct Prepared {
    pub(super) head: RequestHead,
    pub(super) content_length: Option<u64>,
    /// The body; of gRPC, the message behind its prefix.
    pub(super) body: Vec<u8>,
    /// Whether the answer's body must be the one that was sent.
    pub(super) verify_echo: bool,
    pub(super) kind: Kind,
    /// What differs in the head's path from call to call.
    varied: Option<Varied>,
    /// Bodies that are sent one after the other, all as long as `body`, and which one is next.
    in_turn: Vec<Vec<u8>>,
    next: usize,
}

/// By which rules an answer is a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Its status is 2xx.
    Http,
    /// It carries one message, and a trailer has `grpc-status: 0`.
    GrpcUnary,
}

impl Prepared {
    pub(crate) fn http(target: &Target, request: &HttpRequest) -> Result<Self, LoadError> {
        let Opening { head, length, varied } = opening(target, request)?;
        let content_length = match length {
            BodyLength::Fixed(bytes) => Some(bytes),
            BodyLength::None | BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        Ok(Self {
            head,
            content_length,
            body: request.body.clone(),
            verify_echo: request.verify_echo,
            kind: Kind::Http,
            varied,
            in_turn: Vec::new(),
            next: 0,
        })
    }

    /// Makes head and body those of the next call.
    pub(super) fn advance(&mut self) {
        if let Some(varied) = &mut self.varied {
            varied.advance(&mut self.head.path);
        }
        if let Some(body) = self.in_turn.get(self.next) {
            self.body.copy_from_slice(body);
            self.next = (self.next + 1) % self.in_turn.len();
        }
    }

    /// The head alone, for calls whose bodies are something else.
    pub(crate) fn into_head(self) -> RequestHead {
        self.head
    }

    pub(crate) fn grpc(target: &Target, request: &GrpcRequest) -> Result<Self, LoadError> {
        if request.message.len() > MAX_MESSAGE_BYTES {
            return Err(LoadError::Bounds {
                name: "the message's size in bytes",
                given: request.message.len() as u64,
                least: 0,
                most: MAX_MESSAGE_BYTES as u64,
            });
        }
        let messages = request.in_turn.first().unwrap_or(&request.message);
        if request.in_turn.iter().any(|message| message.len() != messages.len()) {
            return Err(LoadError::UnlikeMessages);
        }
        let mut head = RequestHead {
            method: Method::Post,
            scheme: Scheme::Borrowed(if target.tls { b"https" } else { b"http" }),
            authority: target.authority.clone().into_bytes(),
            path: target.path.clone().into_bytes(),
            fields: Fields::new(),
            protocol: None,
        };
        head.fields.push(b"te", b"trailers");
        head.fields.push(b"content-type", b"application/grpc");
        head.fields.push(b"user-agent", b"tollway-load");
        for (name, value) in &request.metadata {
            let (name, value) = header(&format!("{name}: {value}"))?;
            if RESERVED.contains(&name.as_str()) {
                return Err(LoadError::ReservedHeader(name));
            }
            if name == "host" {
                head.authority = value.into_bytes();
            } else {
                head.fields.push(name.as_bytes(), value.as_bytes());
            }
        }
        Ok(Self {
            head,
            content_length: None,
            body: frame(messages),
            verify_echo: request.verify_echo,
            kind: Kind::GrpcUnary,
            varied: None,
            in_turn: request.in_turn.iter().map(|message| frame(message)).collect(),
            next: 0,
        })
    }
}
