//! What a request costs `tollway load`, and what it costs the tools people know.

use serde_json::{Value, json};

use anyhow::Result;

use super::bench::{Bench, Run, strings};
use super::figures::{interval, ratios};
use super::servers::at;

/// A kind of load that two tools have in common.
struct Case {
    name: &'static str,
    other: &'static str,
    /// What is counted, in the singular.
    unit: &'static str,
    /// Behind `tollway load`.
    ours: fn(&Bench) -> Vec<String>,
    theirs: fn(&Bench) -> Vec<String>,
    /// The number of units in a result of ours, or in the tool's output.
    count_ours: fn(&Value) -> Option<f64>,
    count: fn(&str) -> Option<f64>,
    /// Whether the rate is over the time of the whole process, of a tool that does not end in time.
    over_whole_time: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "HTTP/1.1, 32 connections",
        other: "wrk",
        unit: "request",
        ours: |bench| strings(["http", "-c", "32", &bench.nginx_url()]),
        theirs: |bench| strings(["-t1", "-c32", &bench.option("-d", "s"), &bench.nginx_url()]),
        count_ours: requests,
        count: wrk_requests,
        over_whole_time: false,
    },
    Case {
        name: "HTTP/1.1 over TLS, 32 connections",
        other: "wrk",
        unit: "request",
        ours: |bench| strings(["http", "-k", "-c", "32", &bench.nginx_tls_url()]),
        theirs: |bench| strings(["-t1", "-c32", &bench.option("-d", "s"), &bench.nginx_tls_url()]),
        count_ours: requests,
        count: wrk_requests,
        over_whole_time: false,
    },
    Case {
        name: "HTTP/1.1, 32 connections",
        other: "k6",
        unit: "request",
        ours: |bench| strings(["http", "-c", "32", &bench.nginx_url()]),
        theirs: |bench| bench.k6(&bench.nginx_url(), &["VUS=32"], bench.seconds),
        count_ours: requests,
        count: |printed| json_of(printed)?["http_reqs"]["values"]["count"].as_f64(),
        over_whole_time: false,
    },
    Case {
        name: "HTTP/2, 4 connections of 10 streams",
        other: "h2load",
        unit: "request",
        ours: |bench| {
            let url = format!("http://{}/file", at(bench.nginx.http2));
            strings(["http", "--http2", "-c", "4", "--streams", "10", &url])
        },
        theirs: |bench| {
            let url = format!("http://{}/file", at(bench.nginx.http2));
            strings(["-c4", "-m10", &bench.option("-D", ""), &url])
        },
        count_ours: requests,
        count: h2load_requests,
        over_whole_time: false,
    },
    Case {
        name: "gRPC, 4 connections of 10 calls",
        other: "ghz",
        unit: "request",
        ours: |bench| strings(["grpc", "-c", "4", "--streams", "10", &at(bench.echo.http)]),
        theirs: |bench| {
            let calls = ["--concurrency", "40", "--connections", "4"];
            bench.ghz(&at(bench.echo.http), &calls, bench.seconds)
        },
        count_ours: requests,
        count: |printed| json_of(printed)?["count"].as_f64(),
        over_whole_time: false,
    },
    Case {
        name: "TCP, 1 connection",
        other: "iperf3",
        unit: "MB",
        ours: |bench| strings(["tcp", "--quiet", &at(bench.echo.tcp)]),
        theirs: |bench| bench.iperf3(),
        count_ours: |result| megabytes(&result["throughput"]["sent"]["bytes"]),
        count: |printed| megabytes(&json_of(printed)?["end"]["sum_sent"]["bytes"]),
        over_whole_time: false,
    },
    Case {
        name: "full handshakes, one after the other",
        other: "openssl",
        unit: "handshake",
        ours: |bench| handshakes(bench, "full"),
        theirs: |bench| bench.s_time("-new"),
        count_ours: requests,
        count: s_time_connections,
        over_whole_time: true,
    },
    Case {
        name: "resumed handshakes, one after the other",
        other: "openssl",
        unit: "handshake",
        ours: |bench| handshakes(bench, "resumed"),
        theirs: |bench| bench.s_time("-reuse"),
        count_ours: requests,
        count: s_time_connections,
        over_whole_time: true,
    },
];

