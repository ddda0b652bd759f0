//! `cargo xtask proof verdicts`: whether the lab finds equal subjects equal, and finds what takes 3
//! % longer, in blocks measured now. Stores its record and writes the page that shows it; the prose
//! of the page is `verdicts.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tollway_record::Record;
use tollway_record::compare::DEFAULT_MARGIN_PCT;
use tollway_record::interval::verdict;
use tollway_record::record::{Comparison, Row, Verdict};
use tollway_record::redraw::{Draw, redraw};

use super::{Extent, facts, facts_text, publish, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/verdicts.md";
const RECORD: &str = "docs/records/verdicts.json";
const SCENARIO: &str = "xtask/src/proof/verdicts/twice.yaml";
const PACED: &str = include_str!("verdicts/paced.yaml");
const TEMPLATE: &str = include_str!("verdicts.md");

/// Of the table, here and on the page.
const HEAD: &str =
    "| experiments | blocks of each | margin | wanted | found |\n|---|---|---|---|---|";

/// Experiments drawn for each question.
const EXPERIMENTS: u64 = 100;
/// Blocks of an experiment at the usual full length.
const BLOCKS: usize = 20;
/// Blocks of an experiment that has to find a small difference.
const MANY_BLOCKS: usize = 40;
/// To find 3 %.
const NARROW_MARGIN_PCT: f64 = 1.0;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    process::run(process::cargo().args(["build", "--release", "-p", "tollway"]))?;
    let measured = measure(&workspace.root, &workspace.target, extent)?;
    let judged = judge(&measured)?;
    let table = table(&judged);
    let noise = noise(&measured);
    println!("\n{HEAD}\n{table}\n\n{noise}.");
    if extent == Extent::Quick {
        println!("\nquick: too few blocks to conclude from, so nothing was written");
        return Ok(());
    }
    let run = facts(&workspace.root, "release")?;
    let blocks = row(&measured, "direct")?.blocks.len();
    let missed = judged.iter().filter(|judged| judged["kept"] != true).count();
    let conclusion = match missed {
        0 => "All of it was found.".to_owned(),
        missed => format!("{missed} of {} questions missed what was wanted.", judged.len()),
    };
    let page = TEMPLATE
        .replace("{{facts}}", &facts_text(&run))
        .replace("{{blocks}}", &blocks.to_string())
        .replace("{{table}}", &format!("{HEAD}\n{table}"))
        .replace("{{conclusion}}", &conclusion)
        .replace("{{noise}}", &noise);
    let record = json!({ "run": run, "blocks": blocks, "judged": judged, "noise": noise });
    publish(&workspace.root, (RECORD, &record), (PAGE, &page))?;
    if missed > 0 {
        bail!("{conclusion}");
    }
    Ok(())
}

/// Runs the scenario and reads what it made.
fn measure(root: &Path, target: &Path, extent: Extent) -> Result<Record> {
    let (folder, tollway) = (target.join("verdicts"), target.join("release/tollway"));
    let (subject, made) = (folder.join("paced.yaml"), folder.join("record.json"));
    let program = serde_json::to_string(&tollway)?;
    super::write(&subject, &PACED.replace("\"PROGRAM\"", &program))?;
    // What an earlier run left must not pass for this one's.
    let _ = std::fs::remove_file(&made);
    let length = if extent == Extent::Quick { "--quick" } else { "--full" };
    let mut lab = Command::new(&tollway);
    lab.current_dir(root).args(["lab", "run", SCENARIO, length, "--no-repeats"]);
    lab.arg("--subject-file").arg(subject).arg("--json").arg(&made);
    process::run(&mut lab)?;
    let text = std::fs::read_to_string(&made)
        .with_context(|| format!("could not read {}", made.display()))?;
    Ok(Record::from_json(&text)?)
}

