//! `cargo xtask proof neighbours`: master and agent of a forwarder are killed and cut off from each
//! other while neighbours change. Stores the record and writes the page that shows it. The prose of
//! the page is `neighbours.md` beside this file.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Extent, facts, facts_text, publish};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/neighbours-faults.md";
const RECORD: &str = "docs/records/neighbours.json";
const TEMPLATE: &str = include_str!("neighbours.md");
const KILLS: u32 = 100;
const CUT_S: u32 = 60;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let raw = root.join("target/neighbours");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_dir_all(&raw);
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
    let (kills, cut_s) = if extent == Extent::Quick { (3, 1) } else { (KILLS, CUT_S) };
    super::build_process_tests("network", &[])?;
    let test = |names: &[&str]| {
        process::run(
            super::process_tests("network", &[])
                .arg("--exact")
                .args(names)
                .args(["--nocapture", "--test-threads", "1"])
                .env("TOLLWAY_NEIGHBOUR_KILLS", kills.to_string())
                .env("TOLLWAY_FABRIC_KILLS", kills.to_string())
                .env("TOLLWAY_FABRIC_CUT_S", cut_s.to_string())
                .env("TOLLWAY_FABRIC_RECORD", &raw),
        )
    };
    test(&["neighbours::what_was_answered_survives_kill_9_at_any_moment"])?;
    let both = [
        "fabric::tables_are_equal_whichever_process_was_killed_and_whenever",
        "fabric::nothing_is_lost_while_the_way_is_cut",
    ];
    test(&both)?;
    if extent == Extent::Quick {
        return Ok(());
    }
    let read = |name: &str| -> Result<Value> {
        let text = std::fs::read_to_string(raw.join(name))
            .context("the run left no record: it needs root, and the right to load programs")?;
        serde_json::from_str(&text).context("the record is not JSON")
    };
    let record = json!({
        "run": facts(root, "debug")?,
        "master_kills": kills,
        "kills": read("kills.json")?,
        "cut": read("cut.json")?,
    });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))
}

fn page(record: &Value) -> String {
    let (kills, cut) = (&record["kills"], &record["cut"]);
    TEMPLATE
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{master_kills}}", &record["master_kills"].to_string())
        .replace("{{kills}}", &kills["kills"].to_string())
        .replace("{{transactions}}", &kills["transactions"].to_string())
        .replace("{{longest}}", &kills["longest_ms"].to_string())
        .replace("{{seconds}}", &cut["seconds"].to_string())
        .replace("{{cut_transactions}}", &cut["transactions"].to_string())
        .replace("{{settled}}", &cut["settled_ms"].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_all_of_the_record() {
        let record = json!({
            "run": {},
            "master_kills": 101,
            "kills": { "kills": 102, "transactions": 103, "longest_ms": 104 },
            "cut": { "seconds": 105, "transactions": 106, "settled_ms": 107 },
        });
        let page = page(&record);
        assert!((101..=107).all(|number| page.contains(&number.to_string())), "{page}");
        assert!(!page.contains("{{"), "{page}");
    }
}
