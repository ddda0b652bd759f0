//! Writing heads and chunks.
//!
//! Names, values and targets were checked when they entered a head: by the parsers here, or by
//! [`check_request`](super::check_request) and its like for other heads. Debug builds check again
//! for bytes that would end a line or a word. The writers decide the framing fields and the
//! `connection` field, and skip such lines among a head's fields.

use super::syntax::{is_field_value, is_forbidden_trailer, is_token};
use super::{BodyLength, ResponseContext, Version};
use crate::{Fields, Method, RequestHead, ResponseHead};

/// The interim response that lets a client send its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What is to become of the connection behind a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Connection<'a> {
    /// It carries the next message.
    #[default]
    KeepAlive,
    Close,
    /// It changes to this protocol (the value of the `upgrade` field), now or if the peer agrees.
    Upgrade(&'a [u8]),
}

/// How a target is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TargetForm {
    /// `/path`, to the server itself.
    #[default]
    Origin,
    /// `scheme://authority/path`, to a proxy; `http` if the head names no scheme.
    Absolute,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestOptions<'a> {
    pub connection: Connection<'a>,
    pub target_form: TargetForm,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponseOptions<'a> {
    pub connection: Connection<'a>,
    /// The version of the request that is answered.
    pub peer: Version,
    /// The request that is answered.
    pub context: ResponseContext,
    /// `content-length` of a response without body that may have one: to HEAD, or a 304.
    pub declared_length: Option<u64>,
}

/// Appends a request head, in HTTP/1.1, and returns how its body must be sent: `body`, but
/// `Chunked` for `UntilClose`, which no request can have, and `None` for CONNECT.
pub fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    body: BodyLength,
    options: &RequestOptions<'_>,
) -> BodyLength {
    let body = match body {
        _ if head.method == Method::Connect => BodyLength::None,
        BodyLength::UntilClose => BodyLength::Chunked,
        BodyLength::None | BodyLength::Fixed(_) | BodyLength::Chunked => body,
    };
    out.extend_from_slice(head.method.as_bytes());
    out.push(b' ');
    write_target(out, head, options.target_form);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_field(out, b"host", &head.authority);
    let has_te = write_fields(out, &head.fields, |name| name == b"host");
    write_framing(out, body);
    write_connection(out, options.connection, Version::Http11, has_te);
    out.extend_from_slice(b"\r\n");
    body
}

/// Appends a response head, in HTTP/1.1, and returns how its body must be sent.
///
/// The result is `None` if the status or the request allows no body. Otherwise it is `body`, but
/// `UntilClose` for `Chunked` to an HTTP/1.0 peer, and `Fixed(0)` for `None`, since the peer would
/// wait for the connection to end. `UntilClose` closes the connection with any options.
pub fn write_response(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    body: BodyLength,
    options: &ResponseOptions<'_>,
) -> BodyLength {
    let body = response_body(head.status, body, options);
    write_status_line(out, head.status);
    write_fields(out, &head.fields, |_| false);
    match options.declared_length {
        Some(length) if is_bodiless_by_request(head.status, options.context) => {
            write_framing(out, BodyLength::Fixed(length));
        }
        Some(_) | None => write_framing(out, body),
    }
    let connection =
        if body == BodyLength::UntilClose { Connection::Close } else { options.connection };
    write_connection(out, connection, options.peer, false);
    out.extend_from_slice(b"\r\n");
    body
}

/// Appends one chunk with `data`; nothing if it is empty, as that would end the body.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    write_hexadecimal(out, data.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body, with the trailers that
/// [may be there](super::syntax::is_forbidden_trailer).
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: Option<&Fields>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers.iter().flat_map(|trailers| trailers.iter()) {
        if !is_forbidden_trailer(field.name) {
            write_field(out, field.name, field.value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn response_body(status: u16, body: BodyLength, options: &ResponseOptions<'_>) -> BodyLength {
    let never = matches!(status, 100..=199 | 204)
        || (options.context.request_was_connect && matches!(status, 200..=299));
    if never || is_bodiless_by_request(status, options.context) {
        return BodyLength::None;
    }
    match body {
        BodyLength::None => BodyLength::Fixed(0),
        BodyLength::Chunked if options.peer == Version::Http10 => BodyLength::UntilClose,
        BodyLength::Fixed(_) | BodyLength::Chunked | BodyLength::UntilClose => body,
    }
}

/// Whether there is no body although `content-length` may give the length it would have.
fn is_bodiless_by_request(status: u16, context: ResponseContext) -> bool {
    status == 304 || (context.request_was_head && status >= 200 && status != 204)
}

fn write_target(out: &mut Vec<u8>, head: &RequestHead, form: TargetForm) {
    if head.method == Method::Connect {
        debug_assert!(is_word(&head.authority), "authority not judged");
        out.extend_from_slice(&head.authority);
        return;
    }
    debug_assert!(is_word(&head.path), "path not judged");
    if form == TargetForm::Absolute {
        let scheme: &[u8] = if head.scheme.is_empty() { b"http" } else { &head.scheme };
        out.extend_from_slice(scheme);
        out.extend_from_slice(b"://");
        out.extend_from_slice(&head.authority);
        if head.path == b"*" {
            return;
        }
    }
    out.extend_from_slice(&head.path);
}

fn is_word(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)
}

fn write_status_line(out: &mut Vec<u8>, status: u16) {
    debug_assert!((100..=999).contains(&status), "status {status}");
    out.extend_from_slice(b"HTTP/1.1 ");
    write_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes all fields but those that the writers decide and those that `skip` names; returns whether
/// `te` was among them.
fn write_fields(out: &mut Vec<u8>, fields: &Fields, skip: impl Fn(&[u8]) -> bool) -> bool {
    let mut has_te = false;
    for field in fields.iter() {
        match field.name {
            b"content-length" | b"transfer-encoding" | b"connection" | b"upgrade" => continue,
            b"te" => has_te = true,
            name if skip(name) => continue,
            _ => {}
        }
        write_field(out, field.name, field.value);
    }
    has_te
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    debug_assert!(is_token(name), "field name not judged: {}", name.escape_ascii());
    debug_assert!(is_field_value(value), "field value of {} not judged", name.escape_ascii());
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn write_framing(out: &mut Vec<u8>, body: BodyLength) {
    match body {
        BodyLength::None | BodyLength::UntilClose => {}
        BodyLength::Fixed(length) => {
            out.extend_from_slice(b"content-length: ");
            write_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        BodyLength::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// `te` is an option of its own: a recipient that forwards must remove it.
fn write_connection(out: &mut Vec<u8>, connection: Connection<'_>, peer: Version, has_te: bool) {
    let option: &[u8] = match connection {
        Connection::KeepAlive if peer == Version::Http11 => b"",
        Connection::KeepAlive => b"keep-alive",
        Connection::Close => b"close",
        Connection::Upgrade(protocol) => {
            write_field(out, b"upgrade", protocol);
            b"upgrade"
        }
    };
    match (option, has_te) {
        (b"", false) => {}
        (b"", true) => write_field(out, b"connection", b"te"),
        (option, false) => write_field(out, b"connection", option),
        (option, true) => write_field(out, b"connection", &[option, b", te"].concat()),
    }
}

fn write_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

fn write_hexadecimal(out: &mut Vec<u8>, number: usize) {
    let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[number >> (4 * place) & 0xf]);
    }
}

/// Registered phrases; other statuses have none, which RFC 9112 section 4 allows.
fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        511 => "Network Authentication Required",
        _ => "",
    }
}
