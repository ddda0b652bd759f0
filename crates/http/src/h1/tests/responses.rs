//! Response heads. Item 12: responses that try to smuggle another one.

use super::super::ResponseContext;
use super::response;

const TO_GET: ResponseContext =
    ResponseContext { request_was_head: false, request_was_connect: false };
const TO_HEAD: ResponseContext =
    ResponseContext { request_was_head: true, request_was_connect: false };
const TO_CONNECT: ResponseContext =
    ResponseContext { request_was_head: false, request_was_connect: true };

fn check(context: ResponseContext, input: &str, expected: &str) {
    assert_eq!(response(input.as_bytes(), context), expected, "for {input:?}");
}

/// A response to a GET.
fn check_get(input: &str, expected: &str) {
    check(TO_GET, input, expected);
}

#[test]
fn a_head_is_taken_apart() {
    check_get(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a\r\nset-cookie: b\r\n\r\nhello",
        "200 1.1 fixed(5) keep | set-cookie: a | set-cookie: b + hello",
    );
    check_get("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "200 1.1 chunked keep");
    check_get("HTTP/1.1 200 OK\r\nX: y\r\n\r\n", "200 1.1 until-close | x: y");
    check_get("HTTP/1.1 20", "partial");
}

#[test]
fn status_lines_are_judged() {
    check_get("HTTP/1.1 999 \r\nContent-Length: 0\r\n\r\n", "999 1.1 fixed(0) keep");
    check_get("HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", "404 1.1 fixed(0) keep");
    check_get("HTTP/1.1 200 \t\u{e9}\r\nContent-Length: 0\r\n\r\n", "200 1.1 fixed(0) keep");
    for line in [
        "HTTP/1.1 099 x",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1  20 OK",
        "HTTP/1.1  ",
        "HTTP/1.1 200OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1",
        "HTTP/1.1 +20 OK",
        "HELLO",
        " HTTP/1.1 200 OK",
        "200 OK",
    ] {
        check_get(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), "400 StatusLine");
    }
    check_get("HTTP/1.1   200 \r\nContent-Length: 0\r\n\r\n", "200 1.1 fixed(0) keep");
    for later in ["HTTP/1.2", "HTTP/2.0"] {
        let head = format!("{later} 200 OK\r\nContent-Length: 0\r\n\r\n");
        check_get(&head, "200 1.1 fixed(0) keep");
    }
    check_get("HTTP/0.9 200 OK\r\n\r\n", "505 UnsupportedVersion");
    check_get("HTTP 1.1 200 OK\r\n\r\n", "400 Version");
    check_get("\r\nHTTP/1.1 200 OK\r\n\r\n", "400 StatusLine");
    check_get("SSH-2.0", "400 StatusLine");
}

#[test]
fn two_status_lines_are_no_response() {
    check_get(
        "HTTP/1.1 200 OK\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "400 FieldName { line: 2 }",
    );
}

#[test]
fn what_two_recipients_would_frame_differently_is_refused() {
    for (fields, expected) in [
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "400 ContentLengthsDiffer"),
        ("Content-Length: 5, 6\r\n", "400 ContentLengthsDiffer"),
        ("Content-Length: 5,\r\n", "400 ContentLength"),
        ("Content-Length: +5\r\n", "400 ContentLength"),
        ("Transfer-Encoding:\r\n", "501 UnknownTransferEncoding"),
        ("Transfer-Encoding: ,\r\n", "501 UnknownTransferEncoding"),
        (
            "Content-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n",
            "400 ContentLengthsDiffer",
        ),
        ("Transfer-Encoding: gzip\r\n", "501 UnknownTransferEncoding"),
        ("Transfer-Encoding: gzip, chunked\r\n", "501 UnknownTransferEncoding"),
        ("Transfer-Encoding: identity\r\nContent-Length: 5\r\n", "501 UnknownTransferEncoding"),
        ("Transfer-Encoding: chunked, chunked\r\n", "400 TransferEncoding"),
        ("Content-Length : 5\r\n", "400 SpaceBeforeColon { line: 2 }"),
        (" Content-Length: 5\r\n", "400 FoldedLine { line: 2 }"),
        (" \r\nContent-Length: 5\r\n", "400 FoldedLine { line: 2 }"),
        ("X: y\rContent-Length: 5\r\n", "400 FieldValue { line: 2 }"),
        ("X: y\r\r\n Content-Length: 5\r\n", "400 FieldValue { line: 2 }"),
        ("X: y\0\r\n", "400 FieldValue { line: 2 }"),
        ("X\r\n", "400 FieldName { line: 2 }"),
        ("X\r\n : y\r\n", "400 SpaceBeforeColon { line: 2 }"),
    ] {
        for context in [TO_GET, TO_HEAD, TO_CONNECT] {
            check(context, &format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), expected);
        }
    }
}

#[test]
fn chunks_win_over_a_length_and_end_the_connection() {
    let chunks = "5\r\nhello\r\n";
    for fields in [
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        check_get(&head, "200 1.1 chunked");
        check(TO_HEAD, &head, "200 1.1 none");
    }
    let old = "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n";
    check_get(
        &format!("{old}{chunks}"),
        "200 1.0 chunked | connection: keep-alive + 5\\r\\nhello\\r\\n",
    );
}

