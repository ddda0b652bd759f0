//! Bodies that end before they are whole. An app never gets a shorter request for a whole one, and
//! a caller never a shorter answer.

use hyper::Method;
use tollway_testkit::{End, RawClient, retry_until};

use crate::listeners::listener::{
    Ask, Kind, Listener, POOLED, for_each_listener, for_each_listener_over, statuses,
};
use crate::listeners::tls_listener::H2;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::h2_frames::{
    CANCEL, DATA, END_HEADERS, HEADERS, NO_ERROR, block, frame, hello, reset_with,
};
use tollway_tests::mesh::http::{empty, runtime};
use tollway_tests::network::PATIENCE;
use tollway_tests::scripted_app::{App, Reply, Script, Then};

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// How a caller gives up.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    Reset,
}

#[test]
fn an_app_sees_that_a_caller_gave_up() {
    for_each_listener(&Script::new(), |listener, _| give_up_asking(listener));
}

fn give_up_asking(listener: &Listener) {
    for (path, fields, begun) in [
        ("/cut-length", "content-length: 10\r\n", "begun"),
        ("/cut-chunk", CHUNKED, "a\r\nbegun"),
        ("/cut-between-chunks", CHUNKED, "5\r\nbegun\r\n"),
        ("/cut-in-last-chunk", CHUNKED, "5\r\nbegun\r\n0\r\n"),
        ("/cut-in-trailers", CHUNKED, "5\r\nbegun\r\n0\r\nx-sum: 1\r\n"),
    ] {
        for leave in [Leave::Close, Leave::Reset] {
            let mut client = listener.connect();
            client.send(listener.request("POST", path, fields) + begun).unwrap();
            until_begun(&listener.app, path);
            match leave {
                Leave::Close => drop(client),
                Leave::Reset => client.reset().unwrap(),
            }
            check_broken_off(&listener.app, path, &format!("{leave:?}"));
        }
    }
    listener.check_honest("/behind");
}

/// Also if the app has HTTP/1.1 and the caller HTTP/2, with any reason.
#[test]
fn an_app_sees_that_a_caller_over_http2_gave_up() {
    for_each_listener_over(H2, &Script::new(), |listener, _| {
        for (path, fields, code) in [
            ("/h2-no-error", &[][..], Some(NO_ERROR)),
            ("/h2-cancel", &[], Some(CANCEL)),
            ("/h2-length", &[("content-length", "10")], Some(CANCEL)),
            ("/h2-closed", &[], None),
        ] {
            let mut wire = Wire::open(&Aim { address: listener.address, tls: None }).unwrap();
            let target = format!("{}{path}", listener.prefix);
            let lines = [&listener.head_lines(&target)[..], fields].concat();
            let head = frame(HEADERS, END_HEADERS, 1, &block(&lines));
            wire.send(&[hello(), head, frame(DATA, 0, 1, b"begun")].concat()).unwrap();
            until_begun(&listener.app, path);
            if let Some(code) = code {
                wire.send(&reset_with(1, code)).unwrap();
                check_broken_off(&listener.app, path, "reset");
            } else {
                drop(wire);
                check_broken_off(&listener.app, path, "closed");
            }
        }
    });
}

/// The app has the beginning of the request.
#[track_caller]
fn until_begun(app: &App, path: &str) {
    let begun = || (app.was_sent(path) && app.was_sent("begun")).then_some(());
    retry_until(PATIENCE, "the beginning at the app", begun).unwrap();
}

#[track_caller]
fn check_broken_off(app: &App, path: &str, how: &str) {
    let broken = || (app.broken_off(path) == 1).then_some(());
    let seen = retry_until(PATIENCE, "the break at the app", broken);
    assert!(seen.is_ok(), "{path}: {how}: the app does not see it");
    assert!(app.requests(path).is_empty(), "{path}: {how}: taken for whole");
    app.forget();
}

