//! `cargo xtask proof transport`: peers that are slow, silent or many, at every listener of a
//! release build; keeps the record and writes the page that shows it. The prose of the page is
//! `transport.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{facts, publish, told_facts, word};
use crate::process;

const PAGE: &str = "docs/transport.md";
const RECORD: &str = "docs/records/transport.json";
const TEMPLATE: &str = include_str!("transport.md");

/// Idle connections that are promised; fewer where a process may have fewer descriptors.
const IDLE: u64 = 100_000;

pub(super) fn run(root: &Path) -> Result<()> {
    let raw = root.join("target/transport.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    let build = ["--release", "-p", "tollway", "--test", "transport"];
    process::run(process::cargo().arg("build").args(build).arg("--bins"))?;
    let command = "ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\"";
    let cargo = process::cargo();
    let ran = process::run(
        std::process::Command::new("/bin/sh")
            .args(["-c", command])
            .arg(cargo.get_program())
            .arg("test")
            .args(build)
            .args(["--", "--ignored", "--exact", "everything", "--nocapture"])
            .env("TOLLWAY_TRANSPORT_RECORD", &raw),
    );
    // A broken promise fails the run and is in the record all the same.
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("the run left no record"));
    };
    let measured: Value = serde_json::from_str(&text).context("the record is not JSON")?;
    let record = json!({ "run": facts(root, "release")?, "measured": measured });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    ran
}

fn page(record: &Value) -> String {
    let measured = &record["measured"];
    let outcomes = measured["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    TEMPLATE
        .replace("{{facts}}", &told_facts(&record["run"]))
        .replace("{{reduced}}", &reduced(measured["descriptor_limit"].as_u64().unwrap_or_default()))
        .replace("{{outcomes}}", &became(outcomes))
        .replace("{{costs}}", &costs(outcomes))
}

/// What this machine did not allow.
fn reduced(descriptors: u64) -> String {
    if descriptors > IDLE {
        return String::new();
    }
    format!(
        " A process may have {descriptors} descriptors here, so the idle connections are as many as \
         that and not {IDLE}."
    )
}

fn became(outcomes: &[Value]) -> String {
    let mut table = String::from(
        "| case | listener | what was done | what became of it | honest requests | failed | p50 | p99 | longest | verdict |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let honest = &outcome["honest"];
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word(&outcome["case"]),
            word(&outcome["listener"]),
            word(&outcome["done"]),
            word(&outcome["became"]),
            honest["requests"],
            honest["failed"],
            millis(&honest["p50_ms"]),
            millis(&honest["p99_ms"]),
            millis(&honest["max_ms"]),
            if outcome["passed"] == true { "pass" } else { "**FAIL**" },
        );
    }
    table.trim_end().to_owned()
}

fn costs(outcomes: &[Value]) -> String {
    let mut table = String::from(
        "| case | listener | memory before | at most | after | of each peer | processor time | the attacker's | ratio |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let memory = |name: &str| outcome["memory"][name].as_f64().unwrap_or_default();
        let (before, most) = (memory("before_bytes"), memory("most_bytes"));
        let peers = outcome["peers"].as_f64().unwrap_or_default().max(1.0);
        let cpu = |name: &str| outcome[name].as_f64().unwrap_or_default();
        let (caused, own) = (cpu("cpu_ms"), cpu("attacker_cpu_ms"));
        let ratio = if own > 0.0 { format!("{:.1}", caused / own) } else { "—".to_owned() };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:.1} KiB | {caused:.0} ms | {own:.0} ms | {ratio} |",
            word(&outcome["case"]),
            word(&outcome["listener"]),
            mib(before),
            mib(most),
            mib(memory("after_bytes")),
            (most - before).max(0.0) / peers / 1024.0,
        );
    }
    table.trim_end().to_owned()
}

fn millis(value: &Value) -> String {
    format!("{:.1} ms", value.as_f64().unwrap_or_default())
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(passed: bool, descriptor_limit: u64) -> Value {
        let outcome = json!({
            "case": "slow head", "listener": "api", "peers": 512, "done": "512 peers",
            "became": "512 × 408", "passed": passed, "cpu_ms": 30.0, "attacker_cpu_ms": 15.0,
            "honest": { "requests": 900, "failed": 0, "p50_ms": 0.4, "p99_ms": 1.25, "max_ms": 3.0 },
            "memory": { "before_bytes": 8 << 20, "most_bytes": 10 << 20, "after_bytes": 9 << 20 },
        });
        json!({
            "run": { "date": "2026-11-21", "commit": "abc", "build": "release",
                     "kernel": "Linux 6", "cores": 2, "cpu": "any" },
            "measured": { "descriptor_limit": descriptor_limit, "outcomes": [outcome] },
        })
    }

    #[test]
    fn the_page_shows_every_case_and_leaves_no_blank() {
        let text = page(&record(true, 1 << 20));
        let row =
            "| slow head | api | 512 peers | 512 × 408 | 900 | 0 | 0.4 ms | 1.2 ms | 3.0 ms |";
        assert!(text.contains(&format!("{row} pass |")), "{text}");
        let row =
            "| slow head | api | 8.0 MiB | 10.0 MiB | 9.0 MiB | 4.0 KiB | 30 ms | 15 ms | 2.0 |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("{{") && !text.contains("descriptors here"), "{text}");
    }

    #[test]
    fn a_broken_promise_and_what_was_reduced_are_told() {
        let text = page(&record(false, 20_000));
        assert!(text.contains("**FAIL**") && text.contains("20000 descriptors here"), "{text}");
    }
}
