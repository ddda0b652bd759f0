//! `cargo xtask proof load`: `tollway load` beside the load generators people know, on the same
//! server, in alternating order; keeps its record and writes the page that shows it. The prose of
//! the page is `load.md` beside this file.

mod nginx;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::nginx::Nginx;
use super::{facts, write};
use crate::process::{self, find_program};

const PAGE: &str = "docs/load.md";
const RECORD: &str = "docs/records/load.json";
const TEMPLATE: &str = include_str!("load.md");

/// Rounds in which each tool runs once. The median of so many ratios lies between the lowest and
/// the highest with a probability of 1 - 2^(1 - rounds): 98 %.
const ROUNDS: usize = 7;
/// Length of one run.
const SECONDS: u32 = 3;

/// By how much the memory of two runs may differ: pages of histograms that one of them touched.
const MEMORY_NOISE_BYTES: u64 = 1 << 20;

/// A way of loading a server that two tools have in common.
struct Case {
    name: &'static str,
    other: &'static str,
    /// What `tollway load` is told; the server's address comes behind it.
    ours: &'static [&'static str],
    theirs: &'static [&'static str],
    door: Door,
    /// How many requests a tool says it has made.
    count: fn(&str) -> Option<f64>,
}

/// Which of the server's doors is loaded.
#[derive(Clone, Copy)]
enum Door {
    Http1,
    Http2,
    Https,
}

const CASES: &[Case] = &[
    Case {
        name: "HTTP/1.1, 32 connections",
        other: "wrk",
        ours: &["http", "-c", "32"],
        theirs: &["-t1", "-c32", "-d3s"],
        door: Door::Http1,
        count: wrk_requests,
    },
    Case {
        name: "HTTP/1.1 over TLS, 32 connections",
        other: "wrk",
        ours: &["http", "-k", "-c", "32"],
        theirs: &["-t1", "-c32", "-d3s"],
        door: Door::Https,
        count: wrk_requests,
    },
    Case {
        name: "HTTP/2, 4 connections of 10 streams",
        other: "h2load",
        ours: &["http", "--http2", "-c", "4", "--streams", "10"],
        theirs: &["-c4", "-m10", "-D3"],
        door: Door::Http2,
        count: h2load_requests,
    },
];

/// What one run of a tool gave.
struct Run {
    requests: f64,
    cpu_us: f64,
}

pub(super) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    process::run(process::cargo().args(["build", "--release", "-p", "tollway"]))?;
    let tollway = root.join("target/release/tollway");
    let nginx = find_program("nginx").context("`nginx` is needed: apt-get install nginx-light")?;
    let server = Nginx::start(&nginx, &root.join("target/proof-load"))?;
    let mut cases = Vec::new();
    for case in CASES {
        match find_program(case.other) {
            Some(other) => cases.push(measure(case, &tollway, &other, &server)?),
            None => println!("{}: skipped, `{}` is not installed", case.name, case.other),
        }
    }
    let record = json!({
        "run": facts(root, "release")?,
        "rounds": ROUNDS,
        "seconds": SECONDS,
        "cases": cases,
        "pacing": pacing(&tollway, &server)?,
        "memory": memory(&tollway, &server)?,
    });
    write(&root.join(RECORD), &format!("{}\n", serde_json::to_string_pretty(&record)?))?;
    write(&root.join(PAGE), &page(&record))?;
    println!("\nwrote {RECORD} and {PAGE}");
    Ok(())
}

/// Both tools in turn, who begins alternating (ABBA).
fn measure(case: &Case, tollway: &Path, other: &Path, server: &Nginx) -> Result<Value> {
    println!("\n{} against {}", case.name, case.other);
    let url = server.url(case.door);
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let ours = || run_ours(case, tollway, &url);
        let theirs = || run_theirs(case, other, &url);
        let (ours, theirs) = if round % 2 == 0 {
            let ours = ours()?;
            (ours, theirs()?)
        } else {
            let theirs = theirs()?;
            (ours()?, theirs)
        };
        let per_request = |run: &Run| run.cpu_us / run.requests;
        println!(
            "  round {}: {:.2} us and {:.0}/s; {} {:.2} us and {:.0}/s",
            round + 1,
            per_request(&ours),
            ours.requests / f64::from(SECONDS),
            case.other,
            per_request(&theirs),
            theirs.requests / f64::from(SECONDS),
        );
        rounds.push(json!({
            "cpu_us_per_request": per_request(&ours),
            "other_cpu_us_per_request": per_request(&theirs),
            "rps": ours.requests / f64::from(SECONDS),
            "other_rps": theirs.requests / f64::from(SECONDS),
        }));
    }
    let cpu = ratios(&rounds, "cpu_us_per_request", "other_cpu_us_per_request");
    let rate = ratios(&rounds, "rps", "other_rps");
    println!("  CPU per request over {}'s: {}", case.other, interval(&cpu));
    println!("  rate over {}'s: {}", case.other, interval(&rate));
    Ok(json!({
        "case": case.name,
        "other": case.other,
        "rounds": rounds,
        "cpu_ratio": cpu,
        "rate_ratio": rate,
    }))
}

