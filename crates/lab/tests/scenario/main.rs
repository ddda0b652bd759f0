//! The scenario engine end to end, with real processes, links and load, around a stand-in for the
//! `tollway` binary: this program itself (see `stand_in`). Measurements are real, only small.
//!
//! A harness of its own, since the program must serve as the binary the lab starts.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic as its body may")]

mod stand_in;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tollway_lab::experiment::{Ground, READY_LIMIT};
use tollway_lab::progress::{Event, PlainProgress, Progress, Silent};
use tollway_lab::scenario::Scenario;
use tollway_lab::subject::{
    Availability, Catalogue, HOME, Leg, Listener, Route, StartedSubject, Subject, SubjectKind,
    SubjectName, Variant, direct_url,
};
use tollway_lab::{Cancel, Experiment, ExperimentOptions, Isolation, LabError};
use tollway_record::record::{LinkKind, Protocol, Question};
use tollway_record::{Record, Row};
use tollway_testkit::{skip, slow};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = stand_in::run(&args) {
        return code;
    }
    if let ["resumable", root] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return run_resumable(Path::new(root));
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
        Trial::test("a_network_without_links_has_an_address_of_its_own", one_network),
        Trial::test("a_killed_experiment_goes_on_where_it_was", killed_experiment_resumes),
        Trial::test(
            "an_interrupted_experiment_names_the_command_that_resumes_it",
            interrupted_names_the_command,
        ),
        Trial::test("a_subject_of_another_make_is_measured_like_ours", another_subject),
        Trial::test("a_missing_subject_is_left_out_with_how_to_get_it", missing_subject),
        Trial::test("processes_are_started_anew_for_each_block_where_asked", fresh_processes),
        Trial::test("an_unknown_subject_is_refused_by_name", unknown_subject),
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
    let far = "  - {name: far, topology: other-region, link: {rtt_us: 138000}}\nsubjects";
    // One in flight on each, with a lot of time to spare over the longest link.
    let text = TWO_NETWORKS.replace("subjects", far).replace("near]", "near, far]");
    let text = text.replace("connections: 8", "connections: 64");
    let experiment = experiment(&text, dir.path(), need_namespaces!());
    let record = run(&experiment)?;
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
        check_row(row);
    }
    let added = |c: &&tollway_record::Comparison| c.question == Question::AddedByNetwork;
    assert!(record.comparisons.iter().filter(added).count() >= 2);
    check_against_schema(&record);
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn mesh_in_namespaces() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let text = TWO_NETWORKS.replace("[direct]", "[direct, floor, tollway]");
    let record = run(&experiment(&text, dir.path(), need_namespaces!()))?;
    let ids: Vec<&str> = record.rows.iter().map(|row| row.conditions.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "same-network/http1/direct",
            "same-network/http1/floor",
            "same-network/http1/tollway",
            "other-network/http1/direct",
            "other-network/http1/floor",
            "other-network/http1/tollway"
        ]
    );
    for row in &record.rows {
        check_row(row);
    }
    let (floor, remote) = (&record.rows[4], &record.rows[5]);
    assert_eq!((remote.conditions.hops, record.rows[2].conditions.hops), (3, 2));
    for role in ["near-relay", "far-relay"] {
        assert!(floor.cost.cpu_us_per_request[role] > 1.0, "{role}");
    }
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
    let experiment = experiment(TWO_NETWORKS, dir.path(), loopback());
    let record = run(&experiment)?;
    let [same, near] = &record.rows[..] else { panic!("{} rows", record.rows.len()) };
    let link = near.conditions.link.as_ref().unwrap();
    assert_eq!(link.kind, LinkKind::Relay);
    assert!((800.0..1_600.0).contains(&link.rtt_measured_us.min), "{:?}", link.rtt_measured_us);
    assert!(shortest_call_ms(near) >= shortest_call_ms(same) + 0.5);
    assert!(
        record.notes.iter().any(|note| note.contains("were not possible")),
        "{:?}",
        record.notes
    );
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
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(nothing_left(dir.path()));
    run(&experiment(TWO_NETWORKS, dir.path(), isolation()))?;
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
    run(&experiment(TWO_NETWORKS, dir.path(), isolation()))?;
    assert!(nothing_left(dir.path()), "and the next run removes them");
    Ok(())
}

fn failure_keeps_logs() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut experiment = experiment(TWO_NETWORKS, dir.path(), loopback());
    experiment.options.binary = "/bin/false".into();
    let error = run(&experiment).unwrap_err();
    let LabError::Failed { logs, .. } = &error else { panic!("{error}") };
    assert!(logs.starts_with(dir.path()) && logs.is_dir());
    let text = error.to_string();
    assert!(text.contains("link/west-near ended with exit status: 1"), "{text}");
    assert!(text.contains(&logs.display().to_string()), "{text}");
    Ok(())
}

