//! The engine checked against targets of known latency: the figures are true.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use support::{Echo, any_port, closed, get, holds_once, open_loop};
use tollway_echo::{EchoOptions, Stall, Stop};
use tollway_load::{Arrival, HttpRequest, LoadOptions, Progress, Target, Watch, run_http};
use tollway_record::client_limit::ClientLimit;
use tollway_record::{Histogram, LatencyUs, RunResult};

/// Printed by the child when it is in its window.
const IN_WINDOW: &str = "under way:";

/// Where a child sends its requests.
const CHILD_URL: &str = "TOLLWAY_LOAD_TEST_URL";

#[test]
fn a_stall_shows_in_response_time_and_not_in_service_time() {
    let stall = Stall { lasting: Duration::from_millis(400), every: Duration::from_secs(2) };
    let echo = Echo::with(EchoOptions { stall: Some(stall), ..EchoOptions::new(any_port()) });
    let mut options = open_loop(&echo.url("/"), 1000.0, 4.0);
    // At most 4 of about 2,000 requests are in flight when a stall begins.
    options.connections = 4;
    let p99_ms = |histogram: Histogram| histogram.raw_quantile_ns(0.99) as f64 / 1e6;
    holds_once(|| {
        let traffic = get(&options).traffic;
        let response = p99_ms(traffic.latencies().unwrap());
        let service = p99_ms(traffic.services().unwrap());
        assert_eq!(traffic.scheduled(), 4000);
        assert!(response > 340.0, "response p99 {response} ms");
        (response < 600.0 && service < 100.0)
            .then_some(())
            .ok_or(format!("p99: response {response} ms, service {service} ms"))
    });
}

#[test]
fn a_constant_delay_is_measured_within_a_percent() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/delay?ms=100"), 150.0, 2.0);
    options.connections = 64;
    let result = get(&options);
    // A busy machine delays answers and never speeds them up: the quickest show what is measured.
    let quick = result.traffic.latencies().unwrap().raw_quantile_ns(0.02) as f64 / 1e6;
    assert!((100.0..101.0).contains(&quick), "p2 {quick} ms");
}

/// Everything on one processor, so that the round trip costs the same for both delays: each is long
/// enough to leave the caches as cold. The server spins, since no timer is exact to some
/// microseconds.
#[test]
fn half_a_millisecond_is_measured_within_a_percent() {
    const SHORT: Duration = Duration::from_micros(500);
    const LONG: Duration = Duration::from_micros(1000);
    stay_on_one_processor();
    let quick_us = |delay: Duration| {
        let options = LoadOptions { connections: 1, ..closed(spinning_target(delay), 600) };
        let services = get(&options).traffic.services().unwrap();
        // A busy machine delays answers and never speeds them up: the quickest show what is
        // measured.
        services.raw_quantile_ns(0.02) as f64 / 1e3
    };
    holds_once(|| {
        let (short_us, long_us) = (quick_us(SHORT), quick_us(LONG));
        let measured = (long_us - short_us) / ((LONG - SHORT).as_secs_f64() * 1e6);
        ((measured - 1.0).abs() < 0.01)
            .then_some(())
            .ok_or(format!("{short_us} µs and {long_us} µs"))
    });
}

/// This thread, and those that it starts.
fn stay_on_one_processor() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
}

/// Answers the requests of one connection, each `delay` after it was read.
fn spinning_target(delay: Duration) -> Target {
    let listener = TcpListener::bind(any_port()).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut request = [0; 1024];
        // A request of a few bytes arrives in one piece; without one the run is over.
        while stream.read(&mut request).is_ok_and(|length| length > 0) {
            let read = Instant::now();
            while read.elapsed() < delay {
                std::hint::spin_loop();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    Target::http(&url).unwrap()
}

#[test]
fn a_closed_loop_achieves_connections_over_latency() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/delay?ms=20"), 1.0, 2.0);
    options.arrival = Arrival::Closed;
    options.connections = 8;
    holds_once(|| {
        let traffic = get(&options).traffic;
        let rps = traffic.achieved_rps;
        assert!(rps <= 400.0, "{rps} of at most 400/s");
        let mean_s = traffic.latency_us.mean.unwrap() / 1e6;
        (rps >= 320.0 && (rps * mean_s / 8.0 - 1.0).abs() < 0.05)
            .then_some(())
            .ok_or(format!("{rps}/s at {mean_s} s with 8 connections"))
    });
}

#[test]
fn more_than_the_target_can_take_is_dropped_and_counted() {
    let echo = Echo::start();
    let overload = |seconds| {
        let mut options = open_loop(&echo.url("/delay?ms=10"), 200.0, seconds);
        options.connections = 1;
        options.max_inflight = 20;
        get(&options)
    };
    let (short, long) = (overload(1.0), overload(2.0));
    for (result, seconds) in [(&short, 1.0), (&long, 2.0)] {
        let traffic = &result.traffic;
        assert_eq!(traffic.scheduled() as f64, 200.0 * seconds);
        assert!(traffic.achieved_rps <= 101.0, "{}", traffic.achieved_rps);
        assert!(traffic.client_limited);
        assert!(monotone(&traffic.latency_us), "{:?}", traffic.latency_us);
        let mean_ms = traffic.latency_us.mean.unwrap() / 1e3;
        assert!(mean_ms > 100.0, "twenty at a time, 10 ms each: {mean_ms} ms");
    }
    let growth = long.traffic.dropped as f64 / short.traffic.dropped as f64;
    assert!(
        (1.5..2.5).contains(&growth),
        "{} then {}",
        short.traffic.dropped,
        long.traffic.dropped
    );
}

#[test]
fn a_backlog_grows_the_response_time_when_nothing_is_dropped() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/delay?ms=10"), 200.0, 1.0);
    options.connections = 1;
    let result = get(&options);
    let traffic = &result.traffic;
    assert_eq!((traffic.requests, traffic.dropped), (200, 0), "drained after the window");
    // The last of 240 requests waits for half of them.
    let max_ms = traffic.latency_us.max.unwrap() / 1e3;
    assert!(max_ms > 1_000.0, "{max_ms} ms");
    let service_ms = traffic.service_us.mean.unwrap() / 1e3;
    assert!(service_ms < 20.0, "{service_ms} ms");
    assert!(traffic.achieved_rps < 102.0, "the drain is not achieved: {}", traffic.achieved_rps);
}

