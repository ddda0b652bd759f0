//! The requests of a plain connection out of the mesh, found in the bytes that an app sends, so that egress
//! judges the host of each. The bytes are passed on as they are.

use tollway_http::h1;
use tollway_identity::{ServerNameRead, ServerNameReader};
use tollway_model::HostName;
use tollway_routing::Shown;

use crate::egress::ExternalHost;

/// Bytes of a request's head; a connection with a longer one is refused.
pub(super) const EXTERNAL_HEAD_BYTES: usize = 32 << 10;
/// A request line that is longer shows nothing.
const REQUEST_LINE_BYTES: usize = 8 << 10;

/// Where a connection is in its requests.
#[derive(Debug)]
pub(super) struct Requests {
    next: Next,
    scanner: h1::HeadScanner,
    /// The last request asked to leave HTTP: what follows it may be of another protocol.
    may_leave: bool,
}

/// What the next byte is.
#[derive(Debug)]
enum Next {
    Head,
    Body(Box<h1::BodyDecoder>),
    /// Of another protocol, and so is all that follows.
    Other,
}

/// What bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The first ones belong to what has been judged.
    Judged(usize),
    /// The head of a request, so many of them.
    Request(usize, Shown),
    /// More have to come.
    NotYet,
    /// Neither a request nor what may follow one.
    Broken,
}

impl Requests {
    /// Of a connection whose first byte is of a request.
    pub(super) fn new() -> Self {
        Self { next: Next::Head, scanner: h1::HeadScanner::new(), may_leave: false }
    }

    /// What `bytes` begin with: those behind what was found before, and more that have come since.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Found {
        if bytes.is_empty() {
            return Found::NotYet;
        }
        match &mut self.next {
            Next::Other => Found::Judged(bytes.len()),
            Next::Body(body) => {
                let Ok(step) = body.decode(bytes) else { return Found::Broken };
                if body.is_finished() {
                    self.next = Next::Head;
                }
                if step.consumed == 0 { Found::NotYet } else { Found::Judged(step.consumed) }
            }
            Next::Head => {
                let line = without_line_ends(bytes);
                if line.is_empty() || may_be_http1(line) {
                    return self.find_head(bytes);
                }
                if !self.may_leave {
                    return Found::Broken;
                }
                self.next = Next::Other;
                Found::Judged(bytes.len())
            }
        }
    }

    fn find_head(&mut self, bytes: &[u8]) -> Found {
        let limits = h1::Limits { head_bytes: EXTERNAL_HEAD_BYTES, ..h1::Limits::default() };
        match h1::parse_request(bytes, &limits, &mut self.scanner) {
            Ok(h1::Parsed::Partial) => Found::NotYet,
            Ok(h1::Parsed::Complete { message, consumed }) => {
                self.may_leave = message.upgrade || message.offers_h2c;
                self.scanner = h1::HeadScanner::new();
                let body = h1::BodyDecoder::new(message.body, &limits);
                if !body.is_finished() {
                    self.next = Next::Body(Box::new(body));
                }
                Found::Request(consumed, host_of(&message.head.authority))
            }
            Err(_) => Found::Broken,
        }
    }
}

/// The host that the authority of a request names.
fn host_of(authority: &[u8]) -> Shown {
    let authority = String::from_utf8_lossy(authority);
    match ExternalHost::read(&authority, tollway_model::egress::PLAIN_PORT) {
        Some(ExternalHost::Name(name, _)) => Shown::Host(name),
        Some(ExternalHost::Address(_)) | None => Shown::Nothing,
    }
}

/// What the first bytes of a connection are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    /// Requests whose hosts are seen.
    Http1,
    Http2,
    Other,
}

/// The host that first bytes name, and their protocol.
pub(super) fn show(bytes: &[u8]) -> (Shown, Protocol) {
    let Some(first) = bytes.first() else { return (Shown::NotYet, Protocol::Other) };
    if *first == TLS_HANDSHAKE {
        let named = |name: &str| HostName::read(name).map_or(Shown::Nothing, Shown::Host);
        let shown = match ServerNameReader::default().take(bytes) {
            ServerNameRead::Partial => Shown::NotYet,
            ServerNameRead::Named(name) => named(&name),
            ServerNameRead::Unnamed | ServerNameRead::NotTls => Shown::Nothing,
        };
        return (shown, Protocol::Other);
    }
    match h1::looks_like_http2(bytes) {
        Some(true) => return (Shown::Nothing, Protocol::Http2),
        None => return (Shown::NotYet, Protocol::Other),
        Some(false) => {}
    }
    if !may_be_http1(bytes) {
        return (Shown::Nothing, Protocol::Other);
    }
    match Requests::new().find(bytes) {
        Found::Request(_, shown) => (shown, Protocol::Http1),
        Found::NotYet => (Shown::NotYet, Protocol::Other),
        Found::Judged(_) | Found::Broken => (Shown::Nothing, Protocol::Other),
    }
}

/// The first byte of a record of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Bytes without the empty lines that a server may pass over.
fn without_line_ends(bytes: &[u8]) -> &[u8] {
    let from = bytes.iter().position(|byte| !b"\r\n".contains(byte));
    from.map_or(&bytes[..0], |from| &bytes[from..])
}

