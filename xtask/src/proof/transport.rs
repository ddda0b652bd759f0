//! `cargo xtask proof transport`: peers that are slow, silent or many, and attacks over HTTP/2, at
//! every listener of a release build. Stores the record and writes the page that shows it. The
//! prose of the page is `transport.md` beside this file.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{facts, facts_text, publish, word};
use crate::process;

const PAGE: &str = "docs/transport.md";
const RECORD: &str = "docs/records/transport.json";
const TEMPLATE: &str = include_str!("transport.md");

/// Idle connections that are promised; fewer where a process may have fewer descriptors.
const IDLE: u64 = 100_000;
/// Connections in a second that every listener must take.
const OPENED_PER_SECOND: f64 = 20_000.0;

/// A test that measures, and the variable with the path of its record.
struct Measurement {
    test: &'static str,
    variable: &'static str,
    /// The file's name in the target folder.
    record: &'static str,
}

const PEERS: Measurement = Measurement {
    test: "transport::everything",
    variable: "TOLLWAY_TRANSPORT_RECORD",
    record: "transport.json",
};
const ATTACKS: Measurement = Measurement {
    test: "listeners::h2::bear::everything",
    variable: "TOLLWAY_ATTACKS_RECORD",
    record: "attacks.json",
};

pub(super) fn run(root: &Path) -> Result<()> {
    let (measured, peers) = measure(root, &PEERS)?;
    let (attacks, attacked) = measure(root, &ATTACKS)?;
    let run = facts(root, "release")?;
    let attacks = json!({ "run": &run, "measured": attacks });
    let record = json!({ "run": run, "measured": measured, "attacks": attacks });
    publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    peers.and(attacked)
}

/// The record, and whether every promise holds: a broken one fails the run and is in the record all
/// the same.
fn measure(root: &Path, of: &Measurement) -> Result<(Value, Result<()>)> {
    let raw = root.join("target").join(of.record);
    // What an earlier run left must not be taken for this one's.
    let _ = std::fs::remove_file(&raw);
    super::build_process_tests("requests", &["--release"])?;
    let command = "ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\"";
    let test = super::process_tests("requests", &["--release"]);
    let ran = process::run(
        std::process::Command::new("/bin/sh")
            .args(["-c", command])
            .arg(test.get_program())
            .args(test.get_args())
            .args(["--ignored", "--exact", of.test, "--nocapture"])
            .env(of.variable, &raw),
    );
    let Ok(text) = std::fs::read_to_string(&raw) else {
        return ran.and_then(|()| bail!("{} left no record", of.test));
    };
    Ok((serde_json::from_str(&text).context("the record is not JSON")?, ran))
}

fn page(record: &Value) -> String {
    let measured = &record["measured"];
    let outcomes = outcomes_of(measured);
    let attacks = outcomes_of(&record["attacks"]["measured"]);
    TEMPLATE
        .replace("{{facts}}", &facts_text(&record["run"]))
        .replace("{{reduced}}", &reduced(measured["descriptor_limit"].as_u64().unwrap_or_default()))
        .replace("{{outcomes}}", &became(outcomes))
        .replace("{{opened}}", &opened(outcomes))
        .replace("{{costs}}", &costs(outcomes))
        .replace("{{attack_facts}}", &facts_text(&record["attacks"]["run"]))
        .replace("{{dearest}}", &dearest(attacks))
        .replace("{{attacks}}", &borne(attacks))
}

fn outcomes_of(measured: &Value) -> &[Value] {
    measured["outcomes"].as_array().map_or(&[][..], Vec::as_slice)
}

/// What this machine did not allow.
fn reduced(descriptors: u64) -> String {
    if descriptors > IDLE {
        return String::new();
    }
    format!(
        " A process may have {descriptors} descriptors here, so the idle connections are as many as \
         that and not {IDLE}."
    )
}

fn became(outcomes: &[Value]) -> String {
    let mut table = String::from(
        "| case | listener | what was done | what became of it | honest requests | failed | p50 | p99 | longest | verdict |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let honest = &outcome["honest"];
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            word(&outcome["case"]),
            word(&outcome["listener"]),
            word(&outcome["done"]),
            word(&outcome["became"]),
            honest["requests"],
            honest["failed"],
            millis(&honest["p50_ms"]),
            millis(&honest["p99_ms"]),
            millis(&honest["max_ms"]),
            verdict(outcome["passed"] == true),
        );
    }
    table.trim_end().to_owned()
}

/// How many connections in a second each listener has taken, and the promised number.
fn opened(outcomes: &[Value]) -> String {
    let mut table = String::from(
        "| listener | connections opened and closed in a second | must | reached |\n|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let Some(rate) = outcome["opened_per_second"].as_f64() else { continue };
        let reached = if rate >= OPENED_PER_SECOND { "yes" } else { "no" };
        let listener = word(&outcome["listener"]);
        let _ = writeln!(table, "| {listener} | {rate:.0} | {OPENED_PER_SECOND} | {reached} |");
    }
    table.trim_end().to_owned()
}

