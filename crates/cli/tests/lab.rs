//! `tollway lab` as a user runs it: every scenario that comes with the program, cut down to
//! fractions of a second a run, and what the commands say.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use tollway_record::Record;
use tollway_record::record::{Comparison, Layout, Metric, Protocol, Tls};
use tollway_testkit::{Start, TempDir, retry_until, skip, slow};

fn tollway(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(args).current_dir(dir).env("TMPDIR", dir).env("NO_COLOR", "1").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a scenario with one short window a row.
fn run(scenario: &str, more: &[&str]) -> Record {
    run_with_window(scenario, "0.2", more)
}

fn run_with_window(scenario: &str, window_s: &str, more: &[&str]) -> Record {
    let dir = TempDir::new().unwrap();
    let short = ["lab", "run", scenario, "--quick", "--blocks", "1", "--window-s", window_s];
    let rest = ["--no-repeats", "--json", "record.json", "--report", "report.html"];
    let args: Vec<&str> = short.iter().chain(&rest).chain(more).copied().collect();
    let output = tollway(&args, dir.path());
    assert!(output.status.success(), "{scenario}: {}\n{}", output.status, stderr(&output));
    let text = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
    let record = Record::from_json(&text).unwrap();
    for row in &record.rows {
        let (id, traffic) = (&row.conditions.id, &row.traffic);
        assert!(!row.is_silent(), "{id}: {:?}", traffic.errors_by_kind);
        assert!(traffic.errors * 100 <= traffic.requests, "{id}: {:?}", traffic.errors_by_kind);
    }
    let wrong = record.warnings.iter().find(|warning| {
        ["should agree", "cannot be", "do not belong together"].iter().any(|w| warning.contains(w))
    });
    assert_eq!(wrong, None, "the record contradicts itself");
    assert!(std::fs::read_to_string(dir.path().join("report.html")).unwrap().contains(scenario));
    let seeds = record.seed_table.as_ref().unwrap();
    assert!(stdout(&output).contains("published"), "{}", stdout(&output));
    assert!(seeds.figures.iter().any(|figure| !figure.today.is_empty()));
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "left behind: {left:?}");
    record
}

/// Rows of a subject, its variant's name in the id.
fn ids(record: &Record) -> Vec<&str> {
    record.rows.iter().map(|row| row.conditions.id.as_str()).collect()
}

#[test]
fn invocation_tells_each_duty_apart() {
    let subjects = "direct,floor,tollway,tollway:traced-1,tollway:policy";
    let record = run("invocation", &["--subjects", subjects]);
    for subject in ["direct", "floor", "tollway", "tollway:traced-1", "tollway:policy"] {
        let id = format!("same-network/http/{subject}");
        assert!(ids(&record).contains(&id.as_str()), "{:?}", ids(&record));
    }
}

#[test]
fn invocation_runs_on_loopback_too() {
    slow!();
    let record = run("invocation", &["--loopback", "--subjects", "direct,tollway"]);
    assert_eq!(record.rows.len(), 4);
    assert!(record.notes.iter().any(|note| note.contains("--loopback was given")));
}

#[test]
fn control_plane_cost_tells_idle_and_busy_use() {
    let record = run("control-plane-cost", &[]);
    let roles: Vec<&str> = record.idle.iter().map(|idle| idle.process.as_str()).collect();
    assert_eq!(roles, ["app-sidecar", "client-sidecar", "control-planes"]);
    assert!(record.idle.iter().all(|idle| idle.rss_bytes > 1_000_000 && idle.cpu_cores < 0.5));
}

#[test]
fn tls_compares_plain_and_both_kinds_of_tls() {
    slow!();
    let record = run("tls", &["--subjects", "direct,floor,tollway,tollway:front"]);
    let of = |id: &str| record.row(id).unwrap().conditions.tls;
    assert_eq!(of("same-network/get-4k/direct"), Tls::Plain);
    assert_eq!(of("same-network/get-4k-tls/direct"), Tls::Tls);
    assert_eq!(of("other-region/get-4k-mtls/floor"), Tls::Mtls);
    assert_eq!(of("same-network/get-4k/tollway"), Tls::Mtls);
    assert_eq!(of("same-network/get-4k-tls/tollway:front"), Tls::Tls);
    assert_eq!(of("other-region/get-4k-mtls/tollway:front"), Tls::Mtls);
    let handshakes = |case: &str| {
        let row = record.row(&format!("same-network/{case}/direct")).unwrap();
        let facts = row.particulars.tls_facts.as_ref().unwrap();
        (facts.handshakes_full, facts.handshakes_resumed, row.traffic.requests)
    };
    let (full, resumed, requests) = handshakes("handshake-full");
    assert!(resumed == 0 && full + 8 >= requests, "{full} + {resumed} for {requests}");
    let (full, resumed, requests) = handshakes("handshake-resumed");
    assert!(full <= 8 && resumed + 8 >= requests, "{full} + {resumed} for {requests}");
    let figures = &record.seed_table.as_ref().unwrap().figures;
    let figure = figures.iter().find(|figure| figure.what.ends_with("a full handshake (derived)"));
    let row = record.row("same-network/handshake-full/direct").unwrap();
    let handshake_us = row.traffic.phases_us["tls_handshaking"].mean.unwrap();
    assert_eq!(figure.unwrap().today["direct"], handshake_us / 1e3);
}

