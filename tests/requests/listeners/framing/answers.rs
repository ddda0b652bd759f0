//! Whether what we take of an app's answers, and what we refuse, is what nginx, HAProxy and Go's reverse
//! proxy take of them: most of the three decide, but for cases that have a reason of their own. What is
//! taken goes on well-formed, and is never the answer to another request.

use std::time::Duration;

use tollway_testkit::{Answer, RawClient, need_tool};

use super::chains::{Behind, Chain};
use super::servers::Server;
use crate::listeners::tls_listener::HTTP1;
use tollway_tests::network::STOCK;
use tollway_tests::scripted_app::{App, Reply, Script, Then, chunked};

/// What is whole of an answer that is taken.
const BODY: &[u8] = b"hello";

struct Case {
    /// Its path, with a slash in front.
    path: &'static str,
    bytes: String,
    then: Then,
    /// Whether we take it.
    is_taken: bool,
    /// Why that is not what most of the others do.
    why: Option<&'static str>,
}

/// Why framing of an interim answer is not ignored as others do.
const SPLIT: &str = "the body of an interim answer would be read as the final one";

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |path, is_taken, bytes: String| {
        cases.push(Case { path, bytes, then: Then::GoOn, is_taken, why: None });
    };
    let ok = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\nhello");
    let chunks = |fields: &str, body: &str| {
        format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n{body}")
    };
    let plain = "5\r\nhello\r\n0\r\n\r\n";
    // The same end given more than once, and two ends.
    add("/length-and-chunked", true, chunks("Content-Length: 3\r\n", plain));
    add("/length-twice", true, ok("Content-Length: 5\r\nContent-Length: 5\r\n"));
    add("/length-list", true, ok("Content-Length: 5, 5\r\n"));
    add("/length-list-and-line", true, ok("Content-Length: 5,5\r\ncontent-length: 5\r\n"));
    add("/length-zeros", true, ok("Content-Length: 5\r\nContent-Length: 05\r\n"));
    add("/two-lengths", false, ok("Content-Length: 5\r\nContent-Length: 6\r\n"));
    add("/two-lengths-in-one", false, ok("Content-Length: 5, 6\r\n"));
    add("/length-plus", false, ok("Content-Length: +5\r\n"));
    // Line ends.
    add("/lf", true, "HTTP/1.1 200 OK\nX-A: b\nContent-Length: 5\n\nhello".to_owned());
    add("/lf-once", true, ok("X-A: b\nContent-Length: 5\r\n"));
    add("/cr-once", false, ok("X-A: b\rContent-Length: 5\r\n"));
    // Chunks.
    add("/chunk-spaces", true, chunks("", "5   \r\nhello\r\n0  \r\n\r\n"));
    add("/chunk-tab", true, chunks("", "5\t\r\nhello\r\n0\r\n\r\n"));
    add("/chunk-space-before", false, chunks("", " 5\r\nhello\r\n0\r\n\r\n"));
    add("/chunk-lf", true, chunks("", "5\nhello\n0\n\n"));
    add("/chunk-extension-lf", true, chunks("", "5;a\nhello\r\n0\r\n\r\n"));
    add("/chunk-prefix", false, chunks("", "0x5\r\nhello\r\n0\r\n\r\n"));
    add("/trailer-lf", true, chunks("", "5\r\nhello\r\n0\r\nX-T: 1\n\n"));
    add("/trailer-fold", true, chunks("", "5\r\nhello\r\n0\r\nX-T: 1\r\n 2\r\n\r\n"));
    add(
        "/chunked-comma",
        true,
        ok("").replace("\r\n\r\nhello", "\r\nTransfer-Encoding: chunked,\r\n\r\n") + plain,
    );
    add("/chunked-twice", false, chunks("Transfer-Encoding: chunked\r\n", plain));
    add("/gzip-chunked", false, chunks("", plain).replace(": chunked", ": gzip, chunked"));
    add("/identity", false, ok("Transfer-Encoding: identity\r\nContent-Length: 5\r\n"));
    add("/chunked-in-1-0", true, chunks("", plain).replace("HTTP/1.1", "HTTP/1.0"));
    // Lines of the head.
    add("/fold", true, ok("X-A: b\r\n c\r\nContent-Length: 5\r\n"));
    add("/fold-length", true, ok("Content-Length:\r\n 5\r\n"));
    add("/fold-first", false, ok(" X-A: c\r\nContent-Length: 5\r\n"));
    add("/space-before-colon", false, ok("X-A : b\r\nContent-Length: 5\r\n"));
    add("/no-colon", false, ok("X-A\r\nContent-Length: 5\r\n"));
    add("/no-name", false, ok(": b\r\nContent-Length: 5\r\n"));
    add("/null", false, ok("X-A: b\0c\r\nContent-Length: 5\r\n"));
    // Status lines.
    let line = |line: &str| ok("Content-Length: 5\r\n").replace("HTTP/1.1 200 OK", line);
    add("/no-reason", true, line("HTTP/1.1 200"));
    add("/two-spaces", true, line("HTTP/1.1  200  OK"));
    add("/tab", false, line("HTTP/1.1\t200 OK"));
    add("/version-1-2", true, line("HTTP/1.2 200 OK"));
    add("/version-2", true, line("HTTP/2.0 200 OK"));
    add("/small-letters", false, line("http/1.1 200 OK"));
    add("/four-digits", false, line("HTTP/1.1 2000 OK"));
    // Interim answers.
    let last = ok("Content-Length: 5\r\n");
    add("/interim", true, format!("HTTP/1.1 103 E\r\n\r\n{last}"));
    for (path, fields) in [
        ("/interim-length", "Content-Length: 5\r\n"),
        ("/interim-chunked", "Transfer-Encoding: chunked\r\n"),
    ] {
        let bytes = format!("HTTP/1.1 100 Continue\r\n{fields}\r\n{last}");
        let why = Some(SPLIT);
        cases.push(Case { path, bytes, then: Then::GoOn, is_taken: false, why });
    }
    let bytes = ok("X-A: b\x01c\r\nContent-Length: 5\r\n");
    let why = Some("control bytes of an app's users would reach terminals and logs of others");
    cases.push(Case { path: "/control-byte", bytes, then: Then::GoOn, is_taken: false, why });
    // nginx reads a list, and HAProxy chunks in HTTP/1.0, to the end of the connection.
    let to_end = ["/length-list", "/length-list-and-line", "/chunked-in-1-0"];
    for case in cases.iter_mut().filter(|case| to_end.contains(&case.path)) {
        case.then = Then::Close;
    }
    let (bytes, then) = (ok("Content-Length:\r\n"), Then::Close);
    cases.push(Case { path: "/length-empty", bytes, then, is_taken: true, why: None });
    cases
}

