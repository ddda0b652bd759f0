//! Callers that cancel requests, before an app over HTTP/2 that takes few resets and then ends the
//! connection with all its requests, as many do: other callers of the app are not affected.

use std::collections::HashMap;
use std::sync::Mutex;

use tollway_testkit::{End, RawClient};

use super::app::{Before, GRPC_KIND, Said, answer, honest};
use crate::listeners::listener::{Ask, statuses};
use tollway_tests::h2_frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, block, frame, hello, reset_with,
};
use tollway_tests::network::PATIENCE;

/// Calls that are called off, so many at a time.
const CALLED_OFF: u32 = 900;
const AT_A_TIME: u32 = 5;
/// The lowest limit of common servers (hyper's, for unprocessed requests).
const BORNE: u32 = 20;

#[test]
fn calls_that_are_called_off_do_not_end_those_of_others() {
    for (protocol, kind) in [("h2c", ""), ("grpc", GRPC_KIND)] {
        let before = Before::open(protocol, &[]);
        before.app.set_behaviour(bears_few_resets());
        let mut long = RawClient::connect(before.http1()).unwrap();
        let head = format!("POST /long HTTP/1.1\r\nhost: {}\r\n{kind}", Before::HOST);
        long.send(head + "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap();
        before.app.until_heard("its beginning", |frame| frame.kind == DATA);
        let mut attacker = RawClient::connect(before.http2()).unwrap();
        attacker.send(hello()).unwrap();
        let mut other = RawClient::connect(before.http1()).unwrap();
        let head = format!("POST / HTTP/1.1\r\nhost: {}\r\n{kind}", Before::HOST);
        let post = head + "content-length: 2\r\n\r\nhi";
        for first in (0..CALLED_OFF).step_by(AT_A_TIME as usize) {
            attacker.send(call_off(first)).unwrap();
            let answer = other.ask(&post);
            assert_eq!((answer.end, statuses(&answer)), (End::Complete, vec![200]), "at {first}");
        }
        long.send("0\r\n\r\n").unwrap();
        let answer = long.read_until(PATIENCE, |bytes| bytes.ends_with(b"ok")).unwrap();
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        let resets = before.app.heard().into_iter().filter(|(_, frame)| frame.code().is_some());
        assert!(resets.count() > BORNE as usize * 2, "too few got as far as the app");
    }
}

/// Requests that never end by themselves, and their resets behind them.
fn call_off(first: u32) -> Vec<u8> {
    let lines = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", Before::HOST),
        ("content-type", "application/grpc"),
    ];
    let head = block(&lines);
    let streams = || (first..first + AT_A_TIME).map(|nth| 2 * nth + 1);
    let asked = streams().flat_map(|n| frame(HEADERS, END_HEADERS | END_STREAM, n, &head));
    asked.chain(streams().flat_map(|stream| reset_with(stream, CANCEL))).collect()
}

/// Answers requests with a body. A connection ends without GOAWAY when more was reset on it than
/// the app takes; each answer makes up for one.
fn bears_few_resets() -> impl Fn(usize, &Frame) -> Said + Send + Sync + 'static {
    let borne = Mutex::new(HashMap::new());
    move |connection, came| {
        let mut borne = borne.lock().unwrap();
        let left = borne.entry(connection).or_insert(BORNE);
        if came.code().is_some() {
            *left = match left.checked_sub(1) {
                Some(left) => left,
                None => return Said::Last(Vec::new()),
            };
        }
        if came.kind != DATA || !came.ends_stream() {
            return Said::Frames(Vec::new());
        }
        *left += 1;
        Said::Frames(answer(came.stream))
    }
}

/// Should the app end its connection all the same.
#[test]
fn what_is_harmless_is_asked_for_again_when_an_app_ends_its_connection() {
    let before = Before::open("h2c", &[]);
    let first = Mutex::new(None);
    before.app.set_behaviour(move |connection, frame| {
        let mut first = first.lock().unwrap();
        if frame.ends_stream() && *first.get_or_insert(connection) == connection {
            return Said::Last(Vec::new());
        }
        Said::Frames(honest(frame))
    });
    let answer = RawClient::connect(before.http1()).unwrap().ask(&Before::get("/again"));
    assert_eq!(statuses(&answer), [200], "{}", answer.text());
}