fn errors_are_counted() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    // The stand-in's echo refuses one request in ten of this size.
    let unlucky = format!("payload_bytes: {}", stand_in::UNLUCKY_PAYLOAD_BYTES);
    let text = TWO_NETWORKS.replace("payload_bytes: 1024", &unlucky).replace("west, near", "west");
    let record = run(&experiment(&text, dir.path(), loopback()))?;
    let traffic = &record.rows[0].traffic;
    assert!(traffic.errors > 0 && traffic.requests > traffic.errors * 5, "{traffic:?}");
    assert_eq!(traffic.errors_by_kind["status-500"], traffic.errors);
    assert!(record.warnings.iter().any(|w| w.contains("same-network")), "{:?}", record.warnings);
    Ok(())
}

fn one_network() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let text = TWO_NETWORKS.replace("west, near", "west").replace("[direct]", "[direct, tollway]");
    let (before, after) = text.split_once("  - {name: near").unwrap();
    let text = format!("{before}{}", after.split_once('\n').unwrap().1);
    let record = run(&experiment(&text, dir.path(), need_namespaces!()))?;
    assert_eq!(record.rows.len(), 2);
    record.rows.iter().for_each(check_row);
    let control = &record.subjects[1].config["west/control"];
    assert!(control.contains("--listen 10.201.0.1:0"), "{control}");
    Ok(())
}

fn killed_experiment_resumes() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut child = child_of("resumable", dir.path());
    let journal = || {
        let folder = fs::read_dir(dir.path()).unwrap().next()?.unwrap().path();
        let text = fs::read_to_string(folder.join("journal")).ok()?;
        // The header, and two finished runs.
        (text.lines().count() >= 3).then_some((folder, text))
    };
    wait_until(|| journal().is_some());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until(|| processes_of(dir.path()) == 0);
    // A later experiment removes what killed ones left, but not what can go on.
    run(&experiment(TWO_NETWORKS, dir.path(), loopback()))?;
    let (folder, before) = journal().unwrap();
    let experiment = experiment(TWO_NETWORKS, dir.path(), loopback());
    let record = experiment.resume(&folder, &Catalogue::built_in(), &mut Silent)?;
    assert_eq!(record.rows.len(), 2);
    let runs = before.lines().count() - 1;
    assert!(
        record.warnings.iter().any(|w| w.starts_with(&format!("{runs} runs were made before"))),
        "{:?}",
        record.warnings
    );
    for row in &record.rows {
        assert_eq!(row.blocks.iter().map(|b| b.block).collect::<Vec<_>>(), [0, 1]);
    }
    check_against_schema(&record);
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn interrupted_names_the_command() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let experiment = experiment(TWO_NETWORKS, dir.path(), loopback());
    let cancel = Cancel::new()?;
    let mut progress = CancelAfterFirstRun(cancel.clone());
    let error = experiment.run_until(&Catalogue::built_in(), &cancel, &mut progress).unwrap_err();
    let LabError::Interrupted { dir: folder, .. } = &error else { panic!("{error}") };
    assert!(error.is_cancelled());
    let reported = format!("go on with: tollway lab run --resume {}", folder.display());
    assert!(error.to_string().ends_with(&reported), "{error}");
    let left: Vec<_> = fs::read_dir(folder)?.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["journal"]);
    assert_eq!(processes_of(dir.path()), 0);
    Ok(())
}

fn another_subject() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let text = TWO_NETWORKS.replace("[direct]", "[direct, fake]");
    let catalogue = Catalogue::built_in().with(Box::new(Fake { ready: true }));
    let experiment = experiment_of(&text, &catalogue, dir.path(), loopback());
    let record = experiment.run_until(&catalogue, &Cancel::new()?, &mut Silent)?;
    let ids: Vec<&str> = record.rows.iter().map(|row| row.conditions.id.as_str()).collect();
    let places = ["same-network/http1", "other-network/http1"];
    assert_eq!(ids, places.map(|p| [format!("{p}/direct"), format!("{p}/fake")]).concat());
    record.rows.iter().for_each(check_row);
    let fake = &record.rows[3];
    assert_eq!((fake.conditions.hops, fake.conditions.variant.as_str()), (1, "stand-in"));
    assert!(fake.cost.cpu_us_per_request["fake-proxy"] > 1.0, "{:?}", fake.cost);
    let against = |c: &&tollway_record::Comparison| c.question == Question::AgainstBaseline;
    assert!(record.comparisons.iter().filter(against).count() >= 2);
    let subject = &record.subjects[1];
    assert_eq!((subject.name.as_str(), subject.version.as_str()), ("fake", "1.2.3"));
    assert_eq!(subject.config["fake.conf"], "forward everything");
    assert!(subject.config.contains_key("near/fake"), "{:?}", subject.config.keys());
    assert!(nothing_left(dir.path()));
    Ok(())
}

