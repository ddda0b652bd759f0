//! Malformed and oversized requests at the listeners with HTTP/1.1. Each is refused with the right
//! status, nothing of it reaches the app, it is counted, other callers are not affected, and memory
//! does not grow.

use std::sync::atomic::{AtomicBool, Ordering};

use tollway_testkit::{End, RawClient, peak_resident_bytes, reset_peak, resident_bytes};

use crate::listeners::listener::{Ask, GROWTH_BYTES, Kind, Listener, REFUSED, statuses};
use tollway_tests::network::{Network, PATIENCE, metric};
use tollway_tests::scripted_app::Script;

/// How much of a refused request may reach the app.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reaches {
    /// Not a byte: the head itself is wrong.
    Nothing,
    /// The head was right and may have gone on before the body went wrong; the app must not
    /// take it for whole.
    NothingWhole,
}

struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    status: u16,
    reaches: Reaches,
}

const CHUNKED: &str = "transfer-encoding: chunked\r\n";
const UPGRADE: &str = "connection: upgrade\r\nupgrade: raw\r\n";
const CLOSE: &str = "connection: close\r\n";

/// What is refused. The name of a case is its path.
fn refused(listener: &Listener) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut head = |name: &'static str, fields: &str, body: &str, status: u16| {
        let bytes = format!("{}{body}", listener.request("POST", name, fields)).into_bytes();
        cases.push(Case { name, bytes, status, reaches: Reaches::Nothing });
    };
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    // Both fields that determine where the body ends.
    head("/1-both", &format!("content-length: 5\r\n{CHUNKED}"), smuggled, 400);
    head("/1-both-turned", &format!("{CHUNKED}content-length: 5\r\n"), smuggled, 400);
    // One of them twice.
    head("/2-equal", "content-length: 5\r\ncontent-length: 5\r\n", "hello", 400);
    head("/2-different", "content-length: 5\r\ncontent-length: 6\r\n", "hello!", 400);
    // A coding that is not `chunked`, alone, once, at the end, spelt so.
    head("/3-twice", &format!("{CHUNKED}{CHUNKED}"), smuggled, 400);
    head("/3-list-twice", "transfer-encoding: chunked, chunked\r\n", smuggled, 400);
    head("/3-xchunked", "transfer-encoding: xchunked\r\n", smuggled, 501);
    head("/3-identity-last", "transfer-encoding: chunked, identity\r\n", smuggled, 400);
    head("/3-gzip-first", "transfer-encoding: gzip, chunked\r\n", smuggled, 501);
    head("/3-empty", "transfer-encoding:\r\n", smuggled, 400);
    head("/3-space", "transfer-encoding : chunked\r\n", smuggled, 400);
    head("/3-tab", "transfer-encoding\t: chunked\r\n", smuggled, 400);
    head("/3-vtab", "transfer-encoding\x0b: chunked\r\n", smuggled, 400);
    head("/3-newline", "transfer-encoding\n: chunked\r\n", smuggled, 400);
    head("/3-vtab-value", "transfer-encoding: \x0bchunked\r\n", smuggled, 400);
    // A length that is not one number.
    head("/5-plus", "content-length: +5\r\n", "hello", 400);
    head("/5-minus", "content-length: -5\r\n", "hello", 400);
    head("/5-list", "content-length: 5,5\r\n", "hello", 400);
    head("/5-inner-space", "content-length: 5 5\r\n", "hello", 400);
    head("/5-vtab", "content-length: \x0b5\r\n", "hello", 400);
    head("/5-hex", "content-length: 0x5\r\n", "hello", 400);
    head("/5-empty", "content-length:\r\n", "hello", 400);
    head("/5-20-digits", "content-length: 00000000000000000005\r\n", "hello", 400);
    head("/5-too-large", "content-length: 99999999999999999999\r\n", "hello", 400);
    // Line ends, folds, bytes and names that a field must not have.
    head("/7-fold", "x-a: b\r\n c: d\r\n", "", 400);
    head("/7-fold-tab", "x-a: b\r\n\tcontent-length: 5\r\n", "hello", 400);
    head("/7-null", "x-a: b\0c\r\n", "", 400);
    head("/7-bare-cr", "x-a: b\rc: d\r\n", "", 400);
    head("/7-bare-lf", "x-a: b\nc: d\r\n", "", 400);
    head("/7-name-with-space", "x a: b\r\n", "", 400);
    head("/7-no-colon", "x-a\r\n", "", 400);
    head("/7-no-name", ": b\r\n", "", 400);
    // Hosts.
    head("/8-two-hosts", "host: localhost\r\n", "", 400);
    head("/8-same-host-twice", &format!("Host: {}\r\n", listener.host), "", 400);
    // Too much.
    let many = "x-a: b\r\n".repeat(10_000);
    head("/11-many", &many, "", 431);
    head("/11-large", &format!("x-a: {}\r\n", "b".repeat(1 << 20)), "", 431);

    let mut raw = |name: &'static str, text: String, status: u16| {
        cases.push(Case { name, bytes: text.into(), status, reaches: Reaches::Nothing });
    };
    let (prefix, host) = (listener.prefix, listener.host);
    // A coding in HTTP/1.0.
    raw(
        "/4-chunked",
        format!("POST {prefix}/4-chunked HTTP/1.0\r\nhost: {host}\r\n{CHUNKED}\r\n{smuggled}"),
        400,
    );
    // Line ends, folds, bytes and names that a field must not have.
    raw("/7-only-lf", format!("GET {prefix}/7-only-lf HTTP/1.1\nhost: {host}\n\n"), 400);
    raw("/7-only-cr", format!("GET {prefix}/7-only-cr HTTP/1.1\rhost: {host}\r\r\n\r\n"), 400);
    // Hosts.
    raw("/8-no-host", format!("{}\r\n", listener.line("GET", "/8-no-host")), 400);
    raw(
        "/8-no-host-absolute",
        format!("GET http://{host}{prefix}/8-no-host-absolute HTTP/1.1\r\n\r\n"),
        400,
    );
    raw(
        "/8-user",
        format!("GET http://me@{host}{prefix}/8-user HTTP/1.1\r\nhost: {host}\r\n\r\n"),
        400,
    );
    raw("/8-bad-host", format!("{}host: a/b\r\n\r\n", listener.line("GET", "/8-bad-host")), 400);
    // Targets and versions.
    for (name, path) in [
        ("/10-fragment", "/10-fragment#x"),
        ("/10-space", "/10-space x"),
        ("/10-null", "/10-null\0x"),
        ("/10-8-bit", "/10-8-bit\u{fc}#x"),
        ("/10-tab", "/10-tab\tx"),
    ] {
        raw(name, listener.get(path), 400);
    }
    raw("/10-no-slash", listener.get("").replace(&format!("{prefix} "), "10-no-slash "), 400);
    raw("/10-long", listener.get(&format!("/10-long{}", "a".repeat(20_000))), 414);
    raw("/10-version", listener.get("/10-version").replace("HTTP/1.1", "HTTP/2.5"), 505);
    raw("/10-no-version", listener.get("/10-no-version").replace("HTTP/1.1", "HTTP/x"), 400);

    let mut body = |name: &'static str, chunks: String, status: u16| {
        let bytes = listener.request("POST", name, CHUNKED) + &chunks + smuggled;
        cases.push(Case { name, bytes: bytes.into(), status, reaches: Reaches::NothingWhole });
    };
    // Chunks.
    body("/6-overflow", "10000000000000000\r\nhello".into(), 400);
    body("/6-17-digits", "00000000000000005\r\nhello\r\n".into(), 400);
    body("/6-largest", "ffffffffffffffff\r\nhello".into(), 400);
    body("/6-negative", "-5\r\nhello\r\n".into(), 400);
    body("/6-plus", "+5\r\nhello\r\n".into(), 400);
    body("/6-prefix", "0x5\r\nhello\r\n".into(), 400);
    body("/6-space", "5 \r\nhello\r\n".into(), 400);
    body("/6-empty", "\r\nhello\r\n".into(), 400);
    body("/6-long-extension", format!("5;x={}\r\nhello\r\n", "a".repeat(1000)), 400);
    body("/6-extensions", "1;x=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nh\r\n".repeat(2000), 400);
    body("/6-line-feed-in-extension", "5;x=a\nb\r\nhello\r\n".into(), 400);
    body("/6-bare-lf", "5\nhello\n".into(), 400);
    body("/6-no-end", "5\r\nhelloX\r\n".into(), 400);
    // Trailers.
    body("/14-malformed", "0\r\nno colon\r\n\r\n".into(), 400);
    body("/14-large", format!("0\r\nx-a: {}\r\n\r\n", "b".repeat(100_000)), 431);
    cases
}

