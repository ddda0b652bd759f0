//! What the writers put on the wire.

use super::super::{
    BodyLength, Connection, Refusal, RequestOptions, ResponseContext, ResponseOptions, TargetForm,
    Version, check_request, check_response, write_chunk, write_last_chunk, write_request,
    write_response,
};
use crate::{Fields, Method, RequestHead, ResponseHead};

fn get(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        method: Method::Get,
        authority: b"a:80".to_vec(),
        path: b"/b?c".to_vec(),
        fields: to_fields(fields),
        ..RequestHead::default()
    }
}

fn to_fields(fields: &[(&str, &str)]) -> Fields {
    fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
}

/// What is written, and how the body is to be sent.
fn request(
    head: &RequestHead,
    body: BodyLength,
    options: &RequestOptions<'_>,
) -> (String, BodyLength) {
    let mut out = Vec::new();
    let body = write_request(&mut out, head, body, options);
    (String::from_utf8(out).unwrap(), body)
}

fn response(
    status: u16,
    fields: &[(&str, &str)],
    body: BodyLength,
    options: &ResponseOptions<'_>,
) -> (String, BodyLength) {
    let mut out = Vec::new();
    let head = ResponseHead { status, fields: to_fields(fields) };
    let body = write_response(&mut out, &head, body, options);
    (String::from_utf8(out).unwrap(), body)
}

#[test]
fn host_comes_first_and_framing_comes_from_the_body() {
    let options = RequestOptions::default();
    let head = "GET /b?c HTTP/1.1\r\nhost: a:80\r\nx: y\r\n";
    for (body, framing) in [
        (BodyLength::None, ""),
        (BodyLength::Fixed(0), "content-length: 0\r\n"),
        (BodyLength::Fixed(u64::MAX), "content-length: 18446744073709551615\r\n"),
        (BodyLength::Chunked, "transfer-encoding: chunked\r\n"),
    ] {
        let written = request(&get(&[("x", "y")]), body, &options);
        assert_eq!(written, (format!("{head}{framing}\r\n"), body));
    }
}

#[test]
fn a_request_never_lasts_until_the_connection_ends() {
    let (text, body) = request(&get(&[]), BodyLength::UntilClose, &RequestOptions::default());
    assert_eq!(body, BodyLength::Chunked);
    assert!(text.contains("transfer-encoding: chunked\r\n"));
}

#[test]
fn framing_routing_and_connection_fields_of_a_head_are_not_written_twice() {
    let forged = [
        ("content-length", "7"),
        ("transfer-encoding", "chunked"),
        ("host", "b"),
        ("connection", "close"),
        ("upgrade", "x"),
        ("k", "v"),
    ];
    let (text, _) = request(&get(&forged), BodyLength::Fixed(5), &RequestOptions::default());
    assert_eq!(text, "GET /b?c HTTP/1.1\r\nhost: a:80\r\nk: v\r\ncontent-length: 5\r\n\r\n");
    let (text, _) = response(200, &forged, BodyLength::Fixed(5), &ResponseOptions::default());
    assert_eq!(text, "HTTP/1.1 200 OK\r\nhost: b\r\nk: v\r\ncontent-length: 5\r\n\r\n");
}

#[test]
fn targets_take_the_form_asked_for() {
    let options = RequestOptions { target_form: TargetForm::Absolute, ..Default::default() };
    let line = |head: &RequestHead| {
        request(head, BodyLength::None, &options).0.lines().next().unwrap().to_owned()
    };
    assert_eq!(line(&get(&[])), "GET http://a:80/b?c HTTP/1.1");
    let options_all = RequestHead { method: Method::Options, path: b"*".to_vec(), ..get(&[]) };
    assert_eq!(line(&options_all), "OPTIONS http://a:80 HTTP/1.1");
    let connect = RequestHead { method: Method::Connect, path: Vec::new(), ..get(&[]) };
    let (text, body) = request(&connect, BodyLength::Chunked, &RequestOptions::default());
    assert_eq!(text, "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n");
    assert_eq!(body, BodyLength::None);
}

#[test]
fn the_connection_field_lists_close_upgrade_and_te() {
    let written = |connection: Connection<'_>, fields: &[(&str, &str)]| {
        let options = RequestOptions { connection, ..Default::default() };
        let text = request(&get(fields), BodyLength::None, &options).0;
        text.strip_prefix("GET /b?c HTTP/1.1\r\nhost: a:80\r\n").unwrap().to_owned()
    };
    assert_eq!(written(Connection::KeepAlive, &[]), "\r\n");
    assert_eq!(written(Connection::Close, &[]), "connection: close\r\n\r\n");
    assert_eq!(
        written(Connection::Upgrade(b"websocket"), &[]),
        "upgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    );
    let te = [("te", "trailers")];
    assert_eq!(written(Connection::KeepAlive, &te), "te: trailers\r\nconnection: te\r\n\r\n");
    assert_eq!(written(Connection::Close, &te), "te: trailers\r\nconnection: close, te\r\n\r\n");
}

