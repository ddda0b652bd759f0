//! Apps that answer before the request's body has ended. The caller gets the whole answer, however
//! much it still had to send, and the rest of the body is never taken for a request.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::Frame;
use tollway_testkit::{Answer, End, RawClient, retry_until};

use crate::listeners::listener::{
    Ask, Kind, Listener, POOLED, for_each_listener, for_each_listener_over, received, statuses,
    until_received,
};
use crate::listeners::tls_listener::H2;
use tollway_tests::mesh::http::{Body, runtime};
use tollway_tests::network::PATIENCE;
use tollway_tests::scripted_app::{Reply, Script, Then, answers};

/// Far more than sidecars hold of a body.
const BODY_BYTES: usize = 2 << 20;
const PIECE: &[u8] = &[b'x'; 16 * 1024];

const PATHS: [&str; 3] = ["/early-closed", "/early-reset", "/early-kept"];

/// An app that has read the head refuses, and closes over unread bytes, resets, or holds the
/// connection open and takes the rest.
fn script() -> Script {
    let no = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno".to_vec();
    let reply = |then| Reply { bytes: no.clone(), then };
    PATHS.into_iter().zip([Then::Close, Then::Reset, Then::TakeRest].map(reply)).collect()
}

#[test]
fn a_caller_that_reads_while_it_sends_gets_the_answer() {
    for_each_listener(&script(), |listener, _| {
        for path in PATHS {
            for request in uploads(listener, path) {
                let mut client = listener.connect();
                let mut sender = client.sender().unwrap();
                let answer = std::thread::scope(|scope| {
                    scope.spawn(|| sender.send(&request));
                    client.read_until(PATIENCE, is_answered).unwrap()
                });
                check(listener, path, &answer, client);
            }
        }
    });
}

#[test]
fn a_caller_that_reads_when_it_has_sent_all_gets_the_answer() {
    for_each_listener(&script(), |listener, _| send_all_then_read(listener));
}

#[test]
fn a_pool_between_sidecars_brings_the_answer() {
    send_all_then_read(&Listener::open(Kind::HttpApi, script(), POOLED));
}

fn send_all_then_read(listener: &Listener) {
    for path in PATHS {
        for request in uploads(listener, path) {
            let mut client = listener.connect();
            client.send(&request).unwrap();
            let answer = client.read_until(PATIENCE, is_answered).unwrap();
            check(listener, path, &answer, client);
        }
    }
}

#[test]
fn a_caller_that_waits_in_the_middle_of_its_body_gets_the_answer() {
    for_each_listener(&script(), |listener, _| {
        for path in PATHS {
            for (fields, begun) in
                [("content-length: 9\r\n", "hello"), (CHUNKED, "5\r\nhello\r\n"), (CHUNKED, "")]
            {
                let mut client = listener.connect();
                client.send(listener.request("POST", path, fields) + begun).unwrap();
                let answer = client.read_until(PATIENCE, is_answered).unwrap();
                assert!(answer.text().contains(CLOSES), "{path}: {}", answer.text());
                check(listener, path, &answer, client);
            }
        }
    });
}

/// The reset of an app that closes races with what is still sent to it: each time the answer wins.
#[test]
fn no_reset_takes_an_answer_back() {
    let listener = Listener::open(Kind::Mesh, script(), &[]);
    for nth in 0..60 {
        let path = PATHS[nth % 2];
        // The body comes in time to meet the reset, or the answer, or neither.
        let mut client = listener.connect();
        client.send(listener.request("POST", path, "content-length: 5000000\r\n")).unwrap();
        for _ in 0..nth / 6 {
            client.send(PIECE).unwrap();
            std::thread::yield_now();
        }
        let answer = client.read_until(PATIENCE, is_answered).unwrap();
        check(&listener, path, &answer, client);
    }
}

#[test]
fn a_caller_over_http2_gets_the_answer() {
    for_each_listener_over(H2, &script(), |listener, _| {
        runtime().block_on(async {
            let mut client = listener.http2().await;
            for path in PATHS.into_iter().cycle().take(12) {
                let request = listener.head(Method::POST, path).body(body()).unwrap();
                let answer = tokio::time::timeout(PATIENCE, client.send(request)).await.unwrap();
                assert_eq!(answer.status(), 413, "{path}");
                let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await;
                assert_eq!(body.unwrap().unwrap().to_bytes(), "no", "{path}");
            }
        });
    });
}

const CHUNKED: &str = "transfer-encoding: chunked\r\n";

