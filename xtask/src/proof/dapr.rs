//! `cargo xtask proof dapr`: Dapr's own integration suite against our program in daprd's place. Stores
//! the record and writes the page that shows it. The prose of the page is `dapr.md` beside this file.

mod cases;
mod reasons;
mod suite;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::cases::{Outcome, SETS};
use self::reasons::{Kind, Reasons};
use self::suite::{Suite, VERSION};
use super::{Extent, facts, facts_text, names_in, publish};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/dapr-suite.md";
const RECORD: &str = "docs/records/dapr.json";
const TEMPLATE: &str = include_str!("dapr.md");
/// Starts of names: only these cases run, and nothing is recorded.
const ONLY: &str = "TOLLWAY_DAPR_CASES";
/// The program that runs in daprd's place, if not ours; nothing is recorded then.
const PROGRAM: &str = "TOLLWAY_DAPR_PROGRAM";
/// Of the cases that pass, every so many is run in the short form.
const QUICK_SHARE: usize = 10;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    if !rustix::process::geteuid().is_root() {
        bail!("each case runs in namespaces of its own, which takes root; run this as root");
    }
    let reasons = Reasons::read()?;
    let suite = Suite::build()?;
    let logs = root.join("target/dapr-suite");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let daprd = daprd(root, &logs)?;
    let only = names_in(ONLY);
    let chosen = choose(&suite.cases()?, only.as_deref(), extent, &reasons);
    let outcomes = cases::run_all(&suite, &daprd, &logs, &chosen)?;
    let wrong = wrong(&chosen, &outcomes, &reasons);
    let is_whole = extent == Extent::Whole && only.is_none() && std::env::var_os(PROGRAM).is_none();
    if is_whole {
        let rows = chosen.iter().zip(&outcomes).map(|(case, outcome)| {
            let why = reasons.of(case).filter(|_| !outcome.passed());
            let (kind, reason) = why.map_or((None, None), |(k, r)| (Some(k.word()), Some(r)));
            json!({ "case": case, "outcome": outcome.word(), "kind": kind, "reason": reason })
        });
        let record = json!({
            "run": facts(root, "debug")?,
            "dapr": VERSION,
            "cases": rows.collect::<Vec<_>>(),
        });
        publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed()).count();
    println!("{passed} of {} cases pass; logs are in {}", chosen.len(), logs.display());
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Our program under daprd's name, which is what makes it stand in daprd's place.
fn daprd(root: &Path, folder: &Path) -> Result<PathBuf> {
    if let Some(program) = std::env::var_os(PROGRAM) {
        return Ok(program.into());
    }
    process::run(process::cargo().args(["build", "-p", "tollway"]).current_dir(root))?;
    let link = folder.join("daprd");
    crate::cache::link(&root.join("target/debug/tollway"), &link)?;
    Ok(link)
}

/// Which cases run, by set.
fn choose(
    all: &[String],
    only: Option<&[String]>,
    extent: Extent,
    reasons: &Reasons,
) -> Vec<String> {
    let mut chosen: Vec<String> = SETS
        .iter()
        .flat_map(|set| all.iter().filter(|case| set.has(case)))
        .filter(|case| only.is_none_or(|only| only.iter().any(|start| case.starts_with(start))))
        .cloned()
        .collect();
    if extent == Extent::Quick {
        chosen.retain(|case| reasons.of(case).is_none());
        chosen = chosen.into_iter().step_by(QUICK_SHARE).collect();
    }
    chosen
}

/// Cases that fail without a reason, and reasons of cases that pass or that are none.
fn wrong(chosen: &[String], outcomes: &[Outcome], reasons: &Reasons) -> Vec<String> {
    let mut wrong = Vec::new();
    for (case, outcome) in chosen.iter().zip(outcomes) {
        match (outcome.passed(), reasons.of(case)) {
            (true, None) | (false, Some(_)) => {}
            (false, None) => wrong.push(format!("{case} {}, without a reason", outcome.word())),
            // One that hangs on a real failure of the suite may pass now and then.
            (true, Some((Kind::RealFails, _))) => {}
            (true, Some(_)) => wrong.push(format!("{case} passes; take its reason out")),
        }
    }
    let known = |case: &&str| SETS.iter().any(|set| set.has(case));
    let unknown = reasons.cases().filter(|case| !known(case));
    wrong.extend(unknown.map(|case| format!("{case} has a reason and is in no set")));
    wrong
}

fn page(record: &Value) -> String {
    let cases = record["cases"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let passes = |row: &Value| text(row, "outcome").starts_with("passes");
    let mut sets = String::new();
    let mut failing = String::new();
    for set in SETS {
        let of: Vec<&Value> = cases.iter().filter(|row| set.has(&text(row, "case"))).collect();
        let count = |kind: Kind| of.iter().filter(|row| text(row, "kind") == kind.word()).count();
        let passed = of.iter().filter(|row| passes(row)).count();
        let counts = Kind::ALL.map(count).map(|count| count.to_string()).join(" | ");
        let _ = writeln!(sets, "| {} | {} | {passed} | {counts} |", set.name, of.len());
        for row in of.iter().filter(|row| !passes(row)) {
            let [case, kind, reason] = ["case", "kind", "reason"].map(|field| text(row, field));
            let _ = writeln!(failing, "| {case} | {kind} | {reason} |");
        }
    }
    let passed = cases.iter().filter(|row| passes(row)).count();
    TEMPLATE
        .replace("{{version}}", VERSION)
        .replace("{{passed}}", &passed.to_string())
        .replace("{{all}}", &cases.len().to_string())
        .replace("{{sets}}", sets.trim_end())
        .replace("{{failing}}", failing.trim_end())
        .replace("{{facts}}", &facts_text(&record["run"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_counts_by_set_and_lists_what_does_not_pass() {
        let record = json!({
            "run": { "date": "2026-01-02", "cores": 2 },
            "cases": [
                { "case": "healthz/a", "outcome": "passes", "kind": null, "reason": null },
                { "case": "ports/b", "outcome": "fails", "kind": "lacks", "reason": "no c" },
            ],
        });
        let page = page(&record);
        assert!(page.contains("| health, ports | 2 | 1 | 0 | 1 | 0 | 0 |"), "{page}");
        assert!(page.contains("| ports/b | lacks | no c |"), "{page}");
        assert!(page.contains("1 of 2") && !page.contains("{{"), "{page}");
    }

    #[test]
    fn a_failure_needs_a_reason() {
        let reasons = Reasons::read().unwrap();
        let cases = ["healthz/new".to_owned()];
        assert_eq!(wrong(&cases, &[Outcome::Failed], &reasons).len(), 1);
        assert_eq!(wrong(&cases, &[Outcome::PassedAgain], &reasons).len(), 0);
    }
}
