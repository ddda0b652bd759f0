//! `tollway lab` as a user runs it: every built-in scenario, reduced to fractions of a second a
//! run, and the commands' output.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use rustix::process::Signal;
use tollway_record::Record;
use tollway_record::neighbours::Stage;
use tollway_record::record::{Comparison, FabricRow, Layout, Metric, Protocol, Tls};
use tollway_testkit::{Start, TempDir, need_tool, retry_until, skip, slow};
use tollway_tests::program;

fn tollway(args: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(program());
    command.args(args).current_dir(dir).env("TMPDIR", dir).env("NO_COLOR", "1").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A search for the highest rate finds none while another test fills the machine, so it is alone.
static ROOM: RwLock<()> = RwLock::new(());

/// Runs a scenario with one short window a row.
fn run(scenario: &str, more: &[&str]) -> Record {
    run_with_window(scenario, "0.2", more)
}

fn run_with_window(scenario: &str, window_s: &str, more: &[&str]) -> Record {
    let _room = ROOM.read().unwrap_or_else(PoisonError::into_inner);
    run_at_once(scenario, window_s, more)
}

fn run_at_once(scenario: &str, window_s: &str, more: &[&str]) -> Record {
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
    // If the machine is suspended at the end of so short a window, the requests under way weigh
    // more than those that were answered: only longer windows show that rate and latency fit.
    let wrong = record
        .warnings
        .iter()
        .find(|warning| ["should agree", "cannot be"].iter().any(|wrong| warning.contains(wrong)));
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
fn invocation_measures_each_duty_in_a_row_of_its_own() {
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
    assert_eq!(record.rows.len(), 6);
    assert!(record.notes.iter().any(|note| note.contains("--loopback was given")));
}

#[test]
fn control_plane_cost_records_the_idle_use_of_each_process() {
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
        let reported = row.particulars.throughput.as_ref().unwrap();
        let flow = reported.sent.or(reported.received).unwrap();
        assert_eq!(flow.bytes, most, "{id}: {reported:?}");
        let cost = &row.cost;
        assert!(
            cost.cpu_us_per_megabyte["app"] > 0.0 && cost.cpu_us_per_request.is_empty(),
            "{id}"
        );
        assert!(cost.machine_cpu_us_per_megabyte >= Some(cost.cpu_us_per_megabyte["app"]), "{id}");
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
    let _room = ROOM.write().unwrap_or_else(PoisonError::into_inner);
    let record = run_at_once("max-rate", "0.2", &["--subjects", "direct,floor,tollway"]);
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
    // While one sidecar is held the other waits for it, and may stay within its quota.
    let held = &row.cost.throttling;
    assert!(held.contains_key("client-sidecar") && held.contains_key("app-sidecar"), "{held:?}");
    assert!(held.values().any(|of| of.throttled_periods > 0), "{held:?}");
    assert!(held.values().all(|of| of.throttled_periods <= of.periods), "{held:?}");
    let reported =
        record.warnings.iter().find(|w| w.starts_with("same-network/50m-max/tollway: held"));
    let reported = reported.unwrap_or_else(|| panic!("{:?}", record.warnings));
    assert!(reported.contains("by a CPU quota") && reported.contains("sidecar in "), "{reported}");
}

#[test]
fn actors_are_asked_with_and_without_a_mesh() {
    let record = run_with_window("actors", "0.6", &[]);
    for row in &record.rows {
        let (id, kinds) = (&row.conditions.id, &row.traffic.errors_by_kind);
        // A machine that is suspended for longer than a period makes up for it by one fire.
        let may_be = |kind: &String| {
            ["timer-fires", "timer-writes", "reminder-fires"].iter().any(|case| id.contains(case))
                && kind == "missed"
        };
        assert!(kinds.keys().all(may_be), "{id}: {kinds:?}");
        assert!(row.traffic.requests > 0, "{id}");
    }
    let ids: Vec<&str> = record.rows.iter().map(|row| row.conditions.id.as_str()).collect();
    assert!(ids.contains(&"other-network/call/tollway"), "{ids:?}");
    assert!(ids.contains(&"same-network/activation/direct"), "{ids:?}");
    let asked = |row: &str| {
        let mut reported =
            record.subjects.iter().filter_map(|s| s.config.get(&format!("load {row}")));
        reported.next().unwrap().clone()
    };
    assert!(asked("same-network/activation/tollway").contains("/v1.0/actors/Echo/{uuid}/method/"));
    assert!(asked("other-network/call/tollway").contains("/Echo@echo.default.east/{1..1000}/"));
    assert!(asked("same-network/reminder/tollway:one-sidecar").contains("/reminders/lab"));
    assert!(ids.contains(&"same-network/timer/tollway:one-sidecar"), "{ids:?}");
    let woken = asked("same-network/timer-writes/tollway:one-sidecar");
    assert!(woken.contains("load timers") && woken.contains("--state"), "{woken}");
    assert!(asked("same-network/reminder-fires/tollway:one-sidecar").contains("--kind reminder"));
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
    let subjects = "direct,direct:again,tollway,tollway:one-sidecar";
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
    deployments:
      - protocols: [http1]
        app_side:
          command: ["{{program}}", lab, relay, --forward, "x={{listen}},{{upstream}}", --delay-us, "0", --ports-file, "{{dir}}/ports"]
"#;

#[test]
fn an_interrupted_experiment_goes_on_with_its_own_subjects() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("relay.yaml");
    std::fs::write(&file, RELAY.replace("PROGRAM", program())).unwrap();
    let work = dir.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let mut first = Start::new(program())
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
    // The file's present content, or its loss, does not affect the experiment.
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
fn a_mistake_in_a_file_is_reported_with_line_and_column() {
    let dir = TempDir::new().unwrap();
    let text = std::fs::read_to_string("../crates/lab/scenarios/tls.yaml").unwrap();
    let text = text.replace("connections: 100", "connections: 0");
    std::fs::write(dir.path().join("mine.yaml"), text).unwrap();
    let output = tollway(&["lab", "run", "mine.yaml", "--dry-run"], dir.path());
    let reported = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains("mine.yaml:14:18: `connections` is from 1 to 10000"), "{reported}");
    assert!(reported.contains("[ERR_BAD_CONFIGURATION]"), "{reported}");
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
    let golden = "../crates/record/tests/golden/record.json";
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
    // In reverse, each row of one record is compared with another row's figures.
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

/// A scenario of the fabric in a second or two.
fn small_fabric(measure: &str) -> String {
    let length = "{blocks: 2, most_entries: 5000, block_entries: 5000, most_rounds: 4}";
    format!(
        "schema: tollway.fabric-scenario/1\nname: small\npurpose: to see\ncases:\n  \
         - {{name: {measure}, measure: {measure}, entries: [1, 5000, 9000]}}\nlengths:\n  \
         quick: {length}\n  usual: {length}\n  full: {length}\nseed:\n  title: Published\n  \
         figures:\n    - {{what: some, unit: us, published: {{ArionAgent: 9.5}}, case: {measure}, \
         row: 5000, each: true}}\n"
    )
}

/// Runs it; `None` where tables of the kernel may not be written.
fn run_fabric(measure: &str) -> Option<Record> {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("small.yaml"), small_fabric(measure)).unwrap();
    let _room = ROOM.read().unwrap_or_else(PoisonError::into_inner);
    let args = ["lab", "run", "small.yaml", "--quick", "--no-repeats"];
    let files = ["--json", "record.json", "--report", "report.html"];
    let output = tollway(&[&args[..], &files[..]].concat(), dir.path());
    let reported = stderr(&output);
    if reported.contains("which needs root on the host") || reported.contains("CAP_BPF") {
        return None;
    }
    assert!(output.status.success(), "{measure}: {}\n{reported}", output.status);
    let text = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
    let page = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    for word in ["programmed", "5,000", "ArionAgent", "processor and memory"] {
        assert!(page.contains(word) && stdout(&output).contains(word), "{word}");
    }
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["record.json", "report.html", "small.yaml"]);
    let pinned = std::fs::read_dir("/sys/fs/bpf/tollway").into_iter().flatten();
    let stale = pinned.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("lab-").unwrap_or_default();
        !pid.is_empty() && !Path::new(&format!("/proc/{pid}")).exists()
    });
    assert_eq!(stale.count(), 0, "tables stay in the kernel");
    let record = Record::from_json(&text).unwrap();
    let ids: Vec<_> =
        record.fabric.iter().map(|row| (&*row.conditions.id, row.round_us.n)).collect();
    assert_eq!(ids, [(&*format!("{measure}/1"), 8), (&*format!("{measure}/5000"), 2)]);
    let total = record.fabric[1].stage(Stage::Total).unwrap();
    let today = &record.seed_table.as_ref().unwrap().figures[0].today;
    assert_eq!(today["tollway"], total.us_per_entry);
    assert!(record.parameters["disk_sync_p50_us"].as_u64().is_some());
    Some(record)
}

