//! Response heads, and what status and request make of their framing (RFC 9112 section 6.3).

use super::fields::{HeadFields, Lines};
use super::framing::{Declared, OfResponse};
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
    if head.is_plain {
        return read_lines(lines, head, context);
    }
    read_lines(&unfold(lines)?, head, context)
}

/// Lines that continue others become parts of these (RFC 9112 section 5.2).
///
/// # Errors
/// [`Refusal::FoldedLine`] where there is no field to continue.
fn unfold(lines: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut unfolded = lines.to_vec();
    let mut is_status_line = true;
    for end in memchr::memchr_iter(b'\n', lines) {
        if matches!(lines.get(end + 1), Some(b' ' | b'\t')) {
            if is_status_line {
                return Err(Refusal::FoldedLine { line: 2 });
            }
            unfolded[end] = b' ';
            if lines[..end].ends_with(b"\r") {
                unfolded[end - 1] = b' ';
            }
        }
        is_status_line = false;
    }
    Ok(unfolded)
}

fn read_lines(lines: &[u8], head: &Head, context: ResponseContext) -> Result<Response, Refusal> {
    let mut lines = Lines::new(lines);
    let (_, first) = lines.next().ok_or(Refusal::StatusLine)?;
    let (version, status) = read_status_line(first)?;
    let fields = HeadFields::of_response(lines, head.fields)?;
    let OfResponse { declared, is_doubtful } = fields.framing.declared_of_response(version)?;
    let framed = Framed::decide(status, context, declared)?;
    Ok(Response {
        head: ResponseHead { status, fields: fields.fields },
        version,
        body: framed.body,
        keep_alive: framed.reusable && !is_doubtful && fields.connection.persist(version),
        upgrade: status == 101 || framed.is_tunnel,
        declared_length: framed.declared_length,
    })
}

/// The reason phrase is judged and dropped; it and the space before it may be missing, and there may be
/// more than one space before the status, as many servers have it.
fn read_status_line(line: &[u8]) -> Result<(Version, u16), Refusal> {
    let (version, rest) = line.split_first_chunk::<8>().ok_or(Refusal::StatusLine)?;
    let version = read_version_of_response(version)?;
    let [b' ', digits @ ..] = rest else { return Err(Refusal::StatusLine) };
    let digits = match digits {
        [b' ', ..] => trim_spaces(digits),
        _ => digits,
    };
    let (digits, reason) = digits.split_first_chunk::<3>().ok_or(Refusal::StatusLine)?;
    let reason_is_good = reason.first().is_none_or(|&byte| byte == b' ') && is_field_value(reason);
    if digits[0] == b'0' || !digits.iter().all(u8::is_ascii_digit) || !reason_is_good {
        return Err(Refusal::StatusLine);
    }
    let status = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    Ok((version, status))
}

fn trim_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().take_while(|byte| **byte == b' ').count();
    &bytes[spaces..]
}

/// Servers name the version of another program's answer, or a later one, and then write HTTP/1.1. What
/// is later than that counts as HTTP/1.1.
fn read_version_of_response(version: &[u8; 8]) -> Result<Version, Refusal> {
    match read_version(version) {
        Err(Refusal::UnsupportedVersion) if version[5] != b'0' => Ok(Version::Http11),
        read => read,
    }
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
