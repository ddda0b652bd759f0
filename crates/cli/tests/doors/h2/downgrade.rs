//! What HTTP/2 can say and HTTP/1.1 would read differently: heads and bodies that, carried on to an
//! app over HTTP/1.1, would end elsewhere or be two requests. None of it reaches the app.

use tollway_testkit::retry_until;

use super::attacker::{Aim, Wire};
use super::frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, block, frame, hello, kinds,
};
use crate::app::{App, Script};
use crate::network::{Network, PATIENCE, until_status};

const HOST: &str = "stock.default.west.mesh";
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";

/// The frames of one request on a connection of its own.
fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let lines = |name: &'static str, more: &[(&str, &str)]| {
        let path = format!("/{name}");
        let pseudo =
            [(":method", "POST"), (":scheme", "http"), (":path", &path), (":authority", HOST)];
        (name, frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[&pseudo, more].concat())))
    };
    let pseudo = |name: &'static str, fields: [(&str, &str); 4]| {
        (name, frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields)))
    };
    let value = format!("a\r\n\r\n{SMUGGLED}");
    let path = format!("/path-with-lines HTTP/1.1\r\nhost: x\r\n\r\n{SMUGGLED}");
    let method = format!("GET /method-with-lines HTTP/1.1\r\nhost: x\r\n\r\n{SMUGGLED}");
    let (post, http) = ((":method", "POST"), (":scheme", "http"));
    let host = (":authority", HOST);
    let below =
        block(&[post, http, (":path", "/length-below-data"), host, ("content-length", "1")]);
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
        pseudo("path-with-space", [post, http, (":path", "/path-with-space x"), host]),
        pseudo("path-without-slash", [post, http, (":path", "path-without-slash"), host]),
        pseudo("method-with-lines", [(":method", &method), http, (":path", "/method-with"), host]),
        pseudo(
            "authority-with-lines",
            [post, http, (":path", "/authority-with-lines"), (":authority", "x\r\nhost: y")],
        ),
        ("length-below-data", below),
    ]
}

#[test]
fn nothing_that_http1_reads_differently_reaches_an_app() {
    let app = App::start(Script::new());
    let network = Network::start("west");
    let stock = network.sidecar("stock", &["--app-port", &app.port()]);
    let relay = network.relay(stock.port("inbound").unwrap(), "web", "stock", b"h2");
    let http1 = network.relay(stock.port("inbound").unwrap(), "web", "stock", b"http/1.1");
    for (name, frames) in cases() {
        let mut wire = Wire::open(&Aim { address: relay.address(), tls: None }).unwrap();
        wire.send(&[hello(), frames].concat()).unwrap();
        // Refused in either way: the stream is reset, or answered from here.
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
        let honest = format!("GET /behind-{name} HTTP/1.1\r\nhost: {HOST}\r\n\r\n");
        until_status(http1.address(), &honest, 200);
        assert!(!app.was_sent("smuggled"), "{name} smuggled a request");
        let reached: Vec<_> = app.requests("").iter().map(|r| r.target().to_owned()).collect();
        assert!(reached.iter().all(|target| target.starts_with("/behind-")), "{name}: {reached:?}");
        app.forget();
    }
}
