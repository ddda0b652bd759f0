//! `cargo xtask proof fuzz`: every target for an hour, and the page of the results. The prose of
//! the page is `fuzz.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
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
    code: String,
    /// Of the last run.
    commit: String,
    date: String,
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
    let mut rows = recorded(root)?;
    fuzz(root, &names, seconds, &mut |fuzzed| {
        println!("{:<16} {} inputs, nothing found", fuzzed.target, fuzzed.inputs);
        if extent == Extent::Quick {
            return Ok(());
        }
        let fact = |name: &str| facts[name].as_str().unwrap_or_default().to_owned();
        let code = code(root, &fuzzed.target)?;
        add(Row { fuzzed, code, commit: fact("commit"), date: fact("date") }, &mut rows);
        let record = json!({ "run": facts, "targets": rows });
        let page = page(&rows, &facts, |target| code_now(root, target));
        publish(root, (RECORD, &record), (PAGE, &page))
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

/// Git's name for what a target is made of, as committed: the parser, and the target itself.
fn code(root: &Path, target: &str) -> Result<String> {
    let parsers: &[&str] = match target {
        "bundle" => &["crates/control/src/bundle.rs"],
        "certificate" => &["crates/identity/src/peer.rs", "crates/model/src/name.rs"],
        "dapr-files" => &["crates/config/src/go", "crates/dapr/src"],
        "run-file" => &["crates/config/src/go", "crates/launch/src/run_file"],
        "frames" => &["crates/fabric/bpf"],
        "manifest" => &["crates/config/src"],
        "messages" => &["crates/wire/src"],
        "names" => &["crates/model/src/name.rs", "crates/model/src/host_names.rs"],
        "neighbours" => &["crates/model/src/neighbour"],
        "schedule" => &["crates/actors/src/schedule"],
        "server-name" => &["crates/identity/src/tls/server_name.rs"],
        "token" => &["crates/identity/src/token.rs"],
        of_http1 if of_http1.starts_with("http1-") => {
            &["crates/http/src/h1", "crates/http/src/head.rs", "crates/http/src/bytes.rs"]
        }
        of_http2 if of_http2.starts_with("http2-") => &["crates/http/src"],
        other => bail!("the code of the target `{other}` is not listed"),
    };
    let of_target = match target {
        "http1-request" | "http1-response" => "http1".to_owned(),
        "http2-client" | "http2-server" => "http2".to_owned(),
        "dapr-files" | "run-file" => "go_files".to_owned(),
        other => other.replace('-', "_"),
    };
    let target = format!("crates/fuzz/src/{of_target}.rs");
    let paths = parsers.iter().copied().chain([&*target]);
    let mut command = Command::new("git");
    command.arg("rev-parse").args(paths.map(|path| format!("HEAD:{path}"))).current_dir(root);
    let told = process::output(&mut command)?;
    Ok(told.split_whitespace().map(|name| &name[..12]).collect::<Vec<_>>().join(" "))
}

/// The present code; empty where the target is gone.
fn code_now(root: &Path, target: &str) -> String {
    code(root, target).unwrap_or_default()
}

/// Adds what was done to a target to what was done to the same code before.
fn add(mut row: Row, rows: &mut Vec<Row>) {
    match rows.binary_search_by(|old| old.fuzzed.target.cmp(&row.fuzzed.target)) {
        Ok(at) if rows[at].code == row.code => {
            let old = &rows[at].fuzzed;
            row.fuzzed.seconds += old.seconds;
            row.fuzzed.inputs += old.inputs;
            row.fuzzed.peak_rss_mb = row.fuzzed.peak_rss_mb.max(old.peak_rss_mb);
            rows[at] = row;
        }
        Ok(at) => rows[at] = row,
        Err(at) => rows.insert(at, row),
    }
}

fn page(rows: &[Row], facts: &Value, code_now: impl Fn(&str) -> String) -> String {
    let mut table = String::new();
    for Row { fuzzed, code, commit, date } in rows {
        let Fuzzed { target, seconds, inputs, peak_rss_mb, kept } = fuzzed;
        let since = if *code == code_now(target) { "" } else { ", changed since" };
        writeln!(
            table,
            "| {target} | {seconds} | {inputs} | 0 | {peak_rss_mb} MB | {kept} | {date}, \
             {commit}{since} |"
        )
        .expect("writing to a string cannot fail");
    }
    TEMPLATE.replace("{{table}}", table.trim_end()).replace("{{facts}}", &facts_text(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, seconds: u64, code: &str) -> Row {
        let fuzzed =
            Fuzzed { target: target.into(), seconds, inputs: 1234, peak_rss_mb: 30, kept: 36 };
        Row { fuzzed, code: code.into(), commit: "1a2b3c4".into(), date: "2026-01-02".into() }
    }

    #[test]
    fn the_page_has_a_row_for_each_target() {
        let facts = json!({ "date": "2026-01-03", "cores": 2 });
        let rows = [row("http1-body", 60, "a"), row("names", 60, "b")];
        let page = page(&rows, &facts, |_| "a".to_owned());
        let start = "| 60 | 1234 | 0 | 30 MB | 36 | 2026-01-02, 1a2b3c4";
        assert!(page.contains(&format!("| http1-body {start} |")), "{page}");
        assert!(page.contains(&format!("| names {start}, changed since |")), "{page}");
        assert!(page.contains("2026-01-03") && !page.contains("{{"), "{page}");
    }

    #[test]
    fn each_target_has_code_of_its_own() {
        let root = Workspace::load().unwrap().root;
        if !root.join(".git").exists() {
            println!("skipped: the sources are no checkout of git");
            return;
        }
        let names = |target: &str| code(&root, target).unwrap();
        let of: Vec<_> =
            crate::fuzz::targets(&root).unwrap().into_iter().map(|name| names(&name)).collect();
        assert!(of.iter().all(|names| names.split(' ').all(|name| name.len() == 12)), "{of:?}");
        // Both directions of HTTP/1.1 and of HTTP/2 have the same.
        assert_eq!(of.iter().collect::<std::collections::BTreeSet<_>>().len(), of.len() - 2);
    }

    #[test]
    fn runs_on_the_same_code_add_up() {
        let mut rows =
            vec![row("http1-body", 60, "a"), row("schedule", 9, "b"), row("server-name", 50, "a")];
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