#[test]
fn the_same_length_again_is_one_length() {
    for fields in [
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 5,5\r\ncontent-length: 05\r\n",
    ] {
        check_get(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), "200 1.1 fixed(5) keep");
    }
    check_get("HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "200 1.1 until-close");
    check_get("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\n", "200 1.1 chunked keep");
}

#[test]
fn lines_may_end_in_lf_alone() {
    let expected = "200 1.1 fixed(5) keep | x: y + hello";
    for head in [
        "HTTP/1.1 200 OK\nX: y\nContent-Length: 5\n\nhello",
        "HTTP/1.1 200 OK\r\nX: y\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 5\r\n\nhello",
        "HTTP/1.1 200 OK\nX: y \r\nContent-Length: 5\n\r\nhello",
    ] {
        check_get(head, expected);
    }
    check_get("\nHTTP/1.1 200 OK\n\n", "400 StatusLine");
}

#[test]
fn a_folded_line_becomes_one() {
    for (fields, value) in [
        ("X: a\r\n b\r\n\tc\r\n", "a   b  \\tc"),
        ("X:\n b\n", "b"),
        ("X: a\r\n \r\n", "a"),
        ("X: a\r\n Content-Length: 6\r\n", "a   Content-Length: 6"),
    ] {
        check_get(
            &format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 5\r\n\r\n"),
            &format!("200 1.1 fixed(5) keep | x: {value}"),
        );
    }
    check_get("HTTP/1.1 200 OK\r\nContent-Length:\r\n 5\r\n\r\n", "200 1.1 fixed(5) keep");
}

#[test]
fn no_content_has_no_body_and_a_liar_is_not_reused() {
    check_get("HTTP/1.1 204 No Content\r\n\r\nx", "204 1.1 none keep + x");
    check_get("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "204 1.1 none keep");
    check_get("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "204 1.1 none + hello");
    check_get("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "204 1.1 none");
    check(TO_HEAD, "HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n", "204 1.1 none");
}

#[test]
fn the_length_of_a_body_that_is_not_sent_is_kept_as_information() {
    let length = "Content-Length: 5\r\n\r\n";
    check_get(&format!("HTTP/1.1 304 x\r\n{length}"), "304 1.1 none declared(5) keep");
    check(TO_HEAD, &format!("HTTP/1.1 200 x\r\n{length}"), "200 1.1 none declared(5) keep");
    check(TO_HEAD, &format!("HTTP/1.1 404 x\r\n{length}"), "404 1.1 none declared(5) keep");
    check(TO_HEAD, "HTTP/1.1 200 x\r\n\r\n", "200 1.1 none keep");
    check(TO_HEAD, "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n", "200 1.1 none keep");
    check_get("HTTP/1.1 304 x\r\nTransfer-Encoding: chunked\r\n\r\n", "304 1.1 none keep");
}

#[test]
fn interim_responses_are_messages_without_body() {
    check_get(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
        "100 1.1 none keep + HTTP/1.1 200 OK\\r\\n",
    );
    check_get("HTTP/1.1 103 x\r\nLink: a\r\n\r\n", "103 1.1 none keep | link: a");
    check_get("HTTP/1.1 103 x\r\nContent-Length: 0\r\n\r\n", "103 1.1 none keep");
    check_get("HTTP/1.1 100 x\r\nContent-Length: 5\r\n\r\n", "400 BodyOfInterim { status: 100 }");
    check(
        TO_HEAD,
        "HTTP/1.1 101 x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "400 BodyOfInterim { status: 101 }",
    );
}

#[test]
fn a_tunnel_begins_behind_101_and_behind_success_of_connect() {
    check_get(
        "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x01",
        "101 1.1 none keep upgrade | connection: upgrade | upgrade: websocket + \\x01",
    );
    check(
        TO_CONNECT,
        "HTTP/1.1 200 x\r\nContent-Length: 5\r\n\r\nab",
        "200 1.1 none keep upgrade + ab",
    );
    check(
        TO_CONNECT,
        "HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "204 1.1 none keep upgrade",
    );
    check(
        TO_CONNECT,
        "HTTP/1.1 403 x\r\nContent-Length: 2\r\n\r\nno",
        "403 1.1 fixed(2) keep + no",
    );
}

#[test]
fn persistence_needs_a_body_with_an_end_and_both_sides_will() {
    check_get(
        "HTTP/1.1 200 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "200 1.1 fixed(0) | connection: close",
    );
    check_get("HTTP/1.0 200 x\r\nContent-Length: 0\r\n\r\n", "200 1.0 fixed(0)");
    check_get(
        "HTTP/1.0 200 x\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
        "200 1.0 fixed(0) keep | connection: keep-alive",
    );
    check_get(
        "HTTP/1.0 200 x\r\nConnection: keep-alive\r\n\r\n",
        "200 1.0 until-close | connection: keep-alive",
    );
}

#[test]
fn sizes_are_bounded() {
    check_get(&format!("HTTP/1.1 200 {}", "x".repeat(70_000)), "431 HeadTooLong { limit: 65536 }");
    check_get(
        &format!("HTTP/1.1 200 x\r\n{}", "X: y\r\n".repeat(129)),
        "431 TooManyFields { limit: 128 }",
    );
}
