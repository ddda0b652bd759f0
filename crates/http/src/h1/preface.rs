//! Telling HTTP/2 with prior knowledge from HTTP/1 by the first bytes of a connection.

/// The client connection preface of RFC 9113 section 3.4.
pub const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether a connection that begins with `input` is HTTP/2; `None` while it can be either.
#[must_use]
pub fn looks_like_http2(input: &[u8]) -> Option<bool> {
    let seen = input.len().min(HTTP2_PREFACE.len());
    if input[..seen] != HTTP2_PREFACE[..seen] {
        return Some(false);
    }
    (seen == HTTP2_PREFACE.len()).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_known_once_it_is_whole_and_refuted_at_the_first_other_byte() {
        assert_eq!(looks_like_http2(b""), None);
        for end in 1..HTTP2_PREFACE.len() {
            assert_eq!(looks_like_http2(&HTTP2_PREFACE[..end]), None);
        }
        assert_eq!(looks_like_http2(HTTP2_PREFACE), Some(true));
        assert_eq!(looks_like_http2(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0"), Some(true));
        assert_eq!(looks_like_http2(b"P"), None);
        assert_eq!(looks_like_http2(b"PO"), Some(false));
        assert_eq!(looks_like_http2(b"GET / HTTP/1.1\r\n"), Some(false));
        assert_eq!(looks_like_http2(b"PRI * HTTP/2.0\r\n\r\nSX"), Some(false));
    }
}
