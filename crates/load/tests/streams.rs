//! Streams of messages against the echo server: each message has an answer, each stream an end.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::time::Duration;

use support::{Echo, closed, open_loop, unwatched};
use tollway_load::{LoadOptions, StreamKind, StreamRequest, Target, run_stream};
use tollway_record::RunResult;
use tollway_record::record::Protocol;

#[test]
fn every_pushed_message_is_acknowledged() {
    let echo = Echo::start();
    let request =
        StreamRequest { messages: 10, in_flight: 3, ..StreamRequest::new(StreamKind::Push) };
    let result = run(&exactly(&echo, 2, 3, 60), &request);
    let streaming = result.streaming.as_ref().unwrap();
    assert_eq!((result.traffic.requests, result.traffic.errors), (60, 0), "{result:?}");
    assert_eq!((streaming.completed, streaming.failed, streaming.streams), (6, 0, 6));
    assert_eq!((streaming.first_message_us.n, streaming.stream_us.n), (6, 6));
    assert!(result.traffic.bytes.sent > 60 * 4096, "{:?}", result.traffic.bytes);
    // Acknowledgements are small: the payload does not come back.
    assert!(result.traffic.bytes.received < 60 * 200, "{:?}", result.traffic.bytes);
    assert_eq!(result.protocol, Protocol::GrpcStream);
    let per_s = streaming.message_bytes_per_s / streaming.messages_per_s;
    assert!((per_s - 4096.0).abs() < 1e-6, "{streaming:?}");
}

#[test]
fn no_more_streams_are_opened_than_carry_the_messages() {
    let echo = Echo::start();
    for kind in [StreamKind::Push, StreamKind::Bidi] {
        let request = StreamRequest { messages: 10, ..StreamRequest::new(kind) };
        // Twenty may be open at once: each would get three messages and none would end.
        let result = run(&exactly(&echo, 4, 5, 60), &request);
        let streaming = result.streaming.as_ref().unwrap();
        assert_eq!((result.traffic.requests, result.traffic.errors), (60, 0), "{result:?}");
        assert_eq!((streaming.completed, streaming.failed), (6, 0), "{kind:?}");
    }
}

#[test]
fn both_ways_every_message_comes_back() {
    let echo = Echo::start();
    let request = StreamRequest { messages: 5, ..StreamRequest::new(StreamKind::Bidi) };
    let result = run(&exactly(&echo, 1, 4, 40), &request);
    assert_eq!((result.traffic.requests, result.traffic.errors), (40, 0), "{result:?}");
    assert_eq!(result.streaming.unwrap().completed, 8);
    assert!(result.traffic.bytes.received > 40 * 4096, "{:?}", result.traffic.bytes);
}

#[test]
fn where_only_streams_are_answered_a_request_is_a_stream() {
    let echo = Echo::start();
    for kind in [StreamKind::Client, StreamKind::Server] {
        let request =
            StreamRequest { messages: 500, payload_bytes: 3000, ..StreamRequest::new(kind) };
        let result = run(&exactly(&echo, 2, 2, 8), &request);
        let streaming = result.streaming.as_ref().unwrap();
        assert_eq!(
            (result.traffic.requests, result.traffic.errors),
            (8, 0),
            "{kind:?}: {result:?}"
        );
        assert_eq!((streaming.completed, streaming.failed), (8, 0), "{kind:?}");
        let ratio = streaming.messages_per_s / result.traffic.achieved_rps;
        assert!((ratio - 500.0).abs() < 1e-6, "{kind:?}: {streaming:?}");
        let moved = match kind {
            StreamKind::Server => result.traffic.bytes.received,
            StreamKind::Push | StreamKind::Bidi | StreamKind::Client => result.traffic.bytes.sent,
        };
        assert!(moved > 8 * 500 * 3000, "{kind:?}: {:?}", result.traffic.bytes);
    }
}

#[test]
fn a_small_window_holds_up_the_messages_and_loses_none() {
    let echo = Echo::start();
    let request = StreamRequest {
        messages: 20,
        payload_bytes: 100_000,
        window_bytes: Some(10_000),
        ..StreamRequest::new(StreamKind::Server)
    };
    let result = run(&exactly(&echo, 1, 2, 4), &request);
    assert_eq!((result.traffic.requests, result.traffic.errors), (4, 0), "{result:?}");
}

#[test]
fn a_stream_that_outlives_its_deadline_is_cancelled() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url(""), 40.0, 1.0);
    options.target = echo.grpc();
    options.connections = 1;
    options.streams = 1;
    let deadline = Some(Duration::from_millis(200));
    let request = StreamRequest { deadline, ..StreamRequest::new(StreamKind::Push) };
    let result = run(&options, &request);
    let streaming = result.streaming.unwrap();
    assert!(streaming.failed >= 2, "one stream after the other: {streaming:?}");
    assert_eq!((streaming.completed, streaming.deadline_s), (0, Some(0.2)));
    assert_eq!(result.traffic.scheduled(), 40);
}

#[test]
fn a_method_that_is_not_there_fails_every_message() {
    let echo = Echo::start();
    let mut options = exactly(&echo, 1, 1, 10);
    options.target = Target::grpc(&format!("{}/no.Such/Method", echo.ports.grpc)).unwrap();
    let request = StreamRequest { messages: 1, ..StreamRequest::new(StreamKind::Push) };
    let result = run(&options, &request);
    assert_eq!(result.traffic.errors_by_kind["grpc-12"], 10, "{:?}", result.traffic);
    assert_eq!(result.streaming.unwrap().failed, 10);
}

fn exactly(echo: &Echo, connections: usize, streams: usize, requests: u64) -> LoadOptions {
    LoadOptions { connections, streams, ..closed(echo.grpc(), requests) }
}

fn run(options: &LoadOptions, request: &StreamRequest) -> RunResult {
    unwatched(|watch| run_stream(options, request, watch)).unwrap()
}
