//! Request heads.

use super::super::request::METHOD_BYTES_MAX;
use super::super::{HeadScanner, Limits, Parsed, parse_request};
use super::{request, request_within};

/// `request_line` and `fields` as a whole head.
fn check(input: &str, expected: &str) {
    assert_eq!(request(input.as_bytes()), expected, "for {input:?}");
}

/// A POST to `/` with host `a` and these field lines.
fn check_fields(fields: &str, expected: &str) {
    check(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"), expected);
}

/// A GET of `target` with host `a`.
fn check_target(target: &str, expected: &str) {
    check(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), expected);
}

#[test]
fn a_head_is_taken_apart() {
    check(
        "GET /a/b?c=d HTTP/1.1\r\nHOST: Stock.mesh:80\r\nX-One:\t 1 \t\r\nx-empty:\r\nX-ONE: \u{e9}\r\n\r\nrest",
        "GET <Stock.mesh:80> </a/b?c=d> 1.1 none keep | x-one: 1 | x-empty:  | x-one: \\xc3\\xa9 + rest",
    );
    check("FOO /b HTTP/1.1\r\nhost:a\r\n\r\n", "FOO <a> </b> 1.1 none keep");
    check("get / HTTP/1.0\r\n\r\n", "get <> </> 1.0 none");
}

#[test]
fn nothing_is_consumed_before_the_head_ends() {
    let head = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for end in 0..head.len() {
        assert_eq!(request(&head[..end]), "partial", "{end} bytes");
    }
    assert_eq!(request(head), "GET <a> </> 1.1 none keep");
}

// Items 1 to 5: framing.

#[test]
fn content_length_together_with_transfer_encoding_is_refused() {
    let both = "400 LengthAndEncoding";
    check_fields("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", both);
    check_fields("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", both);
    check_fields("TRANSFER-ENCODING: xchunked\r\ncontent-length: 5\r\n", both);
}

#[test]
fn two_content_lengths_are_refused_equal_or_not() {
    for second in ["5", "6"] {
        check_fields(
            &format!("Content-Length: 5\r\nX: y\r\nContent-Length: {second}\r\n"),
            "400 ContentLengthRepeated",
        );
    }
}

#[test]
fn content_length_is_one_plain_decimal_number() {
    for (value, length) in [
        ("5", "5"),
        ("0", "0"),
        ("  5 ", "5"),
        ("005", "5"),
        ("9223372036854775807", "9223372036854775807"),
    ] {
        let expected = format!("POST <a> </> 1.1 fixed({length}) keep");
        check_fields(&format!("Content-Length: {value}\r\n"), &expected);
    }
    for value in [
        "+5",
        "-5",
        "5,5",
        "5, 5",
        "",
        "5 5",
        "0x5",
        "5a",
        "5.0",
        "\u{663}",
        "9223372036854775808",
        "18446744073709551616",
        "18446744073709551620",
        "00000000000000000005",
        "5;",
        "\"5\"",
    ] {
        check_fields(&format!("Content-Length: {value}\r\n"), "400 ContentLength");
    }
}

#[test]
fn transfer_encoding_is_exactly_one_final_chunked() {
    for value in ["chunked", "Chunked", "\tchunked  "] {
        let field = format!("Transfer-Encoding:{value}\r\n");
        check_fields(&field, "POST <a> </> 1.1 chunked keep");
    }
    for value in [
        "chunked, chunked",
        "chunked\r\nTransfer-Encoding: chunked",
        "chunked, identity",
        "chunked, gzip",
        "chunked,",
        ",chunked",
        "",
        "chunked;q=1",
        "chunked gzip",
        "\"chunked\"",
        "chunked\r\nX: y\r\nTransfer-Encoding: identity",
        "[chunked]",
    ] {
        check_fields(&format!("Transfer-Encoding: {value}\r\n"), "400 TransferEncoding");
    }
    for value in [
        "xchunked",
        "gzip, chunked",
        "identity",
        "gzip;level=1, chunked",
        "chunkedx",
        "x-chunked",
        "gzip\r\nTransfer-Encoding: chunked",
    ] {
        check_fields(&format!("Transfer-Encoding: {value}\r\n"), "501 UnknownTransferEncoding");
    }
}