fn missing_subject() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let text = TWO_NETWORKS.replace("[direct]", "[direct, fake]").replace("west, near", "west");
    let catalogue = Catalogue::built_in().with(Box::new(Fake { ready: false }));
    let experiment = experiment_of(&text, &catalogue, dir.path(), loopback());
    let record = experiment.run_until(&catalogue, &Cancel::new()?, &mut Silent)?;
    assert_eq!(record.rows.len(), 1);
    let reported = "fake: it is not installed; look for it at the market".to_owned();
    assert!(record.not_measured.contains(&reported), "{:?}", record.not_measured);
    Ok(())
}

fn fresh_processes() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let text = TWO_NETWORKS.replace("[direct]", "[fake]").replace("west, near", "west");
    let text = text.replace("lengths:", "start: per_block\nlengths:");
    let catalogue = Catalogue::built_in().with(Box::new(Fake { ready: true }));
    let mut experiment = experiment_of(&text, &catalogue, dir.path(), loopback());
    experiment.options.binary = std::env::current_exe()?;
    STARTED.store(0, Ordering::Relaxed);
    let record = experiment.run_until(&catalogue, &Cancel::new()?, &mut Silent)?;
    assert_eq!(record.rows[0].blocks.len(), 2);
    assert_eq!(STARTED.load(Ordering::Relaxed), 2, "once for each of two blocks");
    Ok(())
}

/// How often the fake was started.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// A subject that is not built in: one forwarder at the app.
struct Fake {
    ready: bool,
}

const FAKE: &[Variant] = &[Variant::known("usual", "forwards")];

impl SubjectKind for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn purpose(&self) -> &str {
        "to test the contract"
    }

    fn variants(&self) -> &[Variant] {
        FAKE
    }

    fn availability(&self) -> Availability {
        if self.ready {
            return Availability::Ready { version: "1.2.3".into() };
        }
        Availability::Missing {
            why: "it is not installed".into(),
            how: "look for it at the market".into(),
            install: Vec::new(),
        }
    }

    fn make(&self, _: &Variant) -> Box<dyn Subject> {
        Box::new(Fake { ready: self.ready })
    }
}

impl Subject for Fake {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        (leg.protocol == Protocol::Http1).then_some(()).ok_or_else(|| "HTTP/1.1 only".into())
    }

    fn published(&self, _: &str) -> Vec<Listener> {
        vec![Listener { name: "fake".into(), process: "fake".into(), port: "entry" }]
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        _: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        STARTED.fetch_add(1, Ordering::Relaxed);
        let config = [("fake.conf".to_owned(), "forward everything".to_owned())].into();
        let mut started = StartedSubject { config, ..StartedSubject::default() };
        for leg in legs {
            let name = ground.process(leg.network, "fake");
            let listener = ground.free_port(leg.network, false)?;
            let app = ground.app(leg.network, leg)?;
            let program = ground.commands().program.clone();
            let spec = ground.spec(leg.network, "fake", &program);
            ground.start(&spec.args(["forward", &listener.to_string(), &app.to_string()]))?;
            let listeners = [("entry".to_owned(), listener)].into();
            ground.wait_listening(&name, leg.network, &listeners, READY_LIMIT)?;
            let address = ground.published(HOME, leg.network, "fake")?;
            let route = Route {
                url: direct_url(leg.protocol, leg.tls, address),
                headers: Vec::new(),
                caller_tls: None,
                cgroup: None,
                hops: 1,
                tls: leg.tls,
                app_tls: leg.tls,
                made_of: "stand-in".into(),
                roles: [("fake-proxy".to_owned(), vec![name.clone()])].into(),
            };
            started.processes.push(name);
            started.routes.insert(*leg, route);
        }
        Ok(started)
    }
}

fn unknown_subject() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let mut experiment = experiment(TWO_NETWORKS, dir.path(), loopback());
    experiment.options.subjects = Some(vec![SubjectName::parse("tolway")]);
    let error = experiment.preview(&Catalogue::built_in()).unwrap_err().to_string();
    assert_eq!(
        error,
        "no subject is called tolway; known are direct, floor, tollway, dapr, envoy, haproxy, \
         linkerd, nginx, traefik"
    );
    Ok(())
}

