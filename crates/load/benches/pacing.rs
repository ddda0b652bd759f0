//! What the engine itself adds: how late it sends at 1,000 requests/s, and what a request costs.
//!
//! Prints and asserts nothing: the numbers depend on who else uses the machine. The echo server
//! runs in the same process, on a thread of its own.

#![allow(clippy::unwrap_used, reason = "a bench that cannot run must say why and stop")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use support::{Echo, get, grpc, http, open_loop};
use tollway_echo::payload;
use tollway_load::{Arrival, GrpcRequest, HttpRequest, Target, summary};

fn main() {
    let echo = Echo::start();
    let post = HttpRequest { method: "POST".into(), body: payload(1024), ..HttpRequest::default() };

    println!("http1-plain-1kb-1000rps-16conns");
    let paced = open_loop(&echo.url("/echo"), 1000.0, 11.0);
    println!("{}", summary(&http(&paced, &post)));

    println!("grpc-plain-1kb-1000rps-16conns");
    let mut paced = paced;
    paced.target = Target::grpc(&echo.ports.grpc.to_string()).unwrap();
    println!("{}", summary(&grpc(&paced, &GrpcRequest::echo(1024))));

    println!("http1-plain-get-1kb-closed-32conns");
    let mut closed = open_loop(&echo.url("/size?bytes=1024"), 1.0, 3.0);
    closed.arrival = Arrival::Closed;
    closed.connections = 32;
    closed.warmup = Duration::from_millis(500);
    println!("{}", summary(&get(&closed)));
}