#[test]
fn white_space_and_control_bytes_do_not_hide_transfer_encoding() {
    for space in [" ", "\t", " \t "] {
        check_fields(
            &format!("Transfer-Encoding{space}: chunked\r\n"),
            "400 SpaceBeforeColon { line: 3 }",
        );
    }
    check_fields("Transfer-Encoding\x0b: chunked\r\n", "400 FieldName { line: 3 }");
    check_fields("Transfer-Encoding\r\n: chunked\r\n", "400 FieldName { line: 3 }");
    check_fields("Transfer-Encoding\n: chunked\r\n", "400 BareLineFeed { line: 3 }");
    check_fields("Transfer-Encoding: \x0bchunked\r\n", "400 FieldValue { line: 3 }");
    check_fields("Transfer-Encoding:\r\n chunked\r\n", "400 FoldedLine { line: 4 }");
    check_fields("Transfer Encoding: chunked\r\n", "400 FieldName { line: 3 }");
    check_fields("\u{a0}Transfer-Encoding: chunked\r\n", "400 FieldName { line: 3 }");
}

#[test]
fn transfer_encoding_in_http_1_0_is_refused() {
    check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400 TransferEncodingInHttp10");
    check("POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\n", "POST <> </> 1.0 fixed(5)");
}

// Item 7: line ends and bytes.

