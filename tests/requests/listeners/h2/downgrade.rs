//! Forms of HTTP/2 that HTTP/1.1 would read differently: heads and bodies that, forwarded to an app
//! over HTTP/1.1, would end elsewhere or be two requests. None of it reaches the app.

use tollway_testkit::retry_until;

use crate::listeners::listener::{Listener, REFUSED, for_each_listener_over};
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, block, frame, hello, kinds,
};
use tollway_tests::network::{PATIENCE, metric};
use tollway_tests::scripted_app::{Request, Script};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";

/// The frames of one request on a connection of its own.
fn cases(listener: &Listener) -> Vec<(&'static str, Vec<u8>)> {
    let (host, prefix) = (listener.host, listener.prefix);
    let lines = |name: &'static str, more: &[(&str, &str)]| {
        let path = format!("{prefix}/{name}");
        let lines = [&listener.head_lines(&path)[..], more].concat();
        (name, frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&lines)))
    };
    let pseudo = |name: &'static str, fields: [(&str, &str); 4]| {
        (name, frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields)))
    };
    let value = format!("a\r\n\r\n{SMUGGLED}");
    let to = |name: &str| format!("{prefix}/{name}");
    let path = format!("{prefix}/path-with-lines HTTP/1.1\r\nhost: x\r\n\r\n{SMUGGLED}");
    let method = format!("GET {prefix}/method-with-lines HTTP/1.1\r\nhost: x\r\n\r\n{SMUGGLED}");
    let (post, http) = ((":method", "POST"), (":scheme", "http"));
    let host = (":authority", host);
    let below = to("length-below-data");
    let below = block(&[&listener.head_lines(&below)[..], &[("content-length", "1")]].concat());
    let below = [
        frame(HEADERS, END_HEADERS, 1, &below),
        frame(DATA, END_STREAM, 1, format!("x{SMUGGLED}").as_bytes()),
    ]
    .concat();
    vec![
        lines("value-with-lines", &[("x-a", &value)]),
        lines("value-with-line-feed", &[("x-a", "b\nc: d")]),
        lines("value-with-null", &[("x-a", "b\0c")]),
        lines("name-with-lines", &[("x-a: b\r\nx-c", "d")]),
        lines("name-with-colon", &[("x-a:", "b")]),
        lines("name-in-capitals", &[("X-A", "b")]),
        lines("name-empty", &[("", "b")]),
        lines("chunked", &[("transfer-encoding", "chunked")]),
        lines("connection", &[("connection", "close")]),
        lines("keep-alive", &[("keep-alive", "timeout=5")]),
        lines("upgrade", &[("upgrade", "h2c")]),
        lines("te-other-than-trailers", &[("te", "gzip")]),
        lines("two-lengths", &[("content-length", "0"), ("content-length", "5")]),
        lines("length-above-data", &[("content-length", "5")]),
        lines("another-host", &[("host", "other.mesh")]),
        lines("pseudo-behind-fields", &[("x-a", "b"), (":path", "/smuggled")]),
        lines("path-twice", &[(":path", "/smuggled")]),
        lines("unknown-pseudo", &[(":smuggled", "b")]),
        pseudo("path-with-lines", [post, http, (":path", &path), host]),
        pseudo("path-with-space", [post, http, (":path", &to("path-with-space x")), host]),
        pseudo("path-without-slash", [post, http, (":path", "path-without-slash"), host]),
        pseudo("method-with-lines", [(":method", &method), http, (":path", &to("method")), host]),
        pseudo(
            "authority-with-lines",
            [post, http, (":path", &to("authority")), (":authority", "x\r\nhost: y")],
        ),
        pseudo("no-scheme", [post, host, (":path", &to("no-scheme")), ("x-a", "b")]),
        pseudo("no-path", [post, http, host, ("x-a", "b")]),
        pseudo("no-method", [http, host, (":path", &to("no-method")), ("x-a", "b")]),
        pseudo("field-first", [post, ("x-a", "b"), (":path", &to("field-first")), host]),
        pseudo("status-in-request", [post, http, (":path", &to("status")), (":status", "200")]),
        ("length-below-data", below),
    ]
}

#[test]
fn nothing_that_http1_reads_differently_reaches_an_app() {
    for_each_listener_over(H2, &Script::new(), |listener, _| {
        let cases = cases(listener);
        listener.app.forget();
        for (name, frames) in &cases {
            let before = metric(&listener.reader, REFUSED);
            check_refused(listener, name, frames);
            assert_eq!(metric(&listener.reader, REFUSED) - before, 1, "{name} is counted");
            listener.check_honest_over_http2("/behind");
            assert!(!listener.app.was_sent("smuggled"), "{name} smuggled a request");
            let requests = listener.app.requests("");
            // The sidecar reads its app's actor types now and then.
            let reached = requests.iter().map(Request::target).filter(|to| *to != "/dapr/config");
            assert_eq!(reached.collect::<Vec<_>>(), ["/behind"], "{name}");
            listener.app.forget();
        }
    });
}

/// In either case: the stream is reset, or answered from here.
#[track_caller]
fn check_refused(listener: &Listener, name: &str, frames: &[u8]) {
    let mut wire = Wire::open(&Aim { address: listener.address, tls: None }).unwrap();
    wire.send(&[&hello()[..], frames].concat()).unwrap();
    let mut answer = Vec::new();
    let is_refused = retry_until(PATIENCE, name, || {
        match wire.take() {
            Ok(more) => answer.extend(more),
            // GOAWAY has come, and the end.
            Err(_) => return Some(()),
        }
        let is_over = |kind| matches!(kind, HEADERS | RST_STREAM);
        kinds(&answer).into_iter().any(is_over).then_some(())
    });
    assert!(is_refused.is_ok(), "{name} is not refused");
}

/// The one connection-specific field of HTTP/2, and crumbs of a cookie, arrive in the form of
/// HTTP/1.1.
#[test]
fn te_and_cookies_of_http2_arrive_in_the_form_of_http1() {
    for_each_listener_over(H2, &Script::new(), |listener, _| {
        let path = format!("{}/own-way", listener.prefix);
        let own = [("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")];
        let lines = [listener.head_lines(&path), own.to_vec()].concat();
        let mut wire = Wire::open(&Aim { address: listener.address, tls: None }).unwrap();
        let request = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&lines));
        wire.send(&[hello(), request].concat()).unwrap();
        let arrived = || listener.app.requests("/own-way").pop();
        let request = retry_until(PATIENCE, "the request at the app", arrived).unwrap();
        assert_eq!(request.values("te"), ["trailers"]);
        assert_eq!(request.values("connection"), ["te"]);
        assert_eq!(request.values("cookie"), ["a=1; b=2"]);
    });
}
