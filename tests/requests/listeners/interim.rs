//! Interim responses (status 1xx), answers without a body, and upgrades: from an app with HTTP/1.1
//! to callers of either version.

use http_body_util::BodyExt;
use hyper::Method;
use tollway_testkit::{End, retry_until};

use crate::listeners::listener::{
    Ask, for_each_listener, for_each_listener_over, received, statuses,
};
use crate::listeners::tls_listener::H2;
use tollway_tests::mesh::http::{empty, full, runtime};
use tollway_tests::network::PATIENCE;
use tollway_tests::scripted_app::{Reply, Script, Then};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const YES: &str = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes";

fn reply(text: String) -> Reply {
    Reply { bytes: text.into_bytes(), then: Then::GoOn }
}

fn script() -> Script {
    Script::from([
        ("/hints", reply(format!("{HINTS}{YES}"))),
        ("/processing", reply(format!("HTTP/1.1 102 Processing\r\n\r\n{HINTS}{YES}"))),
        ("/unasked-continue", reply(format!("{CONTINUE}{YES}"))),
    ])
}

#[test]
fn interim_answers_reach_callers_that_know_them() {
    for_each_listener(&script(), |listener, _| {
        for (path, expected) in [("/hints", &[103, 200][..]), ("/processing", &[102, 103, 200])] {
            let mut client = listener.connect();
            let answer = client.ask(&listener.get(path));
            assert_eq!(statuses(&answer), expected, "{path}: {}", answer.text());
            assert!(answer.text().contains("link: </a>; rel=preload\r\n"), "{}", answer.text());
            assert!(answer.text().ends_with("\r\n\r\nyes"), "{path}: {}", answer.text());
            // The connection goes on behind them.
            assert_eq!(statuses(&client.ask(&listener.get("/next"))), [200]);
        }
    });
}

/// HTTP/1.0 has no interim answers: its callers would take one for the answer.
#[test]
fn interim_answers_never_reach_callers_of_http1_0() {
    for_each_listener(&script(), |listener, _| {
        for path in ["/hints", "/processing", "/unasked-continue"] {
            let answer = listener.exchange(listener.get(path).replace("HTTP/1.1", "HTTP/1.0"));
            assert_eq!(statuses(&answer), [200], "{path}: {}", answer.text());
            assert!(answer.text().ends_with("\r\n\r\nyes"), "{path}: {}", answer.text());
        }
    });
}

/// A caller over HTTP/2 gets the answer after them.
#[test]
fn interim_answers_do_not_end_a_stream() {
    for_each_listener_over(H2, &script(), |listener, _| {
        runtime().block_on(async {
            let mut client = listener.http2().await;
            for path in ["/hints", "/processing", "/unasked-continue"] {
                let answer =
                    client.exchange(listener.head(Method::GET, path).body(empty()).unwrap());
                let answer = answer.await;
                assert_eq!((answer.status, answer.text().as_str()), (200, "yes"), "{path}");
            }
        });
    });
}

const EXPECTS: &str = "expect: 100-continue\r\ncontent-length: 5\r\n";

/// The body comes when the app requests it, and not a sidecar in its place.
#[test]
fn only_the_app_sends_continue() {
    let script =
        Script::from([("/early-continue", Reply { bytes: CONTINUE.into(), then: Then::Hang })]);
    for_each_listener(&script, |listener, _| {
        let mut client = listener.connect();
        client.send(listener.request("POST", "/early-continue", EXPECTS)).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
        assert_eq!((statuses(&answer), answer.end), (vec![100], End::Complete));
        assert_eq!(received(listener, "/early-continue").values("expect"), ["100-continue"]);
        client.send("hello").unwrap();
        let sent = || listener.app.was_sent("hello").then_some(());
        retry_until(PATIENCE, "the body at the app", sent).unwrap();
    });
}

