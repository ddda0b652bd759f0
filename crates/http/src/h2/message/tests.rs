//! Each rule of RFC 9113 section 8 with lines that keep and break it.

use super::*;
use crate::h1;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/a?b"), (":authority", "stock.mesh")];

#[test]
fn a_request_is_taken_apart() {
    let mut lines = GET.to_vec();
    lines.extend([("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("content-length", "5")]);
    let (head, length) = request(&lines).unwrap();
    assert_eq!(head.method, Method::Get);
    assert_eq!((&head.authority[..], &head.path[..]), (&b"stock.mesh"[..], &b"/a?b"[..]));
    assert_eq!(length, Some(5));
    assert_eq!(head.fields.value(b"cookie"), Some(&b"a=1; b=2"[..]));
    assert_eq!(head.fields.len(), 2);
}

#[test]
fn host_and_authority_name_one_place() {
    let authority = |lines: &[(&str, &str)]| request(lines).map(|(head, _)| head.authority);
    let both = |host| authority(&[&GET[..], &[("host", host)]].concat());
    assert_eq!(both("STOCK.mesh").unwrap(), b"stock.mesh");
    assert_eq!(both("other.mesh"), Err(Malformed));
    let alone = [&GET[..3], &[("host", "stock.mesh:80")]].concat();
    assert_eq!(authority(&alone).unwrap(), b"stock.mesh:80");
    assert_eq!(authority(&[&alone[..], &[("host", "stock.mesh:80")]].concat()), Err(Malformed));
    assert_eq!(authority(&GET[..3]).unwrap(), b"");
}

#[test]
fn malformed_requests_are_refused() {
    for extra in [
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("te", "trailers, deflate"),
        ("X-Upper", "1"),
        ("x y", "1"),
        ("x:y", "1"),
        ("", "1"),
        ("x", "a\r\nb: c"),
        ("x", "a\nb"),
        ("x", "a\0b"),
        ("x", " a"),
        ("x", "a\t"),
        ("content-length", "+5"),
        ("content-length", "5,5"),
        ("content-length", "12345678901234567890"),
        ("content-length", "9223372036854775808"),
        ("content-length", ""),
        (":path", "/again"),
        (":status", "200"),
        (":unknown", "1"),
        (":protocol", "websocket"),
        ("host", "a@stock.mesh"),
    ] {
        assert_eq!(request(&[&GET[..], &[extra]].concat()), Err(Malformed), "{extra:?}");
    }
    let lengths = [("content-length", "5"), ("content-length", "6")];
    assert_eq!(request(&[&GET[..], &lengths].concat()), Err(Malformed));
    let path = |path| [GET[0], GET[1], (":path", path), GET[3]];
    for (sent, read) in [("/\u{eb}?\u{20ac}", "/%C3%AB?%E2%82%AC"), ("/a\\b", "/a\\b")] {
        let (head, _) = request(&path(sent)).unwrap();
        assert_eq!(String::from_utf8_lossy(&head.path), read);
    }
    for bad in ["/\u{eb}#", "/\u{eb} b", "\u{eb}"] {
        assert_eq!(request(&path(bad)), Err(Malformed), "{bad}");
    }
    let late = [&[("x", "y")], &GET[..]].concat();
    assert_eq!(request(&late), Err(Malformed));
    for missing in [":method", ":scheme", ":path"] {
        let mut lines = GET.to_vec();
        lines.retain(|line| line.0 != missing);
        assert_eq!(request(&lines), Err(Malformed), "without {missing}");
    }
    for (at, value) in [
        (0, "GE T"),
        (1, "ht tp"),
        (2, ""),
        (2, "a"),
        (2, "*"),
        (2, "/a b"),
        (2, "/a\r\nX: y"),
        (2, "/a#b"),
        (3, ""),
        (3, "a@b"),
        (3, "a/b"),
    ] {
        let mut lines = GET.to_vec();
        lines[at].1 = value;
        assert_eq!(request(&lines), Err(Malformed), "{:?} = {value:?}", lines[at].0);
    }
}

#[test]
fn connect_has_an_authority_and_nothing_else() {
    let plain = [(":method", "CONNECT"), (":authority", "db.shop:5432")];
    assert!(request(&plain).is_ok());
    assert_eq!(request(&plain[..1]), Err(Malformed));
    assert_eq!(request(&[&plain[..], &[(":path", "/")]].concat()), Err(Malformed));
    let extended = [&plain[..], &[(":scheme", "http"), (":path", "/"), (":protocol", "ws")]];
    let extended = extended.concat();
    assert_eq!(request(&extended), Err(Malformed));
    let head = build_request(&extended, true).unwrap().0;
    assert_eq!(head.protocol.as_deref(), Some(&b"ws"[..]));
}

#[test]
fn a_status_is_three_digits_and_not_101() {
    let status = |value| {
        let mut builder = ResponseBuilder::default();
        builder.add(field((":status", value)));
        builder.finish().map(|(head, _)| head.status)
    };
    assert_eq!((status("200"), status("103")), (Ok(200), Ok(103)));
    for bad in ["101", "099", "20", "2000", "+20", "abc", ""] {
        assert_eq!(status(bad), Err(Malformed), "{bad}");
    }
}

#[test]
fn trailers_carry_no_framing() {
    let trailers = |lines: &[(&str, &str)]| {
        let mut builder = TrailersBuilder::default();
        lines.iter().for_each(|&line| builder.add(field(line)));
        builder.finish()
    };
    assert_eq!(trailers(&[("grpc-status", "0")]).unwrap().len(), 1);
    for bad in [(":path", "/"), ("content-length", "1"), ("host", "a"), ("te", "x")] {
        assert_eq!(trailers(&[bad]), Err(Malformed), "{bad:?}");
    }
}

/// [`check_request_line`](crate::h1::check_request_line) is enough because of this.
#[test]
fn what_is_accepted_here_can_be_written_as_http_1() {
    let mut accepted = 0;
    for byte in 0..=255_u8 {
        let places: [(&[u8], &[u8]); 6] = [
            (&[byte], b"1"),
            (&[b'x', byte, b'x'], b"1"),
            (b"x", &[byte]),
            (b"x", &[byte, b'1']),
            (b"x", &[b'1', byte]),
            (b"x", &[b'1', byte, b'1']),
        ];
        for (name, value) in places {
            let mut builder = ResponseBuilder::default();
            builder.add(field((":status", "200")));
            builder.add(Field { name, value, sensitive: false });
            if let Ok((head, _)) = builder.finish() {
                assert_eq!(h1::check_response(&head), Ok(()), "{name:?}: {value:?}");
                accepted += 1;
            }
        }
    }
    assert!(accepted > 256, "{accepted}");
}

fn request(lines: &[(&str, &str)]) -> Result<(Box<RequestHead>, Option<u64>), Malformed> {
    build_request(lines, false)
}

fn build_request(
    lines: &[(&str, &str)],
    takes_connect_protocol: bool,
) -> Result<(Box<RequestHead>, Option<u64>), Malformed> {
    let mut builder = RequestBuilder::default();
    lines.iter().for_each(|&line| builder.add(field(line)));
    builder.finish(takes_connect_protocol)
}

fn field<'a>((name, value): (&'a str, &'a str)) -> Field<'a> {
    Field { name: name.as_bytes(), value: value.as_bytes(), sensitive: false }
}
