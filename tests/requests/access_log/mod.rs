//! The access log of real sidecars: a line for each request with any outcome, and a log that cannot
//! be written affects no request. And invalid combinations of telemetry options.

mod connections;
mod refused;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use hyper::Request;
use serde_json::Value;
use tollway_testkit::{RawClient, TempDir, retry_until};
use tollway_tests::mesh::http::{Client, Version, empty, get, runtime};
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, counter};
use tollway_tests::program;

const SERVICE: &str = "echo.default.east";

#[test]
fn every_request_is_a_line_on_both_sides() {
    let files = TempDir::new().unwrap();
    let (caller_log, callee_log) = (files.path().join("caller"), files.path().join("callee"));
    let mesh = Mesh::start();
    let log = ["--access-log", callee_log.to_str().unwrap()];
    let app = mesh.east.app_with("echo", "a", AppProtocol::Http, &log);
    let caller = mesh.west.caller(&["--access-log", caller_log.to_str().unwrap()]);
    caller.until_served(SERVICE);

    let request = format!(
        "POST /v1.0/invoke/{SERVICE}/method/echo?token=secret HTTP/1.1\r\nHost: x\r\n\
         Connection: close\r\nContent-Length: 5\r\n\r\nhello"
    );
    RawClient::exchange(caller.http(), request, PATIENCE).unwrap();
    let outbound = line(&caller_log, |line| line["path"] == "/echo");
    let inbound = line(&callee_log, |line| line["path"] == "/echo");
    for (line, direction) in [(&outbound, "outbound"), (&inbound, "inbound")] {
        assert_eq!((&line["kind"], &line["direction"]), (&"request".into(), &direction.into()));
        assert_eq!(line["method"], "POST");
        assert_eq!(line["status"], 200);
        assert_eq!(line["outcome"], "answered");
        assert_eq!(line["error_code"], Value::Null);
        assert_eq!((&line["request_bytes"], &line["response_bytes"]), (&5.into(), &5.into()));
        assert!(line["duration_us"].as_u64().unwrap() > 0, "{line}");
        assert_eq!(line["service"], SERVICE);
        assert_eq!(line["caller"], "spiffe://west.tollway/ns/default/caller");
        assert_eq!(line["callee"], "spiffe://east.tollway/ns/default/echo");
        assert_eq!(line["attempts"], 1);
        assert_eq!(line["trace_id"], Value::Null);
        let time = line["time"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 27, "{time}");
        assert!(!line.to_string().contains("secret"), "{line}");
    }
    assert_eq!(outbound["instance"], inbound["instance"]);

    get(caller.http(), "/v1.0/invoke/nobody.default.east/method/%22a%0ab");
    let refused = line(&caller_log, |line| line["service"] == "nobody.default.east");
    assert_eq!(refused["error_code"], "ERR_UNKNOWN_SERVICE");
    assert_eq!((&refused["outcome"], &refused["status"]), (&"failed".into(), &404.into()));
    assert_eq!(refused["callee"], Value::Null);

    let arrived = || counter(&app.sidecar.process, "tollway_inbound_requests_total");
    for (version, method) in [(Version::Http1, "PUT"), (Version::Http2, "GET")] {
        let before = arrived();
        runtime().block_on(async {
            let mut impatient = Client::connect(version, caller.http()).await;
            let uri = format!("http://x/v1.0/invoke/{SERVICE}/method/delay?ms=20000");
            let request = Request::builder().method(method).uri(uri);
            let mut slow = pin!(impatient.send(request.body(empty()).unwrap()));
            while arrived() == before {
                let moment = tokio::time::timeout(Duration::from_millis(20), &mut slow);
                assert!(moment.await.is_err(), "answered before it was seen to arrive");
            }
        });
        for log in [&caller_log, &callee_log] {
            let left = line(log, |line| line["path"] == "/delay" && line["method"] == method);
            assert_eq!(left["outcome"], "cancelled", "{left}");
            assert_eq!(left["status"], Value::Null, "{left}");
        }
    }
}

#[test]
fn a_rotated_log_is_begun_anew_and_a_full_disk_fails_no_request() {
    let files = TempDir::new().unwrap();
    let path = files.path().join("access.log");
    let mesh = Mesh::start();
    let app = mesh.east.app_with("echo", "a", AppProtocol::Http, &["--access-log", "/dev/full"]);
    let caller = mesh.west.caller(&["--access-log", path.to_str().unwrap()]);
    caller.until_served(SERVICE);
    let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", caller.http());
    let before = Load::http(&url, 300, Duration::from_secs(1)).assert_no_errors();
    let written = |wanted: u64| {
        let name = "tollway_access_log_lines_total";
        let all = retry_until(PATIENCE, "every line being written", || {
            (counter(&caller.process, name) >= wanted).then_some(())
        });
        all.unwrap();
    };
    written(before);
    let rotated = files.path().join("access.log.1");
    std::fs::rename(&path, &rotated).unwrap();
    let after = Load::http(&url, 300, Duration::from_secs(1)).assert_no_errors();
    written(before + after);
    // Those of the calls that waited for the mesh are written as well, and a few of `before` may
    // come behind the move in their place.
    let is_there = || {
        let new = lines(&path).iter().filter(|line| line["path"] == "/echo").count() as u64;
        (new >= after).then_some(())
    };
    retry_until(PATIENCE, "every line being in the new file", is_there).unwrap();
    assert!(lines(&rotated).len() as u64 >= before, "what was there before the move has stayed");

    let lost = "tollway_access_log_lines_dropped_total{reason=\"write_failed\"}";
    let app = &app.sidecar.process;
    let is_lost = || (counter(app, lost) >= before + after).then_some(());
    retry_until(PATIENCE, "every line being lost", is_lost).unwrap();
    assert_eq!(counter(app, "tollway_access_log_lines_total"), 0);
    assert_eq!(app.log().matches("the access log cannot be written").count(), 1, "{}", app.log());
}

#[test]
fn options_that_cannot_be_meant_are_refused_as_usage() {
    let check = |options: &[&str], words: &str| {
        let output = Command::new(program())
            .args(["sidecar", "--app-id", "a"])
            .args(options)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {message}");
        assert!(message.contains(words), "{options:?}: {message}");
    };
    let endpoint = "--trace-endpoint=http://127.0.0.1:4317";
    check(&["--trace-endpoint=collector"], "not a URL");
    check(&["--trace-endpoint=http://collector"], "names no port");
    check(&["--trace-endpoint=ftp://collector:1"], "must begin with http");
    check(&[endpoint, "--trace-ratio=2"], "from 0 to 1");
    check(&[endpoint, "--trace-ratio=1%"], "from 0 to 1");
    check(&[endpoint, "--trace-protocol=zipkin"], "grpc, http");
    check(&["--trace-ratio=0.5"], "--trace-endpoint");
    let both = ["--trace-endpoint=http://collector:4317/x", "--trace-protocol=grpc"];
    check(&both, "has a path");
}

/// A file of its own for each log.
pub(crate) struct Logs(TempDir);

impl Logs {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The options that have a sidecar write the log `name`.
    pub(crate) fn options(&self, name: &str) -> [String; 2] {
        ["--access-log".to_owned(), self.path(name).to_str().unwrap().to_owned()]
    }
}

/// The first matching line, once it is there.
#[track_caller]
pub(crate) fn line(path: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let found = retry_until(PATIENCE, "a line of the access log", || {
        lines(path).into_iter().find(|line| wanted(line))
    });
    found.unwrap_or_else(|_| panic!("only {:#?}", lines(path)))
}

/// Every whole line.
pub(crate) fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
