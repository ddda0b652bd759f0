//! `cargo xtask proof failover`: networks that fall silent, over links that stand still and lose packets.
//! Stores the record and writes the page that shows it. The prose of the page is `failover.md` beside
//! this file.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Extent, facts, facts_text, publish, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/silent-networks.md";
const RECORD: &str = "docs/records/failover.json";
const TEMPLATE: &str = include_str!("failover.md");
const ROUNDS: u32 = 100;
/// Ten rounds of addresses of a control plane that are lost and back.
const ADDRESSES: &str =
    "control_addresses::addresses_that_are_lost_and_back_again_and_again_cost_no_call";

/// What befalls a network, in the words of the page.
const FAULTS: [(&str, &str); 10] = [
    ("Cut", "the link loses everything"),
    ("GatewaysStopped", "all gateways stand still (SIGSTOP)"),
    ("OneGatewayStopped", "one gateway of two stands still"),
    ("CutForASecond", "the link loses everything for 1 s"),
    ("GatewaysStoppedForASecond", "all gateways stand still for 1 s"),
    ("ControlStopped", "the own control plane stands still for 3 s"),
    ("OtherControlStopped", "the other control plane stands still for 2.5 s"),
    ("Lossy", "the link loses 30 % of all packets each way, for 10 s"),
    ("CutUnderFailover", "the link loses everything, under calls that both networks serve"),
    (
        "GatewaysStoppedUnderFailover",
        "all gateways stand still, under calls that both networks serve",
    ),
];

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let raw = root.join("target/failover.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    let rounds = if extent == Extent::Quick { 2 } else { ROUNDS };
    // Times are promised of what users run.
    let build: &[&str] = if extent == Extent::Quick { &[] } else { &["--release"] };
    super::build_process_tests("network", build)?;
    let ran = process::run(
        super::process_tests("network", build)
            .args(["--ignored", "--exact", "silent::everything", "--nocapture"])
            .env("TOLLWAY_FAILOVER_ROUNDS", rounds.to_string())
            .env("TOLLWAY_FAILOVER_RECORD", &raw),
    );
    if extent == Extent::Quick {
        return ran;
    }
    let kept = process::run(super::process_tests("network", build).args([
        "--ignored",
        "--exact",
        ADDRESSES,
    ]));
    // A broken promise fails the run and is in the record all the same.
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("the run left no record"));
    };
    let rows: Value = serde_json::from_str(&text).context("the record is not JSON")?;
    let record = json!({ "run": facts(root, "release")?, "rows": rows });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    ran.and(kept)
}

fn page(record: &Value) -> String {
    TEMPLATE
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{table}}", &table(&record["rows"]))
}

fn table(rows: &Value) -> String {
    let mut text = String::from(
        "| network | what befalls it | rounds | withdrawn in | found after (median, longest) | back after (median, longest) | failed calls | verdict |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows.as_array().into_iter().flatten() {
        let fault = word(&row["fault"]);
        let words =
            FAULTS.iter().find(|(name, _)| *name == fault).map_or(fault, |(_, words)| words);
        let network = if row["east"] == "DialsOut" { "only dials out" } else { "dialled" };
        let rounds: Vec<&Value> = row["rounds"].as_array().into_iter().flatten().collect();
        let withdrawn = rounds.iter().filter(|round| round["withdrawn"] != 0).count();
        let passed = rounds.iter().filter(|round| round["passed"] == true).count();
        let verdict = if passed == rounds.len() {
            "pass".to_owned()
        } else {
            format!("{} of {} broke the promise", rounds.len() - passed, rounds.len())
        };
        let _ = writeln!(
            text,
            "| {network} | {words} | {} | {withdrawn} | {} | {} | {} | {verdict} |",
            rounds.len(),
            times(&rounds, "found_after_ms"),
            times(&rounds, "back_after_ms"),
            failed(&rounds),
        );
    }
    text
}

/// The median and the longest of the times that there are.
fn times(rounds: &[&Value], name: &str) -> String {
    let mut all: Vec<u64> = rounds.iter().filter_map(|round| round[name].as_u64()).collect();
    all.sort_unstable();
    match (all.get(all.len() / 2), all.last()) {
        (Some(median), Some(longest)) => format!("{median} ms, {longest} ms"),
        _ => String::new(),
    }
}

/// How many calls failed, where they are counted.
fn failed(rounds: &[&Value]) -> String {
    let counted: Vec<u64> = rounds.iter().filter_map(|round| round["failed"].as_u64()).collect();
    if counted.is_empty() { String::new() } else { counted.iter().sum::<u64>().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_all_of_the_record() {
        let round = |found: Option<u64>, withdrawn, passed| {
            json!({ "found_after_ms": found, "back_after_ms": found.map(|ms| ms / 10),
                    "failed": found.map(|ms| ms / 1_800), "withdrawn": withdrawn, "passed": passed })
        };
        let record = json!({
            "run": { "date": "2026-11-28", "commit": "1234567", "build": "debug",
                     "kernel": "Linux", "cores": 2, "cpu": "a processor" },
            "rows": [
                { "fault": "Cut", "east": "Dialled", "rounds": [round(Some(1_800), 1, true), round(Some(1_700), 1, true),
                                             round(Some(1_900), 1, true)] },
                { "fault": "Lossy", "east": "DialsOut", "rounds": [round(None, 0, true), round(None, 1, false)] },
            ],
        });
        let page = page(&record);
        let cut = "| dialled | the link loses everything | 3 | 3 | 1800 ms, 1900 ms | 180 ms, 190 ms | 2 | pass |";
        assert!(page.contains(cut), "{page}");
        let lossy = "for 10 s | 2 | 1 |  |  |  | 1 of 2 broke the promise |";
        assert!(page.contains(lossy), "{page}");
        assert!(!page.contains("{{"), "{page}");
    }
}
