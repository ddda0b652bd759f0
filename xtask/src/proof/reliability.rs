//! `cargo xtask proof reliability`: runs the whole kill matrix, stores its record and writes the
//! page that shows it. The prose of the page is `reliability.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{facts, facts_text, publish, word};
use crate::process;

const PAGE: &str = "docs/reliability.md";
const RECORD: &str = "docs/records/reliability.json";
const TEMPLATE: &str = include_str!("reliability.md");

pub(super) fn run(root: &Path) -> Result<()> {
    let raw = root.join("target/reliability.json");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    let load_before = load_average();
    super::build_process_tests("network", &[])?;
    let ran = process::run(
        super::process_tests("network", &[])
            .args(["--ignored", "--exact", "reliability::everything", "--nocapture"])
            .env("TOLLWAY_RELIABILITY_RECORD", &raw),
    );
    // A broken promise fails the run and is in the record all the same.
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("the run left no record"));
    };
    let measured: Value = serde_json::from_str(&text).context("the record is not JSON")?;
    let mut run = facts(root, "debug")?;
    run["load_average_before"] = json!(load_before);
    run["load_average_after"] = json!(load_average());
    let record = json!({ "run": run, "measured": measured });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    ran
}

/// Processes that ran or wanted to, on average over the last minute: how busy the machine is with
/// this and with other work.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn page(record: &Value) -> String {
    let (run, measured) = (&record["run"], &record["measured"]);
    let (before, after) = (&run["load_average_before"], &run["load_average_after"]);
    let facts = format!("{}, load average {before} before and {after} after", facts_text(run));
    let rounds = &measured["kill_rounds"];
    let rounds = format!(
        "{} rounds (seed {}), {} writers: {} writes acknowledged, {} lost; the slowest start took {}.",
        rounds["rounds"],
        rounds["seed"],
        rounds["writers"],
        rounds["acknowledged"],
        rounds["lost"],
        seconds(&rounds["slowest_start_ms"]),
    );
    TEMPLATE
        .replace("{{facts}}", &facts)
        .replace("{{rate}}", &measured["rate_rps"].to_string())
        .replace("{{matrix}}", &matrix(&measured["matrix"]))
        .replace("{{through_own_gateway}}", &matrix(&measured["through_own_gateway"]))
        .replace("{{lost_network}}", &lost(&measured["lost_network"]))
        .replace("{{kill_rounds}}", &rounds)
        .replace("{{damaged_store}}", &damaged(&measured["damaged_store"]))
        .replace("{{full_disk}}", &full_disk(&measured["full_disk"]))
}

/// The table of one matrix: a row a cell.
fn matrix(cells: &Value) -> String {
    let mut text = String::from(
        "| struck | how | sent | lost in flight | refused at the listener | lost later | slow | full service after | back after | may cost | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word(&cell["victim"]),
            word(&cell["blow"]),
            cell["sent"],
            cell["lost_in_flight"],
            cell["refused_at_listener"],
            cell["lost_after"],
            cell["slow"],
            seconds(&cell["full_service_after_ms"]),
            seconds(&cell["back_after_ms"]),
            word(&cell["bound"]),
            verdict(cell),
        );
    }
    text.trim_end().to_owned()
}

fn lost(losses: &Value) -> String {
    let mut text = String::from(
        "| lost | withdrawn after | back after | calls within the own network | of them lost | verdict |\n|---|---|---|---|---|---|\n",
    );
    for loss in losses.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            word(&loss["how"]),
            seconds(&loss["withdrawn_after_ms"]),
            seconds(&loss["back_after_ms"]),
            loss["near_sent"],
            loss["near_lost"],
            verdict(loss),
        );
    }
    text.trim_end().to_owned()
}

fn damaged(found: &Value) -> String {
    format!(
        "{} of {} writes from before the damage are there after the repair: {}.",
        found["kept"],
        found["before"],
        verdict(found)
    )
}

fn full_disk(found: &Value) -> String {
    if found.is_null() {
        return "Not measured: no small disk could be mounted.".to_owned();
    }
    format!(
        "Full for {}: {} calls, {} lost; writes again {} after there was room: {}. A write is answered: `{}`",
        seconds(&found["full_for_ms"]),
        found["sent"],
        found["lost"],
        seconds(&found["writes_again_after_ms"]),
        verdict(found),
        word(&found["refusal"]),
    )
}

fn verdict(cell: &Value) -> &'static str {
    if cell["passed"] == Value::Bool(true) { "pass" } else { "**FAIL**" }
}

fn seconds(millis: &Value) -> String {
    format!("{:.1} s", millis.as_f64().unwrap_or_default() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_cell_and_leaves_no_blank() {
        let cell = |passed| {
            json!({
                "victim": "gateway far", "blow": "SIGKILL", "sent": 800, "lost_in_flight": 2,
                "refused_at_listener": 0, "lost_after": 0, "slow": 0, "full_service_after_ms": 12,
                "back_after_ms": 510, "bound": "in flight: 3", "passed": passed,
            })
        };
        let page = page(&json!({
            "run": { "date": "2026-11-21", "commit": "abc", "build": "debug", "kernel": "Linux 6",
                     "cores": 2, "cpu": "any", "load_average_before": 0.1,
                     "load_average_after": 2.5 },
            "measured": { "rate_rps": 50, "matrix": [cell(true)],
                          "through_own_gateway": [cell(false)], "lost_network": [],
                          "kill_rounds": {}, "damaged_store": {}, "full_disk": null },
        }));
        let row = "| gateway far | SIGKILL | 800 | 2 | 0 | 0 | 0 | 0.0 s | 0.5 s | in flight: 3 |";
        assert!(page.contains(&format!("{row} pass |")), "{page}");
        assert!(page.contains(&format!("{row} **FAIL** |")), "{page}");
        assert!(page.contains("load average 0.1 before and 2.5 after"), "{page}");
        assert!(!page.contains("{{"), "{page}");
    }
}