#[test]
fn a_stopped_generator_is_client_limited() {
    let echo = Echo::start();
    let mut child = start_child("generator_child", &echo);
    let pid = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The first report comes a second after the beginning, in the window of two seconds.
    assert!(lines.any(|line| line.contains(IN_WINDOW)), "the child ended without a report");
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    kill_process(pid, Signal::CONT).unwrap();
    let output: String = lines.collect();
    assert!(child.wait().unwrap().success(), "{output}");
    let result = result_in(&output);
    let traffic = &result.traffic;
    assert!(traffic.client_limited, "{traffic:?}");
    let late = traffic.client_limits.iter().any(|limit| match limit {
        ClientLimit::LateSends { late_fraction } => *late_fraction > 0.05,
        ClientLimit::RateMissed { .. }
        | ClientLimit::GeneratorBusy { .. }
        | ClientLimit::NearDirect { .. } => false,
    });
    assert!(late, "{:?}", traffic.client_limits);
    assert!(traffic.lateness.unwrap().max_us > 150_000.0, "{:?}", traffic.lateness);
    assert_eq!(traffic.scheduled(), 1000, "what was late is still sent");
}

/// Not a test: the process that is stopped.
#[test]
#[ignore = "run by a_stopped_generator_is_client_limited"]
fn generator_child() {
    run_in_child(&open_loop(&child_url(), 500.0, 2.0));
}

#[test]
fn the_generators_own_cost_is_what_the_kernel_charged_it() {
    let echo = Echo::start();
    let mut child = start_child("closed_loop_child", &echo);
    let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let charged_us = cpu_us_of_ended(&child);
    assert!(child.wait().unwrap().success(), "{output}");
    let result = result_in(&output);
    let generator = result.generator;
    // The kernel's figure also holds the start of the process and its output.
    let rest_us = charged_us - generator.cpu_us;
    let most_us = 0.05 * charged_us + 60_000.0;
    assert!((-20_000.0..most_us).contains(&rest_us), "charged {charged_us} µs: {generator:?}");
    let busy_us = generator.busiest_thread_fraction * result.traffic.duration_s * 1e6;
    assert!((busy_us / generator.cpu_us - 1.0).abs() < 0.05, "one thread did it: {generator:?}");
    assert!(generator.cpu_us > 100_000.0, "a closed loop is seldom idle: {generator:?}");
}

/// Not a test: the process whose processor time is looked up.
#[test]
#[ignore = "run by the_generators_own_cost_is_what_the_kernel_charged_it"]
fn closed_loop_child() {
    // So many that they cost enough on any machine, however long that takes.
    run_in_child(&closed(Target::http(&child_url()).unwrap(), 30_000));
}

fn child_url() -> String {
    std::env::var(CHILD_URL).unwrap()
}

fn start_child(test: &str, echo: &Echo) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(CHILD_URL, echo.url("/"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run_in_child(options: &LoadOptions) {
    let mut report = |progress: &Progress| println!("{IN_WINDOW} {progress}");
    let mut watch = Watch { report: &mut report, stop: Stop::new() };
    let result = run_http(options, &HttpRequest::default(), &mut watch).unwrap();
    println!("{}", result.to_json());
}

fn result_in(output: &str) -> RunResult {
    let (begin, end) = (output.find('{').unwrap(), output.rfind('}').unwrap());
    RunResult::from_json(&output[begin..=end]).unwrap()
}

/// User and system time of all threads of a child, once it has ended and before it is waited for.
fn cpu_us_of_ended(child: &Child) -> f64 {
    let pid = Pid::from_child(child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 * 1e6 / clock_ticks_per_second() as f64
}

fn monotone(latency: &LatencyUs) -> bool {
    let LatencyUs { p50, p75, p90, p99, p999, max, .. } = *latency;
    [p50, p75, p90, p99, p999, max].into_iter().flatten().is_sorted()
}