#[test]
fn an_http_1_0_peer_gets_a_connection_field_and_no_chunks() {
    let options = ResponseOptions { peer: Version::Http10, ..Default::default() };
    let fixed = response(200, &[], BodyLength::Fixed(1), &options);
    assert_eq!(fixed.0, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\n");
    let chunked = response(200, &[], BodyLength::Chunked, &options);
    let until_close = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
    assert_eq!(chunked, (until_close.into(), BodyLength::UntilClose));
}

#[test]
fn a_response_has_an_end_its_peer_can_see() {
    let options = ResponseOptions::default();
    let none = response(404, &[], BodyLength::None, &options);
    let empty = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(none, (empty.into(), BodyLength::Fixed(0)));
    let until_close = response(299, &[], BodyLength::UntilClose, &options);
    let closing = "HTTP/1.1 299 \r\nconnection: close\r\n\r\n";
    assert_eq!(until_close, (closing.into(), BodyLength::UntilClose));
}

#[test]
fn responses_without_body_carry_framing_only_as_information() {
    let to_head = ResponseContext { request_was_head: true, ..Default::default() };
    let to_connect = ResponseContext { request_was_connect: true, ..Default::default() };
    let to_get = ResponseContext::default();
    let framing = |status: u16, context: ResponseContext| {
        let options = ResponseOptions { context, declared_length: Some(7), ..Default::default() };
        let (text, body) = response(status, &[], BodyLength::Chunked, &options);
        assert_eq!(body, BodyLength::None);
        text.lines().nth(1).unwrap().to_owned()
    };
    assert_eq!(framing(200, to_head), "content-length: 7");
    assert_eq!(framing(304, to_get), "content-length: 7");
    for (status, context) in [
        (204, to_get),
        (204, to_head),
        (100, to_get),
        (103, to_head),
        (101, to_get),
        (200, to_connect),
    ] {
        assert_eq!(framing(status, context), "", "{status} {context:?}");
    }
}

#[test]
fn chunks_are_counted_in_hexadecimal_and_an_empty_one_is_not_written() {
    let mut out = Vec::new();
    write_chunk(&mut out, b"a");
    write_chunk(&mut out, b"");
    write_chunk(&mut out, &[b'b'; 0x1f]);
    write_last_chunk(&mut out, None);
    let expected = format!("1\r\na\r\n1f\r\n{}\r\n0\r\n\r\n", "b".repeat(0x1f));
    assert_eq!(out.escape_ascii().to_string(), expected.escape_default().to_string());
}

#[test]
fn forbidden_trailers_are_not_written() {
    let mut out = Vec::new();
    let trailers = to_fields(&[("grpc-status", "0"), ("content-length", "5"), ("host", "b")]);
    write_last_chunk(&mut out, Some(&trailers));
    assert_eq!(out, b"0\r\ngrpc-status: 0\r\n\r\n");
}

#[test]
fn heads_from_elsewhere_are_judged_before_they_are_written() {
    let check = |change: fn(&mut RequestHead), expected: Result<(), Refusal>| {
        let mut head = get(&[("x", "y")]);
        change(&mut head);
        assert_eq!(check_request(&head), expected, "{head:?}");
    };
    check(|_| {}, Ok(()));
    check(|head| head.authority.clear(), Ok(()));
    check(|head| head.method = Method::Other(b"G T"[..].into()), Err(Refusal::RequestLine));
    check(
        |head| head.method = Method::Other([b'M'; 33].into()),
        Err(Refusal::MethodTooLong { limit: 32 }),
    );
    check(|head| head.path = b"/ HTTP/1.1".to_vec(), Err(Refusal::TargetByte { byte: b' ' }));
    check(|head| head.path = b"/\r\nx: y".to_vec(), Err(Refusal::TargetByte { byte: b'\r' }));
    check(|head| head.path.clear(), Err(Refusal::TargetForm));
    check(|head| head.path = b"*".to_vec(), Err(Refusal::TargetForm));
    check(|head| head.path = b"http://b/".to_vec(), Err(Refusal::TargetForm));
    check(|head| head.authority = b"a\r\nx: y".to_vec(), Err(Refusal::TargetAuthority));
    check(|head| head.method = Method::Connect, Ok(()));
    let connect_without_port = |head: &mut RequestHead| {
        head.method = Method::Connect;
        head.authority = b"a".to_vec();
    };
    check(connect_without_port, Err(Refusal::TargetForm));
    check(|head| head.fields.push(b"x y", b""), Err(Refusal::FieldName { line: 2 }));
    check(|head| head.fields.push(b"", b"y"), Err(Refusal::FieldName { line: 2 }));
    check(|head| head.fields.push(b":path", b"/"), Err(Refusal::FieldName { line: 2 }));
    for value in ["a\r\nb: c", "a\0", " a", "a\t"] {
        let head = get(&[("x", value)]);
        assert_eq!(check_request(&head), Err(Refusal::FieldValue { line: 1 }), "{value:?}");
    }
    for (status, expected) in [
        (99, Err(Refusal::StatusLine)),
        (100, Ok(())),
        (999, Ok(())),
        (1000, Err(Refusal::StatusLine)),
    ] {
        assert_eq!(check_response(&ResponseHead::new(status)), expected, "{status}");
    }
}
