//! `cargo xtask proof speed`: the data plane beside the best of the others at the same work. Keeps
//! its figures, adds a line to the history and writes the page; the prose of the page is
//! `speed.md`, the work `speed.yaml` beside this file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use tollway_record::interval::interval;
use tollway_record::record::{Layout, Row};
use tollway_record::{Block, Record};

use super::{Extent, facts, publish, told_facts, word};
use crate::process;
use crate::tools;
use crate::workspace::Workspace;

const SCENARIO: &str = "xtask/src/proof/speed.yaml";
const PAGE: &str = "docs/performance.md";
const RECORD: &str = "docs/records/speed.json";
const HISTORY: &str = "perf-history/history.jsonl";
const TEMPLATE: &str = include_str!("speed.md");

/// Processes that are no part of a subject.
const OTHERS: [&str; 4] = ["app", "load", "link", "control-planes"];

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Figure {
    /// CPU of the subject's processes per request.
    Cpu,
    /// Requests answered in a second.
    Rate,
    /// What the mean of the answers' times is longer than `direct`'s.
    AddedMean,
    /// The same of the median.
    AddedP50,
}

/// A line of the table: a bound below 1 must not be passed, one above 1 must be reached.
struct Question {
    case: &'static str,
    layout: Layout,
    ours: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    must: f64,
    goal: f64,
}

const PAIRS: &[&str] = &["haproxy", "nginx"];
const FRONTS: &[&str] = &["haproxy:front", "nginx:front"];

const fn pair(case: &'static str, figure: Figure, must: f64, goal: f64) -> Question {
    let (ours, theirs) = ("tollway", PAIRS);
    Question { case, layout: Layout::Shared, ours, theirs, figure, must, goal }
}

const fn front(case: &'static str, figure: Figure, must: f64, goal: f64) -> Question {
    Question { ours: "tollway:front", theirs: FRONTS, ..pair(case, figure, must, goal) }
}

const QUESTIONS: &[Question] = &[
    pair("http-max", Figure::Cpu, 0.7, 0.5),
    pair("http-max", Figure::Rate, 1.15, 1.35),
    Question { layout: Layout::Pinned, ..pair("http-max", Figure::Rate, 1.3, 1.8) },
    pair("grpc-max", Figure::Cpu, 0.6, 0.4),
    pair("grpc-max", Figure::Rate, 1.2, 1.35),
    pair("http-1000", Figure::Cpu, 0.65, 0.5),
    pair("http-1000", Figure::AddedP50, 0.7, 0.45),
    pair("http-1000", Figure::AddedMean, 0.7, 0.45),
    pair("grpc-1000", Figure::Cpu, 0.65, 0.5),
    pair("grpc-1000", Figure::AddedP50, 0.7, 0.4),
    front("front-tls", Figure::Rate, 1.0, 1.3),
    front("front-tls", Figure::Cpu, 1.0, 0.77),
    front("front-mtls", Figure::Rate, 1.0, 1.3),
    front("front-mtls", Figure::Cpu, 1.0, 0.77),
];

/// A question and what was found.
#[derive(Serialize)]
struct Answer {
    case: &'static str,
    layout: Layout,
    figure: Figure,
    /// The best of the others at it.
    beside: &'static str,
    ours: f64,
    theirs: f64,
    ratio: f64,
    ratio_ci95: Option<[f64; 2]>,
    must: f64,
    goal: f64,
    reached: &'static str,
}

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    tools::install_for_proof(workspace);
    process::run(process::cargo().args(["build", "--release", "-p", "tollway"]))?;
    let root = &workspace.root;
    let made = workspace.target.join("speed.json");
    let mut lab = Command::new(workspace.target.join("release/tollway"));
    lab.current_dir(root).args(["lab", "run", SCENARIO, "--no-repeats", "--json"]).arg(&made);
    if extent == Extent::Quick {
        lab.arg("--quick");
    }
    process::run(&mut lab)?;
    let text = std::fs::read_to_string(&made)
        .with_context(|| format!("could not read {}", made.display()))?;
    let record = Record::from_json(&text)?;
    let answers = answers(&record)?;
    println!("\n{}", table(&answers));
    if extent == Extent::Quick {
        println!("quick: too little to conclude from, so nothing was written");
        return Ok(());
    }
    let told = json!({
        "run": facts(root, "release")?,
        "blocks": record.rows.first().map_or(0, |row| row.blocks.len()),
        "minutes": (record.duration_s / 60.0).round(),
        "answers": answers,
        "floor_cpu_us": floor(&record),
        "rss_mb": memory(&record),
    });
    remember(root, &told)?;
    publish(root, (RECORD, &told), (PAGE, &page(&answers, &told)))
}

fn answers(record: &Record) -> Result<Vec<Answer>> {
    QUESTIONS.iter().map(|question| answer(record, question)).collect()
}