/// All cases whose tools are here.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Value>> {
    let mut measured = Vec::new();
    for case in CASES {
        println!("\n{} against {}", case.name, case.other);
        if bench.has(case.other) {
            measured.push(measure_case(case, bench)?);
        }
    }
    Ok(measured)
}

fn measure_case(case: &Case, bench: &Bench) -> Result<Value> {
    let arguments = [(case.ours)(bench), (case.theirs)(bench)];
    let rounds = bench.in_turn(|ours, round| {
        let run = match ours {
            true => {
                let count = |printed: &str| (case.count_ours)(&json_of(printed)?);
                bench.run_ours(&arguments[0], bench.seconds, count)?
            }
            false => bench.run_theirs(case.other, &arguments[1], case.count)?,
        };
        let (cpu_us, rate) = (run.cpu_us / run.value, rate(case, &run, bench));
        let who = if ours { "tollway" } else { case.other };
        println!("  round {round}: {who} {cpu_us:.2} us a {}, {rate:.0}/s", case.unit);
        Ok(match ours {
            true => json!({ "cpu_us": cpu_us, "rate": rate }),
            false => json!({ "other_cpu_us": cpu_us, "other_rate": rate }),
        })
    })?;
    let cpu = ratios(&rounds, "cpu_us", "other_cpu_us");
    let rate = ratios(&rounds, "rate", "other_rate");
    println!("  CPU a {} over {}'s: {}", case.unit, case.other, interval(&cpu));
    println!("  rate over {}'s: {}", case.other, interval(&rate));
    Ok(json!({
        "case": case.name,
        "other": case.other,
        "unit": case.unit,
        "rounds": rounds,
        "cpu_ratio": cpu,
        "rate_ratio": rate,
    }))
}

fn rate(case: &Case, run: &Run, bench: &Bench) -> f64 {
    let seconds = if case.over_whole_time { run.whole_s } else { f64::from(bench.seconds) };
    run.value / seconds
}

/// TLS 1.2 at both, nginx's default; with 1.3, openssl would not see the tickets that come after
/// the handshake.
fn handshakes(bench: &Bench, kind: &str) -> Vec<String> {
    let url = bench.nginx_tls_url();
    strings(["http", "-k", "-c", "1", "--tls-max", "1.2", "--handshakes", kind, &url])
}

fn requests(result: &Value) -> Option<f64> {
    result["requests"].as_f64()
}

fn megabytes(bytes: &Value) -> Option<f64> {
    Some(bytes.as_f64()? / 1e6)
}

fn json_of(printed: &str) -> Option<Value> {
    serde_json::from_str(printed).ok()
}

/// `  123456 requests in 3.00s, 1.00MB read`
fn wrk_requests(printed: &str) -> Option<f64> {
    first_number(printed.lines().find(|line| line.contains(" requests in "))?)
}

/// `requests: 1 total, 1 started, 1 done, 123456 succeeded, …`
fn h2load_requests(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with("requests: "))?;
    first_number(line.split(", ").find(|part| part.ends_with(" succeeded"))?)
}

/// `1305 connections in 2 real seconds, 1259 bytes read per connection`
fn s_time_connections(printed: &str) -> Option<f64> {
    first_number(printed.lines().find(|line| line.contains(" real seconds, "))?)
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_print_is_understood() {
        let wrk = "Running 3s test @ http://127.0.0.1:1/\n  279093 requests in 3.00s, 1.1GB read\n";
        assert_eq!(wrk_requests(wrk), Some(279_093.0));
        let h2load = "finished in 3.00s\nrequests: 40 total, 50 started, 30 done, 20 succeeded, \
                      10 failed, 0 errored, 0 timeout\n";
        assert_eq!(h2load_requests(h2load), Some(20.0));
        let s_time = "1305 connections in 0.67s; 1947.76 connections/user sec, bytes read 1642995\n\
                      1305 connections in 2 real seconds, 1259 bytes read per connection\n";
        assert_eq!(s_time_connections(s_time), Some(1305.0));
        assert_eq!(wrk_requests("nothing"), None);
    }
}
