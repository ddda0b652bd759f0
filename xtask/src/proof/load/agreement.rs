//! Whether `tollway load` measures what other tools measure: one target, one kind of load, one
//! after the other.
//!
//! The target answers after 5 ms, one answer in fifty after 25 ms, so that a median and a 99th
//! percentile are there to be found and no tool is at its limit. Compared is the time from the
//! send, which is what the others measure.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::bench::{Bench, strings};
use super::figures::{agrees, interval, noise, ratios};
use super::servers::at;

/// What the target does with a request, as `tollway echo` takes it.
pub(super) const DELAY: &str = "5ms:98,25ms:2";
/// Enough requests of a closed loop of 32 for a percentile that only one in a hundred exceeds.
const CLOSED_SECONDS: u32 = 3;
/// The same, at [`RATE_RPS`].
const OPEN_SECONDS: u32 = 11;
const RATE_RPS: &str = "1000";

struct Case {
    name: &'static str,
    other: &'static str,
    seconds: u32,
    ours: fn(&Bench) -> Vec<String>,
    theirs: fn(&Bench) -> Vec<String>,
    read: fn(&Bench, &str) -> Option<Quantiles>,
}

/// In microseconds.
#[derive(Debug, PartialEq)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

const CASES: &[Case] = &[
    Case {
        name: "HTTP/1.1, closed loop of 32 connections",
        other: "wrk",
        seconds: CLOSED_SECONDS,
        ours: |bench| strings(["http", "-c", "32", &bench.slow_url()]),
        theirs: |bench| {
            let lasting = format!("-d{CLOSED_SECONDS}s");
            strings(["-t1", "-c32", "--latency", &lasting, &bench.slow_url()])
        },
        read: |_, printed| wrk_quantiles(printed),
    },
    Case {
        name: "HTTP/2, closed loop of 32 connections",
        other: "h2load",
        seconds: CLOSED_SECONDS,
        ours: |bench| strings(["http", "--http2", "-c", "32", &bench.slow_url()]),
        theirs: |bench| {
            let log = format!("--log-file={}", bench.log().display());
            strings(["-c32", "-m1", &format!("-D{CLOSED_SECONDS}"), &log, &bench.slow_url()])
        },
        read: |bench, _| {
            let log = std::fs::read_to_string(bench.log()).ok()?;
            // It adds to what is there.
            std::fs::remove_file(bench.log()).ok()?;
            h2load_quantiles(&log)
        },
    },
    Case {
        name: "HTTP/1.1, 1,000/s",
        other: "k6",
        seconds: OPEN_SECONDS,
        ours: |bench| strings(["http", "--rate", RATE_RPS, "-c", "100", &bench.slow_url()]),
        theirs: |bench| {
            let rate = format!("RATE={RATE_RPS}");
            bench.k6(&bench.slow_url(), &["VUS=100", &rate], OPEN_SECONDS)
        },
        read: |_, printed| k6_quantiles(printed),
    },
    Case {
        name: "gRPC, 1,000/s",
        other: "ghz",
        seconds: OPEN_SECONDS,
        ours: |bench| {
            let target = at(bench.slow_echo.http);
            strings(["grpc", "--rate", RATE_RPS, "-c", "10", "--streams", "10", &target])
        },
        theirs: |bench| {
            let calls = ["--concurrency", "100", "--connections", "10", "--rps", RATE_RPS];
            bench.ghz(&at(bench.slow_echo.http), &calls, OPEN_SECONDS)
        },
        read: |_, printed| ghz_quantiles(printed),
    },
];

/// All cases whose tools are here.
pub(super) fn measure(bench: &Bench) -> Result<Vec<Value>> {
    let mut measured = Vec::new();
    for case in CASES {
        println!("\ntimes of {} beside {}", case.name, case.other);
        if bench.has(case.other) {
            let rounds = rounds(case, bench)?;
            measured.extend([
                compared(case.name, case.other, "p50", "µs", &rounds),
                compared(case.name, case.other, "p99", "µs", &rounds),
            ]);
        }
    }
    Ok(measured)
}