fn run_ours(case: &Case, tollway: &Path, url: &str) -> Result<Run> {
    let seconds = format!("{SECONDS}s");
    let mut arguments = vec!["load"];
    arguments.extend(case.ours);
    arguments.extend(["--warm-up", "0s", "-z", &seconds, "--json", "-", url]);
    timed(tollway, &arguments, |printed| {
        serde_json::from_str::<Value>(printed).ok()?["requests"].as_f64()
    })
}

fn run_theirs(case: &Case, other: &Path, url: &str) -> Result<Run> {
    let mut arguments = case.theirs.to_vec();
    arguments.push(url);
    timed(other, &arguments, case.count)
}

/// Runs a tool under bash's `time`, which tells user and system time to the millisecond, the
/// tool's beginning and end included.
fn timed(tool: &Path, arguments: &[&str], count: impl Fn(&str) -> Option<f64>) -> Result<Run> {
    const SCRIPT: &str = r#"TIMEFORMAT="cpu %3U %3S"; time "$@" 2>/dev/null"#;
    let output = Command::new("bash")
        .args(["-c", SCRIPT, "bash"])
        .arg(tool)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .context("could not start `bash`")?;
    let (printed, told) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    let requests = count(&printed).filter(|requests| *requests > 0.0);
    let cpu_us = told.lines().find_map(cpu_us);
    match (requests, cpu_us) {
        (Some(requests), Some(cpu_us)) => Ok(Run { requests, cpu_us }),
        _ => {
            bail!("`{} {}` gave no figures:\n{printed}{told}", tool.display(), arguments.join(" "))
        }
    }
}

/// `cpu 1.234 0.567`: user and system seconds.
fn cpu_us(line: &str) -> Option<f64> {
    let (user, system) = line.strip_prefix("cpu ")?.split_once(' ')?;
    Some((user.parse::<f64>().ok()? + system.parse::<f64>().ok()?) * 1e6)
}