fn costs(outcomes: &[Value]) -> String {
    let mut table = String::from(
        "| case | listener | memory before | at most | after | of each peer | processor time | the attacker's | ratio |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for outcome in outcomes {
        let memory = |name: &str| outcome["memory"][name].as_f64().unwrap_or_default();
        let (before, most) = (memory("before_bytes"), memory("most_bytes"));
        let peers = outcome["peers"].as_f64().unwrap_or_default().max(1.0);
        let cpu = |name: &str| outcome[name].as_f64().unwrap_or_default();
        let (caused, own) = (cpu("cpu_ms"), cpu("attacker_cpu_ms"));
        let ratio = if own > 0.0 { format!("{:.1}", caused / own) } else { "—".to_owned() };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {:.1} KiB | {caused:.0} ms | {own:.0} ms | {ratio} |",
            word(&outcome["case"]),
            word(&outcome["listener"]),
            mib(before),
            mib(most),
            mib(memory("after_bytes")),
            (most - before).max(0.0) / peers / 1024.0,
        );
    }
    table.trim_end().to_owned()
}

/// Processor time that an attack over HTTP/2 caused for each of its own.
fn ratio(attack: &Value) -> f64 {
    let cpu = |name: &str| attack[name].as_f64().unwrap_or_default();
    cpu("cpu_ms") / cpu("attacker_cpu_ms").max(1e-3)
}

fn dearest(attacks: &[Value]) -> String {
    let Some(dearest) = attacks.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b))) else {
        return "There is no record of them.".to_owned();
    };
    let (attack, listener) = (word(&dearest["attack"]), word(&dearest["listener"]));
    format!("The dearest caused {:.0} times its own cost: {attack} ({listener}).", ratio(dearest))
}

fn borne(attacks: &[Value]) -> String {
    let mut table = String::from(
        "| attack | listener | sent | a second | connections | ended | processor time | the attacker's | ratio | memory | honest answers | median | slowest | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for attack in attacks {
        let number = |name: &str| attack[name].as_f64().unwrap_or_default();
        let honest = &attack["honest"];
        let is_borne = attack["wrong"].as_array().is_some_and(Vec::is_empty);
        let _ = writeln!(
            table,
            "| {} | {} | {} {} | {:.0} | {} | {} | {:.0} ms | {:.1} ms | {:.1} | {} | {} | {} | {} | {} |",
            word(&attack["attack"]),
            word(&attack["listener"]),
            attack["sent"],
            word(&attack["unit"]),
            number("sent_per_second"),
            attack["connections"],
            attack["ended"],
            number("cpu_ms"),
            number("attacker_cpu_ms"),
            ratio(attack),
            mib(number("grown_bytes")),
            honest["answers"],
            millis(&honest["median_ms"]),
            millis(&honest["slowest_ms"]),
            verdict(is_borne),
        );
    }
    table.trim_end().to_owned()
}

fn verdict(passed: bool) -> &'static str {
    if passed { "pass" } else { "**FAIL**" }
}

fn millis(value: &Value) -> String {
    format!("{:.1} ms", value.as_f64().unwrap_or_default())
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(passed: bool, descriptor_limit: u64) -> Value {
        let outcome = json!({
            "case": "slow head", "listener": "api", "peers": 512, "done": "512 peers",
            "became": "512 × 408", "passed": passed, "cpu_ms": 30.0, "attacker_cpu_ms": 15.0,
            "honest": { "requests": 900, "failed": 0, "p50_ms": 0.4, "p99_ms": 1.25, "max_ms": 3.0 },
            "memory": { "before_bytes": 8 << 20, "most_bytes": 10 << 20, "after_bytes": 9 << 20 },
            "opened_per_second": if passed { 20_000.0 } else { 19_999.0 },
        });
        let attack = json!({
            "attack": "rapid reset", "listener": "front", "unit": "resets", "sent": 5000,
            "sent_per_second": 120_000.4, "connections": 3, "ended": 2, "cpu_ms": 60.0,
            "attacker_cpu_ms": 15.0, "grown_bytes": 1 << 20,
            "honest": { "answers": 80, "median_ms": 0.4, "slowest_ms": 9.0 },
            "wrong": if passed { vec![] } else { vec!["never refused"] },
        });
        let run = json!({
            "date": "2026-11-21", "commit": "abc", "build": "release", "kernel": "Linux 6",
            "cores": 2, "cpu": "any",
        });
        json!({
            "run": &run,
            "measured": { "descriptor_limit": descriptor_limit, "outcomes": [outcome] },
            "attacks": { "run": &run, "measured": { "outcomes": [attack] } },
        })
    }

    #[test]
    fn the_page_shows_every_case_and_leaves_no_blank() {
        let text = page(&record(true, 1 << 20));
        let row =
            "| slow head | api | 512 peers | 512 × 408 | 900 | 0 | 0.4 ms | 1.2 ms | 3.0 ms |";
        assert!(text.contains(&format!("{row} pass |")), "{text}");
        let row =
            "| slow head | api | 8.0 MiB | 10.0 MiB | 9.0 MiB | 4.0 KiB | 30 ms | 15 ms | 2.0 |";
        assert!(text.contains(row), "{text}");
        let row = "| rapid reset | front | 5000 resets | 120000 | 3 | 2 | 60 ms | 15.0 ms | 4.0 | \
                   1.0 MiB | 80 | 0.4 ms | 9.0 ms | pass |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| api | 20000 | 20000 | yes |"), "{text}");
        assert!(text.contains("caused 4 times its own cost: rapid reset (front)"), "{text}");
        assert!(!text.contains("{{") && !text.contains("descriptors here"), "{text}");
    }

    #[test]
    fn a_broken_promise_and_what_was_reduced_are_shown() {
        let text = page(&record(false, 20_000));
        assert_eq!(text.matches("**FAIL**").count(), 2, "{text}");
        assert!(text.contains("| api | 19999 | 20000 | no |"), "{text}");
        assert!(text.contains("20000 descriptors here"), "{text}");
    }
}
