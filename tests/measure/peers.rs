//! Peers as subjects of the lab: real Envoy, HAProxy, nginx and Traefik, with real mutual TLS between them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tollway_testkit::{Process, Start, TempDir, need_tool, retry_until};
use tollway_tests::program;

/// Until everything of an experiment listens, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Until a whole experiment has ended.
const ENDED_WITHIN: Duration = Duration::from_secs(180);
/// Until what it started is gone after it.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Requests that each case must have answered.
const REQUESTS: u64 = 1_000;

const SCENARIO: &str = "schema: tollway.scenario/1\nname: peers\npurpose: one peer\nnetworks:\n  \
    - {name: west, topology: same-network}\nsubjects: [direct, SUBJECT]\ncases:\n  \
    - {name: http, protocol: http1, arrival: {open: {rate_rps: 1500}}, connections: 4, payload_bytes: 1024}\n\
    CASES\
    lengths:\n  quick: {blocks: 1, window_s: WINDOW}\n  usual: {blocks: 1, window_s: 1}\n  \
    full: {blocks: 1, window_s: 1}\n";
const GRPC: &str = "  - {name: grpc, protocol: grpc-unary, arrival: {open: {rate_rps: 1500}}, \
    connections: 4, payload_bytes: 1024}\n";
/// A pair that starts only where its authority answers, with the word that is in its folder.
const ASKS: &str = r#"schema: tollway.subject/1
name: asks
purpose: HAProxy that asks an authority
program: [haproxy]
version: [-v]
get: {apt: haproxy}
authority:
  program: [python3]
  process:
    command:
      ["{{program}}", -m, http.server, "{{listen_port}}", --bind, "{{listen_ip}}", --directory, "{{dir}}"]
    files: {word: hello}
texts:
  asks: |
    for word in "$(curl -s 'http://{{authority}}/word')" "$(cat '{{authority_dir}}/word')"; do
      [ "$word" = hello ] || exit 3
    done
    exec "$0" "$@"
  relay: |
    defaults
      mode tcp
      timeout connect 5s
      timeout client 1m
      timeout server 1m
    listen all
      bind {{listen}}
      server next {{upstream}}
variants:
  - name: pair
    purpose: bytes in plain text
    deployments:
      - protocols: [http1]
        between_tls: plain
        asks_authority: true
        app_side:
          command: [sh, -c, "{{asks}}", "{{program}}", -db, -f, "{{dir}}/haproxy.cfg"]
          files: {haproxy.cfg: "{{relay}}\n"}
        caller_side:
          command: [sh, -c, "{{asks}}", "{{program}}", -db, -f, "{{dir}}/haproxy.cfg"]
          files: {haproxy.cfg: "{{relay}}\n"}
"#;
const TLS: &str = "  - {name: tls, protocol: http1, tls: tls, arrival: closed, connections: 2, \
    payload_bytes: 1024, subjects: [SUBJECT]}\n  - {name: mtls, protocol: http1, tls: mtls, \
    arrival: closed, connections: 2, payload_bytes: 1024, subjects: [SUBJECT]}\n";

#[test]
fn haproxy_carries_both_protocols_over_mutual_tls() {
    let (program, curl) = (need_tool!("haproxy"), need_tool!("curl"));
    check_pair("haproxy", &program, &curl);
}

#[test]
fn nginx_carries_both_protocols_over_mutual_tls() {
    let (program, curl) = (need_tool!("nginx"), need_tool!("curl"));
    check_pair("nginx", &program, &curl);
}

#[test]
fn envoy_carries_both_protocols_over_mutual_tls() {
    let (program, curl) = (need_tool!("envoy"), need_tool!("curl"));
    check_pair("envoy", &program, &curl);
}

#[test]
fn traefik_carries_both_protocols_over_mutual_tls() {
    let (program, curl) = (need_tool!("traefik"), need_tool!("curl"));
    check_pair("traefik", &program, &curl);
}

#[test]
fn fronts_end_tls_and_mutual_tls() {
    let programs = [need_tool!("haproxy"), need_tool!("nginx"), need_tool!("envoy")];
    for (name, program) in ["haproxy", "nginx", "envoy"].into_iter().zip(&programs) {
        check_front(name, program);
    }
}