#[test]
fn throughput_and_push_count_bytes() {
    slow!();
    let record = run("throughput", &["--subjects", "direct,floor,tollway"]);
    for row in &record.rows {
        let (id, traffic) = (&row.conditions.id, &row.traffic);
        assert!(row.is_flow() && !row.is_silent() && traffic.requests == 0, "{id}: {traffic:?}");
        let (least, most) = match row.conditions.case.as_str() {
            "receive-1" => (traffic.bytes.sent, traffic.bytes.received),
            _ => (traffic.bytes.received, traffic.bytes.sent),
        };
        assert!((least, most > 1_000_000) == (0, true), "{id}: {:?}", traffic.bytes);
        let told = row.particulars.throughput.as_ref().unwrap();
        let flow = told.sent.or(told.received).unwrap();
        assert_eq!(flow.bytes, most, "{id}: {told:?}");
        let cost = &row.cost;
        assert!(
            cost.cpu_us_per_megabyte["app"] > 0.0 && cost.cpu_us_per_request.is_empty(),
            "{id}"
        );
        assert!(cost.machine_cpu_us_per_megabyte > Some(cost.cpu_us_per_megabyte["app"]), "{id}");
    }
    let compared = record.comparisons.iter().any(|found| {
        found.row == "same-network/send-8/tollway" && found.metric == Metric::TimePerMegabyte
    });
    assert!(compared, "{:?}", record.comparisons);
    let figure = &record.seed_table.as_ref().unwrap().figures[0];
    let bytes = record.row("same-network/send-1/direct").unwrap().traffic.clone();
    let megabits = bytes.bytes.sent as f64 * 8e-6 / bytes.duration_s;
    assert!((figure.today["direct"] / megabits - 1.0).abs() < 1e-9, "{figure:?}");

    let record = run("push", &["--subjects", "direct,floor,tollway"]);
    for row in record.rows.iter().filter(|row| row.conditions.subject == "direct") {
        let (id, traffic) = (&row.conditions.id, &row.traffic);
        assert_eq!(row.conditions.protocol, Protocol::GrpcStream);
        assert_eq!(row.conditions.in_flight_per_connection, Some(10), "{id}");
        let message = row.conditions.payload_bytes;
        // Messages of the window may have begun before it or end after it, ten at most.
        let (asked, on_the_way) = (traffic.requests * message, 10 * message);
        let most = (asked + on_the_way) * 105 / 100;
        let possible = asked.saturating_sub(on_the_way)..=most;
        assert!(possible.contains(&traffic.bytes.sent), "{id}: {asked}, {:?}", traffic.bytes);
        assert!(traffic.bytes.received < traffic.bytes.sent / 10, "{id}: {:?}", traffic.bytes);
    }
}

#[test]
fn a_subject_that_carries_no_bytes_is_left_out_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let subjects = "direct,tollway:policy,tollway:access-log";
    let args = ["lab", "run", "throughput", "--dry-run", "--quick", "--subjects", subjects];
    let output = tollway(&args, dir.path());
    let text = stdout(&output);
    assert!(text.contains("as many bytes as go to the app on 8 connections"), "{text}");
    assert!(
        text.contains("left out: tollway:policy in send-1: its duty is about requests"),
        "{text}"
    );
    assert!(!text.contains("left out: tollway:access-log"), "{text}");
}

