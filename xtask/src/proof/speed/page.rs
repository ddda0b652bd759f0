//! The page: its prose is `page.md`, its tables are made here.

use std::fmt::Write as _;

use serde_json::Value;

use super::compare::{Answer, Found};
use super::memory::{Weight, size_text};
use super::questions::Figure;
use crate::proof::{facts_text, word};

const TEMPLATE: &str = include_str!("page.md");

/// The page with its tables; `kept` has the stored smaller tables and the run's conditions.
pub(super) fn page(answers: &[Answer], weights: &[Weight], kept: &Value) -> String {
    let is_far = |answer: &&Answer| answer.is_far();
    let near = table(answers.iter().filter(|answer| !answer.is_far()));
    TEMPLATE
        .replace("{{facts}}", &facts_text(&kept["run"]))
        .replace("{{minutes}}", &format!("{:.0}", kept["minutes"].as_f64().unwrap_or_default()))
        .replace("{{disturbed}}", &kept["disturbed"].to_string())
        .replace("{{runs}}", &kept["runs"].to_string())
        .replace("{{table}}", near.trim_end())
        .replace("{{far}}", table(answers.iter().filter(is_far)).trim_end())
        .replace("{{weights}}", weight_table(weights).trim_end())
        .replace("{{limits}}", limit_table(&kept["limits"]).trim_end())
        .replace("{{each}}", each_table(&kept["each"]).trim_end())
        .replace("{{memory}}", memory_table(&kept["rss_mb"]).trim_end())
        .replace("{{tcp_rmem}}", word(&kept["tcp_rmem"]))
        .replace("{{tcp_wmem}}", word(&kept["tcp_wmem"]))
}

/// One line for each answer.
pub(super) fn table<'a>(answers: impl Iterator<Item = &'a Answer>) -> String {
    let mut table = String::from(
        "| work | figure | Tollway | best of the others | ratio (95 %) | must | goal | reached |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for answer in answers {
        let Answer { work, figure, must, goal, .. } = answer;
        let name = figure.name();
        let measured = answer.found.as_ref().map_or_else(
            || "| – | – | – |".to_owned(),
            |Found { beside, ours, theirs, ratio, ratio_ci95, disturbed, .. }| {
                let (ours, theirs) = (figure.text(*ours), figure.text(*theirs));
                let ends = ratio_ci95.map(|[low, high]| format!(" ({low:.2} to {high:.2})"));
                let ends = ends.unwrap_or_default();
                let sign = if *disturbed > 0 { " *" } else { "" };
                format!("| {ours} | {beside} {theirs} | {ratio:.2}{ends}{sign} |")
            },
        );
        let reached = answer.found.as_ref().map_or("not measured", |found| found.reached);
        line(&mut table, &format!("| {work} | {name} {measured} {must} | {goal} | {reached} |"));
    }
    table
}

/// Memory and the promised figures.
pub(super) fn weight_table(weights: &[Weight]) -> String {
    let mut table = String::from(
        "| of | memory (least to most) | must | goal | reached |\n|---|---|---|---|---|\n",
    );
    for Weight { what, bytes, must, goal, reached } in weights {
        let found = bytes.map_or_else(
            || "–".to_owned(),
            |[median, least, most]| {
                format!("{} ({} to {})", size_text(median), size_text(least), size_text(most))
            },
        );
        let (must, goal) = (size_text(*must), size_text(*goal));
        line(&mut table, &format!("| {what} | {found} | ≤ {must} | ≤ {goal} | {reached} |"));
    }
    table
}

/// What each subject carries under a limit.
pub(super) fn limit_table(rows: &Value) -> String {
    let mut table = String::from("| limit | subject | rate | p99 |\n|---|---|---|---|\n");
    for row in rows.as_array().into_iter().flatten() {
        let (case, subject) = (word(&row["limit"]), word(&row["subject"]));
        let rate = row["rate_rps"].as_f64().unwrap_or(f64::NAN);
        let p99 = row["p99_us"].as_f64();
        let p99 = p99.map_or_else(|| "–".to_owned(), |us| format!("{:.1} ms", us / 1e3));
        line(&mut table, &format!("| {case} | {subject} | {rate:.0}/s | {p99} |"));
    }
    table
}

/// A line for each subject at each work.
fn each_table(rows: &Value) -> String {
    let mut table =
        String::from("| work | subject | CPU | rate | added p50 |\n|---|---|---|---|---|\n");
    for row in rows.as_array().into_iter().flatten() {
        let layout = if row["layout"] == "pinned" { ", pinned" } else { "" };
        let (case, subject) = (word(&row["case"]), word(&row["subject"]));
        let of = |figure: Figure, what: &str| figure.text(row[what].as_f64().unwrap_or(f64::NAN));
        let (cpu, rate) = (of(Figure::Cpu, "cpu_us"), of(Figure::Rate, "rate_rps"));
        let p50 = of(Figure::AddedP50, "added_p50_us");
        line(&mut table, &format!("| {case}{layout} | {subject} | {cpu} | {rate} | {p50} |"));
    }
    table
}

fn memory_table(subjects: &Value) -> String {
    let mut table = String::from("| subject | MB |\n|---|---|\n");
    for (subject, mb) in subjects.as_object().into_iter().flatten() {
        let mb = mb.as_f64().unwrap_or(f64::NAN);
        line(&mut table, &format!("| {subject} | {mb:.1} |"));
    }
    table
}

fn line(table: &mut String, line: &str) {
    writeln!(table, "{line}").expect("writing to a string cannot fail");
}
