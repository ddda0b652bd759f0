//! Requests that ask to leave HTTP, and the bytes right after them. These have no meaning until the
//! app has answered; then they belong to its new protocol, or they are the next request.

use tollway_testkit::{End, retry_until};

use crate::listeners::listener::{
    Kind, Listener, REFUSED, for_each_listener, received, statuses, until_received,
};
use tollway_tests::network::{PATIENCE, metric};
use tollway_tests::scripted_app::{Reply, Request, Script, Then, answers};

const UPGRADE: &str = "connection: upgrade\r\nupgrade: raw\r\n";
const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n";
/// Answers that leave the connection what it was.
const DECLINED: [(u16, &str); 2] = [
    (200, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno"),
    (
        426,
        "HTTP/1.1 426 Upgrade Required\r\nconnection: upgrade\r\nupgrade: raw\r\n\
         content-length: 2\r\n\r\nno",
    ),
];

/// An app that sends nothing by itself, or a hint and then nothing.
fn script() -> Script {
    let reply = |bytes: &str, then| Reply { bytes: bytes.into(), then };
    Script::from([
        ("/taken", reply("", Then::Hang)),
        ("/hinted", reply(HINTS, Then::Hang)),
        ("/declined", reply("", Then::GoOn)),
    ])
}

#[test]
fn bytes_behind_an_upgrade_wait_until_the_app_takes_it() {
    for_each_listener(&script(), |listener, _| {
        for path in ["/taken", "/hinted"] {
            let (first, second) = ("GET /early HTTP/1.1\r\nhost: x\r\n\r\n", any_bytes());
            let mut client = listener.connect();
            client.send(listener.request("GET", path, UPGRADE) + first).unwrap();
            let request = until_received(listener, path);
            client.send(&second).unwrap();
            let_pass(listener);
            for early in [&first.as_bytes()[..9], &second[..9]] {
                assert_eq!(
                    listener.app.times_sent(early),
                    0,
                    "{path}: sent before the app took it"
                );
            }
            request.send_more(format!("{SWITCH}welcome"));
            let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"welcome")).unwrap();
            assert_eq!(answer.end, End::Complete, "{path}: {}", answer.text());
            let expected: &[u16] = if path == "/hinted" { &[103, 101] } else { &[101] };
            assert_eq!(statuses(&answer), expected, "{path}: {}", answer.text());
            client.send("later").unwrap();
            let whole = [first.as_bytes(), &second, b"later"].concat();
            let arrived = || (listener.app.times_sent(&whole) == 1).then_some(());
            retry_until(PATIENCE, "all of it at the app, unchanged", arrived).unwrap();
            for part in [&first.as_bytes()[..9], &second[..9], b"later"] {
                assert_eq!(listener.app.times_sent(part), 1, "{path}: more than once");
            }
            assert!(listener.app.requests("/early").is_empty(), "{path}: read as a request");
            listener.app.forget();
        }
    });
}

/// Bytes that no HTTP parser would pass on unchanged, as many as an unread socket holds.
fn any_bytes() -> Vec<u8> {
    let numbers = (0..8 * 1024_u32).flat_map(u32::to_be_bytes);
    b"second:\0\xff\r\n".iter().copied().chain(numbers).collect()
}

/// By the time others have been served, whatever was to be passed on has been.
fn let_pass(listener: &Listener) {
    for _ in 0..3 {
        listener.check_honest("/meanwhile");
    }
}

#[test]
fn bytes_behind_an_upgrade_that_is_declined_are_the_next_request() {
    const FORGED: &str = "x-tollway-caller: spiffe://evil/ns/a/b\r\ndapr-caller-app-id: evil\r\n\
                          x-forwarded-proto: evil\r\n";
    let chunked = format!("{UPGRADE}transfer-encoding: chunked\r\n");
    let length = format!("{UPGRADE}content-length: 5\r\n");
    for_each_listener(&script(), |listener, kind| {
        for (status, answer) in DECLINED {
            for (fields, body) in
                [(UPGRADE, ""), (&length, "hello"), (&chunked, "5\r\nhello\r\n0\r\n\r\n")]
            {
                let mut client = listener.connect();
                let declined = listener.request("POST", "/declined", fields) + body;
                client.send(declined + &listener.request("GET", "/next?a=%2f", FORGED)).unwrap();
                let request = until_received(listener, "/declined");
                assert_eq!(request.body, body.as_bytes());
                let_pass(listener);
                assert!(!listener.app.was_sent("/next"), "passed on before the app had declined");
                request.send_more(answer);
                let both = client.read_until(PATIENCE, |bytes| answers(bytes) == 2).unwrap();
                assert_eq!(statuses(&both), [status, 200], "{}", both.text());
                assert!(both.text().ends_with("own /next?a=%2f"), "{}", both.text());
                check_read(kind, &received(listener, "/next?a=%2f"));
                listener.app.forget();
            }
        }
    });
}

/// The proxy has read it as a request: the field has the caller's identity in place of the forged
/// one.
#[track_caller]
fn check_read(kind: Kind, request: &Request) {
    assert_eq!(request.target(), "/next?a=%2f");
    assert_eq!(request.values("upgrade"), [""; 0]);
    if kind == Kind::Front {
        assert_eq!(request.values("x-forwarded-proto"), ["https"]);
        assert_eq!(request.values("x-forwarded-for"), ["127.0.0.1"]);
    } else {
        let caller = "spiffe://west.tollway/ns/default/web";
        assert_eq!(request.values("x-tollway-caller"), [caller]);
        assert_eq!(request.values("dapr-caller-app-id"), ["web"]);
    }
}

#[test]
fn bytes_behind_an_upgrade_that_is_declined_are_refused_where_they_are_no_request() {
    for_each_listener(&script(), |listener, _| {
        for (status, answer) in DECLINED {
            let before = metric(&listener.reader, REFUSED);
            let mut client = listener.connect();
            let malformed = "GET /smuggled HTTP/1.1\r\nhost : x\r\n\r\n";
            client.send(listener.request("GET", "/declined", UPGRADE) + malformed).unwrap();
            let request = until_received(listener, "/declined");
            let_pass(listener);
            request.send_more(answer);
            let both = client.read_to_end(PATIENCE).unwrap();
            assert_eq!(statuses(&both), [status, 400], "{}", both.text());
            assert!(both.text().contains("ERR_MALFORMED_REQUEST"), "{}", both.text());
            assert_ne!(both.end, End::TimedOut);
            assert_eq!(metric(&listener.reader, REFUSED) - before, 1);
            listener.check_honest("/behind");
            assert!(!listener.app.was_sent("smuggled"));
            listener.app.forget();
        }
    });
}