#[test]
fn max_rate_finds_the_rate_of_its_second_part() {
    slow!();
    let record = run("max-rate", &["--subjects", "direct,floor,tollway"]);
    let row = |id: &str| record.row(id).unwrap();
    let slowest = ["direct", "floor", "tollway"]
        .map(|subject| row(&format!("same-network/http-max/{subject}")).traffic.achieved_rps)
        .into_iter()
        .fold(f64::INFINITY, f64::min);
    let at = row("same-network/http-75/tollway").traffic.requested_rps.unwrap();
    assert!(at <= slowest * 0.75 && at >= slowest * 0.75 - 11.0, "{at} of {slowest}");
    for subject in ["direct", "floor", "tollway"] {
        let found = row(&format!("same-network/http-search/{subject}"));
        let search = found.particulars.search.as_ref().unwrap();
        assert_eq!(search.slo.last().map(String::as_str), Some("p99<10ms"), "{search:?}");
        assert!(search.held_rps.is_some() && !search.trials.is_empty(), "{search:?}");
        assert_eq!(found.blocks.len(), 1, "a search repeats its own trials");
        // Of latencies at different rates nothing is concluded.
        let id = &found.conditions.id;
        let of_it: Vec<&Comparison> =
            record.comparisons.iter().filter(|compared| &compared.row == id).collect();
        assert!(of_it.iter().all(|of| of.metric == Metric::TimePerAnswer), "{of_it:?}");
        assert_eq!(of_it.is_empty(), subject == "direct", "{id}");
    }
    let pinned = |row: &&tollway_record::Row| row.conditions.layout == Layout::Pinned;
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(record.rows.iter().filter(pinned).count(), if processors > 1 { 6 } else { 0 });
}

#[test]
fn a_quota_of_50_thousandths_is_counted_and_named() {
    if let Err(reason) = tollway_lab::cgroup::probe() {
        skip!("{reason}");
    }
    let record = run_with_window("cpu-limits", "0.5", &["--subjects", "tollway"]);
    let row = record.row("same-network/50m-max/tollway").unwrap();
    assert_eq!(row.conditions.limits.unwrap().cpu_millicores, Some(50));
    assert!(row.cost.throttled_us.unwrap() > 100_000, "{:?}", row.cost.throttling);
    let sidecar = row.cost.throttling["client-sidecar"];
    assert!(sidecar.throttled_periods > 0 && sidecar.throttled_periods <= sidecar.periods);
    let told = record.warnings.iter().find(|w| w.starts_with("same-network/50m-max/tollway: held"));
    let told = told.unwrap_or_else(|| panic!("{:?}", record.warnings));
    assert!(told.contains("by a CPU quota") && told.contains("sidecar in "), "{told}");
}

#[test]
fn load_steps_has_a_row_for_each_rate() {
    slow!();
    let record = run("load-steps", &["--subjects", "direct"]);
    let http = record.rows.iter().filter(|row| row.conditions.protocol == Protocol::Http1);
    let rates: Vec<f64> = http.map(|row| row.traffic.requested_rps.unwrap().round()).collect();
    assert_eq!(rates, [120.0, 500.0, 1_000.0, 1_500.0, 2_000.0]);
}

#[test]
fn one_sidecar_for_both_is_one_hop_and_the_same_twice_is_compared() {
    let subjects = "direct,direct:again,tollway:one-sidecar";
    let record = run("invocation", &["--subjects", subjects]);
    let alone = &record.row("same-network/http/tollway:one-sidecar").unwrap();
    assert_eq!((alone.conditions.hops, alone.conditions.tls), (1, Tls::Mtls));
    let roles: Vec<&str> = alone.cost.rss_bytes.keys().map(String::as_str).collect();
    assert_eq!(roles, ["app", "control-planes", "load", "sidecar"]);
    let again = "same-network/http/direct:again";
    let compared = record.comparisons.iter().find(|found| found.row == again);
    assert_eq!(compared.unwrap().baseline_row, "same-network/http/direct");
}

/// A subject of a user's own: this program's own relay, alone before the app.
const RELAY: &str = r#"schema: tollway.subject/1
name: relay
purpose: one bare relay
program: ["PROGRAM"]
get: {by_hand: "it is this program"}
variants:
  - name: alone
    purpose: one
    ways:
      - protocols: [http1]
        app_side:
          command: ["{{program}}", lab, relay, --forward, "x={{listen}},{{upstream}}", --delay-us, "0", --ports-file, "{{dir}}/ports"]
"#;

