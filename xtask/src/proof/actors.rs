//! `cargo xtask proof actors`: hosts of actors that are killed, stand still or lose the control
//! plane, while everything is called; keeps the record and writes the page that shows it. The prose
//! of the page is `actors.md` beside this file.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Extent, facts, publish, told_facts, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/actors.md";
const RECORD: &str = "docs/records/actors.json";
const TEMPLATE: &str = include_str!("actors.md");
const TEST: &str = "faults::no_turns_overlap_whatever_befalls_a_host";
const ROUNDS: u32 = 100;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let raw = root.join("target/actors.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    let rounds = if extent == Extent::Quick { 1 } else { ROUNDS };
    let ran = process::run(
        process::cargo()
            .args(["test", "-p", "tollway", "--test", "actors", "--", "--exact", TEST])
            .arg("--nocapture")
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
    let measured: Value = serde_json::from_str(&text).context("the record is not JSON")?;
    let record = json!({ "run": facts(root, "debug")?, "measured": measured });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))
}

/// `31 ms, 80 ms`
fn waits(ms: &Value) -> String {
    format!("{} ms, {} ms", ms["median"], ms["most"])
}

fn page(record: &Value) -> String {
    let measured = &record["measured"];
    let mut outcomes = String::from(
        "| the host | times | calls answered | calls that failed | longest wait, median and most | \
         of another type |\n|---|---|---|---|---|---|\n",
    );
    for outcome in measured["outcomes"].as_array().into_iter().flatten() {
        let _ = writeln!(
            outcomes,
            "| {} | {} | {} | {} | {} | {} |",
            word(&outcome["blow"]),
            outcome["strikes"],
            outcome["answered"],
            outcome["failed"],
            waits(&outcome["longest_ms"]),
            waits(&outcome["bystanders_ms"]),
        );
    }
    TEMPLATE
        .replace("{{facts}}", &told_facts(&record["run"]))
        .replace("{{rounds}}", &measured["rounds"].to_string())
        .replace("{{actors}}", &measured["actors"].to_string())
        .replace("{{bystanders}}", &measured["bystanders"].to_string())
        .replace("{{turns}}", &measured["turns"].to_string())
        .replace("{{overlapping}}", &measured["overlapping_turns"].to_string())
        .replace("{{outcomes}}", outcomes.trim_end())
}
