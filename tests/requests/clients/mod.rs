//! Calls across two networks by foreign clients.

mod grpcgo;
mod grpcio;
mod interop;

use std::path::Path;
use std::process::Command;

use tollway_testkit::{TempDir, need_tool};
use tollway_tests::mesh::{App, AppProtocol, Mesh, Sidecar};

const SERVICE: &str = "echo.default.east";
const APP_ID: &str = "dapr-app-id: echo.default.east";

#[test]
fn curl_calls_over_both_versions_and_through_the_outbound_proxy() {
    let curl = need_tool!("curl");
    let far = Far::start(AppProtocol::Http);
    let invoke = far.invoke_url("echo");
    let outbound = format!("http://{}", far.caller.outbound());
    let host = format!("http://{SERVICE}.mesh/echo");
    for options in [
        &[&invoke[..]][..],
        &["--http2-prior-knowledge", &invoke],
        &["-H", APP_ID, &format!("http://{}/echo", far.caller.http())],
        &["--http2-prior-knowledge", "-H", APP_ID, &format!("http://{}/echo", far.caller.grpc())],
        &["--proxy", &outbound, &host],
        &["--proxy", &outbound, "--proxytunnel", &host],
        &["--proxy", &outbound, "--proxytunnel", "--http2-prior-knowledge", &host],
        &["--http1.0", &invoke],
    ] {
        let answer = run(Command::new(&curl).args(CURL).args(["-d", "ping"]).args(options));
        assert_eq!(answer, "ping", "{options:?}");
    }
}

/// Quiet but for errors, a status that is one fails, and an end in any case.
const CURL: [&str; 5] = ["--silent", "--show-error", "--fail", "--max-time", "30"];

#[test]
fn curl_uploads_and_gets_the_same_back() {
    const SENT: usize = 20_000_000;
    let curl = need_tool!("curl");
    let far = Far::start(AppProtocol::Http);
    let files = TempDir::new().unwrap();
    let (sent, back) = (files.path().join("sent"), files.path().join("back"));
    std::fs::write(&sent, tollway_echo::payload(SENT)).unwrap();
    for options in [
        &["--expect100-timeout", "20", "-H", "Expect: 100-continue"][..],
        &["-H", "Transfer-Encoding: chunked"],
        &["--http2-prior-knowledge"],
    ] {
        let upload = ["-X", "POST", "--upload-file", sent.to_str().unwrap()];
        let download = ["--output", back.to_str().unwrap(), &far.invoke_url("echo")];
        run(Command::new(&curl).args(CURL).args(options).args(upload).args(download));
        assert!(same_content(&sent, &back), "{options:?}");
        std::fs::remove_file(&back).unwrap();
    }
}

#[test]
fn nghttp_sends_a_body_with_trailers() {
    let nghttp = need_tool!("nghttp");
    let far = Far::start(AppProtocol::H2c);
    let files = TempDir::new().unwrap();
    let sent = files.path().join("sent");
    std::fs::write(&sent, tollway_echo::payload(300_000)).unwrap();
    let mut command = Command::new(nghttp);
    command.args(["--no-dep", "--timeout=30", "--verbose", "--null-out"]);
    command.args(["--header", APP_ID, "--trailer", "x-end: of the body", "--data"]).arg(&sent);
    let log = run(command.arg(format!("http://{}/echo", far.caller.http())));
    assert!(log.contains(":status: 200"), "{log}");
    let answered = log.rsplit_once(":status: 200").unwrap().1;
    assert!(answered.contains("x-end: of the body"), "{log}");
}

#[test]
fn h2load_gets_every_answer() {
    let h2load = need_tool!("h2load");
    for protocol in [AppProtocol::Http, AppProtocol::H2c] {
        let far = Far::start(protocol);
        for options in [&["-c", "4", "-m", "32"][..], &["-c", "16", "--h1"]] {
            let url = far.invoke_url("size?bytes=1024");
            let report = run(Command::new(&h2load).args(["-n", "4000"]).args(options).arg(url));
            let all = "4000 succeeded, 0 failed, 0 errored, 0 timeout";
            assert!(report.contains(all), "{protocol:?} {options:?}: {report}");
            assert!(report.contains("4000 2xx, 0 3xx, 0 4xx, 0 5xx"), "{report}");
        }
    }
}

/// A caller in one network and an app in the other.
struct Far {
    caller: Sidecar,
    _app: App,
    _mesh: Mesh,
}

impl Far {
    fn start(protocol: AppProtocol) -> Self {
        let mesh = Mesh::start();
        let app = mesh.east.app("echo", "east-1", protocol);
        let caller = mesh.west.caller(&[]);
        caller.until_served(SERVICE);
        Self { caller, _app: app, _mesh: mesh }
    }

    fn invoke_url(&self, path: &str) -> String {
        format!("http://{}/v1.0/invoke/{SERVICE}/method/{path}", self.caller.http())
    }
}

/// Proxies that clients would take from the environment, instead of the test's.
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "grpc_proxy"];

/// Runs a command that has to succeed; what it printed.
fn run(command: &mut Command) -> String {
    PROXIES.iter().for_each(|variable| {
        command.env_remove(variable);
    });
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{printed}{errors}", output.status);
    printed
}

fn same_content(one: &Path, other: &Path) -> bool {
    std::fs::read(one).unwrap() == std::fs::read(other).unwrap()
}
