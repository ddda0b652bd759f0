//! The scenario engine end to end, with real processes, links and load, around a stand-in for
//! the `tollway` binary: this program itself (see `stand_in`). What is measured is real; only
//! what is measured is small.
//!
//! A harness of its own, since the program must serve as the binary the lab starts.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic as its body may")]

mod stand_in;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tollway_lab::cross_network;
use tollway_lab::plan::{Placement, SubjectKind};
use tollway_lab::progress::{PlainProgress, Silent};
use tollway_lab::{Cancel, DemoOptions, Isolation, LabError};
use tollway_record::record::{LinkKind, Protocol, Question, Topology};
use tollway_record::{Record, Row};
use tollway_testkit::{skip, slow};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = stand_in::run(&args) {
        return code;
    }
    if let ["scenario", root] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return run_as_child(Path::new(root));
    }
    ISOLATION.set(Isolation::prepare()).expect("set once");
    let mut arguments = Arguments::from_args();
    // Each test measures; two at once would measure each other.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials()).exit_code()
}

fn trials() -> Vec<Trial> {
    vec![
        Trial::test("direct_rows_show_each_link_s_round_trip", direct_in_namespaces),
        Trial::test("the_mesh_s_processes_are_started_and_accounted_for", mesh_in_namespaces),
        Trial::test("loopback_measures_through_relays_and_says_so", direct_on_loopback),
        Trial::test("an_interrupt_cleans_up_and_the_next_run_works", interrupt_cleans_up),
        Trial::test("nothing_survives_a_killed_lab", kill_leaves_nothing),
        Trial::test("a_failing_part_is_named_and_its_log_kept", failure_keeps_logs),
        Trial::test("errors_of_the_app_are_counted_not_hidden", errors_are_counted),
    ]
}

/// What this process may do, found out once, while it still has a single thread.
static ISOLATION: OnceLock<Isolation> = OnceLock::new();

fn isolation() -> Isolation {
    ISOLATION.get().expect("set before any test runs").clone()
}

/// The best isolation there is here; ends the calling test as skipped if that is none.
macro_rules! need_namespaces {
    () => {
        match isolation() {
            Isolation::Namespaces => Isolation::Namespaces,
            Isolation::Loopback { reason } => skip!("{reason}"),
        }
    };
}

fn direct_in_namespaces() -> Result<(), Failed> {
    slow!();
    let dir = tempfile::tempdir()?;
    let mut options = options(dir.path(), need_namespaces!());
    options.workload.placements.push(placement(Topology::OtherRegion, 138_000));
    options.workload.budget = Duration::from_secs(16);
    // One in flight on each, with a lot of time to spare over the longest link.
    options.workload.connections = 64;
    let record = run(&options)?;
    let [same, near, far] = &record.rows[..] else { panic!("{} rows", record.rows.len()) };
    for (row, asked_ms) in [(near, 0.8), (far, 138.0)] {
        let link = row.conditions.link.as_ref().unwrap();
        // The shortest: on a busy machine the others wait for a processor, too.
        let shortest_ms = link.rtt_measured_us.min / 1e3;
        assert_eq!(link.kind, LinkKind::Tun);
        assert!((asked_ms..asked_ms + 0.6).contains(&shortest_ms), "{shortest_ms} ms");
        let added_ms = shortest_call_ms(row) - shortest_call_ms(same);
        assert!((asked_ms - 0.5..asked_ms + 2.0).contains(&added_ms), "{added_ms} ms");
        assert!(row.cost.cpu_us_per_request["link"] > 1.0);
    }
    for row in &record.rows {
        check_row(row, &options);
    }
    let added = |c: &&tollway_record::Comparison| c.question == Question::AddedByNetwork;
    assert!(record.comparisons.iter().filter(added).count() >= 2);
    check_against_schema(&record);
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn mesh_in_namespaces() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut options = options(dir.path(), need_namespaces!());
    options.workload.subjects.push(SubjectKind::Tollway);
    let record = run(&options)?;
    let ids: Vec<&str> = record.rows.iter().map(|row| row.conditions.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "same-network/http1/direct",
            "same-network/http1/tollway",
            "other-network/http1/direct",
            "other-network/http1/tollway"
        ]
    );
    for row in &record.rows {
        check_row(row, &options);
    }
    let remote = &record.rows[3];
    assert_eq!((remote.conditions.hops, record.rows[1].conditions.hops), (3, 2));
    for role in ["client-sidecar", "app-sidecar"] {
        assert!(remote.cost.cpu_us_per_request[role] > 1.0, "{role}");
        assert!(remote.cost.rss_bytes[role] > 100_000, "{role}");
    }
    for role in ["gateway", "control-planes", "link", "app", "load"] {
        assert!(remote.cost.cpu_us_per_request.contains_key(role), "{role}");
    }
    let added = |c: &&tollway_record::Comparison| c.question == Question::AddedByTollway;
    assert!(record.comparisons.iter().filter(added).count() >= 2);
    let tollway = record.subjects.iter().find(|subject| subject.name == "tollway").unwrap();
    let gateway = &tollway.config["near/gateway"];
    assert!(gateway.contains("--listen 10.201.0.2:15443"), "{gateway}");
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn direct_on_loopback() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let options = options(dir.path(), loopback());
    let record = run(&options)?;
    let [same, near] = &record.rows[..] else { panic!("{} rows", record.rows.len()) };
    let link = near.conditions.link.as_ref().unwrap();
    assert_eq!(link.kind, LinkKind::Relay);
    assert!((800.0..1_600.0).contains(&link.rtt_measured_us.min), "{:?}", link.rtt_measured_us);
    assert!(shortest_call_ms(near) >= shortest_call_ms(same) + 0.5);
    assert!(record.notes.iter().any(|note| note.contains("asked for")), "{:?}", record.notes);
    assert!(record.not_measured.iter().any(|left_out| left_out.contains("relay")));
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn interrupt_cleans_up() -> Result<(), Failed> {
    slow!();
    let dir = tempfile::tempdir()?;
    let mut child = start_as_child(dir.path());
    wait_until(|| processes_of(dir.path()) > 2);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let start = Instant::now();
    let status = child.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(nothing_left(dir.path()));
    run(&options(dir.path(), isolation()))?;
    Ok(())
}

