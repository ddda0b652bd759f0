//! `cargo xtask proof fuzz`: every target for an hour, and the page that says so. The prose of the
//! page is `fuzz.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Extent, facts, publish, told_facts};
use crate::fuzz::{Fuzzed, fuzz};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/fuzzing.md";
const RECORD: &str = "docs/records/fuzz.json";
const TEMPLATE: &str = include_str!("fuzz.md");

/// How long each target is fuzzed.
const SECONDS: u64 = 3600;
const QUICK_SECONDS: u64 = 5;
/// Shortens the hour, for a machine that has less. While the code stays as it is, what several
/// runs have done is added up.
const VARIABLE: &str = "TOLLWAY_FUZZ_SECONDS";

/// A row of the record.
#[derive(Serialize, Deserialize)]
struct Row {
    #[serde(flatten)]
    fuzzed: Fuzzed,
    /// Git's name for the source of the parser, the target and what holds for all of them.
    #[serde(default)]
    code: String,
}

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
    let before = recorded(root)?;
    let mut rows = Vec::new();
    for fuzzed in fuzzed {
        let code = code(root, &fuzzed.target)?;
        rows.push(added(Row { fuzzed, code }, &before));
    }
    let record = json!({ "run": facts, "targets": rows });
    publish(root, (RECORD, &record), (PAGE, &page(&rows, &facts)))
}

/// What earlier runs have done.
fn recorded(root: &Path) -> Result<Vec<Row>> {
    let text =
        std::fs::read_to_string(root.join(RECORD)).with_context(|| format!("no {RECORD}"))?;
    let mut record: Value = serde_json::from_str(&text)?;
    serde_json::from_value(record["targets"].take())
        .with_context(|| format!("{RECORD} is not what this command writes"))
}

/// Git's name for what a target is made of, as committed.
fn code(root: &Path, target: &str) -> Result<String> {
    let parsers = match target {
        "neighbours" => "crates/model/src/neighbour",
        "schedule" => "crates/schedule/src",
        "server-name" => "crates/identity/src",
        _ => "crates/http/src",
    };
    let names = [parsers, "crates/fuzz/src"].map(|folder| format!("HEAD:{folder}"));
    let mut command = Command::new("git");
    command.arg("rev-parse").args(names).current_dir(root);
    let told = process::output(&mut command)?;
    Ok(told.split_whitespace().map(|name| &name[..12]).collect::<Vec<_>>().join(" "))
}

/// With what was done earlier to the same code.
fn added(mut row: Row, before: &[Row]) -> Row {
    let is_same = |old: &&Row| old.fuzzed.target == row.fuzzed.target && old.code == row.code;
    if let Some(Row { fuzzed: old, .. }) = before.iter().find(is_same) {
        row.fuzzed.seconds += old.seconds;
        row.fuzzed.inputs += old.inputs;
        row.fuzzed.peak_rss_mb = row.fuzzed.peak_rss_mb.max(old.peak_rss_mb);
    }
    row
}

fn page(rows: &[Row], facts: &Value) -> String {
    let mut table = String::new();
    for Row { fuzzed, .. } in rows {
        let Fuzzed { target, seconds, inputs, peak_rss_mb, kept } = fuzzed;
        let row = format!("| {target} | {seconds} | {inputs} | 0 | {peak_rss_mb} MB | {kept} |");
        writeln!(table, "{row}").expect("writing to a string cannot fail");
    }
    TEMPLATE.replace("{{table}}", table.trim_end()).replace("{{facts}}", &told_facts(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, seconds: u64, code: &str) -> Row {
        let fuzzed =
            Fuzzed { target: target.into(), seconds, inputs: 1234, peak_rss_mb: 30, kept: 36 };
        Row { fuzzed, code: code.into() }
    }

    #[test]
    fn the_page_has_a_row_for_each_target() {
        let facts = json!({ "date": "2026-01-02", "cores": 2 });
        let page = page(&[row("http1-body", 60, "a")], &facts);
        assert!(page.contains("| http1-body | 60 | 1234 | 0 | 30 MB | 36 |"), "{page}");
        assert!(page.contains("2026-01-02") && !page.contains("{{"), "{page}");
    }

    #[test]
    fn each_target_has_code_of_its_own() {
        let root = Workspace::load().unwrap().root;
        if !root.join(".git").exists() {
            println!("skipped: the sources are no checkout of git");
            return;
        }
        let names = |target| code(&root, target).unwrap();
        let of = ["http1-body", "neighbours", "schedule", "server-name"].map(names);
        assert!(of.iter().all(|names| names.len() == 25), "{of:?}");
        assert_eq!(of.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{of:?}");
        assert_eq!(names("http2-server"), of[0]);
    }

    #[test]
    fn runs_on_the_same_code_add_up() {
        let before = [row("http1-body", 60, "a"), row("server-name", 50, "a")];
        let again = added(row("http1-body", 40, "a"), &before);
        assert_eq!((again.fuzzed.seconds, again.fuzzed.inputs), (100, 2468));
        assert_eq!(added(row("http1-body", 40, "b"), &before).fuzzed.seconds, 40);
        assert_eq!(added(row("http2-server", 40, "a"), &before).fuzzed.seconds, 40);
    }
}
