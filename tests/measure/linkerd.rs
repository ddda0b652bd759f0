//! linkerd2-proxy as a subject of the lab: the real one, where it is installed, in namespaces with
//! redirected connections.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollway_lab::experiment::Ground;
use tollway_lab::progress::{Progress, Silent};
use tollway_lab::scenario::Scenario;
use tollway_lab::subject::{
    Availability, Catalogue, Direct, HOME, Leg, Linkerd, StartedSubject, Subject, SubjectKind,
    Variant,
};
use tollway_lab::{Cancel, Experiment, ExperimentOptions, Isolation, LabError};
use tollway_record::Record;
use tollway_record::record::Tls;
use tollway_testkit::{TempDir, retry_until, skip};
use tollway_tests::program;

/// Until the proxies have their certificates, and until all is gone after an experiment.
const SOON: Duration = Duration::from_secs(30);
/// Until a listener sends something, or closes.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The witness starts after the proxies, and reads them before any run.
const SCENARIO: &str = "schema: tollway.scenario/1\nname: linkerd\npurpose: one peer\nnetworks:\n  \
    - {name: west, topology: same-network}\n  \
    - {name: near, topology: other-network, link: {rtt_us: 800}}\n\
    subjects: [direct, linkerd, witness]\ncases:\n  \
    - {name: http, protocol: http1, arrival: {open: {rate_rps: 1000}}, connections: 4, \
    payload_bytes: 1024, networks: [west, near]}\n  \
    - {name: grpc, protocol: grpc-unary, arrival: {open: {rate_rps: 1000}}, connections: 4, \
    payload_bytes: 1024}\n  \
    - {name: h2, protocol: http2, arrival: {open: {rate_rps: 1000}}, connections: 4, \
    payload_bytes: 1024}\n  \
    - {name: tcp, protocol: tcp, arrival: closed, connections: 4, payload_bytes: 1024}\n\
    lengths:\n  quick: {blocks: 1, window_s: 1}\n  usual: {blocks: 1, window_s: 1}\n  \
    full: {blocks: 1, window_s: 1}\n";

#[test]
fn linkerd_carries_all_protocols_over_mutual_tls_and_refuses_strangers() {
    if let Availability::Missing { why, how, .. } = Linkerd::default().availability() {
        skip!("{why}; {how}");
    }
    let isolation = match Isolation::prepare() {
        Isolation::Namespaces => Isolation::Namespaces,
        Isolation::Loopback { reason } => skip!("{reason}"),
    };
    let work = TempDir::new().unwrap();
    let seen = Arc::new(Mutex::new(None));
    let catalogue = Catalogue::built_in().with(Box::new(Witness(Arc::clone(&seen))));
    let experiment = experiment(work.path(), isolation, &catalogue);
    let left_out = experiment.preview(&catalogue).unwrap().left_out;
    if let Some(why) = left_out.iter().find(|line| line.starts_with("linkerd: ")) {
        skip!("{why}");
    }
    let record = experiment.run_until(&catalogue, &Cancel::new().unwrap(), &mut Silent).unwrap();
    check_rows(&record);
    check_config(&record);
    let seen = seen.lock().unwrap().take().unwrap();
    assert_eq!(seen.stranger, "", "a caller without a certificate was answered");
    for half in ["direction=\"inbound\"", "direction=\"outbound\""] {
        let connections: Vec<&str> = seen.lines(half, "tcp_open_total").collect();
        let secured = connections.iter().filter(|line| line.contains("tls=\"true\""));
        assert!(secured.count() > 0, "{connections:#?}");
    }
    let caller = "client_id=\"spiffe://west.tollway/ns/default/client\"";
    let app = "server_id=\"spiffe://west.tollway/ns/default/echo\"";
    for identity in [caller, app] {
        assert!(seen.metrics.contains(identity), "no {identity} in {}", seen.metrics);
    }
    assert_gone(work.path());
}

#[test]
fn without_namespaces_linkerd_is_left_out_with_the_reason() {
    if let Availability::Missing { why, how, .. } = Linkerd::default().availability() {
        skip!("{why}; {how}");
    }
    let work = TempDir::new().unwrap();
    let catalogue = Catalogue::built_in().with(Box::new(Witness(Arc::default())));
    let isolation = Isolation::Loopback { reason: "the test asked for it".into() };
    let left_out =
        experiment(work.path(), isolation, &catalogue).preview(&catalogue).unwrap().left_out;
    let reported = "linkerd: it needs network namespaces, in which connections are redirected to it: the test asked for it";
    assert!(left_out.iter().any(|line| line == reported), "{left_out:#?}");
}

fn experiment(work: &Path, isolation: Isolation, catalogue: &Catalogue) -> Experiment {
    let scenario: Scenario = serde_saphyr::from_str(SCENARIO).unwrap();
    assert_eq!(scenario.check(catalogue), []);
    let mut options = ExperimentOptions::new(isolation).unwrap();
    options.binary = program().into();
    options.work_root = work.into();
    options.gate = options.gate.without_repeats();
    Experiment { scenario: scenario.into(), text: SCENARIO.to_owned(), options }
}