/// Stages of a row with their times, in the order in which they must come.
fn stages(row: &FabricRow, wanted: &[Stage]) {
    let times: Vec<f64> = wanted.iter().map(|stage| row.stage(*stage).unwrap().total_ms).collect();
    assert!(times.is_sorted() && times[0] > 0.0, "{}: {wanted:?} {times:?}", row.conditions.id);
}

#[test]
fn neighbours_are_listed_into_the_kernel_s_table() {
    let Some(record) = run_fabric("list") else { skip!("tables of the kernel are not permitted") };
    for row in &record.fabric {
        stages(row, &[Stage::Sent, Stage::Received, Stage::Programmed, Stage::Total]);
        assert!(row.stage(Stage::Durable).is_none() && row.entry_us.is_none(), "{row:?}");
        assert!(row.cpu_us_per_entry["agent"] > 0.0 && row.cpu_us_per_entry["control"] > 0.0);
        assert!(row.rss_bytes["agent"] > 1_000_000 && row.rss_bytes["control"] > 1_000_000);
    }
}

#[test]
fn neighbours_are_written_watched_and_programmed() {
    let Some(record) = run_fabric("watch") else { skip!("tables of the kernel are not permitted") };
    for row in &record.fabric {
        stages(row, &[Stage::Written, Stage::Durable]);
        stages(row, &[Stage::Sent, Stage::Received, Stage::Programmed, Stage::Total]);
        let each = row.entry_us.unwrap();
        assert_eq!(each.n, row.conditions.entries * row.round_us.n, "{}", row.conditions.id);
        assert!(
            each.max <= row.round_us.max,
            "{}: no neighbour takes longer than all",
            row.conditions.id
        );
        for role in ["agent", "control", "writer"] {
            assert!(row.cpu_us_per_entry[role] > 0.0, "{}: {role}", row.conditions.id);
        }
        assert!(row.rss_bytes["agent"] > 1_000_000 && row.rss_bytes["control"] > 1_000_000);
    }
}