#[test]
fn traefik_ends_tls_and_mutual_tls() {
    check_front("traefik", &need_tool!("traefik"));
}

#[test]
fn the_other_shapes_of_haproxy_carry_their_protocols() {
    let program = need_tool!("haproxy");
    check_shapes(&program, &[("haproxy:h1", &["http"]), ("haproxy:tcp", &["http", "grpc"])]);
}

#[test]
fn the_other_shapes_of_traefik_carry_their_protocols() {
    let program = need_tool!("traefik");
    let only_http: &[&str] = &["http"];
    let bytes: &[&str] = &["http", "grpc"];
    let shapes = [("traefik:h2", only_http), ("traefik:fast", only_http), ("traefik:tcp", bytes)];
    check_shapes(&program, &shapes);
}

/// The description of a subject that the guide shows.
#[test]
fn the_guides_example_is_measured() {
    let program = need_tool!("nghttpx");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/subjects/nghttpx.yaml");
    let mut lab = Lab::start("nghttpx", "", &program, &[&file]);
    let rows = lab.rows();
    let row = row(&rows, "same-network/http/nghttpx");
    assert!(row["requests"].as_u64().unwrap() > 100, "{row}");
    assert_eq!((&row["errors"], &row["tls"]), (&0.into(), &"mtls".into()), "{row}");
    lab.assert_gone();
}

#[test]
fn an_authority_is_there_before_those_that_ask_it() {
    let (program, _, _) = (need_tool!("haproxy"), need_tool!("curl"), need_tool!("python3"));
    let files = TempDir::new().unwrap();
    let file = files.path().join("asks.yaml");
    fs::write(&file, ASKS).unwrap();
    let mut lab = Lab::start("asks", "", &program, &[&file]);
    let rows = lab.rows();
    let row = row(&rows, "same-network/http/asks");
    assert!(row["requests"].as_u64().unwrap() > 100, "{row}");
    assert_eq!((&row["errors"], &row["hops"]), (&0.into(), &2.into()), "{row}");
    // It works for no request, and is accounted apart.
    let cost = |role: &str| row["cpu_us_per_request"][role].as_f64().unwrap();
    assert!(cost("control-planes") < cost("client-sidecar").min(cost("app-sidecar")), "{row}");
    lab.assert_gone();
}