fn app() -> App {
    let reply = |case: Case| Reply { bytes: case.bytes.into_bytes(), then: case.then };
    App::start(cases().into_iter().map(|case| (case.path, reply(case))).collect::<Script>())
}

/// Asks for a path on a connection that closes behind the answer.
fn asked(address: std::net::SocketAddr, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {STOCK}\r\nconnection: close\r\n\r\n");
    RawClient::exchange(address, request, Duration::from_secs(3)).unwrap()
}

/// Whether an answer is 200 with the whole body.
fn is_whole(answer: &Answer) -> bool {
    final_part(answer).is_some_and(|(head, rest)| {
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding:");
        let body = if is_chunked { chunked(rest).map(|(body, _)| body) } else { Some(rest.into()) };
        let is_ok = head.starts_with("HTTP/1.") && head[8..].starts_with(" 200");
        is_ok && body.as_deref() == Some(BODY)
    })
}

/// The head of the final answer, and what follows it.
fn final_part(answer: &Answer) -> Option<(String, &[u8])> {
    let mut rest = &answer.bytes[..];
    loop {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest = &rest[end..];
        if !head.starts_with("HTTP/1.1 1") {
            return Some((head, rest));
        }
    }
}

/// Whether no reader can take the head for another.
fn assert_well_formed(path: &str, answer: &Answer) {
    let Some((head, _)) = final_part(answer) else { return };
    let mut framed = 0;
    for line in head.split_inclusive('\n') {
        assert!(line.ends_with("\r\n") && !line.starts_with([' ', '\t']), "{path}: {head}");
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        framed += usize::from(name == "content-length" || name == "transfer-encoding");
    }
    assert!(framed <= 1, "{path}: {head}");
}

#[test]
fn we_take_of_answers_what_most_of_nginx_haproxy_and_go_take() {
    let (nginx, haproxy) = (need_tool!("nginx"), need_tool!("haproxy"));
    let go = need_tool!("framing-app");
    let app = app();
    let others = [
        Server::nginx_to(&nginx, app.address),
        Server::haproxy_to(&haproxy, app.address),
        Server::go_to(&go, app.address),
    ];
    for case in cases() {
        let takes = |server: &Server| is_whole(&asked(server.address, case.path));
        let takers: Vec<_> = others.iter().filter(|s| takes(s)).map(|s| s.name).collect();
        let do_most = takers.len() >= 2;
        let expected = if case.why.is_some() { !case.is_taken } else { case.is_taken };
        assert_eq!(do_most, expected, "{}: taken by {takers:?}", case.path);
    }
}

#[test]
fn an_answer_that_is_taken_goes_on_well_formed_and_alone() {
    let app = app();
    for way in Chain::ALL {
        let behind = Behind::start_to(way, HTTP1, app.address);
        for case in cases() {
            let answer = asked(behind.http1, case.path);
            let text = answer.text();
            assert_eq!(is_whole(&answer), case.is_taken, "{way:?} {}: {text}", case.path);
            assert_well_formed(case.path, &answer);
            if !case.is_taken {
                let is_late = !text.contains("hello");
                // Of chunks that break off the head may have gone out.
                assert!(text.contains("ERR_BAD_RESPONSE") || is_late, "{}: {text}", case.path);
            }
            // Whatever is left of it is no answer.
            let next = asked(behind.http1, "/next").text();
            assert!(next.ends_with("own /next"), "{way:?} behind {}: {next}", case.path);
        }
    }
}
