//! Request heads: the request line, then what the fields make of it.

use memchr::{memchr, memrchr};

use super::fields::{HeadFields, Lines};
use super::framing::Declared;
use super::scan::{Head, Role};
use super::syntax::is_token;
use super::target::resolve;
use super::{BodyLength, HeadScanner, Limits, Parsed, Refusal, Version};
use crate::head::scheme_of;
use crate::{Method, RequestHead};

/// The longest method. None in the IANA registry is longer than 17 bytes.
pub(super) const METHOD_BYTES_MAX: usize = 32;

/// A request head and what it means for its connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Still with its hop-by-hop fields: [`strip_hop_by_hop`](super::strip_hop_by_hop) comes first
    /// when it is forwarded.
    pub head: Box<RequestHead>,
    pub version: Version,
    /// Never `UntilClose`.
    pub body: BodyLength,
    /// The client means to send another request on this connection. (A forward proxy need not
    /// believe an HTTP/1.0 client: RFC 9112 section 9.3.)
    pub keep_alive: bool,
    /// The client waits for a `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// The client asks to leave HTTP: CONNECT, or `connection: upgrade` with an `upgrade` field
    /// (never `h2c`, which is treated as not offered). What follows the body must not be read as a
    /// request until the final response shows whether the connection has become a tunnel.
    pub upgrade: bool,
    /// The client offers to go on as HTTP/2 (`connection: upgrade` with `upgrade: h2c`). Only what
    /// serves the requests itself may accept that.
    pub offers_h2c: bool,
}

/// Parses the request head that `input` begins with.
///
/// One empty line before it is skipped. The refusals are those of the whole head; line ends and
/// limits are judged as the bytes come in, everything else when the head is complete.
pub fn parse_request(
    input: &[u8],
    limits: &Limits,
    scanner: &mut HeadScanner,
) -> Result<Parsed<Request>, Refusal> {
    parse_request_into(input, limits, scanner, Box::default)
}

/// As [`parse_request`], into a head that is not needed any more and whose memory is used; `spare` is
/// called once the head is complete.
pub fn parse_request_into(
    input: &[u8],
    limits: &Limits,
    scanner: &mut HeadScanner,
    spare: impl FnOnce() -> Box<RequestHead>,
) -> Result<Parsed<Request>, Refusal> {
    match scanner.find(input, Role::Request, limits)? {
        Some(head) => {
            let message = read_request(&input[head.lines.clone()], &head, limits, spare())?;
            Ok(Parsed::Complete { message, consumed: head.end })
        }
        None => Ok(Parsed::Partial),
    }
}

fn read_request(
    lines: &[u8],
    head: &Head,
    limits: &Limits,
    mut spare: Box<RequestHead>,
) -> Result<Request, Refusal> {
    spare.clear();
    let mut lines = Lines::new(lines);
    let (_, first) = lines.next().ok_or(Refusal::RequestLine)?;
    let line = RequestLine::read(first, limits)?;
    let room = std::mem::take(&mut spare.fields);
    let fields = HeadFields::of_request(lines, head.fields, room)?;
    let target = resolve(&line.method, line.target, fields.host, line.version, limits)?;
    let body = body_length(&line, &fields)?;

    let is_connect = line.method == Method::Connect;
    let is_current = line.version == Version::Http11;
    spare.scheme = scheme_of(target.scheme);
    spare.authority.extend_from_slice(target.authority);
    target.write_path(&mut spare.path);
    spare.method = line.method;
    spare.fields = fields.fields;
    Ok(Request {
        version: line.version,
        body,
        keep_alive: fields.connection.persist(line.version),
        expect_continue: is_current
            && fields.expects_continue
            && !matches!(body, BodyLength::None | BodyLength::Fixed(0)),
        offers_h2c: is_current
            && !is_connect
            && fields.connection.upgrade
            && fields.upgrade.offers_h2c(),
        upgrade: is_connect
            || (is_current && fields.connection.upgrade && fields.upgrade.is_acceptable()),
        head: spare,
    })
}

/// What follows the head of a CONNECT request is tunnel data, so it must not announce a body.
fn body_length(line: &RequestLine<'_>, fields: &HeadFields<'_>) -> Result<BodyLength, Refusal> {
    let declared = fields.framing.declared(line.version)?;
    if line.method == Method::Connect {
        return match declared {
            Declared::Nothing | Declared::Length(0) => Ok(BodyLength::None),
            Declared::Length(_) | Declared::Chunked => Err(Refusal::BodyOfConnect),
        };
    }
    Ok(match declared {
        Declared::Nothing => BodyLength::None,
        Declared::Length(length) => BodyLength::Fixed(length),
        Declared::Chunked => BodyLength::Chunked,
    })
}

struct RequestLine<'a> {
    method: Method,
    target: &'a [u8],
    version: Version,
}

impl<'a> RequestLine<'a> {
    fn read(line: &'a [u8], limits: &Limits) -> Result<Self, Refusal> {
        let first = memchr(b' ', line).ok_or(Refusal::RequestLine)?;
        let last = memrchr(b' ', line).ok_or(Refusal::RequestLine)?;
        let method = &line[..first];
        if last <= first + 1 || !is_token(method) {
            return Err(Refusal::RequestLine);
        }
        if method.len() > METHOD_BYTES_MAX {
            return Err(Refusal::MethodTooLong { limit: METHOD_BYTES_MAX });
        }
        let target = &line[first + 1..last];
        if target.len() > limits.target_bytes {
            return Err(Refusal::TargetTooLong { limit: limits.target_bytes });
        }
        let version = read_version(&line[last + 1..])?;
        Ok(Self { method: Method::from_token(method), target, version })
    }
}

/// `HTTP/1.0` or `HTTP/1.1`; the name is case-sensitive and both numbers are one digit.
pub(super) fn read_version(version: &[u8]) -> Result<Version, Refusal> {
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(Refusal::UnsupportedVersion)
        }
        _ => Err(Refusal::Version),
    }
}