fn check_refused(kind: Kind) {
    let listener = Listener::open(kind, Script::new(), &[]);
    let cases = refused(&listener);
    let before = metric(&listener.reader, REFUSED);
    let pid = listener.reader.pid();
    reset_peak(pid).unwrap();
    let resident = resident_bytes(pid).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| others(&listener, &stop));
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cases.iter().for_each(|case| check_case(&listener, case));
        }));
        stop.store(true, Ordering::Relaxed);
        others.join().unwrap();
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(!listener.app.was_sent("smuggled"));
    assert_eq!(metric(&listener.reader, REFUSED) - before, cases.len() as u64);
    let peak = peak_resident_bytes(pid).unwrap();
    assert!(peak < resident + GROWTH_BYTES, "from {resident} to {peak} bytes");
}

/// Calls until stopped, and often enough in any case.
fn others(listener: &Listener, stop: &AtomicBool) {
    let mut client = listener.connect();
    let mut count = 0;
    while count < 20 || !stop.load(Ordering::Relaxed) {
        let path = format!("/other-{count}");
        let answer = client.ask(&listener.get(&path)).text();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.ends_with(&format!("own {path}")), "{answer}");
        count += 1;
    }
}

#[track_caller]
fn check_case(listener: &Listener, Case { name, bytes, status, reaches }: &Case) {
    let answer = listener.exchange(bytes);
    let text = answer.text();
    assert_eq!(statuses(&answer), [*status], "{name}: {text}");
    let code = if *status == 431 { "ERR_HEAD_TOO_LARGE" } else { "ERR_MALFORMED_REQUEST" };
    assert!(text.contains(code), "{name}: {text}");
    assert!(text.to_lowercase().contains("connection: close"), "{name}: {text}");
    assert_ne!(answer.end, End::TimedOut, "{name} is still open");
    // Whatever was to follow has followed by the time an honest call has its answer.
    listener.check_honest("/after");
    assert!(listener.app.requests(name).is_empty(), "{name} reached the app whole");
    if *reaches == Reaches::Nothing {
        assert!(!listener.app.was_sent(name), "{name} reached the app");
    }
    assert!(!listener.app.was_sent("smuggled"), "{name} smuggled a request");
    listener.app.forget();
}