/// Ends an experiment as Ctrl-C would.
struct CancelAfterFirstRun(Cancel);

impl Progress for CancelAfterFirstRun {
    fn report(&mut self, event: &Event<'_>) {
        if let Event::Run { done: 2, .. } = event {
            self.0.cancel();
        }
    }
}

/// Requests per second of [`TWO_NETWORKS`].
const RATE_RPS: f64 = 200.0;

/// HTTP/1.1 in two networks, direct; two short blocks.
const TWO_NETWORKS: &str = "\
schema: tollway.scenario/1
name: two-networks
purpose: to test the engine
networks:
  - {name: west, topology: same-network}
  - {name: near, topology: other-network, link: {rtt_us: 800}}
subjects: [direct]
cases:
  - name: http1
    protocol: http1
    arrival: {open: {rate_rps: 200}}
    connections: 8
    payload_bytes: 1024
    networks: [west, near]
lengths:
  quick: {blocks: 2, window_s: 0.8}
  usual: {blocks: 2, window_s: 0.8}
  full: {blocks: 2, window_s: 0.8}
";

fn experiment(text: &str, root: &Path, isolation: Isolation) -> Experiment {
    experiment_of(text, &Catalogue::built_in(), root, isolation)
}

fn experiment_of(
    text: &str,
    catalogue: &Catalogue,
    root: &Path,
    isolation: Isolation,
) -> Experiment {
    let scenario: Scenario = serde_saphyr::from_str(text).unwrap();
    assert_eq!(scenario.check(catalogue), []);
    let mut options = ExperimentOptions::new(isolation).unwrap();
    options.work_root = root.into();
    // The machine that tests run on is rarely quiet.
    options.gate = options.gate.without_repeats();
    Experiment { scenario: scenario.into(), text: text.to_owned(), options }
}

fn loopback() -> Isolation {
    Isolation::Loopback { reason: "the test asked for it".into() }
}

fn run(experiment: &Experiment) -> Result<Record, LabError> {
    let catalogue = Catalogue::built_in();
    let record = experiment.run_until(&catalogue, &Cancel::new().unwrap(), &mut Silent)?;
    let expected = experiment.preview(&catalogue)?.expected;
    assert!(record.duration_s < expected.as_secs_f64() + 6.0, "{} s", record.duration_s);
    Ok(record)
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

fn check_row(row: &Row) {
    let (id, traffic) = (&row.conditions.id, &row.traffic);
    let expected = RATE_RPS * traffic.duration_s;
    assert_eq!(row.blocks.len(), 2, "{id}");
    assert_eq!(traffic.errors, 0, "{id}: {:?}", traffic.errors_by_kind);
    assert!((traffic.requests as f64 - expected).abs() <= expected * 0.05, "{id}");
    assert!(row.cost.cpu_us_per_request["app"] > 1.0, "{id}: {:?}", row.cost);
    let machine = row.cost.machine_cpu_us_per_request.unwrap();
    assert!(machine >= row.cost.cpu_us_per_request["app"], "{id}: {:?}", row.cost);
    assert!(row.blocks.iter().all(|block| block.calibration_us.is_some()));
}

/// The one call that waited least for a processor.
fn shortest_call_ms(row: &Row) -> f64 {
    row.traffic.latencies().unwrap().min_ns().unwrap() as f64 / 1e6
}

fn start_as_child(root: &Path) -> std::process::Child {
    child_of("scenario", root)
}

fn child_of(role: &str, root: &Path) -> std::process::Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(role).arg(root).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The lab in a process of its own, as `tollway demo` runs it.
fn run_as_child(root: &Path) -> ExitCode {
    let mut experiment = experiment(TWO_NETWORKS, root, Isolation::prepare());
    experiment.options.resumable = false;
    match experiment.run(&Catalogue::built_in(), &mut PlainProgress) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is_cancelled() => ExitCode::from(130),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run_resumable(root: &Path) -> ExitCode {
    let experiment = experiment(TWO_NETWORKS, root, loopback());
    match experiment.run(&Catalogue::built_in(), &mut PlainProgress) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Running processes with a file under `root` in their arguments, apart from the lab itself.
fn processes_of(root: &Path) -> usize {
    let root = format!("{}/", root.display());
    let reported = |entry: &fs::DirEntry| {
        fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&root))
    };
    fs::read_dir("/proc").unwrap().filter_map(Result::ok).filter(reported).count()
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
