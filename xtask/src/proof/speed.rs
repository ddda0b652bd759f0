//! `cargo xtask proof speed`: the data plane and the best of the others at the same work. Stores
//! its figures, adds a line to the history and writes the page. The experiments are the scenarios
//! in `speed/`; one that fails loses its own rows only, and is named at the end.

mod compare;
mod former;
mod memory;
mod page;
mod parts;
mod questions;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tollway_record::record::Row;
use tollway_record::{Block, Record};

use self::compare::{Answer, OTHERS, answers, block_of, median, name_of, row_of};
use self::memory::{Weight, weights};
use self::parts::Records;
use self::questions::Figure;
use super::{Extent, Wanted, facts, publish};
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

const PAGE: &str = "docs/performance.md";
const RECORD: &str = "docs/records/speed.json";
const HISTORY: &str = "perf-history/history.jsonl";

pub(super) fn run(workspace: &Workspace, wanted: &Wanted<'_>) -> Result<()> {
    let extent = wanted.extent;
    let build = || process::run(process::cargo().args(["build", "--release", "-p", "tollway"]));
    if let Some(before) = wanted.before {
        build()?;
        return former::run(workspace, before, extent);
    }
    tools::install_for_proof(workspace);
    build()?;
    let root = &workspace.root;
    let records = Records::run(root, &workspace.target, extent)?;
    let answers = answers(&records);
    let weights = weights(records.of("memory").ok());
    let limits = limits(records.of("limits").ok());
    println!("\n{}", page::table(answers.iter()));
    println!("{}\n{}", page::weight_table(&weights), page::limit_table(&limits));
    if extent == Extent::Quick {
        println!("quick: too little to conclude from, so nothing was written");
        return complete(&answers, &weights, &limits);
    }
    let seconds: f64 = records.measured().map(|(_, record)| record.duration_s).sum();
    let (disturbed, runs) = records.disturbed();
    let kept = json!({
        "run": facts(root, "release")?,
        "minutes": (seconds / 60.0).round(),
        "answers": answers,
        "memory": weights,
        "limits": limits,
        "each": each(&records),
        "rss_mb": largest(&records),
        "tcp_rmem": setting("tcp_rmem"),
        "tcp_wmem": setting("tcp_wmem"),
        "disturbed": disturbed,
        "runs": runs,
    });
    remember(root, &kept)?;
    publish(root, (RECORD, &kept), (PAGE, &page::page(&answers, &weights, &kept)))?;
    complete(&answers, &weights, &limits)
}

/// Fails if something could not be measured, with the reason.
fn complete(answers: &[Answer], weights: &[Weight], limits: &Value) -> Result<()> {
    let answers = answers.iter().filter_map(|answer| {
        let why = answer.lost.as_ref()?;
        Some(format!("{}, {}: {why}", answer.work, answer.figure.name()))
    });
    let weights = weights.iter().filter(|weight| weight.bytes.is_none());
    let weights = weights.map(|weight| format!("memory of {}", weight.what));
    let limits = limits.as_array().is_none_or(Vec::is_empty);
    let limits = limits.then(|| "CPU limits".to_owned());
    let lost: Vec<String> = answers.chain(weights).chain(limits).collect();
    if !lost.is_empty() {
        bail!("{} rows could not be measured:\n  {}", lost.len(), lost.join("\n  "));
    }
    Ok(())
}

/// What each subject carries with so much of a processor for each of its processes.
fn limits(record: Option<&Record>) -> Value {
    let row = |row: &Row| {
        json!({
            "limit": row.conditions.case,
            "subject": name_of(row),
            "rate_rps": median(row.blocks.iter().map(|block| block.traffic.achieved_rps)),
            "p99_us": row.traffic.latency_us.p99,
        })
    };
    record.map_or(Value::Null, |record| record.rows.iter().map(row).collect())
}

/// What each subject costs at the same work, by case: CPU of its processes per request, its rate,
/// and what the median call takes longer than without anything between. A subject in both parts has
/// the first's figures.
fn each(records: &Records) -> Value {
    let mut told = Vec::new();
    let mut known = BTreeSet::from(["direct"]);
    for record in ["near", "others"].into_iter().filter_map(|part| records.of(part).ok()) {
        let new: Vec<_> = record.rows.iter().filter(|row| !known.contains(name_of(row))).collect();
        told.extend(new.iter().map(|row| cost(record, row)));
        known.extend(new.into_iter().map(name_of));
    }
    let work = |row: &Value| [row["case"].clone(), row["layout"].clone()];
    let works: Vec<_> = told.iter().map(work).collect();
    told.sort_by_key(|row| works.iter().position(|of| *of == work(row)));
    Value::Array(told)
}

fn cost(record: &Record, row: &Row) -> Value {
    let asked = &row.conditions;
    let direct = row_of(record, (&asked.case, asked.topology, asked.layout), "direct");
    let of = |figure: Figure| {
        let base = |block: &Block| direct.and_then(|direct| block_of(direct, block.block));
        median(row.blocks.iter().filter_map(|block| figure.of(block, base(block))))
    };
    json!({
        "case": asked.case,
        "layout": asked.layout,
        "subject": name_of(row),
        "cpu_us": of(Figure::Cpu),
        "rate_rps": of(Figure::Rate),
        "added_p50_us": of(Figure::AddedP50),
    })
}

/// The largest resident set of a process of each subject in all parts but those of many
/// connections, in MB.
fn largest(records: &Records) -> Value {
    let mut largest = BTreeMap::<&str, u64>::new();
    let parts = records.measured().filter(|(name, _)| matches!(*name, "near" | "fronts"));
    for row in parts.flat_map(|(_, record)| &record.rows) {
        let own = row.cost.rss_bytes.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str()));
        let most = own.map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let known = largest.entry(name_of(row)).or_default();
        *known = most.max(*known);
    }
    largest.retain(|_, bytes| *bytes > 0);
    let megabytes: BTreeMap<&str, f64> =
        largest.into_iter().map(|(name, bytes)| (name, bytes as f64 / 1e6)).collect();
    json!(megabytes)
}

/// The value of a kernel setting.
fn setting(name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Adds a line to the history.
fn remember(root: &Path, kept: &Value) -> Result<()> {
    let path = root.join(HISTORY);
    let doing = || format!("could not add to {}", path.display());
    let dir = path.parent().context("a file lies in a directory")?;
    std::fs::create_dir_all(dir).with_context(doing)?;
    let mut file =
        std::fs::OpenOptions::new().create(true).append(true).open(&path).with_context(doing)?;
    writeln!(file, "{kept}").with_context(doing)
}