/// Answers that an app breaks off, in every framing.
fn cut_answers() -> Script {
    let ok = "HTTP/1.1 200 OK\r\n";
    let length = format!("{ok}content-length: 10\r\n\r\nhello");
    let chunks = format!("{ok}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let reply = |bytes: &str, then| Reply { bytes: bytes.as_bytes().to_vec(), then };
    Script::from([
        ("/length-closed", reply(&length, Then::Close)),
        ("/length-reset", reply(&length, Then::Reset)),
        ("/chunks-closed", reply(&chunks, Then::Close)),
        ("/chunks-reset", reply(&chunks, Then::Reset)),
        ("/in-last-chunk", reply(&format!("{chunks}0\r\n"), Then::Close)),
        ("/in-trailers", reply(&format!("{chunks}0\r\nx-sum: 1\r\n"), Then::Close)),
        ("/no-length-reset", reply(&format!("{ok}\r\nhello"), Then::Reset)),
    ])
}

#[test]
fn a_caller_sees_that_an_app_gave_up() {
    for_each_listener(&cut_answers(), |listener, _| check_cut_answers(listener));
}

#[test]
fn both_see_it_over_a_pool_between_sidecars() {
    let listener = Listener::open(Kind::HttpApi, cut_answers(), POOLED);
    give_up_asking(&listener);
    check_cut_answers(&listener);
}

fn check_cut_answers(listener: &Listener) {
    for path in cut_answers().into_keys() {
        let mut client = listener.connect();
        client.send(listener.get(path)).unwrap();
        let answer = client.read_to_end(PATIENCE).unwrap();
        let text = answer.text();
        assert_eq!(statuses(&answer), [200], "{path}: {text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_ne!(answer.end, End::TimedOut, "{path}");
        if head.contains("content-length") {
            assert!(head.contains("content-length: 10") && body.len() < 10, "{path}: {text}");
        } else {
            assert!(head.contains("transfer-encoding: chunked"), "{path}: {text}");
            assert!(!body.contains("0\r\n"), "{path}: the end was said: {text}");
        }
    }
    listener.check_honest("/behind");
}

/// To HTTP/1.0 a close is the end of an answer, so that one that is not whole ends by a reset.
#[test]
fn a_caller_over_http1_0_sees_that_an_app_gave_up() {
    for kind in [Kind::HttpApi, Kind::Outbound] {
        let listener = Listener::open(kind, cut_answers(), &[]);
        for path in ["/chunks-closed", "/chunks-reset", "/no-length-reset", "/in-trailers"] {
            let request = listener.get(path).replace("HTTP/1.1", "HTTP/1.0");
            let answer = RawClient::exchange(listener.address, request, PATIENCE).unwrap();
            assert_eq!((statuses(&answer), answer.end), (vec![200], End::Reset), "{path}");
        }
        let whole = listener.get("/whole").replace("HTTP/1.1", "HTTP/1.0");
        assert_eq!(listener.exchange(whole).end, End::Closed);
    }
}

#[test]
fn a_caller_over_http2_sees_that_an_app_gave_up() {
    for_each_listener_over(H2, &cut_answers(), |listener, _| {
        runtime().block_on(async {
            let mut client = listener.http2().await;
            for path in cut_answers().into_keys() {
                let request = listener.head(Method::GET, path).body(empty()).unwrap();
                let answer = client.send(request).await;
                assert_eq!(answer.status(), 200, "{path}");
                let body = http_body_util::BodyExt::collect(answer.into_body());
                let body = tokio::time::timeout(PATIENCE, body).await.expect("an end");
                assert!(body.is_err(), "{path}: taken for whole: {body:?}");
            }
        });
    });
}

/// An app that sends nothing more is given up, and its caller does not take what came for whole.
#[test]
fn an_answer_that_stops_is_broken_off() {
    let stops = |bytes: &[u8]| Reply { bytes: bytes.to_vec(), then: Then::Hang };
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let script = Script::from([("/stops", stops(head))]);
    let options = ["--idle-timeout-ms", "2000"];
    let listener = Listener::open(Kind::Mesh, script.clone(), &options);
    let answer = listener.exchange(listener.get("/stops"));
    assert!(answer.text().ends_with("hello\r\n"), "{}", answer.text());
    let listener = Listener::open_over(H2, Kind::Mesh, script, &options);
    runtime().block_on(async {
        let mut client = listener.http2().await;
        let request = listener.head(Method::GET, "/stops").body(empty()).unwrap();
        let answer = client.send(request).await;
        let body = http_body_util::BodyExt::collect(answer.into_body());
        let body = tokio::time::timeout(PATIENCE, body).await.expect("an end");
        assert!(body.is_err(), "taken for whole: {body:?}");
    });
}

/// What is broken off does not take its neighbours along.
#[test]
fn others_on_the_way_between_sidecars_are_not_broken_off() {
    let listener = Listener::open(Kind::HttpApi, cut_answers(), &[]);
    let mut other = listener.connect();
    for path in cut_answers().into_keys() {
        let mut client = listener.connect();
        client.send(listener.get(path)).unwrap();
        assert_eq!(statuses(&other.ask(&listener.get("/beside"))), [200], "{path}");
        assert_ne!(client.read_to_end(PATIENCE).unwrap().end, End::TimedOut, "{path}");
    }
}