/// `  123456 requests in 3.00s, 1.00MB read`
fn wrk_requests(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.contains(" requests in "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// `requests: 1 total, 1 started, 1 done, 123456 succeeded, …`
fn h2load_requests(printed: &str) -> Option<f64> {
    let line = printed.lines().find(|line| line.starts_with("requests: "))?;
    let part = line.split(", ").find(|part| part.ends_with(" succeeded"))?;
    part.split(' ').next()?.parse().ok()
}

/// How late `tollway load` sends at 1,000 requests/s: the median and the 99th percentile.
fn pacing(tollway: &Path, server: &Nginx) -> Result<Value> {
    let url = server.url(Door::Http1);
    let arguments = ["load", "http", "--rate", "1000", "-z", "10s", "--json", "-", &url];
    let printed = process::output(Command::new(tollway).args(arguments))?;
    let result: Value = serde_json::from_str(&printed)?;
    let lateness = &result["lateness"];
    println!("\nsends at 1,000/s are late by {} us (median)", lateness["p50_us"]);
    Ok(json!({ "rate_rps": 1000, "p50_us": lateness["p50_us"], "p99_us": lateness["p99_us"] }))
}

/// What the generator's memory is after a short and a long run as fast as it goes.
fn memory(tollway: &Path, server: &Nginx) -> Result<Value> {
    let url = server.url(Door::Http1);
    let after = |lasting: &str| -> Result<u64> {
        let arguments = ["load", "http", "-c", "32", "-z", lasting, "--json", "-", &url];
        let printed = process::output(Command::new(tollway).args(arguments))?;
        let result: Value = serde_json::from_str(&printed)?;
        result["generator"]["rss_bytes"].as_u64().context("the result tells no memory")
    };
    let (short, long) = (after("10s")?, after("60s")?);
    println!("\nmemory after 10 s {} KB, after 60 s {} KB", short >> 10, long >> 10);
    if long > short + MEMORY_NOISE_BYTES {
        bail!("memory grows with the run: {short} bytes after 10 s, {long} after 60 s");
    }
    Ok(json!({ "rss_bytes_10s": short, "rss_bytes_60s": long }))
}

/// Ours over theirs: the median over the rounds, the lowest and the highest.
fn ratios(rounds: &[Value], ours: &str, theirs: &str) -> Value {
    let figure = |round: &Value, name: &str| round[name].as_f64().unwrap_or(f64::NAN);
    let mut ratios: Vec<f64> =
        rounds.iter().map(|round| figure(round, ours) / figure(round, theirs)).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |index: usize| ratios.get(index).copied();
    json!({
        "median": at(ratios.len() / 2),
        "lowest": at(0),
        "highest": at(ratios.len().saturating_sub(1)),
    })
}

fn interval(ratio: &Value) -> String {
    let figure = |name: &str| ratio[name].as_f64().unwrap_or(f64::NAN);
    format!("{:.2} ({:.2} to {:.2})", figure("median"), figure("lowest"), figure("highest"))
}

fn page(record: &Value) -> String {
    let run = &record["run"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let facts = format!(
        "{}, commit {}, {} build, {}, {} cores ({}); {} rounds of {} s",
        word(&run["date"]),
        word(&run["commit"]),
        word(&run["build"]),
        word(&run["kernel"]),
        run["cores"],
        word(&run["cpu"]),
        record["rounds"],
        record["seconds"],
    );
    let mut table = String::from(
        "| load | beside | CPU per request | of theirs (lowest to highest round) | requests/s, of \
         theirs |\n|---|---|---|---|---|\n",
    );
    for case in record["cases"].as_array().into_iter().flatten() {
        let _ = writeln!(
            table,
            "| {} | {} | {:.1} µs | {} | {} |",
            word(&case["case"]),
            word(&case["other"]),
            median(&case["rounds"], "cpu_us_per_request"),
            interval(&case["cpu_ratio"]),
            interval(&case["rate_ratio"]),
        );
    }
    let (pacing, memory) = (&record["pacing"], &record["memory"]);
    let mb = |name: &str| format!("{:.1}", memory[name].as_f64().unwrap_or(f64::NAN) / 1e6);
    TEMPLATE
        .replace("{{facts}}", &facts)
        .replace("{{table}}", table.trim_end())
        .replace("{{rss_10s_mb}}", &mb("rss_bytes_10s"))
        .replace("{{rss_60s_mb}}", &mb("rss_bytes_60s"))
        .replace("{{late_p50_us}}", &format!("{:.0}", pacing["p50_us"].as_f64().unwrap_or(0.0)))
        .replace("{{late_p99_us}}", &format!("{:.0}", pacing["p99_us"].as_f64().unwrap_or(0.0)))
}

fn median(rounds: &Value, name: &str) -> f64 {
    let rounds = rounds.as_array().into_iter().flatten();
    let mut figures: Vec<f64> = rounds.filter_map(|round| round[name].as_f64()).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
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
        assert_eq!(cpu_us("cpu 1.250 0.750"), Some(2e6));
        assert_eq!(wrk_requests("nothing"), None);
    }

    #[test]
    fn the_page_shows_every_case_and_leaves_no_blank() {
        let round = json!({ "cpu_us_per_request": 9.0, "other_cpu_us_per_request": 10.0,
                            "rps": 90.0, "other_rps": 100.0 });
        let rounds = vec![round];
        let record = json!({
            "run": { "date": "2026-11-21", "commit": "abc", "build": "release", "kernel": "Linux",
                     "cores": 2, "cpu": "any" },
            "rounds": 1, "seconds": 3,
            "cases": [{ "case": "HTTP/1.1", "other": "wrk", "rounds": rounds,
                        "cpu_ratio": ratios(&rounds, "cpu_us_per_request",
                                            "other_cpu_us_per_request"),
                        "rate_ratio": ratios(&rounds, "rps", "other_rps") }],
            "pacing": { "p50_us": 4.4, "p99_us": 60.0 },
            "memory": { "rss_bytes_10s": 5_000_000, "rss_bytes_60s": 5_100_000 },
        });
        let page = page(&record);
        let row = "| HTTP/1.1 | wrk | 9.0 µs | 0.90 (0.90 to 0.90) | 0.90 (0.90 to 0.90) |";
        assert!(page.contains(row), "{page}");
        assert!(!page.contains("{{"), "{page}");
    }
}