fn rounds(case: &Case, bench: &Bench) -> Result<Vec<Value>> {
    let (ours, theirs) = ((case.ours)(bench), (case.theirs)(bench));
    bench.in_turn(|is_ours, round| {
        let found = match is_ours {
            true => bench.print_ours(&ours, case.seconds).map(|printed| our_quantiles(&printed))?,
            false => {
                let printed = bench.print_theirs(case.other, &theirs)?;
                Some((case.read)(bench, &printed).with_context(|| {
                    format!("`{}` printed no percentiles:\n{printed}", case.other)
                })?)
            }
        };
        let Quantiles { p50, p99 } = found.context("too few requests for a 99th percentile")?;
        let who = if is_ours { "tollway" } else { case.other };
        println!("  round {round}: {who} p50 {p50:.0} us, p99 {p99:.0} us");
        Ok(match is_ours {
            true => json!({ "p50": p50, "p99": p99 }),
            false => json!({ "other_p50": p50, "other_p99": p99 }),
        })
    })
}

/// A figure of two tools in each of `rounds`, and whether they agree; the other's is called
/// `other_` and the figure's name.
pub(super) fn compared(
    case: &str,
    other: &str,
    figure: &str,
    unit: &str,
    rounds: &[Value],
) -> Value {
    let theirs = format!("other_{figure}");
    let (ratio, noise) = (ratios(rounds, figure, &theirs), noise(rounds, &theirs));
    let agrees = agrees(&ratio, &noise);
    let verdict = if agrees { "agrees" } else { "DIFFERS" };
    println!("  {figure} of {other}'s: {}, {verdict}", interval(&ratio));
    json!({
        "case": case, "other": other, "figure": figure, "unit": unit, "rounds": rounds,
        "ratio": ratio, "noise": noise, "agrees": agrees,
    })
}

fn our_quantiles(printed: &str) -> Option<Quantiles> {
    let result: Value = serde_json::from_str(printed).ok()?;
    let service = &result["service_us"];
    Some(Quantiles { p50: service["p50"].as_f64()?, p99: service["p99"].as_f64()? })
}

/// `     50%    2.10ms` and so on, in `us`, `ms` or `s`.
fn wrk_quantiles(printed: &str) -> Option<Quantiles> {
    let find = |name: &str| {
        let value = printed.lines().find_map(|line| line.trim().strip_prefix(name))?.trim();
        let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let us = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return None,
        };
        Some(value.strip_suffix(unit)?.parse::<f64>().ok()? * us)
    };
    Some(Quantiles { p50: find("50%")?, p99: find("99%")? })
}

/// A line for each request: when it began, its status, the microseconds it took.
fn h2load_quantiles(log: &str) -> Option<Quantiles> {
    let took = log.lines().filter_map(|line| line.split('\t').nth(2)?.trim().parse::<f64>().ok());
    let mut took: Vec<_> = took.collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (share * took.len() as f64).ceil() as usize;
        took.get(rank.saturating_sub(1)).copied()
    };
    Some(Quantiles { p50: at(0.5)?, p99: at(0.99)? })
}

/// Milliseconds.
fn k6_quantiles(printed: &str) -> Option<Quantiles> {
    let metrics: Value = serde_json::from_str(printed).ok()?;
    let values = &metrics["http_req_duration"]["values"];
    Some(Quantiles { p50: values["med"].as_f64()? * 1e3, p99: values["p(99)"].as_f64()? * 1e3 })
}

/// Nanoseconds.
fn ghz_quantiles(printed: &str) -> Option<Quantiles> {
    let report: Value = serde_json::from_str(printed).ok()?;
    let find = |percentage: u64| {
        let mut all = report["latencyDistribution"].as_array()?.iter();
        Some(all.find(|one| one["percentage"] == percentage)?["latency"].as_f64()? / 1e3)
    };
    Some(Quantiles { p50: find(50)?, p99: find(99)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_print_is_understood() {
        let expected = Some(Quantiles { p50: 2_100.0, p99: 20_000.0 });
        let wrk = "  Latency Distribution\n     50%    2.10ms\n     75%    2.2ms\n     \
                   99%   20.00ms\n  100 requests in 1s\n";
        assert_eq!(wrk_quantiles(wrk), expected);
        let log: String = (0..100)
            .map(|n| format!("1700000000\t200\t{}\n", if n < 98 { 2_100 } else { 20_000 }))
            .collect();
        assert_eq!(h2load_quantiles(&log), expected);
        let k6 = r#"{"http_req_duration":{"values":{"med":2.1,"p(99)":20}}}"#;
        assert_eq!(k6_quantiles(k6), expected);
        let ghz = r#"{"latencyDistribution":[{"percentage":50,"latency":2100000},
                      {"percentage":99,"latency":20000000}]}"#;
        assert_eq!(ghz_quantiles(ghz), expected);
        for read in [wrk_quantiles, h2load_quantiles, k6_quantiles, ghz_quantiles] {
            assert_eq!(read("{}"), None);
        }
    }
}