/// The answer beside whoever leaves us the least.
fn answer(record: &Record, question: &Question) -> Result<Answer> {
    let mut worst: Option<Answer> = None;
    for beside in question.theirs {
        let Some(found) = compared(record, question, beside) else { continue };
        let is_worse = |than: &Answer| {
            if question.is_rate() { found.ratio < than.ratio } else { found.ratio > than.ratio }
        };
        if worst.as_ref().is_none_or(is_worse) {
            worst = Some(found);
        }
    }
    worst.with_context(|| {
        let others = question.theirs.join(" and ");
        format!("{}: neither {others} answered beside {}", question.case, question.ours)
    })
}

fn compared(record: &Record, question: &Question, beside: &'static str) -> Option<Answer> {
    let row = |subject| row_of(record, question.case, question.layout, subject);
    let (ours, theirs) = (row(question.ours)?, row(beside)?);
    let base = row("direct");
    let value = |row: &Row, number: u32| {
        let of = |row: &Row| row.blocks.iter().find(|block| block.block == number).cloned();
        question.figure.of(&of(row)?, base.and_then(of).as_ref())
    };
    let numbers: BTreeSet<u32> = ours.blocks.iter().map(|block| block.block).collect();
    let pairs: Vec<(f64, f64)> = numbers
        .into_iter()
        .filter_map(|number| Some((value(ours, number)?, value(theirs, number)?)))
        .filter(|(ours, theirs)| *ours > 0.0 && *theirs > 0.0)
        .collect();
    let logs: Vec<f64> = pairs.iter().map(|(ours, theirs)| (ours / theirs).ln()).collect();
    if logs.is_empty() {
        return None;
    }
    let found = interval(logs.len(), 1, |weights| {
        let weighted = logs.iter().zip(weights).map(|(log, weight)| log * f64::from(*weight));
        weighted.sum::<f64>() / f64::from(weights.iter().sum::<u32>())
    });
    let ratio_ci95 = found.ci95.map(|ends| ends.map(f64::exp));
    let Question { case, layout, figure, must, goal, .. } = *question;
    Some(Answer {
        case,
        layout,
        figure,
        beside,
        ours: median(pairs.iter().map(|(ours, _)| *ours)),
        theirs: median(pairs.iter().map(|(_, theirs)| *theirs)),
        ratio: median(logs.iter().copied()).exp(),
        ratio_ci95,
        must,
        goal,
        reached: reached(ratio_ci95, question),
    })
}

fn row_of<'a>(record: &'a Record, case: &str, layout: Layout, subject: &str) -> Option<&'a Row> {
    record.rows.iter().find(|row| {
        (row.conditions.case.as_str(), row.conditions.layout, name_of(row))
            == (case, layout, subject)
    })
}

/// The subject as it was asked for, its variant included.
fn name_of(row: &Row) -> &str {
    row.conditions.id.split('/').nth(2).unwrap_or_default()
}

impl Question {
    fn is_rate(&self) -> bool {
        self.figure == Figure::Rate
    }
}

impl Figure {
    fn of(self, block: &Block, base: Option<&Block>) -> Option<f64> {
        let added = |latency: fn(&Block) -> Option<f64>| Some(latency(block)? - latency(base?)?);
        match self {
            Self::Cpu => Some(cpu_us(block)),
            Self::Rate => Some(block.traffic.achieved_rps),
            Self::AddedMean => added(|block| block.traffic.latency_us.mean),
            Self::AddedP50 => added(|block| block.traffic.latency_us.p50),
        }
    }

    fn told(self, value: f64) -> String {
        match self {
            Self::Cpu => format!("{value:.1} µs"),
            Self::Rate => format!("{value:.0}/s"),
            Self::AddedMean | Self::AddedP50 => format!("{value:.0} µs"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Rate => "rate",
            Self::AddedMean => "added mean",
            Self::AddedP50 => "added p50",
        }
    }
}

fn cpu_us(block: &Block) -> f64 {
    let all = &block.cost.cpu_us_per_request;
    all.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str())).map(|(_, us)| us).sum()
}

fn reached(ratio_ci95: Option<[f64; 2]>, question: &Question) -> &'static str {
    let Some([low, high]) = ratio_ci95 else { return "no" };
    let is_within = |bound| if question.is_rate() { low >= bound } else { high <= bound };
    match (is_within(question.must), is_within(question.goal)) {
        (_, true) => "goal",
        (true, false) => "must",
        (false, false) => "no",
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// CPU of both processes per request, by case: the floor's and ours.
fn floor(record: &Record) -> Value {
    let cpu = |row: &Row| median(row.blocks.iter().map(cpu_us));
    let rows = record.rows.iter().filter(|row| name_of(row) == "floor");
    let told = rows.filter_map(|floor| {
        let (case, layout) = (&floor.conditions.case, floor.conditions.layout);
        let ours = cpu(row_of(record, case, layout, "tollway")?);
        Some(json!({ "case": case, "layout": layout, "floor": cpu(floor), "tollway": ours }))
    });
    Value::Array(told.collect())
}

/// The largest resident set of a process of each subject, in MB.
fn memory(record: &Record) -> Value {
    let mut largest = BTreeMap::<&str, u64>::new();
    for row in &record.rows {
        let own = row.cost.rss_bytes.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str()));
        let most = own.map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let known = largest.entry(name_of(row)).or_default();
        *known = most.max(*known);
    }
    largest.retain(|_, bytes| *bytes > 0);
    let megabytes: BTreeMap<&str, f64> =
        largest.into_iter().map(|(name, bytes)| (name, bytes as f64 / 1e6)).collect();
    json!(megabytes)
}