#[test]
fn api_refuses_malformed_requests() {
    check_refused(Kind::HttpApi);
}

#[test]
fn grpc_api_refuses_malformed_requests() {
    check_refused(Kind::GrpcApi);
}

#[test]
fn tunnels_refuse_malformed_requests() {
    check_refused(Kind::Tunnel);
}

#[test]
fn outbound_port_refuses_malformed_requests() {
    check_refused(Kind::Outbound);
}

#[test]
fn inbound_listener_refuses_malformed_requests() {
    check_refused(Kind::Mesh);
}

#[test]
fn front_refuses_malformed_requests() {
    check_refused(Kind::Front);
}

/// Bytes for the admin port, and the statuses of all its answers until it closes: more than one if
/// it takes what follows for a request.
fn at_admin() -> Vec<(&'static str, String, &'static [u16])> {
    let get = |fields: &str| format!("GET /metrics HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
    let line = |from, to| get(CLOSE).replace(from, to);
    vec![
        ("7-fold", get("x-a: b\r\n c: d\r\n"), &[400]),
        ("7-fold-tab", get("x-a: b\r\n\tc: d\r\n"), &[400]),
        ("7-null", get("x-a: b\0c\r\n"), &[400]),
        ("7-bare-cr", get("x-a: b\rc: d\r\n"), &[400]),
        ("7-only-cr", get("").replace("\r\n", "\r") + "\r\n\r\n", &[400]),
        ("7-name-with-space", get("x a: b\r\n"), &[400]),
        ("7-no-colon", get("x-a\r\n"), &[400]),
        ("7-no-name", get(": b\r\n"), &[400]),
        // A recipient may take a line feed alone for the end of a line (RFC 9112 section 2.2).
        ("7-bare-lf", get("x-a: b\nconnection: close\r\n"), &[200]),
        ("7-only-lf", line("\r\n", "\n"), &[200]),
        ("8-no-host", line("host: a\r\n", ""), &[400]),
        ("8-two-hosts", get("host: b\r\n"), &[400]),
        ("8-same-host-twice", get("host: a\r\n"), &[400]),
        ("8-spelling", line("host: a", "HOST: A.Example.:9090"), &[200]),
        ("9-upgrade", get(UPGRADE) + &get(CLOSE), &[200, 200]),
        ("9-upgrade-malformed", get(UPGRADE) + &get("x a: b\r\n"), &[200, 400]),
        ("10-null", line("/metrics", "/met\0rics"), &[400]),
        ("10-space", line("/metrics", "/metrics x"), &[400]),
        ("10-tab", line("/metrics", "/metrics\tx"), &[400]),
        ("10-backslash", line("/metrics", "/metrics\\x"), &[404]),
        ("10-encoded", line("/metrics", "/metrics%0d%0a"), &[404]),
        ("10-version", line("HTTP/1.1", "HTTP/2.5"), &[400]),
        ("11-many", get(&"x-a: b\r\n".repeat(10_000)), &[431]),
        ("11-large", get(&format!("x-a: {}\r\n", "b".repeat(1 << 20))), &[431]),
        ("13-no-body", get(&format!("expect: 100-continue\r\n{CLOSE}")), &[200]),
        ("15-connection", get("connection: host, close, x-a\r\nx-a: b\r\n"), &[200]),
    ]
}

/// Bodies, which no request to the admin port has: wherever one ends, what follows is not read.
fn bodies_at_admin() -> Vec<(&'static str, String)> {
    let with = |fields: &str, body: &str| {
        let get = format!("GET /metrics HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        get + body + "0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
    };
    let chunked = |chunks: &str| with(CHUNKED, chunks);
    vec![
        ("1-both", with(&format!("content-length: 5\r\n{CHUNKED}"), "")),
        ("1-both-turned", with(&format!("{CHUNKED}content-length: 5\r\n"), "")),
        ("2-equal", with("content-length: 5\r\ncontent-length: 5\r\n", "hello")),
        ("2-different", with("content-length: 5\r\ncontent-length: 6\r\n", "hello!")),
        ("3-twice", with(&CHUNKED.repeat(2), "")),
        ("3-list-twice", with("transfer-encoding: chunked, chunked\r\n", "")),
        ("3-xchunked", with("transfer-encoding: xchunked\r\n", "")),
        ("3-identity-last", with("transfer-encoding: chunked, identity\r\n", "")),
        ("3-gzip-first", with("transfer-encoding: gzip, chunked\r\n", "")),
        ("3-empty", with("transfer-encoding:\r\n", "")),
        ("3-space", with("transfer-encoding : chunked\r\n", "")),
        ("3-tab", with("transfer-encoding\t: chunked\r\n", "")),
        ("3-vtab", with("transfer-encoding\x0b: chunked\r\n", "")),
        ("3-newline", with("transfer-encoding\n: chunked\r\n", "")),
        ("4-chunked", chunked("").replacen("/1.1", "/1.0", 1)),
        ("5-plus", with("content-length: +5\r\n", "hello")),
        ("5-minus", with("content-length: -5\r\n", "hello")),
        ("5-list", with("content-length: 5,5\r\n", "hello")),
        ("5-inner-space", with("content-length: 5 5\r\n", "hello")),
        ("5-hex", with("content-length: 0x5\r\n", "hello")),
        ("5-empty", with("content-length:\r\n", "hello")),
        ("5-20-digits", with("content-length: 00000000000000000005\r\n", "hello")),
        ("5-too-large", with("content-length: 99999999999999999999\r\n", "hello")),
        ("5-behind-line-feed", with("x-a: b\ncontent-length: 5\r\n", "hello")),
        ("6-overflow", chunked("10000000000000000\r\nhello")),
        ("6-17-digits", chunked("00000000000000005\r\nhello\r\n")),
        ("6-largest", chunked("ffffffffffffffff\r\nhello")),
        ("6-negative", chunked("-5\r\nhello\r\n")),
        ("6-prefix", chunked("0x5\r\nhello\r\n")),
        ("6-long-extension", chunked(&format!("5;x={}\r\nhello\r\n", "a".repeat(100_000)))),
        ("6-bare-lf", chunked("5\nhello\n")),
        ("6-no-end", chunked("5\r\nhelloX\r\n")),
        ("9-with-body", with(&format!("{UPGRADE}content-length: 5\r\n"), "hello")),
        ("13-never", with("expect: 100-continue\r\ncontent-length: 500\r\n", "")),
        ("14-forbidden", chunked("0\r\ncontent-length: 99\r\nhost: b\r\n\r\n")),
        ("14-malformed", chunked("0\r\nno colon\r\n\r\n")),
        ("14-large", chunked(&format!("0\r\nx-a: {}\r\n\r\n", "b".repeat(100_000)))),
    ]
}

/// The admin port leads to no app and its server is a library's, which answers what it does not take
/// and closes. There are no answers of apps there, and so no number 12.
#[test]
fn admin_port_refuses_malformed_requests() {
    let network = Network::start("west");
    let web = network.sidecar("web", &[]);
    let admin = web.port("admin").unwrap();
    let pid = web.pid();
    reset_peak(pid).unwrap();
    let resident = resident_bytes(pid).unwrap();
    let bodies = bodies_at_admin().into_iter().map(|(name, request)| (name, request, &[400][..]));
    for (name, request, expected) in at_admin().into_iter().chain(bodies) {
        let answer = RawClient::exchange(admin, request, PATIENCE).unwrap();
        assert_eq!(statuses(&answer), expected, "{name}: {}", answer.text());
        assert_ne!(answer.end, End::TimedOut, "{name} is still open");
        assert!(web.metrics().is_ok(), "{name}: others are served");
    }
    let peak = peak_resident_bytes(pid).unwrap();
    assert!(peak < resident + GROWTH_BYTES, "from {resident} to {peak} bytes");
}