#[test]
fn lines_end_in_cr_lf_and_nothing_else() {
    check("GET / HTTP/1.1\nHost: a\r\n\r\n", "400 BareLineFeed { line: 1 }");
    check("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "400 BareLineFeed { line: 2 }");
    check("GET / HTTP/1.1\r\nHost: a\r\n\n", "400 BareLineFeed { line: 3 }");
    check("GET / HTTP/1.1\r\nHost: a\r\rX: y\r\n\r\n", "400 FieldValue { line: 2 }");
    check("GET / HTTP/1.1\rHost: a\r\n\r\n", "400 Version");
    check("GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", "400 Version");
    check_fields("X: y\r\r\n", "400 FieldValue { line: 3 }");
    check_fields("X: y\rContent-Length: 5\r\n", "400 FieldValue { line: 3 }");
    // Refused as soon as it comes, not when the head ends.
    check("GET / HTTP/1.1\r\nHost: a\n", "400 BareLineFeed { line: 2 }");
}

#[test]
fn folded_lines_are_refused() {
    check_fields("X: y\r\n z\r\n", "400 FoldedLine { line: 4 }");
    check_fields("X: y\r\n\tz: a\r\n", "400 FoldedLine { line: 4 }");
    check("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "400 FoldedLine { line: 2 }");
    check("GET / HTTP/1.1\r\nHost: a\r\n \r\n\r\n", "400 FoldedLine { line: 3 }");
}

#[test]
fn control_bytes_in_fields_are_refused() {
    for byte in (0..0x20).chain([0x7f]).map(char::from).filter(|c| !"\t\n\r".contains(*c)) {
        check_fields(&format!("X: a{byte}b\r\n"), "400 FieldValue { line: 3 }");
        check_fields(&format!("X{byte}: ab\r\n"), "400 FieldName { line: 3 }");
    }
}

#[test]
fn field_names_are_tokens() {
    for line in ["X y: z", "", "(x): y", "x", ": y", "x[0]: y", "x/y: z", "\"x\": y", "x\u{e9}: y"]
    {
        if !line.is_empty() {
            check_fields(&format!("{line}\r\n"), "400 FieldName { line: 3 }");
        }
    }
    check_fields("X : y\r\n", "400 SpaceBeforeColon { line: 3 }");
    check_fields("x_!#$%&'*+.^`|~-1: y\r\n", "POST <a> </> 1.1 none keep | x_!#$%&\\'*+.^`|~-1: y");
}

#[test]
fn request_lines_have_two_single_spaces() {
    check("GET /\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("GET HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("GET  HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("GET: / HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400 TargetByte { byte: 32 }");
    check("GET / x HTTP/1.1\r\nHost: a\r\n\r\n", "400 TargetByte { byte: 32 }");
    check("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400 Version");
    check(" GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
    let method = "M".repeat(33);
    check(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"), "501 MethodTooLong { limit: 32 }");
}

#[test]
fn versions_other_than_1_0_and_1_1_are_refused() {
    for version in ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/3.0"] {
        check(&format!("GET / {version}\r\nHost: a\r\n\r\n"), "505 UnsupportedVersion");
    }
    for version in
        ["http/1.1", "HTTP/1.10", "HTTP/11", "HTTP/1,1", "HTTP/ 1.1", "HTTPS/1.1", "HTTP/x.1"]
    {
        let outcome = request(format!("GET / {version}\r\nHost: a\r\n\r\n").as_bytes());
        assert!(outcome.starts_with("400 "), "{version}: {outcome}");
    }
    check("PRI * HTTP/2.0\r\n\r\n", "505 UnsupportedVersion");
}

#[test]
fn one_empty_line_before_a_request_is_skipped_and_no_more() {
    check("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET <a> </> 1.1 none keep");
    check("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 EmptyLines");
    check("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 BareLineFeed { line: 1 }");
    check("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 RequestLine");
}

#[test]
fn what_cannot_become_a_request_is_refused_at_its_first_byte() {
    check("\x16", "400 RequestLine");
    check("\x16\x03\x01\x02\0\x01", "400 RequestLine");
    check("\u{e9}", "400 RequestLine");
}

// Item 8: host.

#[test]
fn http_1_1_needs_exactly_one_host() {
    check("GET / HTTP/1.1\r\n\r\n", "400 HostMissing");
    check("GET / HTTP/1.1\r\nX: y\r\n\r\n", "400 HostMissing");
    check("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "400 HostRepeated");
    check("GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n", "400 HostRepeated");
    check("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "400 HostRepeated");
    check("GET / HTTP/1.0\r\n\r\n", "GET <> </> 1.0 none");
    check("GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET <> </> 1.1 none keep");
}

#[test]
fn host_is_a_name_with_an_optional_port() {
    for host in ["A.MESH", "a.mesh.", "a:8080", "[::1]:80", "10.1.2.3", "app_1.shop.east.mesh"] {
        let expected = format!("GET <{host}> </> 1.1 none keep");
        check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), &expected);
    }
    for host in [
        "a, b", "a,b", "a b", "u@a", "a/b", "a:b", "a:", "a:99999", "http://a", "[::1", "a\\b",
        "a#b", "a?b", "a%00", "\u{e9}", "a:80:80", "a\tb",
    ] {
        check(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"), "400 HostInvalid");
    }
}

#[test]
fn the_host_of_an_absolute_target_counts_and_not_the_field() {
    let head = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (target, host, expected) in [
        ("http://a/b?c", "a", "http GET <a> </b?c> 1.1 none keep"),
        ("http://a", "a", "http GET <a> </> 1.1 none keep"),
        ("http://a?b=c", "a", "http GET <a> </?b=c> 1.1 none keep"),
        ("HTTP://A:80/", "a", "http GET <A:80> </> 1.1 none keep"),
        ("https://a/", "A:443", "https GET <a> </> 1.1 none keep"),
        ("http://a//b", "a:80", "http GET <a> <//b> 1.1 none keep"),
        ("http://a/", "b", "http GET <a> </> 1.1 none keep"),
        ("http://a/", "a.", "http GET <a> </> 1.1 none keep"),
        ("http://a:8080/", "a", "http GET <a:8080> </> 1.1 none keep"),
        ("https://a/", "a:80", "https GET <a> </> 1.1 none keep"),
        ("http://a/", "", "http GET <a> </> 1.1 none keep"),
        ("http://a/", "u@b", "400 HostInvalid"),
        ("http://a\\b/", "a", "400 TargetAuthority"),
        ("http://a\\@b/", "a", "400 TargetAuthority"),
        ("http://\u{e9}/", "a", "400 TargetAuthority"),
        ("http://u@a/", "a", "400 TargetAuthority"),
        ("http://u:p@a/", "a", "400 TargetAuthority"),
        ("http:///b", "a", "400 TargetAuthority"),
        ("http://a:/", "a", "400 TargetAuthority"),
        ("http://a,b/", "a", "400 TargetAuthority"),
        ("ftp://a/", "a", "400 TargetScheme"),
        ("://a/", "a", "400 TargetScheme"),
    ] {
        check(&head(target, host), expected);
    }
    check("GET http://a/b HTTP/1.0\r\n\r\n", "http GET <a> </b> 1.0 none");
    check("GET http://a/b HTTP/1.1\r\n\r\n", "400 HostMissing");
    check("GET http://a/b HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400 HostRepeated");
}

// Item 10: targets.

#[test]
fn bytes_that_parsers_read_differently_may_not_stand_in_a_target() {
    check_target("/a#b", "400 TargetByte { byte: 35 }");
    check_target("http://a/#b", "400 TargetByte { byte: 35 }");
    check_target("/a\tb", "400 TargetByte { byte: 9 }");
    check_target("/a\0b", "400 TargetByte { byte: 0 }");
    check_target("/a\x7fb", "400 TargetByte { byte: 127 }");
    check_target("/a\rb", "400 TargetByte { byte: 13 }");
    check_target("/\u{e9}\t", "400 TargetByte { byte: 9 }");
    check_target("/\u{e9}#", "400 TargetByte { byte: 35 }");
    assert_eq!(request(b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n"), "400 TargetByte { byte: 233 }");
    assert_eq!(request(b"GET /\xc3 HTTP/1.1\r\nHost: a\r\n\r\n"), "400 TargetByte { byte: 195 }");
    // The slash in too many bytes.
    let overlong = request(b"GET /\xc0\xaf HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(overlong, "400 TargetByte { byte: 192 }");
}

#[test]
fn letters_beyond_ascii_in_a_target_become_escapes() {
    check_target("/Zo\u{eb}?q=\u{20ac}", "GET <a> </Zo%C3%AB?q=%E2%82%AC> 1.1 none keep");
    check_target("http://a/\u{eb}", "http GET <a> </%C3%AB> 1.1 none keep");
    check_target("http://a?\u{eb}", "http GET <a> </?%C3%AB> 1.1 none keep");
    let limits = Limits { target_bytes: 6, ..Limits::default() };
    let within = |target: &str| {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        request_within(bytes.as_bytes(), &limits)
    };
    assert_eq!(within("/\u{eb}"), "414 TargetTooLong { limit: 6 }");
}

#[test]
fn escapes_pass_as_they_are_for_policy_to_normalise() {
    for target in [
        "/%00",
        "/a%0d%0aHost:%20b",
        "/%2e%2e/%2F%5c",
        "/%zz%",
        "/../a//b;c=d/./",
        "/a?b=[c]|\"{d}^`<>",
        "/a?b=\\c",
        "/a\\..\\b",
    ] {
        let expected = format!("GET <a> <{}> 1.1 none keep", target.as_bytes().escape_ascii());
        check_target(target, &expected);
    }
}

#[test]
fn each_target_form_has_its_methods() {
    check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS <a> <*> 1.1 none keep");
    check("OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", "http OPTIONS <a> <*> 1.1 none keep");
    check("OPTIONS http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "http OPTIONS <a> </> 1.1 none keep");
    check_target("*", "400 TargetForm");
    check_target("a:80", "400 TargetForm");
    check_target("a/b", "400 TargetForm");
    check_target("?a", "400 TargetForm");
    check_target("**", "400 TargetForm");
    for (target, host, expected) in [
        ("a:443", "a:443", "CONNECT <a:443> <> 1.1 none keep upgrade"),
        ("a:443", "A", "CONNECT <a:443> <> 1.1 none keep upgrade"),
        ("[::1]:443", "[::1]:443", "CONNECT <[::1]:443> <> 1.1 none keep upgrade"),
        ("a:443", "b:443", "400 HostMismatch"),
        ("a:443", "a:80", "400 HostMismatch"),
        ("a", "a", "400 TargetForm"),
        ("/", "a", "400 TargetForm"),
        ("*", "a", "400 TargetForm"),
        ("http://a:443/", "a:443", "400 TargetForm"),
        ("a:443/", "a:443", "400 TargetForm"),
    ] {
        check(&format!("CONNECT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"), expected);
    }
}

// Item 9: upgrades.

#[test]
fn an_upgrade_needs_both_fields_and_http_1_1() {
    let upgrade = "POST <a> </> 1.1 none keep upgrade | connection: Upgrade | upgrade: websocket";
    check_fields("Connection: Upgrade\r\nUpgrade: websocket\r\n", upgrade);
    check_fields("Upgrade: websocket\r\n", "POST <a> </> 1.1 none keep | upgrade: websocket");
    check_fields("Connection: upgrade\r\n", "POST <a> </> 1.1 none keep | connection: upgrade");
    check_fields(
        "Connection: upgrade\r\nUpgrade: ,\r\n",
        "POST <a> </> 1.1 none keep | connection: upgrade | upgrade: ,",
    );
    check(
        "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET <> </> 1.0 none | connection: upgrade | upgrade: websocket",
    );
}

#[test]
fn an_upgrade_to_h2c_is_not_offered_on() {
    check_fields(
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: websocket, H2C\r\nHTTP2-Settings: \r\n",
        "POST <a> </> 1.1 none keep | connection: Upgrade, HTTP2-Settings \
         | upgrade: websocket, H2C | http2-settings: ",
    );
}

#[test]
fn bytes_behind_an_upgrade_request_are_left_alone() {
    check_fields(
        "Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n\r\nhiGET /admin HTTP/1.1\r\n",
        "POST <a> </> 1.1 fixed(2) keep upgrade | connection: upgrade | upgrade: x \
         + hiGET /admin HTTP/1.1\\r\\n\\r\\n",
    );
}

#[test]
fn connect_announces_no_body() {
    let check = |fields: &str, expected: &str| {
        check(&format!("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n{fields}\r\n"), expected);
    };
    check("Content-Length: 0\r\n", "CONNECT <a:1> <> 1.1 none keep upgrade");
    check("Content-Length: 5\r\n", "400 BodyOfConnect");
    check("Transfer-Encoding: chunked\r\n", "400 BodyOfConnect");
}

// Persistence and item 13.

#[test]
fn persistence_follows_version_and_connection() {
    check_fields("Connection: CLOSE\r\n", "POST <a> </> 1.1 none | connection: CLOSE");
    check_fields(
        "Connection: keep-alive, x\r\nConnection: , close\r\n",
        "POST <a> </> 1.1 none | connection: keep-alive, x | connection: , close",
    );
    check(
        "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
        "GET <> </> 1.0 none keep | connection: Keep-Alive",
    );
    check(
        "GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n",
        "GET <> </> 1.0 none | connection: keep-alive, close",
    );
}

#[test]
fn continue_is_expected_only_with_a_body_and_in_http_1_1() {
    check_fields(
        "Expect: 100-Continue\r\nContent-Length: 1\r\n",
        "POST <a> </> 1.1 fixed(1) keep continue | expect: 100-Continue",
    );
    check_fields(
        "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n",
        "POST <a> </> 1.1 chunked keep continue | expect: 100-continue",
    );
    check_fields("Expect: 100-continue\r\n", "POST <a> </> 1.1 none keep | expect: 100-continue");
    check(
        "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        "POST <> </> 1.0 fixed(1) | expect: 100-continue",
    );
}

// Item 11: sizes.

#[test]
fn limits_hold_exactly() {
    let head = "GET /123 HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n";
    let exact = Limits { head_bytes: head.len(), fields: 2, target_bytes: 4, ..Limits::default() };
    let check = |limits: Limits, expected: &str| {
        assert_eq!(request_within(head.as_bytes(), &limits), expected);
    };
    check(exact, "GET <a> </123> 1.1 none keep | x: y");
    check(Limits { head_bytes: head.len() - 1, ..exact }, "431 HeadTooLong { limit: 35 }");
    check(Limits { fields: 1, ..exact }, "431 TooManyFields { limit: 1 }");
    check(Limits { target_bytes: 3, ..exact }, "414 TargetTooLong { limit: 3 }");
}

#[test]
fn a_first_line_without_end_is_refused_as_soon_as_its_target_must_be_too_long() {
    let longest = METHOD_BYTES_MAX + " ".len() + 4 + " HTTP/1.1\r\n".len();
    let limits = Limits { target_bytes: 4, ..Limits::default() };
    let check = |bytes: usize, limits: Limits, expected: &str| {
        assert_eq!(request_within(&b"M".repeat(bytes), &limits), expected, "{bytes} bytes");
    };
    check(longest, limits, "partial");
    check(longest + 1, limits, "414 TargetTooLong { limit: 4 }");
    // Where the head must be even shorter, that is the reason, however much has come.
    let shorter = Limits { head_bytes: longest - 1, ..limits };
    check(longest - 1, shorter, "partial");
    check(longest, shorter, "431 HeadTooLong { limit: 47 }");
    check(longest + 100, shorter, "431 HeadTooLong { limit: 47 }");
}

#[test]
fn a_scanner_starts_anew_when_the_input_is_shorter_than_before() {
    let mut scanner = HeadScanner::new();
    let parse =
        |input: &[u8], scanner: &mut HeadScanner| parse_request(input, &Limits::default(), scanner);
    let abandoned = b"GET /abandoned HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyyyyyyyyyyyyyyyy";
    assert_eq!(parse(abandoned, &mut scanner), Ok(Parsed::Partial));
    let parsed = parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &mut scanner);
    assert!(matches!(parsed, Ok(Parsed::Complete { .. })), "{parsed:?}");
}

#[test]
fn endless_heads_are_refused_before_they_end() {
    let fields = format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "X: y\r\n".repeat(10_000));
    check(&fields, "431 TooManyFields { limit: 128 }");
    let field = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(1 << 20));
    check(&field, "431 HeadTooLong { limit: 65536 }");
    let target = format!("GET /{}", "y".repeat(1 << 20));
    check(&target, "414 TargetTooLong { limit: 16384 }");
    let options = format!("Connection: {}\r\n", "a,".repeat(64));
    check_fields(&options, "431 TooManyConnectionOptions { limit: 64 }");
}

#[test]
fn what_has_been_searched_is_not_searched_again() {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyyyyyyyyyyyyy\r\n\r\n".to_vec();
    let mut scanner = HeadScanner::new();
    for end in 1..head.len() {
        // A line feed in the part already read would be refused if it were read again.
        let mut seen = head[..end].to_vec();
        seen[..end - 1].fill(b'\n');
        if head[..end].ends_with(b"\r\n") {
            seen[end - 2] = b'\r';
        }
        assert_eq!(parse_request(&seen, &Limits::default(), &mut scanner), Ok(Parsed::Partial));
    }
    let parsed = parse_request(&head, &Limits::default(), &mut scanner);
    assert!(matches!(parsed, Ok(Parsed::Complete { consumed, .. }) if consumed == head.len()));
}

#[test]
fn pipelined_requests_are_read_one_by_one_with_one_scanner() {
    let input = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
    let (mut at, mut count, mut scanner) = (0, 0, HeadScanner::new());
    while let Ok(Parsed::Complete { message, consumed }) =
        parse_request(&input[at..], &Limits::default(), &mut scanner)
    {
        assert_eq!(message.head.path, b"/1");
        (at, count) = (at + consumed, count + 1);
    }
    assert_eq!((at, count), (input.len(), 1000));
}

#[test]
fn credentials_are_marked_for_no_index() {
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nCookie: b\r\nAuthorization: c\r\nX: y\r\n\r\n";
    let Ok(Parsed::Complete { message, .. }) =
        parse_request(head, &Limits::default(), &mut HeadScanner::new())
    else {
        panic!("not parsed");
    };
    let marks: Vec<_> = message.head.fields.iter().map(|field| field.sensitive).collect();
    assert_eq!(marks, [true, true, false]);
}
