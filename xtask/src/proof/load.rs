//! `cargo xtask proof load`: `tollway load` and well-known load generators on the same servers, in
//! alternating order: their cost, and whether they measure alike. Stores its record and writes the
//! page that shows it; the prose of the page is `load.md` beside this file.

mod agreement;
mod bench;
mod cost;
mod figures;
mod page;
mod servers;

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::bench::Bench;
use super::{Extent, facts, publish, word};
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

const PAGE: &str = "docs/load.md";
const RECORD: &str = "docs/records/load.json";

/// Rounds in which each tool runs once. The median of so many ratios is between the lowest and the
/// highest with a probability of 1 - 2^(1 - rounds): 98 %.
const ROUNDS: u32 = 7;
/// Enough to see that every tool is understood.
const QUICK_ROUNDS: u32 = 2;

/// By how much the memory of two runs may differ: pages of histograms that one of them touched.
const MEMORY_NOISE_BYTES: u64 = 1 << 20;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    tools::install_for_proof(workspace);
    process::run(process::cargo().args(["build", "--release", "-p", "tollway"]))?;
    let tollway = workspace.target.join("release/tollway");
    let rounds = if extent == Extent::Quick { QUICK_ROUNDS } else { ROUNDS };
    let bench = Bench::start(workspace, tollway, rounds)?;
    let costs = cost::measure(&bench)?;
    let mut agreement = agreement::measure(&bench)?;
    agreement.extend(throughputs(&costs));
    let pacing = pacing(&bench)?;
    if extent == Extent::Quick {
        println!("\nquick: too few rounds to conclude from, so nothing was written");
        return Ok(());
    }
    let record = json!({
        "run": facts(&workspace.root, "release")?,
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "costs": costs,
        "agreement": agreement,
        "pacing": pacing,
        "memory": memory(&bench)?,
    });
    publish(&workspace.root, (RECORD, &record), (PAGE, &page::page(&record)))
}

/// Throughput is measured once for both tables: there the rate is the result.
fn throughputs(costs: &[Value]) -> Vec<Value> {
    let cases = costs.iter().filter(|case| case["unit"] == "MB");
    let told = |case: &Value| {
        let word = |name: &str| word(&case[name]).to_owned();
        let rounds = case["rounds"].as_array().map_or(&[][..], Vec::as_slice);
        println!("\nthroughput of {} beside {}", word("case"), word("other"));
        agreement::compared(&word("case"), &word("other"), "rate", "MB/s", rounds)
    };
    cases.map(told).collect()
}

/// How late `tollway load` sends at 1,000 requests/s: the median and the 99th percentile.
fn pacing(bench: &Bench) -> Result<Value> {
    let url = bench.nginx_url();
    let arguments = ["load", "http", "--rate", "1000", "-z", "10s", "--json", "-", &url];
    let printed = process::output(Command::new(&bench.tollway).args(arguments))?;
    let result: Value = serde_json::from_str(&printed)?;
    let lateness = &result["lateness"];
    println!("\nsends at 1,000/s are late by {} us (median)", lateness["p50_us"]);
    Ok(json!({ "rate_rps": 1000, "p50_us": lateness["p50_us"], "p99_us": lateness["p99_us"] }))
}

/// What the generator's memory is after a short and a long run as fast as it goes.
fn memory(bench: &Bench) -> Result<Value> {
    let url = bench.nginx_url();
    let after = |lasting: &str| -> Result<u64> {
        let arguments = ["load", "http", "-c", "32", "-z", lasting, "--json", "-", &url];
        let printed = process::output(Command::new(&bench.tollway).args(arguments))?;
        let result: Value = serde_json::from_str(&printed)?;
        result["generator"]["rss_bytes"].as_u64().context("the result has no memory")
    };
    let (short, long) = (after("10s")?, after("60s")?);
    println!("\nmemory after 10 s {} KB, after 60 s {} KB", short >> 10, long >> 10);
    if long > short + MEMORY_NOISE_BYTES {
        bail!("memory grows with the run: {short} bytes after 10 s, {long} after 60 s");
    }
    Ok(json!({ "rss_bytes_10s": short, "rss_bytes_60s": long }))
}