/// The same large body in both framings. A reader that took a part of it for a request would
/// ask for `/smuggled`.
fn uploads(listener: &Listener, path: &str) -> [Vec<u8>; 2] {
    const LINE: &[u8] = b"\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let body = LINE.repeat(BODY_BYTES / LINE.len());
    let length = format!("content-length: {}\r\n", body.len());
    let chunks = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    [
        [listener.request("POST", path, &length).into_bytes(), body].concat(),
        [listener.request("POST", path, CHUNKED).into_bytes(), chunks].concat(),
    ]
}

/// A body without end that waits for its reader.
fn body() -> Body {
    let pieces = std::iter::repeat_with(|| Ok::<_, Infallible>(Frame::data(PIECE.into())));
    let pieces = pieces.map(|piece: Result<Frame<Bytes>, _>| piece);
    StreamBody::new(tokio_stream::iter(pieces)).boxed()
}

const CLOSES: &str = "connection: close\r\n";

fn is_answered(bytes: &[u8]) -> bool {
    answers(bytes) == 1
}

/// One whole answer and no other. Where the body was not taken to its end the connection closes
/// behind it, else it goes on with the next request.
#[track_caller]
fn check(listener: &Listener, path: &str, answer: &Answer, mut client: RawClient) {
    let text = answer.text();
    assert_eq!(statuses(answer), [413], "{path}: {:?} {text}", answer.end);
    assert!(text.ends_with("\r\n\r\nno"), "{path}: {text}");
    if text.contains(CLOSES) {
        let rest = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(rest.text(), "", "{path}");
        assert_ne!(rest.end, End::TimedOut, "{path}");
    } else {
        let next = client.ask(&listener.get("/next"));
        assert!(next.text().ends_with("own /next"), "{path}: {}", next.text());
    }
    assert!(listener.app.requests("/smuggled").is_empty(), "{path}");
    listener.check_honest("/behind");
    listener.app.forget();
}

/// An app that begins to answer and reads the rest of the request meanwhile: both go on.
#[test]
fn an_answer_that_begins_early_lets_the_body_go_on() {
    for_each_listener(&beginning(), |listener, _| answer_and_body_go_on(listener));
}

#[test]
fn both_go_on_over_a_pool_between_sidecars() {
    answer_and_body_go_on(&Listener::open(Kind::HttpApi, beginning(), POOLED));
}

fn beginning() -> Script {
    let begin = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nbegun".to_vec();
    Script::from([("/early-begun", Reply { bytes: begin, then: Then::TakeRest })])
}

fn answer_and_body_go_on(listener: &Listener) {
    let length = ("content-length: 10\r\n", "first", "later");
    let chunks = (CHUNKED, "5\r\nfirst\r\n", "5\r\nlater\r\n0\r\n\r\n");
    for (fields, first, later) in [length, chunks] {
        let mut client = listener.connect();
        client.send(listener.request("POST", "/early-begun", fields) + first).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"begun")).unwrap();
        assert_eq!((statuses(&answer), answer.end), (vec![200], End::Complete));
        client.send(later).unwrap();
        let request = until_received(listener, "/early-begun");
        let has_all = || {
            let body = received(listener, "/early-begun").body;
            (body == format!("{first}{later}").as_bytes()).then_some(())
        };
        retry_until(PATIENCE, "the rest of the body at the app", has_all).unwrap();
        request.send_more(" end");
        let rest = client.read_to_end(PATIENCE).unwrap();
        assert_eq!((rest.text().as_str(), rest.end), (" end", End::Closed));
        listener.check_honest("/behind");
        listener.app.forget();
    }
}

/// Behind a whole answer the connection is to end: what is sent then is not the next request.
#[test]
fn what_is_sent_behind_an_early_answer_is_no_request() {
    let yes = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes".to_vec();
    let script = Script::from([("/early-yes", Reply { bytes: yes, then: Then::Hang })]);
    for_each_listener(&script, |listener, _| {
        let mut client = listener.connect();
        client.send(listener.request("POST", "/early-yes", "content-length: 5\r\n")).unwrap();
        let answer = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"yes")).unwrap();
        assert_eq!((statuses(&answer), answer.end), (vec![200], End::Complete));
        client.send("hello".to_owned() + &listener.get("/next")).unwrap();
        let rest = client.read_to_end(PATIENCE).unwrap();
        assert_eq!(rest.text(), "");
        assert_ne!(rest.end, End::TimedOut);
        listener.check_honest("/behind");
        assert!(!listener.app.was_sent("/next"));
    });
}