fn kill_leaves_nothing() -> Result<(), Failed> {
    slow!();
    let dir = tempfile::tempdir()?;
    let mut child = start_as_child(dir.path());
    wait_until(|| processes_of(dir.path()) > 2);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until(|| processes_of(dir.path()) == 0);
    assert_eq!(fs::read_dir(dir.path())?.count(), 1, "a killed lab leaves its files");
    run(&options(dir.path(), isolation()))?;
    assert!(nothing_left(dir.path()), "and the next run removes them");
    Ok(())
}

fn failure_keeps_logs() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut options = options(dir.path(), loopback());
    options.binary = "/bin/false".into();
    let error = run(&options).unwrap_err();
    let LabError::Kept { logs, .. } = &error else { panic!("{error}") };
    assert!(logs.starts_with(dir.path()) && logs.is_dir());
    let text = error.to_string();
    assert!(text.contains("link/west-near ended with exit status: 1"), "{text}");
    assert!(text.contains(&logs.display().to_string()), "{text}");
    Ok(())
}

fn errors_are_counted() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut options = options(dir.path(), loopback());
    options.workload.placements.truncate(1);
    // The stand-in's echo refuses one request in ten of this size.
    options.workload.payload_bytes = stand_in::UNLUCKY_PAYLOAD_BYTES;
    let record = run(&options)?;
    let traffic = &record.rows[0].traffic;
    assert!(traffic.errors > 0 && traffic.requests > traffic.errors * 5, "{traffic:?}");
    assert_eq!(traffic.errors_by_kind["status-500"], traffic.errors);
    assert!(record.warnings.iter().any(|w| w.contains("same-network")), "{:?}", record.warnings);
    Ok(())
}

/// Two placements, HTTP/1.1, direct; two short blocks.
fn options(root: &Path, isolation: Isolation) -> DemoOptions {
    let mut options = DemoOptions::new(isolation, true).unwrap();
    let workload = &mut options.workload;
    workload.placements =
        vec![placement(Topology::SameNetwork, 0), placement(Topology::OtherNetwork, 800)];
    workload.protocols = vec![Protocol::Http1];
    workload.subjects = vec![SubjectKind::Direct];
    workload.rate_rps = 200;
    workload.connections = 8;
    workload.blocks = 2;
    workload.budget = Duration::from_secs(11);
    options.work_root = root.into();
    options
}

fn placement(topology: Topology, rtt_us: u64) -> Placement {
    Placement { topology, rtt: Duration::from_micros(rtt_us) }
}

fn loopback() -> Isolation {
    Isolation::Loopback { reason: "the test asked for it".into() }
}

fn run(options: &DemoOptions) -> Result<Record, LabError> {
    let started = Instant::now();
    let result = cross_network::run(options, &Cancel::new().unwrap(), &mut Silent);
    assert!(started.elapsed() < options.workload.budget + Duration::from_secs(4));
    result
}

/// The text that is written is what the published schema describes, and can be read back.
fn check_against_schema(record: &Record) {
    let text = record.to_json();
    let schema = include_str!("../../../../schema/tollway-lab-1.schema.json");
    let schema = serde_json::from_str(schema).unwrap();
    let value = serde_json::from_str(&text).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<String> = validator.iter_errors(&value).map(|f| f.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(Record::from_json(&text).unwrap().rows.len(), record.rows.len());
}

fn check_row(row: &Row, options: &DemoOptions) {
    let (id, traffic) = (&row.conditions.id, &row.traffic);
    let expected = f64::from(options.workload.rate_rps) * traffic.duration_s;
    assert_eq!(row.blocks.len(), 2, "{id}");
    assert_eq!(traffic.errors, 0, "{id}: {:?}", traffic.errors_by_kind);
    assert!((traffic.requests as f64 - expected).abs() <= expected * 0.05, "{id}");
    assert!(row.cost.cpu_us_per_request["app"] > 1.0, "{id}: {:?}", row.cost);
    assert!(row.cost.machine_cpu_us_per_request.unwrap() > row.cost.cpu_us_per_request["app"]);
    assert!(row.blocks.iter().all(|block| block.calibration_us.is_some()));
}

/// The one call that waited least for a processor.
fn shortest_call_ms(row: &Row) -> f64 {
    row.traffic.latencies().unwrap().min_ns().unwrap() as f64 / 1e6
}

fn start_as_child(root: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("scenario").arg(root).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The lab in a process of its own, as `tollway demo` runs it.
fn run_as_child(root: &Path) -> ExitCode {
    let options = options(root, Isolation::prepare());
    match tollway_lab::run_demo(&options, &mut PlainProgress) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is_cancelled() => ExitCode::from(130),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Running processes that were told of a file under `root`, apart from the lab itself.
fn processes_of(root: &Path) -> usize {
    let root = format!("{}/", root.display());
    let told = |entry: &fs::DirEntry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&root))
    };
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(told).count()
}

fn nothing_left(root: &Path) -> bool {
    processes_of(root) == 0 && fs::read_dir(root).unwrap().next().is_none()
}

fn wait_until(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "waited for 10 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}
