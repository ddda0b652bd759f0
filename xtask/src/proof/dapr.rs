//! `cargo xtask proof dapr`: Dapr's own integration suite against our program in daprd's place. Stores
//! the record and writes the page that shows it. The prose of the page is `dapr.md` beside this file.

mod cases;
mod reasons;
mod suite;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::cases::{Outcome, Ran, SETS};
use self::reasons::{AT_TIMES, Kind, Reasons};
pub(crate) use self::suite::definitions;
use self::suite::{NotHere, Suite, VERSION};
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
/// One of so many cases is run in the short form.
const QUICK_SHARE: usize = 10;
/// The short form leaves out cases that took longer in the whole run.
const QUICK_S: f64 = 8.0;
/// Cases that load the machine, or depend on what else it does: none for the short form.
const UNSTEADY: [&str; 5] = ["fuzz", "memory", "connpool", "resiliency", "metrics"];

/// Builds the suite.
///
/// # Errors
/// It is not to be had here, or does not build.
pub(crate) fn build() -> Result<()> {
    Suite::build().map(drop)
}

/// The short form, as a part of all tests, which have built our program: where the suite is not to be had, a line has the reason.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with_tests(workspace: &Workspace, may_administrate: bool) -> Result<()> {
    let skip = |why: &str| {
        eprintln!("SKIP a tenth of Dapr's suite: {why}");
        Ok(())
    };
    if !may_administrate {
        return skip("each case runs in namespaces of its own, which takes root");
    }
    match run_built(workspace, Extent::Quick) {
        Err(error) if error.is::<NotHere>() => skip(&format!("{error:#}")),
        ran => ran,
    }
}

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    if std::env::var_os(PROGRAM).is_none() {
        process::run(
            process::cargo().args(["build", "-p", "tollway"]).current_dir(&workspace.root),
        )?;
    }
    run_built(workspace, extent)
}

fn run_built(workspace: &Workspace, extent: Extent) -> Result<()> {
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
    let steady = Steady::of(std::fs::read_to_string(root.join(RECORD)).ok().as_deref());
    let all = choose(&suite.cases()?, only.as_deref());
    let chosen = if extent == Extent::Quick { a_share(&all, &steady, &reasons) } else { all };
    let ran = cases::run_all(&suite, &daprd, &logs, &chosen, &reasons)?;
    let wrong = wrong(&chosen, &ran, &reasons);
    let is_whole = extent == Extent::Whole && only.is_none() && std::env::var_os(PROGRAM).is_none();
    if is_whole {
        let rows = chosen.iter().zip(&ran).map(|(case, Ran { outcome, took })| {
            // What nothing is known of is to be done.
            let why = reasons.of(case).unwrap_or((Kind::Open, "not looked at yet"));
            let (kind, reason) = match outcome.passed() {
                true => (None, None),
                false => (Some(why.0.word()), Some(why.1)),
            };
            let seconds = (took.as_secs_f64() * 10.0).round() / 10.0;
            json!({
                "case": case,
                "outcome": outcome.word(),
                "seconds": seconds,
                "kind": kind,
                "reason": reason,
            })
        });
        let record = json!({
            "run": facts(root, "debug")?,
            "dapr": VERSION,
            "cases": rows.collect::<Vec<_>>(),
        });
        publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    }
    let passed = ran.iter().filter(|ran| ran.outcome.passed()).count();
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
    let link = folder.join("daprd");
    crate::cache::link(&root.join("target/debug/tollway"), &link)?;
    Ok(link)
}

/// Which cases run, by set.
fn choose(all: &[String], only: Option<&[String]>) -> Vec<String> {
    SETS.iter()
        .flat_map(|set| all.iter().filter(|case| set.has(case)))
        .filter(|case| only.is_none_or(|only| only.iter().any(|start| case.starts_with(start))))
        .cloned()
        .collect()
}

/// The cases that passed soon, and at once, in the last whole run; `None` before the first.
struct Steady(Option<Vec<String>>);