/// Adds a line to the history.
fn remember(root: &Path, told: &Value) -> Result<()> {
    let path = root.join(HISTORY);
    let doing = || format!("could not add to {}", path.display());
    let dir = path.parent().context("a file lies in a directory")?;
    std::fs::create_dir_all(dir).with_context(doing)?;
    let mut file =
        std::fs::OpenOptions::new().create(true).append(true).open(&path).with_context(doing)?;
    writeln!(file, "{told}").with_context(doing)
}

fn page(answers: &[Answer], told: &Value) -> String {
    TEMPLATE
        .replace("{{facts}}", &told_facts(&told["run"]))
        .replace("{{blocks}}", &told["blocks"].to_string())
        .replace("{{minutes}}", &format!("{:.0}", told["minutes"].as_f64().unwrap_or_default()))
        .replace("{{table}}", table(answers).trim_end())
        .replace("{{floor}}", floor_table(&told["floor_cpu_us"]).trim_end())
        .replace("{{memory}}", memory_table(&told["rss_mb"]).trim_end())
}

fn table(answers: &[Answer]) -> String {
    let mut table = String::from(
        "| work | figure | Tollway | best of the others | ratio (95 %) | must | goal | reached |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for answer in answers {
        let Answer { case, figure, beside, ratio, must, goal, reached, .. } = answer;
        let [low, high] = answer.ratio_ci95.unwrap_or([f64::NAN; 2]);
        let layout = if answer.layout == Layout::Pinned { ", pinned" } else { "" };
        let (ours, theirs) = (figure.told(answer.ours), figure.told(answer.theirs));
        let sign = if *figure == Figure::Rate { '≥' } else { '≤' };
        let row = format!(
            "| {case}{layout} | {} | {ours} | {beside} {theirs} | {ratio:.2} ({low:.2} to {high:.2}) \
             | {sign} {must} | {sign} {goal} | {reached} |",
            figure.name(),
        );
        writeln!(table, "{row}").expect("writing to a string cannot fail");
    }
    table
}

fn floor_table(rows: &Value) -> String {
    let mut table = String::from("| work | floor | Tollway |\n|---|---|---|\n");
    for row in rows.as_array().into_iter().flatten() {
        let figure = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        let layout = if row["layout"] == "pinned" { ", pinned" } else { "" };
        let case = word(&row["case"]);
        let (floor, ours) = (figure("floor"), figure("tollway"));
        writeln!(table, "| {case}{layout} | {floor:.1} µs | {ours:.1} µs |")
            .expect("writing to a string cannot fail");
    }
    table
}

fn memory_table(subjects: &Value) -> String {
    let mut table = String::from("| subject | MB |\n|---|---|\n");
    for (subject, mb) in subjects.as_object().into_iter().flatten() {
        let mb = mb.as_f64().unwrap_or(f64::NAN);
        writeln!(table, "| {subject} | {mb:.1} |").expect("writing to a string cannot fail");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ratio_ci95: [f64; 2], figure: Figure) -> &'static str {
        let (must, goal) = if figure == Figure::Rate { (1.15, 1.35) } else { (0.7, 0.5) };
        reached(Some(ratio_ci95), &pair("http-max", figure, must, goal))
    }

    #[test]
    fn a_bound_is_reached_by_the_whole_interval() {
        assert_eq!(of([0.40, 0.49], Figure::Cpu), "goal");
        assert_eq!(of([0.45, 0.55], Figure::Cpu), "must");
        assert_eq!(of([0.45, 0.71], Figure::Cpu), "no");
        assert_eq!(of([1.36, 1.90], Figure::Rate), "goal");
        assert_eq!(of([1.20, 1.90], Figure::Rate), "must");
        assert_eq!(of([1.10, 1.90], Figure::Rate), "no");
        assert_eq!(reached(None, &QUESTIONS[0]), "no");
    }

    #[test]
    fn every_question_is_about_work_of_the_scenario() {
        let scenario = include_str!("speed.yaml");
        for question in QUESTIONS {
            assert!(scenario.contains(&format!("name: {}\n", question.case)), "{}", question.case);
        }
    }
}