#[test]
fn what_a_scenario_of_the_fabric_cannot_do_is_said() {
    let dir = TempDir::new().unwrap();
    let output = tollway(&["lab", "run", "neighbours-list", "--loopback"], dir.path());
    let reported = stderr(&output);
    assert!(reported.contains("neighbours-list writes tables of the kernel"), "{reported}");
    assert!(
        reported.contains("run it as root") && reported.contains("[ERR_MISSING_PRIVILEGE]"),
        "{reported}"
    );
    let output = tollway(&["lab", "run", "neighbours-watch", "--subjects", "direct"], dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--subjects is of scenarios with requests"));
    let output = tollway(&["lab", "run", "neighbours-watch", "--quick", "--dry-run"], dir.path());
    assert!(stdout(&output).contains("watch/10000: 2 times in each block"), "{}", stdout(&output));
    std::fs::write(dir.path().join("bad.yaml"), small_fabric("lst")).unwrap();
    let output = tollway(&["lab", "run", "bad.yaml", "--dry-run"], dir.path());
    assert!(stderr(&output).contains("did you mean `list`?"), "{}", stderr(&output));
}

/// Runs a scenario of the fabric with these cases; `None` where that is not permitted.
fn run_cases(cases: &str) -> Option<(Record, String)> {
    run_blocks(2, cases)
}

/// As [`run_cases`], in so many blocks.
fn run_blocks(blocks: u32, cases: &str) -> Option<(Record, String)> {
    let dir = TempDir::new().unwrap();
    let length = format!(
        "{{blocks: {blocks}, most_entries: 2000, block_entries: 20, most_rounds: 20, \
         window_s: 0.5}}"
    );
    let text = format!(
        "schema: tollway.fabric-scenario/1\nname: small\npurpose: to see\ncases:\n{cases}\
         lengths:\n  quick: {length}\n  usual: {length}\n  full: {length}\n"
    );
    std::fs::write(dir.path().join("small.yaml"), text).unwrap();
    let _room = ROOM.read().unwrap_or_else(PoisonError::into_inner);
    let args = ["lab", "run", "small.yaml", "--quick", "--no-repeats", "--json", "record.json"];
    let output = tollway(&args, dir.path());
    if stderr(&output).contains("which needs root on the host") {
        return None;
    }
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(dir.path().join("record.json")).unwrap();
    Some((Record::from_json(&text).unwrap(), stdout(&output)))
}

#[test]
fn an_agent_begins_again_with_what_it_has() {
    let cases = "  - {name: restart, measure: restart, entries: [100, 2000]}\n";
    let Some((record, reported)) = run_cases(cases) else {
        skip!("tables of the kernel are not permitted")
    };
    let rounds: Vec<_> = record.fabric.iter().map(|row| row.round_us.n).collect();
    assert_eq!(rounds, [6, 6], "{reported}");
    for row in &record.fabric {
        stages(row, &[Stage::Received, Stage::Total]);
        assert!(row.stage(Stage::Programmed).is_none(), "{row:?}");
        assert!(row.rss_bytes["agent"] > 1_000_000 && row.rss_bytes["control"] > 1_000_000);
    }
}

#[test]
fn packets_are_forwarded_over_every_way() {
    let _ping = need_tool!("ping");
    let all = "[direct, xdp, xdp-generic, tc, kernel-bridge, kernel-routing]";
    let cases = format!(
        "  - {{name: ping, measure: ping, datapaths: [xdp, kernel-routing], table: 100}}\n  \
         - {{name: calls, measure: calls, datapaths: [direct, tc], table: 100}}\n  \
         - {{name: bulk, measure: bulk, datapaths: [xdp-generic, kernel-bridge], table: 100}}\n  \
         - {{name: packets, measure: packets, datapaths: {all}, table: 100, flows: 100}}\n"
    );
    let Some((record, reported)) = run_blocks(1, &cases) else {
        skip!("tables of the kernel are not permitted");
    };
    let datapaths = ["direct", "xdp", "xdp-generic", "tc", "kernel-bridge", "kernel-routing"];
    let mut expected = vec!["ping/xdp", "ping/kernel-routing", "calls/direct", "calls/tc"];
    expected.extend(["bulk/xdp-generic", "bulk/kernel-bridge"]);
    let packets = datapaths.map(|datapath| format!("packets/{datapath}"));
    expected.extend(packets.iter().map(String::as_str));
    assert_eq!(ids(&record), expected);
    for row in &record.rows {
        let (id, traffic) = (&row.conditions.id, &row.traffic);
        assert!(!row.is_silent(), "{id}");
        assert!(traffic.duration_s >= 0.4, "{id}: {traffic:?}");
        if row.is_packets() {
            assert_eq!((row.conditions.protocol, traffic.latency_us.n), (Protocol::Vxlan, 0));
            // The output is checked by the path's kind of counting. On a machine that is suspended
            // in between, a queue of the kernel's overflows.
            assert!(traffic.errors * 2 < traffic.requests, "{id}: {traffic:?}");
        } else if row.is_flow() {
            assert!(row.particulars.throughput.is_some(), "{id}");
        } else {
            assert!(traffic.latency_us.mean.unwrap() > 1.0, "{id}");
        }
    }
    let against = |baseline: &str| {
        let of = record.comparisons.iter().filter(|found| found.baseline_row == baseline);
        of.map(|found| (found.row.as_str(), found.metric)).collect::<Vec<_>>()
    };
    let ours = ["packets/xdp", "packets/xdp-generic", "packets/tc"];
    let expected = ours.map(|row| (row, Metric::TimePerPacket));
    assert_eq!(against("packets/kernel-bridge"), expected);
    assert_eq!(against("packets/direct").len(), 5);
    assert!(reported.contains("million/s"), "{reported}");
}

#[test]
fn neighbours_are_looked_up_by_agents() {
    let cases = "  - {name: get, measure: get, agents: [1, 20], table: 2000, rate_per_s: 300}\n  \
        - {name: max, measure: get, agents: [5], table: 2000}\n";
    let Some((record, reported)) = run_cases(cases) else {
        skip!("a network with a device of its own is not permitted");
    };
    assert_eq!(ids(&record), ["get/1", "get/20", "max/5"]);
    for row in &record.rows {
        let (id, traffic, own) = (&row.conditions.id, &row.traffic, &row.conditions);
        assert_eq!((own.tls, own.protocol), (Tls::Mtls, Protocol::GrpcUnary));
        assert!(traffic.requests > 100 && traffic.errors == 0, "{id}: {traffic:?}");
        assert!(row.cost.cpu_us_per_request["control"] > 0.0, "{id}");
        assert!(reported.contains(id), "{reported}");
    }
    assert_eq!(record.row("get/20").unwrap().conditions.connections, 20);
}

#[test]
fn many_agents_have_what_is_written() {
    let cases = "  - {name: fanout, measure: fanout, agents: [1, 10], table: 500}\n";
    let Some((record, reported)) = run_cases(cases) else {
        skip!("tables of the kernel are not permitted");
    };
    let rows: Vec<_> = record.fabric.iter().map(|row| &row.conditions).collect();
    assert_eq!([&*rows[0].id, &*rows[1].id], ["fanout/1", "fanout/10"]);
    assert_eq!((rows[1].agents, rows[1].table, rows[1].entries), (Some(10), Some(500), 1));
    for row in &record.fabric {
        stages(row, &[Stage::Written, Stage::Durable]);
        stages(row, &[Stage::Received, Stage::Total]);
        assert_eq!(row.round_us.n, 40, "{}", row.conditions.id);
    }
    assert!(reported.contains("10 agents have it in"), "{reported}");
}

#[test]
fn neighbours_move_at_a_rate() {
    let _etcd = need_tool!("etcd");
    let cases = "  - {name: churn, measure: churn, table: 1000, rate_per_s: 2000}\n  \
        - {name: over-etcd, measure: churn, table: 1000, rate_per_s: 2000, store: etcd}\n";
    let Some((record, reported)) = run_cases(cases) else {
        skip!("tables of the kernel are not permitted");
    };
    let ids: Vec<_> = record.fabric.iter().map(|row| &*row.conditions.id).collect();
    assert_eq!(ids, ["churn/2000", "over-etcd/2000"]);
    for row in &record.fabric {
        // Half a second has five rounds of 200, in each of two blocks.
        assert_eq!((row.conditions.entries, row.conditions.rate_per_s), (200, Some(2000.0)));
        assert_eq!((row.round_us.n, row.entry_us.unwrap().n), (10, 2000));
        stages(row, &[Stage::Written, Stage::Durable]);
        stages(row, &[Stage::Sent, Stage::Received, Stage::Programmed, Stage::Total]);
    }
    assert!(!record.fabric[0].cpu_us_per_entry.contains_key("etcd"));
    assert!(record.fabric[1].cpu_us_per_entry["etcd"] > 0.0);
    assert!(reported.contains("churn: percentiles"), "{reported}");
}
