//! An app that misbehaves. Its caller gets a clear 502, or an answer that is broken off; never
//! bytes that belong to another request. Each time it is counted.

use tollway_testkit::{Answer, End};

use crate::listeners::listener::{Ask, Kind, Listener, POOLED, for_each_listener, statuses};
use tollway_tests::network::{PATIENCE, metric};
use tollway_tests::scripted_app::{Reply, Script, Then};

/// What the next request must never be answered with.
const FOREIGN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nFOREIGN";

/// What counts requests that failed.
const FAULTS: &str = "tollway_request_failures_total";

/// What the caller of a misbehaving app may see.
enum Expected {
    /// The proxy's own words.
    BadGateway,
    /// That status, without a body.
    Bodiless(u16),
    /// That body, whole; nothing behind it.
    Whole(&'static str),
    /// 200 and the beginning of a body, recognisably not whole.
    BrokenOff(&'static str),
}

struct Case {
    path: &'static str,
    bytes: String,
    then: Then,
    expected: Expected,
}

fn cases() -> Vec<Case> {
    use Expected::{BadGateway, Bodiless, BrokenOff, Whole};
    let mut cases = Vec::new();
    let mut case = |path, bytes: String, then, expected| {
        cases.push(Case { path, bytes, then, expected });
    };
    let ok = "HTTP/1.1 200 OK\r\n";
    let long = format!("content-length: {}\r\n\r\n{FOREIGN}", FOREIGN.len());
    // Statuses that have no body, with one.
    case("/204-length", format!("HTTP/1.1 204 No\r\n{long}"), Then::GoOn, Bodiless(204));
    case("/204-bare", format!("HTTP/1.1 204 No\r\n\r\n{FOREIGN}"), Then::GoOn, Bodiless(204));
    let chunks =
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{FOREIGN}\r\n0\r\n\r\n", FOREIGN.len());
    case("/204-chunked", format!("HTTP/1.1 204 No\r\n{chunks}"), Then::GoOn, Bodiless(204));
    case("/304-length", format!("HTTP/1.1 304 No\r\n{long}"), Then::GoOn, Bodiless(304));
    case("/304-bare", format!("HTTP/1.1 304 No\r\n\r\n{FOREIGN}"), Then::GoOn, Bodiless(304));
    // Two heads in one, and two answers to one request.
    case("/two-lines", format!("{ok}{FOREIGN}"), Then::GoOn, BadGateway);
    case(
        "/two-answers",
        format!("{ok}content-length: 3\r\n\r\nown{FOREIGN}"),
        Then::GoOn,
        Whole("own"),
    );
    // Interim answers without end, and with a body.
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    case("/flood", interim.repeat(1000) + FOREIGN, Then::GoOn, BadGateway);
    let body = format!("HTTP/1.1 103 Early Hints\r\n{long}");
    case("/interim-body", body, Then::GoOn, BadGateway);
    case(
        "/unasked-101",
        format!("HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n{FOREIGN}"),
        Then::GoOn,
        BadGateway,
    );
    // The body's end, given twice or wrongly.
    let both = format!("{ok}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n");
    let both = both + "3\r\nown\r\n0\r\n\r\n";
    case("/both", both + FOREIGN, Then::GoOn, Whole("own"));
    let twice = format!("{ok}content-length: 3\r\ncontent-length: 4\r\n\r\nown");
    case("/two-lengths", twice, Then::GoOn, BadGateway);
    case("/bad-length", format!("{ok}content-length: +3\r\n\r\nown"), Then::GoOn, BadGateway);
    let coding = format!("{ok}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{FOREIGN}");
    case("/bad-coding", coding, Then::GoOn, BadGateway);
    let short = format!("{ok}content-length: 10\r\n\r\nhello");
    case("/short", short, Then::Close, BrokenOff("hello"));
    let chunks = format!("{ok}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    case("/chunks-cut", chunks.clone(), Then::Close, BrokenOff("hello"));
    case("/chunks-bad", chunks + "zz\r\n" + FOREIGN, Then::GoOn, BrokenOff("hello"));
    // Heads that are none.
    let bare = "HTTP/1.1 200 OK\ncontent-length: 3\n\nown";
    case("/bare-lf", format!("{bare}{FOREIGN}"), Then::GoOn, Whole("own"));
    let cr = format!("{ok}x-a: b\rcontent-length: 0\r\n\r\n");
    case("/bare-cr", cr, Then::GoOn, BadGateway);
    case("/null", format!("{ok}x-a: b\0\r\ncontent-length: 0\r\n\r\n"), Then::GoOn, BadGateway);
    let fold = format!("{ok}x-a: b\r\n content-length: 9\r\ncontent-length: 3\r\n\r\nown");
    case("/fold", fold + FOREIGN, Then::GoOn, Whole("own"));
    let first = format!("{ok} x-a: b\r\ncontent-length: 0\r\n\r\n");
    case("/fold-first", first, Then::GoOn, BadGateway);
    case("/status", "HTTP/1.1 20 OK\r\n\r\n".into(), Then::GoOn, BadGateway);
    case("/status-0", "HTTP/1.1 000 OK\r\n\r\n".into(), Then::GoOn, BadGateway);
    case("/not-http", "SSH-2.0-OpenSSH_9.2\r\n".into(), Then::GoOn, BadGateway);
    case("/nothing", String::new(), Then::Close, BadGateway);
    let large = format!("{ok}x-a: {}\r\n\r\n", "b".repeat(1 << 20));
    case("/large", large, Then::GoOn, BadGateway);
    let many = format!("{ok}{}\r\n", "x-a: b\r\n".repeat(10_000));
    case("/many", many, Then::GoOn, BadGateway);
    cases
}

fn script() -> Script {
    let reply = |case: Case| Reply { bytes: case.bytes.into_bytes(), then: case.then };
    cases().into_iter().map(|case| (case.path, reply(case))).collect()
}

fn check_listener(listener: &Listener, kind: Kind) {
    for Case { path, expected, .. } in &cases() {
        let before = metric(listener.app_side(kind), FAULTS);
        let mut client = listener.connect();
        client.send(listener.get(path)).unwrap();
        // Another request right behind: whatever the app sent too much would answer it.
        let behind = client.send(listener.get("/behind"));
        // A response that is broken off may have ended the connection by then.
        if !matches!(expected, Expected::BrokenOff(_)) {
            behind.unwrap();
        }
        let answer = client.read_until(PATIENCE, is_over(expected)).unwrap();
        check_answer(path, &answer, expected);
        for n in 0..3 {
            listener.check_honest(&format!("/own-{n}"));
        }
        let counted = metric(listener.app_side(kind), FAULTS) - before;
        assert_eq!(counted, expected.faults(), "{kind:?} {path}: requests counted as failed");
    }
}

impl Expected {
    /// How many requests fail by it: surplus bytes belong to none.
    fn faults(&self) -> u64 {
        match self {
            Self::BadGateway | Self::BrokenOff(_) => 1,
            Self::Bodiless(_) | Self::Whole(_) => 0,
        }
    }
}

/// Whether the answer to the request behind has come, or cannot come any more.
fn is_over(expected: &Expected) -> impl Fn(&[u8]) -> bool {
    let last = match expected {
        Expected::BrokenOff(_) => None,
        Expected::BadGateway | Expected::Bodiless(_) | Expected::Whole(_) => {
            Some(b"own /behind".as_slice())
        }
    };
    move |bytes| last.is_some_and(|last| bytes.ends_with(last))
}

#[track_caller]
fn check_answer(path: &str, answer: &Answer, expected: &Expected) {
    let text = answer.text();
    assert!(!text.contains("FOREIGN"), "{path}: {text}");
    let finals: Vec<u16> = statuses(answer).into_iter().filter(|status| *status >= 200).collect();
    match expected {
        Expected::BadGateway => {
            assert_eq!(finals, [502, 200], "{path}: {text}");
            let code = if path == "/nothing" { "ERR_CLOSED_EARLY" } else { "ERR_BAD_RESPONSE" };
            assert!(text.contains(code), "{path}: {text}");
        }
        Expected::Bodiless(status) => {
            assert_eq!(finals, [*status, 200], "{path}: {text}");
            let (_, rest) = text.split_once("\r\n\r\n").unwrap();
            assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {text}");
        }
        Expected::Whole(body) => {
            assert_eq!(finals, [200, 200], "{path}: {text}");
            let (_, rest) = text.split_once("\r\n\r\n").unwrap();
            let rest = rest.replace("3\r\nown\r\n0\r\n\r\n", "own");
            assert!(rest.starts_with(&format!("{body}HTTP/1.1 200")), "{path}: {text}");
        }
        Expected::BrokenOff(start) => {
            assert_eq!(finals, [200], "{path}: {text}");
            let (head, rest) = text.split_once("\r\n\r\n").unwrap();
            let rest = rest.replace("5\r\nhello\r\n", "hello");
            assert_eq!(&rest, start, "{path}: {head}");
            assert_ne!(answer.end, End::TimedOut, "{path}");
        }
    }
}

#[test]
fn callers_never_get_foreign_bytes() {
    for_each_listener(&script(), check_listener);
}

#[test]
fn callers_never_get_foreign_bytes_from_a_pool_between_sidecars() {
    check_listener(&Listener::open(Kind::HttpApi, script(), POOLED), Kind::HttpApi);
}

/// An app that accepts and never answers is given up after the request timeout, and by name.
#[test]
fn an_app_that_hangs_is_given_up() {
    let script = Script::from([("/hangs", Reply { bytes: Vec::new(), then: Then::Hang })]);
    let listener = Listener::open(Kind::Mesh, script, &["--request-timeout-ms", "1000"]);
    let answer = listener.connect().ask(&listener.get("/hangs"));
    assert_eq!(statuses(&answer), [504], "{}", answer.text());
    assert!(answer.text().contains("the app did not answer within 1 s"), "{}", answer.text());
    listener.check_honest("/after");
}