#[test]
fn an_interrupted_experiment_goes_on_with_its_own_subjects() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("relay.yaml");
    std::fs::write(&file, RELAY.replace("PROGRAM", env!("CARGO_BIN_EXE_tollway"))).unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let mut first = Start::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["lab", "run", "invocation", "--quick", "--loopback", "--no-repeats"])
        .args(["--blocks", "20", "--window-s", "0.3", "--subjects", "direct,relay"])
        .arg("--subject-file")
        .arg(&file)
        .env("TMPDIR", &work)
        .start()
        .unwrap();
    let journal = retry_until(Duration::from_secs(60), "a run in the journal", || {
        let folder = std::fs::read_dir(&work).ok()?.next()?.ok()?.path();
        let text = std::fs::read_to_string(folder.join("journal")).ok()?;
        (text.lines().count() > 1).then_some(folder)
    });
    let folder = journal.unwrap_or_else(|error| panic!("{error}:\n{}", first.log()));
    first.signal(Signal::INT).unwrap();
    assert!(!first.wait(Duration::from_secs(30)).unwrap().success());
    // What the file says now, or that it is gone, is nothing to the experiment.
    std::fs::remove_file(&file).unwrap();
    let resume = ["lab", "run", "--loopback", "--no-repeats", "--json", "record.json", "--resume"];
    let args: Vec<&str> = resume.into_iter().chain(folder.to_str()).collect();
    let output = tollway(&args, dir.path());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
    let record = Record::from_json(&text).unwrap();
    assert_eq!(record.row("same-network/http/relay").unwrap().blocks.len(), 20);
}

#[test]
fn what_would_be_run_is_shown_without_starting_anything() {
    let dir = TempDir::new().unwrap();
    let output = tollway(&["lab", "run", "max-rate", "--dry-run", "--quick"], dir.path());
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("runs in 3 blocks, about"), "{text}");
    assert!(text.contains("75 % of the slowest in http-max"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_mistake_in_a_file_is_told_with_its_place() {
    let dir = TempDir::new().unwrap();
    let text = std::fs::read_to_string("../lab/scenarios/tls.yaml").unwrap();
    let text = text.replace("connections: 100", "connections: 0");
    std::fs::write(dir.path().join("mine.yaml"), text).unwrap();
    let output = tollway(&["lab", "run", "mine.yaml", "--dry-run"], dir.path());
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("mine.yaml:14:18: `connections` is from 1 to 10000"), "{told}");
    assert!(told.contains("[ERR_BAD_CONFIGURATION]"), "{told}");
    let output = tollway(&["lab", "run", "invokation"], dir.path());
    assert!(stderr(&output).contains("did you mean `invocation`?"), "{}", stderr(&output));
}

#[test]
fn the_list_names_scenarios_subjects_and_times() {
    let dir = TempDir::new().unwrap();
    let output = tollway(&["lab", "list"], dir.path());
    let text = stdout(&output);
    for word in ["invocation", "load-steps", "--quick", "floor", "tollway:policy"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let output = tollway(&["lab", "list", "--json"], dir.path());
    let listed: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(listed["scenarios"][0]["usual_s"].as_f64().unwrap() > 10.0);
    assert_eq!(listed["subjects"][0]["available"], true);
}

#[test]
fn a_record_compared_with_itself_is_the_same_and_with_a_slower_one_fails() {
    let dir = TempDir::new().unwrap();
    let golden = "../record/tests/golden/record.json";
    let golden = std::fs::read_to_string(golden).unwrap();
    std::fs::write(dir.path().join("a.json"), &golden).unwrap();
    let compare = |conditions: &[&str]| {
        let args: Vec<&str> =
            ["lab", "compare", "a.json", "a.json"].iter().chain(conditions).copied().collect();
        tollway(&args, dir.path())
    };
    let output = compare(&["--fail-if", "slower", "--fail-if", "p50>1%"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("latency-mean"), "{}", stdout(&output));
    let usage = compare(&["--fail-if", "p98>1%"]);
    assert_eq!(usage.status.code(), Some(2));
    // The other way round, each row of one record is judged against another row's figures.
    let mut other: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let ids: Vec<_> = (0..2).map(|row| other["rows"][row]["id"].clone()).collect();
    other["rows"][0]["id"].clone_from(&ids[1]);
    other["rows"][1]["id"].clone_from(&ids[0]);
    std::fs::write(dir.path().join("b.json"), other.to_string()).unwrap();
    let output =
        tollway(&["lab", "compare", "a.json", "b.json", "--fail-if", "slower"], dir.path());
    assert_eq!(output.status.code(), Some(99), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains("FAILED"), "{}", stdout(&output));
}