impl Steady {
    fn of(record: Option<&str>) -> Self {
        let record: Option<Value> = record.and_then(|text| serde_json::from_str(text).ok());
        Self(record.map(|record| {
            let rows = record["cases"].as_array().cloned().unwrap_or_default();
            let is_steady = |row: &&Value| {
                Outcome::of_word(row["outcome"].as_str().unwrap_or_default())
                    == Some(Outcome::Passed)
                    && row["seconds"].as_f64().is_some_and(|seconds| seconds <= QUICK_S)
            };
            let names = rows.iter().filter(is_steady).filter_map(|row| row["case"].as_str());
            names.map(str::to_owned).collect()
        }))
    }

    fn has(&self, case: &str) -> bool {
        let is_known = self.0.as_ref().is_none_or(|known| known.iter().any(|of| of == case));
        is_known && !UNSTEADY.iter().any(|part| case.contains(part))
    }
}

/// One of [`QUICK_SHARE`] of all cases, spread over those that pass steadily: the same ones each time.
fn a_share(all: &[String], steady: &Steady, reasons: &Reasons) -> Vec<String> {
    let from: Vec<&String> =
        all.iter().filter(|case| reasons.of(case).is_none() && steady.has(case)).collect();
    let wanted = all.len().div_ceil(QUICK_SHARE).min(from.len());
    (0..wanted).map(|at| from[at * from.len() / wanted].clone()).collect()
}

/// Cases that fail without a reason, and reasons of cases that pass or that are none.
fn wrong(chosen: &[String], ran: &[Ran], reasons: &Reasons) -> Vec<String> {
    let mut wrong = Vec::new();
    for (case, Ran { outcome, .. }) in chosen.iter().zip(ran) {
        match (outcome.passed(), reasons.of(case)) {
            (true, None) | (false, Some(_)) => {}
            (false, None) => wrong.push(format!("{case} {}, without a reason", outcome.word())),
            // One that hangs on a real failure of the suite may pass now and then.
            (true, Some((Kind::RealFails, _))) => {}
            (true, Some((_, reason))) if reason.starts_with(AT_TIMES) => {}
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
        let ran = |outcome| Ran { outcome, took: std::time::Duration::ZERO };
        assert_eq!(wrong(&cases, &[ran(Outcome::Failed)], &reasons).len(), 1);
        assert_eq!(wrong(&cases, &[ran(Outcome::PassedAgain)], &reasons).len(), 0);
    }

    #[test]
    fn the_short_form_takes_a_tenth_spread_over_what_passes_steadily() {
        let all: Vec<String> = (0..100).map(|at| format!("healthz/{at}")).collect();
        let reasons = Reasons::read().unwrap();
        let before = Steady::of(None);
        let share = a_share(&all, &before, &reasons);
        assert_eq!((share.len(), &*share[0], &*share[9]), (10, "healthz/0", "healthz/90"));
        let rows: Vec<Value> = (0..100)
            .map(|at| {
                let outcome = if at % 2 == 0 { "passes" } else { "passes the second time" };
                let seconds = if at < 50 { 1.0 } else { QUICK_S + 1.0 };
                json!({ "case": format!("healthz/{at}"), "outcome": outcome, "seconds": seconds })
            })
            .collect();
        let record = json!({ "cases": rows }).to_string();
        let share = a_share(&all, &Steady::of(Some(&record)), &reasons);
        assert_eq!((share.len(), &*share[0], &*share[9]), (10, "healthz/0", "healthz/44"));
        let unsteady = ["daprd/state/http/fuzzstate".to_owned()];
        assert!(a_share(&unsteady, &before, &reasons).is_empty());
        assert!(a_share(&[], &before, &reasons).is_empty());
    }

    #[test]
    fn a_reason_of_a_case_that_passes_has_to_go_unless_it_is_one_of_speed() {
        let text = "healthz/a\tdiffers\tx\nhealthz/b\tdiffers\tat times: y\n";
        let reasons = Reasons::parse(text).unwrap();
        let cases = ["healthz/a".to_owned(), "healthz/b".to_owned()];
        let all = |outcome| [(); 2].map(|()| Ran { outcome, took: std::time::Duration::ZERO });
        let passed = wrong(&cases, &all(Outcome::Passed), &reasons);
        assert_eq!(passed, ["healthz/a passes; take its reason out"]);
        assert_eq!(wrong(&cases, &all(Outcome::Failed), &reasons), [""; 0]);
    }
}
