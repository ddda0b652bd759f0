//! Loads against the echo server: every request has an outcome, and the outcome is the right one.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::net::Ipv4Addr;
use std::time::Duration;

use support::{Echo, closed, get, grpc, http, http2, open_loop, unwatched};
use tollway_echo::{Stop, payload};
use tollway_load::arrival::Schedule;
use tollway_load::{
    Arrival, Extent, GrpcRequest, HttpRequest, LoadError, LoadOptions, Phase, Progress, Spacing,
    Target, Watch, run_grpc, run_http,
};
use tollway_record::client_limit::ClientLimit;
use tollway_record::record::Protocol;
use tollway_record::{RunResult, Traffic};
use tollway_testkit::ClosedPort;

#[test]
fn http_requests_are_answered_and_verified() {
    let echo = Echo::start();
    let options = open_loop(&echo.url("/echo"), 500.0, 1.0);
    let request = HttpRequest {
        method: "POST".into(),
        body: payload(1024),
        verify_echo: true,
        ..HttpRequest::default()
    };
    let result = http(&options, &request);
    assert_eq!(result.traffic.requests, 500, "{result:?}");
    assert_eq!(result.traffic.scheduled(), 500);
    assert_eq!((result.connections, result.payload_bytes), (16, 1024));
    assert!(result.traffic.bytes.sent > 500 * 1024, "{:?}", result.traffic.bytes);
    assert!(result.traffic.bytes.received > 500 * 1024, "{:?}", result.traffic.bytes);
    assert_eq!(result.traffic.phases_us["connecting"].n, 16);
}

#[test]
fn grpc_calls_are_answered_and_verified() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url(""), 500.0, 1.0);
    options.target = echo.grpc();
    options.connections = 4;
    let request = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(1024) };
    let result = grpc(&options, &request);
    assert_eq!(result.traffic.requests, 500, "{result:?}");
    assert_eq!(result.traffic.scheduled(), 500);
}

#[test]
fn http2_requests_share_connections_and_are_verified() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/echo"), 500.0, 1.0);
    options.connections = 2;
    options.streams = 10;
    let request = HttpRequest {
        method: "POST".into(),
        body: payload(100_000),
        verify_echo: true,
        ..HttpRequest::default()
    };
    let result = http2(&options, &request);
    assert_eq!(result.traffic.requests, 500, "{result:?}");
    assert_eq!((result.protocol, result.connections), (Protocol::Http2, 2));
}

#[test]
fn http2_answers_are_judged_by_their_status() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/status/503"), 100.0, 0.5);
    options.connections = 1;
    let failed = http2(&options, &HttpRequest::default());
    assert_eq!(failed.traffic.errors_by_kind["status-503"], 50, "{failed:?}");
    options.target = Target::http(&echo.url("/status/204")).unwrap();
    assert_eq!(http2(&options, &HttpRequest::default()).traffic.requests, 50);
}

#[test]
fn a_message_larger_than_the_windows_comes_back_whole() {
    let echo = Echo::start();
    let options = LoadOptions { connections: 2, streams: 2, ..closed(echo.grpc(), 8) };
    let request = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(3_000_000) };
    let result = grpc(&options, &request);
    assert_eq!(result.traffic.requests, 8, "{result:?}");
}

#[test]
fn a_closed_loop_sends_exactly_so_many() {
    let echo = Echo::start();
    let target = Target::http(&echo.url("/size?bytes=100")).unwrap();
    let options = LoadOptions { connections: 8, ..closed(target, 1000) };
    let result = get(&options);
    assert_eq!(result.traffic.requests, 1000);
    assert_eq!(result.traffic.scheduled(), 1000);
    assert_eq!(result.traffic.requested_rps, None);
    assert!(result.traffic.achieved_rps > 0.0);
}

#[test]
fn an_open_loop_sends_exactly_so_many() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/"), 1000.0, 1.0);
    options.extent = Extent::Requests(123);
    let result = get(&options);
    assert_eq!(result.traffic.scheduled(), 123, "{result:?}");
    assert!((result.traffic.duration_s - 0.123).abs() < 0.001, "{}", result.traffic.duration_s);
}

#[test]
fn few_random_arrivals_are_not_a_missed_rate() {
    let extent = Extent::Lasting(Duration::from_secs(1));
    let planned = |seed| {
        let (rate, warmup) = (200.0, Duration::from_millis(200));
        let plan = Schedule::new(rate, Spacing::Poisson, seed, warmup, extent).unwrap();
        plan.filter(|planned| planned.measured).count() as u64
    };
    let seed = (0..100).find(|seed| planned(*seed) < 185).unwrap();
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/"), 200.0, 1.0);
    options.arrival = Arrival::Open { rate_rps: 200.0, spacing: Spacing::Poisson };
    options.seed = seed;
    let traffic = get(&options).traffic;
    assert_eq!((traffic.scheduled(), traffic.requested_rps), (planned(seed), Some(200.0)));
    let missed = traffic.client_limits.iter().any(|limit| match limit {
        ClientLimit::RateMissed { .. } => true,
        ClientLimit::LateSends { .. }
        | ClientLimit::GeneratorBusy { .. }
        | ClientLimit::NearDirect { .. } => false,
    });
    assert!(!missed, "{traffic:?}");
}