/// Whether bytes may begin a request: the first line is one, as far as it has come. What waits for the
/// server's answer to a line of another protocol must not wait here.
fn may_be_http1(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    if method == 0 || bytes.get(method).is_some_and(|byte| *byte != b' ') {
        return false;
    }
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
            line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0")
        }
        None => bytes.len() <= REQUEST_LINE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_name_a_host_or_none() {
        let of = |bytes: &[u8]| match show(bytes) {
            (Shown::NotYet, _) => "more".to_owned(),
            (Shown::Nothing, Protocol::Http2) => "h2".to_owned(),
            (Shown::Nothing, Protocol::Http1) => "a request for nothing".to_owned(),
            (Shown::Nothing, Protocol::Other) => "nothing".to_owned(),
            (Shown::Host(name), _) => name.to_string(),
        };
        assert_eq!(of(b""), "more");
        assert_eq!(of(b"GET / HTTP/1.1\r\nHost: API.example:8080\r\n\r\n"), "api.example");
        assert_eq!(of(b"GET http://b.example/ HTTP/1.1\r\nhost: b.example\r\n\r\n"), "b.example");
        assert_eq!(of(b"GET / HTTP/1.1\r\nHost: api.ex"), "more");
        assert_eq!(of(b"GET / HTTP/1.1\r\nHost: 192.0.2.7\r\n\r\n"), "a request for nothing");
        assert_eq!(of(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), "nothing");
        assert_eq!(of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "h2");
        assert_eq!(of(b"PRI * HT"), "more");
        // Lines of protocols in which the server answers before the next one.
        for line in
            [&b"EHLO a.example\r\n"[..], b"USER me\r\n", b"PING\r\n", b"\0\0\0\x08\x04", b"*1\r\n"]
        {
            assert_eq!(of(line), "nothing", "{}", line.escape_ascii());
        }
        assert_eq!(of(&[b"GET /", &[b'a'; REQUEST_LINE_BYTES][..]].concat()), "nothing");
        assert_eq!(of(b"\x16\x03\x01\x00"), "more");
        assert_eq!(of(b"\x16nothing of TLS"), "nothing");
    }

    /// What is found in bytes that come in pieces of so many.
    fn found(bytes: &[u8], piece: usize) -> Vec<String> {
        let (mut requests, mut all) = (Requests::new(), Vec::new());
        let (mut from, mut to) = (0, 0);
        while to < bytes.len() {
            to = (to + piece).min(bytes.len());
            loop {
                match requests.find(&bytes[from..to]) {
                    Found::NotYet => break,
                    Found::Judged(count) => from += count,
                    Found::Request(count, shown) => {
                        from += count;
                        all.push(match shown {
                            Shown::Host(name) => name.to_string(),
                            Shown::Nothing | Shown::NotYet => "nothing".to_owned(),
                        });
                    }
                    Found::Broken => {
                        all.push("broken".to_owned());
                        return all;
                    }
                }
            }
        }
        if from < bytes.len() {
            all.push("more".to_owned());
        }
        all
    }

    #[test]
    fn each_request_of_a_connection_is_found_however_its_bytes_come() {
        // Bodies that look like requests are none.
        let body = "GET / HTTP/1.1\r\nhost: x\r\n";
        let count = body.len();
        let length =
            format!("POST / HTTP/1.1\r\nhost: a.example\r\ncontent-length: {count}\r\n\r\n");
        let chunked = "POST / HTTP/1.1\r\nhost: b.example\r\ntransfer-encoding: chunked\r\n\r\n";
        let last = "GET http://c.example:8080/ HTTP/1.1\r\nhost: c.example:8080\r\n\r\n";
        let chunks = "3\r\nGET\r\n0\r\nt: GET / HTTP/1.1\r\n\r\n";
        let text = format!("{length}{body}{chunked}{chunks}\r\n{last}");
        for piece in [1, 2, 7, 64, text.len()] {
            let expected = ["a.example", "b.example", "c.example"];
            assert_eq!(found(text.as_bytes(), piece), expected, "{piece}");
        }
        assert_eq!(found(&text.as_bytes()[..text.len() - 2], 9)[2..], ["more"]);
    }

    #[test]
    fn only_what_asks_to_leave_http_leaves_it() {
        let plain = "GET / HTTP/1.1\r\nhost: a.example\r\n\r\n";
        let upgrade = "GET / HTTP/1.1\r\nhost: a.example\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        let other = "GET / HTTP/1.1\r\nhost: b.example\r\n\r\n";
        for piece in [1, 1000] {
            let found = |parts: &[&str]| found(parts.concat().as_bytes(), piece);
            assert_eq!(found(&[plain, "\u{81}\u{5}hello"]), ["a.example", "broken"]);
            assert_eq!(found(&[upgrade, "\u{81}\u{5}hello", other]), ["a.example"]);
            // The server may have stayed.
            assert_eq!(found(&[upgrade, other, other]), ["a.example", "b.example", "b.example"]);
            assert_eq!(found(&[upgrade, "\r\n", other]), ["a.example", "b.example"]);
        }
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(EXTERNAL_HEAD_BYTES));
        assert_eq!(found(long.as_bytes(), 4096), ["broken"]);
    }
}