fn check_rows(record: &Record) {
    let same = ["http", "grpc", "h2", "tcp"].map(|case| format!("same-network/{case}"));
    for id in same.into_iter().chain(["other-network/http".to_owned()]) {
        let row = record.row(&format!("{id}/linkerd"));
        let row = row.unwrap_or_else(|| panic!("no row {id}"));
        assert!(row.traffic.requests > 100, "{id}: {}", row.traffic.requests);
        assert_eq!(row.traffic.errors, 0, "{id}: {:?}", row.traffic.errors_by_kind);
        assert_eq!((row.conditions.tls, row.conditions.hops), (Tls::Mtls, 2), "{id}");
        for role in ["client-sidecar", "app-sidecar"] {
            assert!(row.cost.cpu_us_per_request[role] > 1.0, "{id}: {role}");
        }
    }
}

/// The report has all that was configured, and no key.
fn check_config(record: &Record) {
    let subject = record.subjects.iter().find(|subject| subject.name == "linkerd").unwrap();
    assert!(subject.version.contains('.'), "{}", subject.version);
    let config = format!("{:?}", subject.config);
    for part in [
        "west/linkerd-client/environment",
        "near/linkerd-app/environment",
        "near/linkerd-control/knowledge",
        "west/linkerd-redirect/rules",
        "LINKERD2_PROXY_CORES=1",
    ] {
        assert!(config.contains(part), "no {part} in {config}");
    }
    assert!(!config.contains("PRIVATE KEY") && !config.contains("tollway1."), "{config}");
}

/// Command lines or environments name the working directory of what was started in it.
fn assert_gone(work: &Path) {
    let name = work.to_str().unwrap();
    let left = || {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let mut files = processes.flat_map(|p| ["cmdline", "environ"].map(|f| p.path().join(f)));
        files.find(|file| {
            fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(name))
        })
    };
    let gone = retry_until(SOON, "the end of all", || left().is_none().then_some(()));
    assert!(gone.is_ok(), "still running: {:?}", left());
    assert_eq!(fs::read_dir(work).unwrap().count(), 0, "files are left");
}

/// What the witness saw.
struct Seen {
    /// Metrics of both proxies of the caller's network.
    metrics: String,
    /// What the app's proxy answered a caller in plain text.
    stranger: String,
}

impl Seen {
    fn lines<'a>(&'a self, label: &'a str, metric: &'a str) -> impl Iterator<Item = &'a str> {
        self.metrics.lines().filter(move |line| line.starts_with(metric) && line.contains(label))
    }
}

/// A second `direct`; when it is started, it reads the proxies that were started before it.
struct Witness(Arc<Mutex<Option<Seen>>>);

const WITNESS: &[Variant] = &[Variant::known("usual", "looks on")];

impl SubjectKind for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn purpose(&self) -> &'static str {
        "to look at another subject"
    }

    fn variants(&self) -> &[Variant] {
        WITNESS
    }

    fn availability(&self) -> Availability {
        Availability::Ready { version: String::new() }
    }

    fn make(&self, _: &Variant) -> Box<dyn Subject> {
        Box::new(Self(Arc::clone(&self.0)))
    }
}

impl Subject for Witness {
    fn carries(&self, leg: &Leg) -> Result<(), String> {
        Direct.carries(leg)
    }

    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        progress: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError> {
        let listener = |part: &str, name: &str| -> SocketAddr {
            let path = ground.ports_path(&ground.process(HOME, part));
            tollway_net::ports_file::read(&path).unwrap().unwrap()[name]
        };
        let proxies = ["linkerd-client", "linkerd-app"];
        let admins = proxies.map(|part| listener(part, "admin"));
        let inbound = listener("linkerd-app", "listen");
        let service = SocketAddr::new(ground.network(HOME).address, 8_080);
        let look = || {
            let called = || {
                let answer = asked(service, "POST /echo").unwrap_or_default();
                (answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello")).then_some(())
            };
            retry_until(SOON, "an answer through both proxies", called).unwrap();
            let metrics = admins.map(|admin| asked(admin, "GET /metrics").unwrap()).concat();
            // The connection may also be ended by a reset.
            let stranger = asked(inbound, "POST /echo").unwrap_or_default();
            Seen { metrics, stranger }
        };
        *self.0.lock().unwrap() = Some(ground.network(HOME).run(look).unwrap());
        Direct.start(ground, legs, progress)
    }
}

/// Sends a request in plain text; all that comes until the end.
fn asked(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let head = "host: echo\r\ncontent-length: 5\r\nconnection: close";
    write!(stream, "{request} HTTP/1.1\r\n{head}\r\n\r\nhello")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
