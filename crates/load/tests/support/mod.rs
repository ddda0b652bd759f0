//! Starts echo servers on free ports and runs loads against them.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use tollway_echo::{EchoOptions, EchoServer, Ports, Stop};
use tollway_load::{
    Arrival, Extent, GrpcRequest, HttpRequest, LoadOptions, Spacing, Target, Watch, run_grpc,
    run_http, run_http2,
};
use tollway_record::RunResult;

/// An echo server on a thread of its own; it ends with its handle.
pub(crate) struct Echo {
    pub(crate) ports: Ports,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// A free loopback address; the listener reports its port.
pub(crate) fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

impl Echo {
    pub(crate) fn start() -> Self {
        Self::with(EchoOptions { tcp: Some(any_port()), ..EchoOptions::new(any_port()) })
    }

    pub(crate) fn with(options: EchoOptions) -> Self {
        let server = EchoServer::bind(&options).unwrap();
        let ports = *server.ports();
        let stop = Stop::new();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || server.run(&stopped).unwrap());
        Self { ports, stop, thread: Some(thread) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.ports.http)
    }

    pub(crate) fn grpc(&self) -> Target {
        Target::grpc(&self.ports.grpc.to_string()).unwrap()
    }

    pub(crate) fn stop(&self) {
        self.stop.request();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the echo server panicked");
        }
    }
}

/// Attempts at what a busy machine spoils.
const ATTEMPTS: usize = 5;

/// For what other work on the machine makes fail, and never makes true: it must be so once.
#[track_caller]
pub(crate) fn holds_once(mut attempt: impl FnMut() -> Result<(), String>) {
    let failed: Vec<String> = (0..ATTEMPTS).map_while(|_| attempt().err()).collect();
    assert!(failed.len() < ATTEMPTS, "{failed:#?}");
}

/// Open loop after a short warm-up.
pub(crate) fn open_loop(url: &str, rate_rps: f64, seconds: f64) -> LoadOptions {
    LoadOptions {
        arrival: Arrival::Open { rate_rps, spacing: Spacing::Uniform },
        extent: Extent::Lasting(Duration::from_secs_f64(seconds)),
        warmup: Duration::from_millis(200),
        ..LoadOptions::new(Target::http(url).unwrap())
    }
}

/// So many requests, each once the one before it on its stream is answered; without a warm-up.
pub(crate) fn closed(target: Target, requests: u64) -> LoadOptions {
    LoadOptions {
        arrival: Arrival::Closed,
        extent: Extent::Requests(requests),
        warmup: Duration::ZERO,
        ..LoadOptions::new(target)
    }
}

/// Runs to the end without a report.
pub(crate) fn unwatched<T>(run: impl FnOnce(&mut Watch<'_>) -> T) -> T {
    run(&mut Watch { report: &mut |_| {}, stop: Stop::new() })
}

pub(crate) fn http(options: &LoadOptions, request: &HttpRequest) -> RunResult {
    unwatched(|watch| run_http(options, request, watch)).unwrap()
}

pub(crate) fn get(options: &LoadOptions) -> RunResult {
    http(options, &HttpRequest::default())
}

pub(crate) fn http2(options: &LoadOptions, request: &HttpRequest) -> RunResult {
    unwatched(|watch| run_http2(options, request, watch)).unwrap()
}

pub(crate) fn grpc(options: &LoadOptions, request: &GrpcRequest) -> RunResult {
    unwatched(|watch| run_grpc(options, request, watch)).unwrap()
}
