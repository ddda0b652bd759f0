//! A connection that begins as HTTP/1.1 and goes on as HTTP/2 (RFC 7540 section 3.2). RFC 9113 has withdrawn
//! this; clients offer it still.

use std::time::Duration;

use super::Config;
use super::connection::{Connection, Role};
use super::heads::note_method;
use super::settings::PeerSettings;
use super::stream::Stream;
use crate::RequestHead;

/// The stream of the request that has offered HTTP/2.
const FIRST: u32 = 1;

impl Connection {
    /// The server's side of a connection whose client has offered HTTP/2 with a request that has no body.
    /// The request is stream 1, of which nothing more comes; the client's preface is what comes next.
    /// Queues SETTINGS, which go out behind the answer 101. `settings` is the request's field
    /// `http2-settings`. `None`, and nothing queued, if that has no settings: the client is answered over
    /// HTTP/1.1.
    #[must_use]
    pub fn upgraded(
        config: Config,
        settings: &[u8],
        asked: &RequestHead,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<Self> {
        let payload = decode(settings).filter(|payload| payload.len().is_multiple_of(6))?;
        let peer = PeerSettings::first(&payload, false).ok()?;
        let mut connection = Self::new(Role::Server, config, out);
        connection.start(now);
        connection.apply_first(peer);
        let mut stream = Stream::new(peer.initial_window, connection.new_recv_window());
        stream.is_remote_open = false;
        note_method(&mut stream, asked);
        connection.streams.insert(FIRST, stream);
        connection.last_stream = FIRST;
        Some(connection)
    }

    /// The answer 101 acknowledges them, so no frame does.
    fn apply_first(&mut self, peer: PeerSettings) {
        self.has_applied_settings = true;
        self.encoder.set_peer_limit(peer.smallest_header_table_bytes as usize);
        self.encoder.set_peer_limit(peer.header_table_bytes as usize);
        self.peer = peer;
    }
}

/// Reads base64 for URLs (RFC 4648 section 5), without padding as a rule.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for symbol in text {
        let value = match symbol {
            b'A'..=b'Z' => symbol - b'A',
            b'a'..=b'z' => symbol - b'a' + 26,
            b'0'..=b'9' => symbol - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::frame::{PREFACE, kind};
    use super::super::{Event, StreamId};
    use super::*;
    use crate::{Method, ResponseHead};

    /// What Java's client sends: a window of 16 MiB among others.
    const SETTINGS: &[u8] = b"AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA";
    const NOW: Duration = Duration::from_secs(1);

    fn upgraded(settings: &[u8], out: &mut Vec<u8>) -> Option<Connection> {
        let asked = RequestHead { method: Method::Get, ..RequestHead::default() };
        Connection::upgraded(Config::default(), settings, &asked, NOW, out)
    }

    /// Kinds and streams of frames.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u32)> {
        let mut found = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            found.push((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])));
            bytes = &rest[length..];
        }
        found
    }

    #[test]
    fn the_request_that_offers_http_2_is_answered_as_its_first_stream() {
        let mut out = Vec::new();
        let mut server = upgraded(SETTINGS, &mut out).unwrap();
        assert_eq!(frames(&out)[0], (kind::SETTINGS, 0));
        assert!(frames(&out).iter().all(|(of, _)| *of != kind::HEADERS), "{out:?}");
        assert_eq!((server.active_streams(), server.peer.initial_window), (1, 16 << 20));
        out.clear();
        let first = StreamId(FIRST);
        server.send_response(first, &ResponseHead::new(204), Some(0), true, &mut out).unwrap();
        assert_eq!(frames(&out), [(kind::HEADERS, 1)]);
        assert_eq!(server.active_streams(), 0);
        // The client goes on with its preface, and other streams.
        let mut client_out = Vec::new();
        let mut client = Connection::client(Config::default(), &mut client_out);
        client.last_stream = FIRST;
        let asked = RequestHead { path: b"/x".into(), ..RequestHead::default() };
        client.send_request(&asked, None, true, &mut client_out).unwrap();
        let (mut events, mut out) = (Vec::new(), Vec::new());
        server.receive(&client_out, NOW, &mut events, &mut out).unwrap();
        let is_third = |event: &Event| matches!(event, Event::Request { stream: StreamId(3), .. });
        assert!(events.iter().any(is_third), "{events:?}");
    }

    #[test]
    fn what_does_not_go_on_as_http_2_ends_the_connection() {
        let mut server = upgraded(SETTINGS, &mut Vec::new()).unwrap();
        let deadline = server.deadline().unwrap();
        assert!(deadline > NOW, "{deadline:?}");
        let smuggled = b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(server.receive(smuggled, NOW, &mut Vec::new(), &mut Vec::new()).is_err());
        // The first stream is the client's no more.
        let mut server = upgraded(SETTINGS, &mut Vec::new()).unwrap();
        let mut bytes = PREFACE.to_vec();
        bytes.extend_from_slice(&[0, 0, 0, kind::SETTINGS, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&[0, 0, 1, kind::HEADERS, 5, 0, 0, 0, 1, 0x82]);
        let (mut events, mut out) = (Vec::new(), Vec::new());
        let _ = server.receive(&bytes, NOW, &mut events, &mut out);
        assert!(!events.iter().any(|event| matches!(event, Event::Request { .. })), "{events:?}");
    }

    #[test]
    fn a_field_that_has_no_settings_upgrades_nothing() {
        // Not of the alphabet, not whole, not of entries; a window that none can be.
        for bad in [&b"AAE AEAA"[..], b"AAEAA", b"AAEAAEA", b"AAT_____", b"A", b"AAEAAEA/"] {
            let mut out = Vec::new();
            assert!(upgraded(bad, &mut out).is_none(), "{}", String::from_utf8_lossy(bad));
            assert_eq!(out, b"");
        }
        for good in [&b""[..], SETTINGS, b"AAMAAABkAARAAAAAAAIAAAAA"] {
            assert!(upgraded(good, &mut Vec::new()).is_some());
        }
    }
}
