//! Response heads, and what status and request make of their framing (RFC 9112 section 6.3).

use super::fields::{HeadFields, Lines};
use super::framing::Declared;
use super::request::read_version;
use super::scan::{Head, Role};
use super::syntax::is_field_value;
use super::{BodyLength, HeadScanner, Limits, Parsed, Refusal, Version};
use crate::{Method, ResponseHead};

/// What a response's framing depends on besides itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponseContext {
    pub request_was_head: bool,
    pub request_was_connect: bool,
}

impl ResponseContext {
    /// The context of a response to a request with this method.
    #[must_use]
    pub fn of(method: &Method) -> Self {
        Self {
            request_was_head: *method == Method::Head,
            request_was_connect: *method == Method::Connect,
        }
    }
}

/// A response head and what it means for its connection.
///
/// Interim responses (1xx) are messages like any other; the caller counts and bounds them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Still with its hop-by-hop fields: [`strip_hop_by_hop`](super::strip_hop_by_hop) comes first
    /// when it is forwarded.
    pub head: ResponseHead,
    pub version: Version,
    pub body: BodyLength,
    /// The connection may carry another request once the body has ended. False as well where the
    /// server cannot be trusted to mean the same end: a 204 that announces a body.
    pub keep_alive: bool,
    /// From here on the connection is a tunnel: 101, or 2xx to CONNECT. The caller must treat a 101
    /// that answers no upgrade as a failure.
    pub upgrade: bool,
    /// `content-length` where it is only information: in a response to HEAD, and in a 304.
    pub declared_length: Option<u64>,
}

/// Parses the response head that `input` begins with; see [`parse_request`](super::parse_request).
pub fn parse_response(
    input: &[u8],
    context: ResponseContext,
    limits: &Limits,
    scanner: &mut HeadScanner,
) -> Result<Parsed<Response>, Refusal> {
    match scanner.find(input, Role::Response, limits)? {
        Some(head) => {
            let message = read_response(&input[head.lines.clone()], &head, context)?;
            Ok(Parsed::Complete { message, consumed: head.end })
        }
        None => Ok(Parsed::Partial),
    }
}

fn read_response(lines: &[u8], head: &Head, context: ResponseContext) -> Result<Response, Refusal> {
    let mut lines = Lines::new(lines);
    let (_, first) = lines.next().ok_or(Refusal::StatusLine)?;
    let (version, status) = read_status_line(first)?;
    let fields = HeadFields::of_response(lines, head.fields)?;
    let framed = Framed::decide(status, context, fields.framing.declared(version)?)?;
    Ok(Response {
        head: ResponseHead { status, fields: fields.fields },
        version,
        body: framed.body,
        keep_alive: framed.reusable && fields.connection.persist(version),
        upgrade: status == 101 || framed.is_tunnel,
        declared_length: framed.declared_length,
    })
}

/// The reason phrase is judged and dropped; it and the space before it may be missing, as many
/// servers have it.
fn read_status_line(line: &[u8]) -> Result<(Version, u16), Refusal> {
    let (version, rest) = line.split_first_chunk::<8>().ok_or(Refusal::StatusLine)?;
    let version = read_version(version)?;
    let [b' ', digits @ ..] = rest else { return Err(Refusal::StatusLine) };
    let (digits, reason) = digits.split_first_chunk::<3>().ok_or(Refusal::StatusLine)?;
    let reason_is_good = reason.first().is_none_or(|&byte| byte == b' ') && is_field_value(reason);
    if digits[0] == b'0' || !digits.iter().all(u8::is_ascii_digit) || !reason_is_good {
        return Err(Refusal::StatusLine);
    }
    let status = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    Ok((version, status))
}

/// Where a response ends.
struct Framed {
    body: BodyLength,
    reusable: bool,
    is_tunnel: bool,
    declared_length: Option<u64>,
}

impl Framed {
    fn decide(status: u16, context: ResponseContext, declared: Declared) -> Result<Self, Refusal> {
        let announces_body = !matches!(declared, Declared::Nothing | Declared::Length(0));
        let none = Self {
            body: BodyLength::None,
            reusable: true,
            is_tunnel: false,
            declared_length: None,
        };
        match status {
            // Its body would be read as the final response.
            100..=199 if announces_body => Err(Refusal::BodyOfInterim { status }),
            100..=199 => Ok(none),
            // Framing fields must be ignored here (RFC 9110 section 9.3.6).
            200..=299 if context.request_was_connect => Ok(Self { is_tunnel: true, ..none }),
            204 => Ok(Self { reusable: !announces_body, ..none }),
            _ if status == 304 || context.request_was_head => {
                Ok(Self { declared_length: declared.length(), ..none })
            }
            _ => Ok(Self::with_body(declared)),
        }
    }

    fn with_body(declared: Declared) -> Self {
        let body = match declared {
            Declared::Nothing => BodyLength::UntilClose,
            Declared::Length(length) => BodyLength::Fixed(length),
            Declared::Chunked => BodyLength::Chunked,
        };
        let reusable = body != BodyLength::UntilClose;
        Self { body, reusable, is_tunnel: false, declared_length: None }
    }
}

impl Declared {
    fn length(self) -> Option<u64> {
        match self {
            Self::Length(length) => Some(length),
            Self::Nothing | Self::Chunked => None,
        }
    }
}
