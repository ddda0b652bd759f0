//! `cargo xtask proof kubernetes`: parts of a mesh on two real clusters are killed under load, thirty
//! times each, and what the mesh costs a cluster. Stores the record and writes the page that shows it. The
//! prose of the page is `kubernetes.md` beside this file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Extent, facts, facts_text, publish, word};
use crate::cluster;
use crate::workspace::Workspace;

const PAGE: &str = "docs/kubernetes-faults.md";
const RECORD: &str = "docs/records/kubernetes.json";
const TEMPLATE: &str = include_str!("kubernetes.md");
const ROUNDS: u32 = 30;

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let folder = root.join("target/kubernetes");
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let (killed, figures) = (folder.join("killed"), folder.join("figures"));
    let rounds = if extent == Extent::Quick { 1 } else { ROUNDS };
    let variables = [
        ("TOLLWAY_CLUSTER_ROUNDS", rounds.to_string().into()),
        ("TOLLWAY_CLUSTER_RECORD", killed.clone().into()),
        ("TOLLWAY_CLUSTER_FIGURES", figures.clone().into()),
    ];
    let ran =
        cluster::run_chosen(&["killed::", "etcd::", "figures::", "--include-ignored"], &variables);
    if extent == Extent::Quick {
        return ran;
    }
    // A broken promise fails the run and is in the record all the same.
    let record = json!({
        "run": facts(root, "debug")?,
        "killed": rows(&killed)?,
        "figures": rows(&figures)?,
    });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    ran
}

/// A value of JSON from each line of a file.
fn rows(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the run left no {}", file.display()))?;
    let rows = text.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().with_context(|| format!("{} is not JSON", file.display()))
}

fn page(record: &Value) -> String {
    let figure = |name: &str| {
        let figures = record["figures"].as_array().into_iter().flatten();
        figures.clone().find(|row| row["figure"] == name).cloned().unwrap_or_default()
    };
    let (start, idle, slices) = (figure("start"), figure("idle"), figure("slices"));
    TEMPLATE
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{killed}}", killed(&record["killed"]).trim_end())
        .replace("{{pods}}", &start["pods"].to_string())
        .replace("{{starts}}", starts(&start["medians_s"]).trim_end())
        .replace("{{idle}}", self::idle(&idle).trim_end())
        .replace("{{slices}}", self::slices(&slices).trim_end())
}

fn killed(rows: &Value) -> String {
    let mut text = String::from(
        "| killed | rounds | calls | failed | most in a round | rounds without a failure |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    let mut parts: Vec<&str> = Vec::new();
    let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    for row in rows {
        let part = word(&row["part"]);
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    for part in parts {
        let of_part = || rows.iter().filter(|row| word(&row["part"]) == part);
        let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or_default();
        let failed: Vec<u64> = of_part().map(|row| number(row, "failed")).collect();
        let answered: u64 = of_part().map(|row| number(row, "answered")).sum();
        let total: u64 = failed.iter().sum();
        let most = failed.iter().max().copied().unwrap_or_default();
        let without = failed.iter().filter(|count| **count == 0).count();
        let calls = answered + total;
        let rounds = failed.len();
        let _ = writeln!(text, "| {part} | {rounds} | {calls} | {total} | {most} | {without} |");
    }
    text
}

fn starts(medians: &Value) -> String {
    let mut text = String::from("| sidecar | until ready |\n|---|---:|\n");
    for (kind, shown) in [("none", "none"), ("idle", "an idle one"), ("tollway", "Tollway's")] {
        let _ = writeln!(text, "| {shown} | {:.2} s |", number(&medians[kind]));
    }
    text
}

fn idle(figure: &Value) -> String {
    let mut text = String::from("| part | processors | memory |\n|---|---:|---:|\n");
    let parts: BTreeMap<&String, &Value> =
        figure["parts"].as_object().into_iter().flatten().collect();
    for (name, part) in parts {
        let (cpu, memory) = (number(&part["cpu"]), number(&part["memory_mb"]));
        let _ = writeln!(text, "| `{name}` | {cpu:.4} | {memory:.1} MB |");
    }
    let seconds = number(&figure["seconds"]);
    let requests: f64 =
        figure["requests"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum();
    let _ = writeln!(text, "\nRequests at the API server in {seconds:.0} s: {requests:.0}.");
    text
}

fn slices(figure: &Value) -> String {
    let whole = |field: &str| figure[field].as_u64().unwrap_or_default();
    let [services, endpoints, changes] = ["services", "endpoints", "changes"].map(whole);
    let mut text = format!(
        "Of {changes} changes among {services} Services with {endpoints} endpoints:\n\n\
         | from | median | longest |\n|---|---:|---:|\n"
    );
    for (field, from) in
        [("since_kubectl_began_s", "`kubectl` begins"), ("since_kubectl_ended_s", "it has ended")]
    {
        let [median, worst] = ["median", "worst"].map(|of| number(&figure[field][of]));
        let _ = writeln!(text, "| {from} | {median:.3} s | {worst:.3} s |");
    }
    let control = &figure["control"];
    let (cpu, memory) = (number(&control["cpu"]), number(&control["memory_mb"]));
    let _ = writeln!(
        text,
        "\nThe control plane takes {cpu:.4} of a processor and {memory:.1} MB when nothing changes."
    );
    text
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_all_of_the_record() {
        let killed = [("gateway", 3, 1_497), ("gateway", 0, 1_500), ("machine", 1, 1_499)];
        let killed = killed.map(|(part, failed, answered)| {
            json!({"part": part, "failed": failed, "answered": answered})
        });
        let record = json!({
            "run": {"date": "2026-01-02", "commit": "abc", "build": "debug", "kernel": "Linux 6", "cores": 2, "cpu": "x"},
            "killed": killed,
            "figures": [
                {"figure": "start", "pods": 20, "medians_s": {"none": 1.0, "idle": 1.5, "tollway": 1.75}},
                {"figure": "idle", "seconds": 60.2, "requests": {"LIST policies": 2.0},
                 "parts": {"tollway-control-0": {"cpu": 0.0021, "memory_mb": 14.25}}},
                {"figure": "slices", "services": 1000, "endpoints": 10_000, "changes": 40,
                 "since_kubectl_began_s": {"median": 0.21, "worst": 0.3456},
                 "since_kubectl_ended_s": {"median": 0.01, "worst": 0.02},
                 "control": {"cpu": 0.0123, "memory_mb": 56.78}},
            ],
        });
        let page = page(&record);
        assert!(!page.contains("{{"), "{page}");
        for row in [
            "| gateway | 2 | 3000 | 3 | 3 | 1 |",
            "| machine | 1 | 1500 | 1 | 1 | 0 |",
            "| Tollway's | 1.75 s |",
            "| `tollway-control-0` | 0.0021 | 14.2 MB |",
            "in 60 s: 2.",
            "medians of 20 pods",
            "Of 40 changes among 1000 Services with 10000 endpoints",
            "| `kubectl` begins | 0.210 s | 0.346 s |",
            "takes 0.0123 of a processor and 56.8 MB",
        ] {
            assert!(page.contains(row), "{row}: {page}");
        }
    }
}