#[test]
fn wrong_answers_are_errors_of_their_kind() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/status/503"), 100.0, 0.5);
    options.connections = 2;
    let result = get(&options);
    assert_eq!((result.traffic.requests, result.traffic.errors), (0, 50));
    assert_eq!(result.traffic.errors_by_kind["status-503"], 50);
    assert_eq!(result.traffic.error_latency_us.unwrap().n, 50);

    options.target = Target::http(&echo.url("/close")).unwrap();
    let result = get(&options);
    assert_eq!(result.traffic.errors_by_kind["closed"], 50, "{:?}", result.traffic);
}

#[test]
fn unknown_grpc_methods_are_counted_by_status() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url(""), 100.0, 0.5);
    options.target = Target::grpc(&format!("{}/no.Such/Method", echo.ports.grpc)).unwrap();
    let result = grpc(&options, &GrpcRequest::echo(10));
    assert_eq!(result.traffic.errors_by_kind["grpc-12"], 50, "{:?}", result.traffic);
}

#[test]
fn a_request_without_an_answer_times_out_or_stays_unfinished() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/delay?ms=60000"), 20.0, 0.5);
    options.request_timeout = Duration::from_millis(200);
    let result = get(&options);
    assert_eq!(result.traffic.errors_by_kind["timeout"], 10, "{:?}", result.traffic);

    options.request_timeout = Duration::from_secs(100);
    options.drain = Duration::from_millis(100);
    let result = get(&options);
    assert_eq!((result.traffic.unfinished, result.traffic.scheduled()), (10, 10));
}

#[test]
fn a_target_that_goes_away_fails_requests_and_hides_none() {
    let echo = Echo::start();
    let options = open_loop(&echo.url("/"), 200.0, 3.0);
    let traffic =
        until_gone(&echo, |watch| run_http(&options, &HttpRequest::default(), watch).unwrap());
    assert!(traffic.errors_by_kind.contains_key("connect"), "{traffic:?}");
}

#[test]
fn grpc_calls_fail_and_do_not_vanish_when_the_target_goes_away() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url(""), 200.0, 3.0);
    options.target = echo.grpc();
    until_gone(&echo, |watch| run_grpc(&options, &GrpcRequest::echo(100), watch).unwrap());
}

/// 600 requests, of which the first are answered: as soon as that shows, the target goes away.
#[track_caller]
fn until_gone(echo: &Echo, run: impl FnOnce(&mut Watch<'_>) -> RunResult) -> Traffic {
    let mut report = |progress: &Progress| {
        if progress.requests > 0 {
            echo.stop();
        }
    };
    let traffic = run(&mut Watch { report: &mut report, stop: Stop::new() }).traffic;
    assert_eq!(traffic.scheduled(), 600, "{traffic:?}");
    assert!(traffic.requests > 0 && traffic.errors > 20, "{traffic:?}");
    traffic
}

#[test]
fn a_target_that_does_not_listen_is_an_error_of_the_run() {
    let nobody = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
    let options = LoadOptions::new(Target::http(&nobody.address().to_string()).unwrap());
    let error = unwatched(|watch| run_http(&options, &HttpRequest::default(), watch)).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error}");
}

#[test]
fn more_calls_than_the_target_takes_streams_wait_for_one() {
    let echo = Echo::start();
    let options = LoadOptions { connections: 1, streams: 1000, ..closed(echo.grpc(), 3000) };
    let result = grpc(&options, &GrpcRequest::echo(1024));
    assert_eq!((result.traffic.requests, result.traffic.errors), (3000, 0), "{:?}", result.traffic);
}

#[test]
fn a_target_of_another_protocol_is_an_error_of_the_run() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        for stream in listener.incoming() {
            // A server that answers everything so, and closes.
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let mut options = LoadOptions::new(Target::grpc(&address.to_string()).unwrap());
    options.connect_timeout = Duration::from_millis(500);
    let error = unwatched(|watch| run_grpc(&options, &GrpcRequest::echo(1), watch)).unwrap_err();
    assert!(matches!(error, LoadError::Connect { source: Some(_), .. }), "{error:?}");
}

#[test]
fn a_stop_ends_the_run_with_what_was_measured() {
    let echo = Echo::start();
    let options = open_loop(&echo.url("/"), 100.0, 60.0);
    let stop = Stop::new();
    let stopper = stop.clone();
    let mut lines = Vec::new();
    let mut report = |progress: &Progress| {
        lines.push(progress.to_string());
        if progress.phase == Phase::Window && progress.requests > 0 {
            stopper.request();
        }
    };
    let mut watch = Watch { report: &mut report, stop };
    let result = run_http(&options, &HttpRequest::default(), &mut watch).unwrap();
    assert!((1..6_000).contains(&result.traffic.requests), "{:?}", result.traffic);
    assert!(result.traffic.duration_s < 60.0, "{}", result.traffic.duration_s);
    assert!(!lines.is_empty());
}
