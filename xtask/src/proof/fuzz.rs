//! `cargo xtask proof fuzz`: every target for an hour, and the page that says so. The prose of the
//! page is `fuzz.md` beside this file.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Extent, facts, publish, told_facts};
use crate::fuzz::{Fuzzed, fuzz};
use crate::workspace::Workspace;

const PAGE: &str = "docs/fuzzing.md";
const RECORD: &str = "docs/records/fuzz.json";
const TEMPLATE: &str = include_str!("fuzz.md");

/// How long each target is fuzzed.
const SECONDS: u64 = 3600;
const QUICK_SECONDS: u64 = 5;
/// Shortens the hour, for a machine that has less; the page says how long it was.
const VARIABLE: &str = "TOLLWAY_FUZZ_SECONDS";

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let seconds = match (extent, std::env::var(VARIABLE)) {
        (Extent::Quick, _) => QUICK_SECONDS,
        (Extent::Whole, Ok(text)) => text.parse()?,
        (Extent::Whole, Err(_)) => SECONDS,
    };
    let facts = facts(root, "release (with debug assertions)")?;
    let fuzzed = fuzz(root, &[], seconds)?;
    for target in &fuzzed {
        println!("{:<16} {} inputs, nothing found", target.target, target.inputs);
    }
    if extent == Extent::Quick {
        return Ok(());
    }
    let record = json!({ "run": facts, "targets": fuzzed });
    publish(root, (RECORD, &record), (PAGE, &page(&fuzzed, &facts)))
}

fn page(fuzzed: &[Fuzzed], facts: &Value) -> String {
    let mut table = String::new();
    for Fuzzed { target, seconds, inputs, peak_rss_mb, kept } in fuzzed {
        let row = format!("| {target} | {seconds} | {inputs} | 0 | {peak_rss_mb} MB | {kept} |");
        writeln!(table, "{row}").expect("writing to a string cannot fail");
    }
    TEMPLATE.replace("{{table}}", table.trim_end()).replace("{{facts}}", &told_facts(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_each_target() {
        let fuzzed = Fuzzed {
            target: "http1-body".into(),
            seconds: 60,
            inputs: 1234,
            peak_rss_mb: 30,
            kept: 36,
        };
        let facts = json!({ "date": "2026-01-02", "cores": 2 });
        let page = page(&[fuzzed], &facts);
        assert!(page.contains("| http1-body | 60 | 1234 | 0 | 30 MB | 36 |"), "{page}");
        assert!(page.contains("2026-01-02") && !page.contains("{{"), "{page}");
    }
}