/// Draws the experiments of each question and counts their verdicts.
fn judge(measured: &Record) -> Result<Vec<Value>> {
    let drawn = |judged: &str, base: &str, blocks: usize, either_way: bool| {
        let draw = Draw { experiments: EXPERIMENTS, blocks, either_way };
        let (judged, base) = (row(measured, judged)?, row(measured, base)?);
        redraw(judged, base, draw, |_| {}).context("the blocks cannot be compared")
    };
    let same = drawn("direct:again", "direct", BLOCKS, true)?;
    let slower = drawn("paced:slower", "paced", MANY_BLOCKS, false)?;
    let others = |found: &[Verdict]| count(found, Verdict::Faster) + count(found, Verdict::Slower);
    let there_are = row(measured, "direct")?.blocks.len();
    let question = |name: &str, found: &[Comparison], blocks: usize, margin_pct: f64| {
        let blocks = blocks.min(there_are);
        let verdicts: Vec<Verdict> =
            found.iter().map(|found| verdict(found.ratio_ci95, margin_pct)).collect();
        let (wanted, kept) = match (name, margin_pct == 0.0) {
            ("takes 3 % longer", _) => {
                ("95 slower at least", count(&verdicts, Verdict::Slower) >= 95)
            }
            // 95 % intervals are wrong five times in a hundred; more than ten are the method's.
            (_, true) => ("10 faster or slower at most", others(&verdicts) <= 10),
            (_, false) => ("95 same at least", count(&verdicts, Verdict::Same) >= 95),
        };
        json!({
            "question": name, "blocks": blocks, "margin_pct": margin_pct, "wanted": wanted,
            "kept": kept, "experiments": verdicts.len(),
            "same": count(&verdicts, Verdict::Same), "undecided": count(&verdicts, Verdict::Undecided),
            "faster": count(&verdicts, Verdict::Faster), "slower": count(&verdicts, Verdict::Slower),
        })
    };
    Ok(vec![
        question("the same twice", &same, BLOCKS, DEFAULT_MARGIN_PCT),
        question("the same twice", &same, BLOCKS, 0.0),
        question("takes 3 % longer", &slower, MANY_BLOCKS, NARROW_MARGIN_PCT),
    ])
}

fn row<'a>(measured: &'a Record, subject: &str) -> Result<&'a Row> {
    let ends = format!("/{subject}");
    let found = measured.rows.iter().find(|row| row.conditions.id.ends_with(&ends));
    found.with_context(|| format!("the record has no row of {subject}"))
}

fn count(verdicts: &[Verdict], wanted: Verdict) -> usize {
    verdicts.iter().filter(|verdict| **verdict == wanted).count()
}

fn table(judged: &[Value]) -> String {
    let mut table = String::new();
    for judged in judged {
        let _ = writeln!(
            table,
            "| {} | {} | {} % | {} of {} | {} same, {} undecided, {} faster, {} slower |",
            word(&judged["question"]),
            judged["blocks"],
            judged["margin_pct"],
            word(&judged["wanted"]),
            judged["experiments"],
            judged["same"],
            judged["undecided"],
            judged["faster"],
            judged["slower"],
        );
    }
    table.trim_end().to_owned()
}

/// By how much a block's two runs differ, one standard deviation.
fn noise(measured: &Record) -> String {
    let spread = |judged: &str, base: &str| -> Option<f64> {
        let (judged, base) = (row(measured, judged).ok()?, row(measured, base).ok()?);
        let mean = |block: &tollway_record::Block| block.traffic.latency_us.mean;
        let pairs = judged.blocks.iter().zip(&base.blocks);
        let logs: Vec<f64> = pairs.filter_map(|(a, b)| Some((mean(a)? / mean(b)?).ln())).collect();
        let middle = logs.iter().sum::<f64>() / logs.len() as f64;
        let squares: f64 = logs.iter().map(|log| (log - middle).powi(2)).sum();
        Some((squares / (logs.len() as f64 - 1.0)).sqrt() * 100.0)
    };
    let told = |spread: Option<f64>| match spread.filter(|pct| pct.is_finite()) {
        Some(pct) => format!("{pct:.1} %"),
        None => "what is not known".to_owned(),
    };
    format!(
        "The two runs of a block differed by {} where they are the same and by {} beside the 3 % \
         where they are not (one standard deviation)",
        told(spread("direct:again", "direct")),
        told(spread("paced:slower", "paced")),
    )
}