/// Answers that have no body for any length: none is made up and none gets through.
#[test]
fn answers_without_body_have_none() {
    let foreign = "FOREIGN";
    let length = format!("content-length: {}\r\n\r\n", foreign.len());
    let script = Script::from([
        ("/head-with-body", reply(format!("HTTP/1.1 200 OK\r\n{length}{foreign}"))),
        ("/head", reply(format!("HTTP/1.1 200 OK\r\n{length}"))),
        (
            "/head-chunked",
            reply("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()),
        ),
        ("/204", reply("HTTP/1.1 204 No Content\r\n\r\n".to_owned())),
        ("/304", reply(format!("HTTP/1.1 304 Not Modified\r\n{length}"))),
    ]);
    let cases = [
        ("HEAD", "/head-with-body", 200, Some("7")),
        ("HEAD", "/head", 200, Some("7")),
        ("HEAD", "/head-chunked", 200, None),
        ("HEAD", "/own", 200, Some("")),
        ("GET", "/204", 204, None),
        ("HEAD", "/204", 204, None),
        ("GET", "/304", 304, Some("7")),
    ];
    for_each_listener(&script, |listener, _| {
        for (method, path, status, length) in cases {
            let mut client = listener.connect();
            let requests = listener.request(method, path, "") + &listener.get("/behind");
            client.send(requests).unwrap();
            let is_over = |bytes: &[u8]| bytes.ends_with(b"own /behind");
            let answer = client.read_until(PATIENCE, is_over).unwrap();
            let text = answer.text();
            assert_eq!(statuses(&answer), [status, 200], "{method} {path}: {text}");
            assert!(!text.contains(foreign), "{method} {path}: {text}");
            let (head, rest) = text.split_once("\r\n\r\n").unwrap();
            assert!(rest.starts_with("HTTP/1.1 200 "), "{method} {path}: {text}");
            let said = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            match length {
                Some("") => assert!(said.is_some(), "{method} {path}: {text}"),
                length => assert_eq!(said, length, "{method} {path}: {text}"),
            }
        }
    });
    for_each_listener_over(H2, &script, |listener, _| {
        runtime().block_on(async {
            let mut client = listener.http2().await;
            for (method, path, status, _) in cases {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                let answer = client.send(listener.head(method, path).body(empty()).unwrap()).await;
                assert_eq!(answer.status(), status, "{path}");
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "", "{path}");
            }
        });
    });
}

/// An app that declines an upgrade, by an answer of its own or by one that is not whole, and one
/// that takes it after a hint.
#[test]
fn the_app_decides_how_an_upgrade_ends() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\n";
    let script = Script::from([
        ("/declined", reply("HTTP/1.1 426 Upgrade Required\r\nupgrade: raw\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nno".to_owned())),
        ("/hinted", Reply { bytes: format!("{HINTS}{switch}welcome").into(), then: Then::Hang }),
        ("/closed", Reply { bytes: format!("{switch}goodbye").into(), then: Then::Close }),
        ("/nothing", Reply { bytes: Vec::new(), then: Then::Close }),
    ]);
    const UPGRADE: &str = "connection: upgrade\r\nupgrade: raw\r\n";
    for_each_listener(&script, |listener, _| {
        let mut client = listener.connect();
        let answer = client.ask(&listener.request("GET", "/declined", UPGRADE));
        assert_eq!(statuses(&answer), [426], "{}", answer.text());
        assert_eq!(statuses(&client.ask(&listener.get("/next"))), [200]);

        let mut client = listener.connect();
        client.send(listener.request("GET", "/hinted", UPGRADE)).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"welcome")).unwrap();
        assert_eq!((statuses(&answer), answer.end), (vec![103, 101], End::Complete));

        let mut client = listener.connect();
        client.send(listener.request("GET", "/closed", UPGRADE)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(statuses(&answer), [101], "{}", answer.text());
        assert!(answer.text().ends_with("\r\n\r\ngoodbye"), "{}", answer.text());
        assert_ne!(answer.end, End::TimedOut);

        let mut client = listener.connect();
        let answer = client.ask(&listener.request("GET", "/nothing", UPGRADE));
        assert_eq!(statuses(&answer), [502], "{}", answer.text());
        listener.check_honest("/behind");
    });
}

/// A caller over HTTP/2 that announces its body and does not wait for `continue`.
#[test]
fn a_body_that_is_announced_arrives_over_http2() {
    for_each_listener_over(H2, &Script::new(), |listener, _| {
        runtime().block_on(async {
            let mut client = listener.http2().await;
            let request = listener.head(Method::POST, "/expects").header("expect", "100-continue");
            let answer = client.exchange(request.body(full("hello")).unwrap()).await;
            assert_eq!(answer.status, 200);
        });
        assert_eq!(received(listener, "/expects").body, b"hello");
    });
}
