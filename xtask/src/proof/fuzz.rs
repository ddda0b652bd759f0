//! `cargo xtask proof fuzz`: every target for an hour, and the page of the results. The prose of
//! the page is `fuzz.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Extent, facts, facts_text, names_in, publish};
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
/// Names the targets that are fuzzed; without a name all are. The others' results remain.
const ONLY: &str = "TOLLWAY_FUZZ_TARGETS";

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
    let names = names_in(ONLY).unwrap_or_default();
    let facts = facts(root, "release (with debug assertions)")?;
    let mut rows = of_present_code(recorded(root)?, |target| code(root, target))?;
    fuzz(root, &names, seconds, &mut |fuzzed| {
        println!("{:<16} {} inputs, nothing found", fuzzed.target, fuzzed.inputs);
        if extent == Extent::Quick {
            return Ok(());
        }
        let code = code(root, &fuzzed.target)?;
        add(Row { fuzzed, code }, &mut rows);
        let record = json!({ "run": facts, "targets": rows });
        publish(root, (RECORD, &record), (PAGE, &page(&rows, &facts)))
    })
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
    let parsers: &[&str] = match target {
        "neighbours" => &["crates/model/src/neighbour"],
        "schedule" => &["crates/actors/src/schedule"],
        "server-name" => &["crates/identity/src/tls/server_name.rs"],
        of_http1 if of_http1.starts_with("http1-") => {
            &["crates/http/src/h1", "crates/http/src/head.rs", "crates/http/src/bytes.rs"]
        }
        _ => &["crates/http/src"],
    };
    let names = parsers.iter().chain(&["crates/fuzz/src"]).map(|path| format!("HEAD:{path}"));
    let mut command = Command::new("git");
    command.arg("rev-parse").args(names).current_dir(root);
    let told = process::output(&mut command)?;
    Ok(told.split_whitespace().map(|name| &name[..12]).collect::<Vec<_>>().join(" "))
}

/// What was done to code that is still there.
fn of_present_code(rows: Vec<Row>, code: impl Fn(&str) -> Result<String>) -> Result<Vec<Row>> {
    let mut kept = Vec::new();
    for row in rows {
        if code(&row.fuzzed.target)? == row.code {
            kept.push(row);
        }
    }
    Ok(kept)
}

/// Adds what was done to a target to what was done to it before.
fn add(mut row: Row, rows: &mut Vec<Row>) {
    match rows.binary_search_by(|old| old.fuzzed.target.cmp(&row.fuzzed.target)) {
        Ok(at) => {
            let old = &rows[at].fuzzed;
            row.fuzzed.seconds += old.seconds;
            row.fuzzed.inputs += old.inputs;
            row.fuzzed.peak_rss_mb = row.fuzzed.peak_rss_mb.max(old.peak_rss_mb);
            rows[at] = row;
        }
        Err(at) => rows.insert(at, row),
    }
}

fn page(rows: &[Row], facts: &Value) -> String {
    let mut table = String::new();
    for Row { fuzzed, .. } in rows {
        let Fuzzed { target, seconds, inputs, peak_rss_mb, kept } = fuzzed;
        let row = format!("| {target} | {seconds} | {inputs} | 0 | {peak_rss_mb} MB | {kept} |");
        writeln!(table, "{row}").expect("writing to a string cannot fail");
    }
    TEMPLATE.replace("{{table}}", table.trim_end()).replace("{{facts}}", &facts_text(facts))
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
        let of = ["http1-body", "http2-client", "neighbours", "schedule", "server-name"].map(names);
        assert!(of.iter().all(|names| names.split(' ').all(|name| name.len() == 12)), "{of:?}");
        assert_eq!(of.iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "{of:?}");
        assert_eq!([names("http1-request"), names("http2-server")], [of[0].clone(), of[1].clone()]);
    }

    #[test]
    fn runs_on_the_same_code_add_up() {
        let before =
            vec![row("http1-body", 60, "a"), row("schedule", 9, "b"), row("server-name", 50, "a")];
        let mut rows = of_present_code(before, |_| Ok("a".to_owned())).unwrap();
        for (target, seconds) in [("http1-body", 40), ("schedule", 7), ("http2-server", 30)] {
            add(row(target, seconds, "a"), &mut rows);
        }
        let told: Vec<_> =
            rows.iter().map(|row| (row.fuzzed.target.as_str(), row.fuzzed.seconds)).collect();
        let each =
            [("http1-body", 100), ("http2-server", 30), ("schedule", 7), ("server-name", 50)];
        assert_eq!(told, each);
        assert_eq!((rows[0].fuzzed.inputs, rows[0].code.as_str()), (2468, "a"));
    }
}
