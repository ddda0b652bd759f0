//! What a request asks of the echo server; the same over HTTP/1.1 and HTTP/2.

use std::fmt::Write as _;
use std::time::Duration;

use tollway_http::RequestHead;

/// Path of the unary call.
pub const UNARY_PATH: &str = "/tollway.lab.v1.Echo/Unary";

/// Longest delay that is granted.
const MAX_DELAY_US: u64 = 3_600_000_000;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send the body back as it comes, with its trailers.
    Echo,
    /// Send this many bytes.
    Size(u64),
    /// Answer with this status and no body.
    Status(u16),
    /// Answer 200 after a while.
    Delay(Duration),
    /// Send the request's head as text.
    Headers,
    /// Close the connection without an answer.
    Close,
    Grpc(Rpc),
    /// Answer with this status and say why.
    Refuse(u16, &'static str),
}

impl Action {
    /// Whether the window of a request's body is given back as the answer is sent.
    pub(super) fn gives_window_back(self) -> bool {
        match self {
            Self::Echo | Self::Grpc(Rpc::Unary | Rpc::BidiStream) => true,
            Self::Grpc(Rpc::ServerStream | Rpc::ClientStream | Rpc::Push | Rpc::Unknown)
            | Self::Size(_)
            | Self::Status(_)
            | Self::Delay(_)
            | Self::Headers
            | Self::Close
            | Self::Refuse(..) => false,
        }
    }
}

/// A gRPC method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rpc {
    Unary,
    ServerStream,
    ClientStream,
    BidiStream,
    Push,
    Unknown,
}

/// Decides by path and, for gRPC, by content type.
pub(super) fn decide(head: &RequestHead) -> Action {
    let is_grpc = head
        .fields
        .value(b"content-type")
        .is_some_and(|kind| kind.starts_with(b"application/grpc"));
    if is_grpc {
        return Action::Grpc(rpc(&head.path));
    }
    let (path, query) = split_query(&head.path);
    match path {
        b"/echo" => Action::Echo,
        b"/size" => match number(query, b"bytes") {
            Some(bytes) => Action::Size(bytes),
            None => Action::Refuse(400, "say how much: /size?bytes=N\n"),
        },
        b"/delay" => match delay(query) {
            Some(delay) => Action::Delay(delay),
            None => Action::Refuse(400, "say how long: /delay?ms=N or /delay?us=N\n"),
        },
        b"/headers" => Action::Headers,
        b"/close" => Action::Close,
        b"/" | b"/healthz" => Action::Status(200),
        _ => match path.strip_prefix(b"/status/").and_then(decimal) {
            Some(status @ 200..=599) => Action::Status(u16::try_from(status).unwrap_or(500)),
            Some(_) => Action::Refuse(400, "a final status is 200 to 599\n"),
            None => Action::Refuse(
                404,
                "here are /echo /size?bytes=N /delay?ms=N /status/NNN /headers /close\n",
            ),
        },
    }
}

fn rpc(path: &[u8]) -> Rpc {
    match path {
        b"/tollway.lab.v1.Echo/Unary" => Rpc::Unary,
        b"/tollway.lab.v1.Echo/ServerStream" => Rpc::ServerStream,
        b"/tollway.lab.v1.Echo/ClientStream" => Rpc::ClientStream,
        b"/tollway.lab.v1.Echo/BidiStream" => Rpc::BidiStream,
        b"/tollway.lab.v1.Echo/Push" => Rpc::Push,
        _ => Rpc::Unknown,
    }
}

fn delay(query: &[u8]) -> Option<Duration> {
    let us = match number(query, b"ms") {
        Some(ms) => ms.checked_mul(1000)?,
        None => number(query, b"us")?,
    };
    (us <= MAX_DELAY_US).then(|| Duration::from_micros(us))
}

fn split_query(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().position(|byte| *byte == b'?') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, b""),
    }
}

/// The number that `query` gives `name`.
fn number(query: &[u8], name: &[u8]) -> Option<u64> {
    query
        .split(|byte| *byte == b'&')
        .filter_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"="))
        .find_map(decimal)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if all_digits { str::from_utf8(digits).ok()?.parse().ok() } else { None }
}

/// A request's head as lines of text: what arrived here, after all proxies.
pub(super) fn describe(head: &RequestHead) -> Vec<u8> {
    let mut text = String::new();
    let lossy = String::from_utf8_lossy;
    // Writing into a string does not fail.
    let _ = writeln!(text, ":method: {}", lossy(head.method.as_bytes()));
    let _ = writeln!(text, ":authority: {}", lossy(&head.authority));
    let _ = writeln!(text, ":path: {}", lossy(&head.path));
    for field in head.fields.iter() {
        let _ = writeln!(text, "{}: {}", lossy(field.name), lossy(field.value));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_actions() {
        for (path, action) in [
            ("/echo", Action::Echo),
            ("/echo?x", Action::Echo),
            ("/size?bytes=10", Action::Size(10)),
            ("/size?a=1&bytes=7", Action::Size(7)),
            ("/status/503", Action::Status(503)),
            ("/delay?ms=2", Action::Delay(Duration::from_millis(2))),
            ("/delay?us=500", Action::Delay(Duration::from_micros(500))),
            ("/headers", Action::Headers),
            ("/close", Action::Close),
        ] {
            assert_eq!(decide(&head(path, None)), action, "{path}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (path, status) in [
            ("/size", 400),
            ("/size?bytes=-1", 400),
            ("/size?bytes=99999999999999999999999", 400),
            ("/delay?ms=99999999999999", 400),
            ("/status/101", 400),
            ("/status/9999999", 400),
            ("/status/abc", 404),
            ("/else", 404),
        ] {
            assert!(
                matches!(decide(&head(path, None)), Action::Refuse(given, _) if given == status),
                "{path}"
            );
        }
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        let kind = Some("application/grpc+proto");
        assert_eq!(decide(&head(UNARY_PATH, kind)), Action::Grpc(Rpc::Unary));
        assert_eq!(decide(&head("/a.B/C", kind)), Action::Grpc(Rpc::Unknown));
        assert!(matches!(decide(&head(UNARY_PATH, None)), Action::Refuse(404, _)));
    }

    fn head(path: &str, content_type: Option<&str>) -> RequestHead {
        let mut head = RequestHead { path: path.as_bytes().to_vec(), ..RequestHead::default() };
        if let Some(kind) = content_type {
            head.fields.push(b"content-type", kind.as_bytes());
        }
        head
    }
}