#[test]
fn a_missing_peer_is_left_out_with_how_to_get_it() {
    let files = TempDir::new().unwrap();
    let path = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let subject = path(
        "subject.yaml",
        "schema: tollway.subject/1\nname: ghost\npurpose: none\nprogram: [no-such-proxy]\n\
         get: {by_hand: \"ask somebody for it\"}\nvariants:\n  - name: one\n    purpose: one\n    \
         deployments:\n      - protocols: [http1]\n        app_side: {command: [x, \"{{listen}}\"]}\n",
    );
    let scenario = path("scenario.yaml", &scenario("ghost", ""));
    let tollway = |arguments: &[&str]| {
        let mut command = Command::new(program());
        let output = command.args(arguments).arg("--subject-file").arg(&subject).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let planned = tollway(&["lab", "run", scenario.to_str().unwrap(), "--dry-run"]);
    let reported = "ghost: no working program `no-such-proxy` was found; ask somebody for it";
    assert!(planned.contains(reported), "{planned}");
    let listed: Value = serde_json::from_str(&tollway(&["lab", "list", "--json"])).unwrap();
    let subjects = listed["subjects"].as_array().unwrap();
    let ghost = subjects.iter().find(|subject| subject["name"] == "ghost").unwrap();
    assert_eq!(
        (&ghost["available"], &ghost["how"]),
        (&false.into(), &"ask somebody for it".into())
    );
}

/// Measures a pair, and inspects it from outside meanwhile.
fn check_pair(name: &str, program: &Path, curl: &Path) {
    let mut lab = Lab::start(name, GRPC, program, &[]);
    let running_pair = lab.running_pair(name);
    running_pair.echoes_through_both(curl);
    running_pair.answers_only_the_callers_certificate(curl);
    let rows = lab.rows();
    for case in ["http", "grpc"] {
        let row = row(&rows, &format!("same-network/{case}/{name}"));
        assert!(row["requests"].as_u64().unwrap() >= REQUESTS, "{row}");
        assert_eq!(row["errors"], 0, "{name} {case}: {}", row["errors_by_kind"]);
        assert_eq!((&row["tls"], &row["hops"]), (&"mtls".into(), &2.into()));
        for role in ["client-sidecar", "app-sidecar"] {
            assert!(row["cpu_us_per_request"][role].as_f64().unwrap() > 1.0, "{role}: {row}");
            assert!(row["rss_bytes"][role].as_f64().unwrap() > 1e6, "{role}: {row}");
        }
    }
    let record = lab.record();
    let subjects = record["subjects"].as_array().unwrap();
    let subject = subjects.iter().find(|subject| subject["name"] == name).unwrap();
    assert!(subject["version"].as_str().unwrap().contains('.'), "{subject}");
    let config = subject["config"].to_string();
    assert!(config.contains(&format!("west/{name}-http1-to-west/{name}.")), "{config}");
    assert!(!config.contains("PRIVATE KEY"));
    lab.assert_gone();
}

/// Variants of a pair, each with the cases that it must carry.
fn check_shapes(program: &Path, shapes: &[(&str, &[&str])]) {
    for (subject, ids) in shapes {
        let cases = if ids.contains(&"grpc") { GRPC } else { "" };
        let mut lab = Lab::start(subject, cases, program, &[]);
        let rows = lab.rows();
        for id in *ids {
            let row = row(&rows, &format!("same-network/{id}/{subject}"));
            assert!(row["requests"].as_u64().unwrap() > 100, "{row}");
            assert_eq!((&row["errors"], &row["tls"]), (&0.into(), &"mtls".into()), "{row}");
        }
    }
}

/// Measures a front in plain text, with TLS and with mutual TLS.
fn check_front(name: &str, program: &Path) {
    let mut lab = Lab::start(&format!("{name}:front"), TLS, program, &[]);
    let rows = lab.rows();
    for case in ["http", "tls", "mtls"] {
        let row = row(&rows, &format!("same-network/{case}/{name}:front"));
        assert!(row["requests"].as_u64().unwrap() > 10, "{row}");
        assert_eq!(row["errors"], 0, "{name} {case}: {}", row["errors_by_kind"]);
        assert_eq!(row["tls"], if case == "http" { "plain" } else { case });
        assert_eq!(row["hops"], 1);
        // The app behind a front answers in plain text, so another of its processes does.
        for role in ["front", "app"] {
            assert!(row["cpu_us_per_request"][role].as_f64().unwrap() > 1.0, "{role}: {row}");
        }
    }
    lab.assert_gone();
}

/// A running experiment.
struct Lab {
    files: TempDir,
    process: Process,
}

impl Lab {
    fn start(subject: &str, cases: &str, peer: &Path, subject_files: &[&Path]) -> Self {
        let files = TempDir::new().unwrap();
        let scenario_file = files.path().join("scenario.yaml");
        fs::write(&scenario_file, scenario(subject, cases)).unwrap();
        fs::create_dir(files.path().join("work")).unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = peer.parent().map(PathBuf::from).into_iter();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path))).unwrap();
        let start = Start::new(program())
            .args(["lab", "run"])
            .arg(&scenario_file)
            .args(["--quick", "--loopback", "--no-repeats", "--json"])
            .arg(files.path().join("record.json"))
            .env("TMPDIR", files.path().join("work"))
            .env("PATH", path);
        let start = subject_files.iter().fold(start, |s, file| s.arg("--subject-file").arg(file));
        Self { process: start.start().unwrap(), files }
    }

    /// Its working directory, and where the pair for HTTP/1.1 listens.
    fn running_pair(&self, name: &str) -> RunningPair {
        let found = retry_until(STARTED_WITHIN, "the pair listening", || {
            let dir = fs::read_dir(self.files.path().join("work")).ok()?.next()?.ok()?.path();
            let listener = |process: &str| -> Option<SocketAddr> {
                let text = fs::read_to_string(dir.join(format!("{process}.ports.json"))).ok()?;
                let ports: Value = serde_json::from_str(&text).ok()?;
                ports["listen"].as_str()?.parse().ok()
            };
            let caller = listener(&format!("west-{name}-http1-to-west"))?;
            let app = listener(&format!("west-{name}-http1"))?;
            Some(RunningPair {
                certificates: dir.join(format!("{name}-certificates")),
                caller,
                app,
            })
        });
        found.unwrap_or_else(|error| panic!("{error}:\n{}", self.process.log()))
    }

    fn record(&mut self) -> Value {
        let status = self.process.wait(ENDED_WITHIN).unwrap();
        assert!(status.success(), "{status}: {}", self.process.log());
        let text = fs::read_to_string(self.files.path().join("record.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn rows(&mut self) -> Vec<Value> {
        self.record()["rows"].as_array().unwrap().clone()
    }

    /// Every command line of what it started names its working directory.
    fn assert_gone(&self) {
        let work = self.files.path().join("work");
        let left = || {
            let lines = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
            let lines = lines.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
            let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
            lines.find(|line| line.contains(work.to_str().unwrap()))
        };
        let gone = retry_until(GONE_WITHIN, "the end of all", || left().is_none().then_some(()));
        assert!(gone.is_ok(), "still running: {:?}", left());
        assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "files are left");
    }
}

