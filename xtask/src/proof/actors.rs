//! `cargo xtask proof actors`: hosts of actors are killed, suspended or cut off from the control
//! plane, while all actors are called. Stores the record and writes the page that shows it. The
//! prose of the page is `actors.md` beside this file.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Extent, facts, facts_text, publish, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/actors.md";
const RECORD: &str = "docs/records/actors.json";
const TEMPLATE: &str = include_str!("actors.md");
const TEST: &str = "actors::faults::no_turns_overlap_whatever_befalls_a_host";
const ROUNDS: u32 = 100;
/// Longest wait where hosts come and leave in good order.
const PLANNED_MS: u64 = 100;
/// The same where one is gone: until its lease is over, and a moment.
const CRASH_MS: u64 = 3_000 + 100;
/// Actors of another type wait for nothing but what two busy cores add to a call in a debug build.
const OTHERS_MS: u64 = 40;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let raw = root.join("target/actors.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    let rounds = if extent == Extent::Quick { 1 } else { ROUNDS };
    super::build_process_tests("runtime", &[])?;
    let ran = process::run(
        super::process_tests("runtime", &[])
            .args(["--exact", TEST, "--nocapture"])
            .env("TOLLWAY_ACTOR_ROUNDS", rounds.to_string())
            .env("TOLLWAY_ACTOR_RECORD", &raw),
    );
    // Turns that overlap end the run, and there is no record.
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("the run left no record"));
    };
    ran?;
    if extent == Extent::Quick {
        return Ok(());
    }
    let mut measured: Value = serde_json::from_str(&text).context("the record is not JSON")?;
    judge(&mut measured);
    let record = json!({ "run": facts(root, "debug")?, "measured": measured });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))
}

/// Holds the longest waits of each blow against what is promised.
fn judge(measured: &mut Value) {
    for outcome in measured["outcomes"].as_array_mut().into_iter().flatten() {
        let is_planned = matches!(outcome["blow"].as_str(), Some("came" | "left in good order"));
        let must = if is_planned { PLANNED_MS } else { CRASH_MS };
        for (waited, must) in [("longest_ms", must), ("bystanders_ms", OTHERS_MS)] {
            let most = outcome[waited]["most"].as_u64();
            outcome[waited]["must"] = must.into();
            outcome[waited]["reached"] = most.is_some_and(|most| most <= must).into();
        }
    }
}

/// `31 ms, 80 ms | ≤ 100 ms | yes`
fn judged(ms: &Value) -> String {
    let reached = if ms["reached"] == true { "yes" } else { "no" };
    format!("{} | ≤ {} ms | {reached}", waits(ms), ms["must"])
}

/// `31 ms, 80 ms`
fn waits(ms: &Value) -> String {
    format!("{} ms, {} ms", ms["median"], ms["most"])
}

fn page(record: &Value) -> String {
    let measured = &record["measured"];
    let mut outcomes = String::from(
        "| the host | times | calls answered | longest wait, median and most | must | reached | of \
         another type | must | reached | calls that failed | the last after |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in measured["outcomes"].as_array().into_iter().flatten() {
        let _ = writeln!(
            outcomes,
            "| {} | {} | {} | {} | {} | {} | {} |",
            word(&outcome["blow"]),
            outcome["strikes"],
            outcome["answered"],
            judged(&outcome["longest_ms"]),
            judged(&outcome["bystanders_ms"]),
            outcome["failed"],
            waits(&outcome["longest_failed_ms"]),
        );
    }
    TEMPLATE
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{rounds}}", &measured["rounds"].to_string())
        .replace("{{actors}}", &measured["actors"].to_string())
        .replace("{{bystanders}}", &measured["bystanders"].to_string())
        .replace("{{turns}}", &measured["turns"].to_string())
        .replace("{{overlapping}}", &measured["overlapping_turns"].to_string())
        .replace("{{outcomes}}", outcomes.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Value {
        let outcome = |blow: &str, most: u64, others: u64| {
            json!({
                "blow": blow, "strikes": 2, "answered": 30, "failed": 1,
                "longest_ms": { "median": 20, "most": most },
                "longest_failed_ms": { "median": 0, "most": 7 },
                "bystanders_ms": { "median": 25, "most": others },
            })
        };
        json!({
            "rounds": 2, "actors": 24, "bystanders": 4, "turns": 99, "overlapping_turns": 0,
            "outcomes": [
                outcome("came", 100, 40),
                outcome("left in good order", 101, 41),
                outcome("killed", 3_100, 31),
                outcome("stood still", 3_101, 31),
            ],
        })
    }

    #[test]
    fn each_blow_is_held_against_its_bound() {
        let mut measured = measured();
        judge(&mut measured);
        let of = |blow: usize, waited: &str| {
            let waited = &measured["outcomes"][blow][waited];
            (waited["must"].as_u64().unwrap(), waited["reached"] == true)
        };
        assert_eq!([of(0, "longest_ms"), of(0, "bystanders_ms")], [(100, true), (40, true)]);
        assert_eq!([of(1, "longest_ms"), of(1, "bystanders_ms")], [(100, false), (40, false)]);
        assert_eq!(of(2, "longest_ms"), (3_100, true));
        assert_eq!(of(3, "longest_ms"), (3_100, false));
    }

    #[test]
    fn the_page_shows_what_was_reached() {
        let mut measured = measured();
        judge(&mut measured);
        let run = json!({
            "date": "2026-01-01", "commit": "abc", "build": "debug", "kernel": "Linux", "cores": 2,
            "cpu": "a processor",
        });
        let page = page(&json!({ "run": run, "measured": measured }));
        assert!(!page.contains("{{"), "{page}");
        for row in [
            "| came | 2 | 30 | 20 ms, 100 ms | ≤ 100 ms | yes | 25 ms, 40 ms | ≤ 40 ms | yes | 1 | \
             0 ms, 7 ms |",
            "| left in good order | 2 | 30 | 20 ms, 101 ms | ≤ 100 ms | no | 25 ms, 41 ms | \
             ≤ 40 ms | no | 1 | 0 ms, 7 ms |",
            "| stood still | 2 | 30 | 20 ms, 3101 ms | ≤ 3100 ms | no | 25 ms, 31 ms | \
             ≤ 40 ms | yes | 1 | 0 ms, 7 ms |",
        ] {
            assert!(page.lines().any(|line| line == row), "{row} is not in {page}");
        }
        let table: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        let columns = |line: &&str| line.matches('|').count();
        assert!(table.len() == 6 && table.iter().all(|line| columns(line) == 12), "{table:#?}");
    }
}
