//! The generator's memory: what a run allocates does not grow with its requests.
//!
//! The counter sees the calling thread only, which is the engine's; the echo server has its own.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use support::{Echo, closed, get, grpc, http, http2};
use tollway_echo::payload;
use tollway_load::{GrpcRequest, HttpRequest, LoadOptions, Target};

/// Allocations that a longer run may have more of: buffers that found their size late.
const SLACK: u64 = 50;

#[test]
fn http_requests_allocate_nothing() {
    let echo = Echo::start();
    let request = HttpRequest {
        method: "POST".into(),
        body: payload(1024),
        verify_echo: true,
        ..HttpRequest::default()
    };
    let run = |requests| {
        let options = eight(&echo, "/echo", requests);
        allocation_counter::measure(|| {
            assert_eq!(http(&options, &request).traffic.requests, requests);
        })
    };
    let (short, long) = (run(1_000), run(11_000));
    let more = long.count_total.saturating_sub(short.count_total);
    assert!(more < SLACK, "10,000 more requests allocated {more} times more");
}

#[test]
fn http2_requests_allocate_nothing() {
    let echo = Echo::start();
    let request =
        HttpRequest { method: "POST".into(), body: payload(1024), ..HttpRequest::default() };
    let run = |requests| {
        let options = eight(&echo, "/echo", requests);
        allocation_counter::measure(|| {
            assert_eq!(http2(&options, &request).traffic.requests, requests);
        })
    };
    let (short, long) = (run(1_000), run(11_000));
    let more = long.count_total.saturating_sub(short.count_total);
    assert!(more < SLACK, "10,000 more requests allocated {more} times more");
}

#[test]
fn grpc_calls_allocate_nothing() {
    let echo = Echo::start();
    let request = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(1024) };
    let run = |requests| {
        let options = LoadOptions { connections: 8, streams: 10, ..closed(echo.grpc(), requests) };
        allocation_counter::measure(|| {
            assert_eq!(grpc(&options, &request).traffic.requests, requests);
        })
    };
    let (short, long) = (run(5_000), run(15_000));
    let more = long.count_total.saturating_sub(short.count_total);
    assert!(more < SLACK, "10,000 more calls allocated {more} times more");
}

#[test]
fn a_long_run_needs_no_more_memory_than_a_short_one() {
    let echo = Echo::start();
    let run = |requests| {
        let options = eight(&echo, "/size?bytes=100", requests);
        allocation_counter::measure(|| {
            get(&options);
        })
    };
    let (short, long) = (run(1_000), run(20_000));
    // Only a point a second is stored.
    assert!(
        long.bytes_max < short.bytes_max + short.bytes_max / 20,
        "{} bytes at most in the short run, {} in the long",
        short.bytes_max,
        long.bytes_max
    );
}

/// So many requests on eight connections.
fn eight(echo: &Echo, path: &str, requests: u64) -> LoadOptions {
    LoadOptions { connections: 8, ..closed(Target::http(&echo.url(path)).unwrap(), requests) }
}