/// A pair that carries HTTP/1.1.
struct RunningPair {
    certificates: PathBuf,
    caller: SocketAddr,
    app: SocketAddr,
}

impl RunningPair {
    /// What is sent comes back as it was.
    fn echoes_through_both(&self, curl: &Path) {
        let sent: Vec<u8> =
            (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let file = self.certificates.join("sent");
        fs::write(&file, &sent).unwrap();
        let mut command = Command::new(curl);
        command.args(["-sS", "--max-time", "20", "--data-binary"]);
        command.arg(format!("@{}", file.display()));
        let output = command.arg(format!("http://{}/echo", self.caller)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == sent, "{} bytes came back, or others", output.stdout.len());
    }

    /// The app's side answers the caller's certificate and no other.
    fn answers_only_the_callers_certificate(&self, curl: &Path) {
        let file = |name: &str| self.certificates.join(name);
        let own = (file("client.west.pem"), file("client.west.key"));
        assert_eq!(self.status(curl, Some(&own)), "200");
        let forged =
            rcgen::generate_simple_self_signed(["client.default.west.mesh".into()]).unwrap();
        let foreign = (file("foreign.pem"), file("foreign.key"));
        fs::write(&foreign.0, forged.cert.pem()).unwrap();
        fs::write(&foreign.1, forged.signing_key.serialize_pem()).unwrap();
        // nginx ends the handshake and refuses the request; the others end the connection.
        for refused in [self.status(curl, Some(&foreign)), self.status(curl, None)] {
            assert!(["000", "400"].contains(&refused.as_str()), "{refused}");
        }
    }

    /// The status with which the app's side answers over TLS, `000` where it does not.
    fn status(&self, curl: &Path, own: Option<&(PathBuf, PathBuf)>) -> String {
        let (name, address) = ("echo.default.west.mesh", self.app);
        let mut command = Command::new(curl);
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20"]);
        command.args(["--resolve", &format!("{name}:{}:{}", address.port(), address.ip())]);
        command.arg("--cacert").arg(self.certificates.join("roots.pem"));
        if let Some((certificate, key)) = own {
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        let output =
            command.arg(format!("https://{name}:{}/echo", address.port())).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Pairs are called long enough for [`REQUESTS`]; the rest shows that it works at all.
fn scenario(subject: &str, cases: &str) -> String {
    let window = if cases == GRPC { "1" } else { "0.3" };
    let filled = SCENARIO.replace("CASES", cases).replace("WINDOW", window);
    filled.replace("SUBJECT", &format!("\"{subject}\""))
}

fn row<'a>(rows: &'a [Value], id: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["id"] == id);
    found.unwrap_or_else(|| panic!("no row {id} in {rows:#?}"))
}
