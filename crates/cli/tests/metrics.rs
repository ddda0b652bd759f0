//! The pages of metrics of real processes: what the documentation promises, true values, and a
//! form that Prometheus's own parser and linter accept.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod mesh;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use mesh::http::get;
use mesh::{App, AppProtocol, Mesh, PATIENCE, Sidecar};
use tollway_testkit::{Process, retry_until};

const SERVICE: &str = "echo.default.east";

/// Two joined networks of which one has called the other.
struct World {
    mesh: Mesh,
    app: App,
    caller: Sidecar,
}

impl World {
    fn start() -> Self {
        let mesh = Mesh::with(&["--admin-listen", "127.0.0.1:0"]);
        let app = mesh.east.app("echo", "a", AppProtocol::Http);
        let caller = mesh.west.caller(&[]);
        caller.until_served(SERVICE);
        Self { mesh, app, caller }
    }

    fn parts(&self) -> [(&'static str, &Process); 4] {
        [
            ("sidecar", &self.caller.process),
            ("sidecar", &self.app.sidecar.process),
            ("gateway", &self.mesh.east.gateway),
            ("control", &self.mesh.east.control),
        ]
    }
}

#[test]
fn every_part_shows_what_is_documented() {
    let world = World::start();
    for (part, process) in world.parts() {
        assert_eq!(shown(&page(process)), documented(part), "on the page of the {part}");
    }
}

#[test]
fn prometheus_own_linter_finds_no_fault_with_any_page() {
    let promlint = tollway_testkit::need_tool!("promlint");
    let world = World::start();
    for (part, process) in world.parts() {
        let mut linter =
            Command::new(&promlint).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        linter.stdin.take().unwrap().write_all(page(process).as_bytes()).unwrap();
        let output = linter.wait_with_output().unwrap();
        let problems = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "on the page of the {part}:\n{problems}");
    }
}

#[test]
fn values_are_those_of_the_processes() {
    let world = World::start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for (part, process) in world.parts() {
        let page = page(process);
        let build = format!("tollway_build_info{{part=\"{part}\",version=\"");
        assert!(page.contains(&build), "{page}");
        assert!(value(&page, "tollway_certificate_expiry_timestamp_seconds") > now + 3600.0);
        assert!(value(&page, "process_resident_memory_bytes") > 1e6);
        assert!(value(&page, "process_cpu_seconds_total") > 0.0);
        let started = value(&page, "process_start_time_seconds");
        assert!((now - 300.0..now + 1.0).contains(&started), "{started} is not before {now}");
        let open = value(&page, "process_open_fds");
        assert!((5.0..value(&page, "process_max_fds")).contains(&open), "{open}");
    }
    get(world.caller.http(), "/v1.0/invoke/made-up-by-the-app.default.east/method/x");
    let caller = page(&world.caller.process);
    let unknown = "tollway_service_requests_total{service=\"other\",outcome=\"failed\"}";
    assert!(value(&caller, unknown) >= 1.0);
    assert!(!caller.contains("made-up-by-the-app"), "a made-up name became a label:\n{caller}");
    assert!(value(&caller, "tollway_outbound_requests_total") >= 1.0);
    let served = "tollway_responses_total{direction=\"outbound\",status=\"2xx\"}";
    assert!(value(&caller, served) >= 1.0);
    let called = "tollway_service_requests_total{service=\"echo.default.east\",outcome=\"2xx\"}";
    assert!(value(&caller, called) >= 1.0);
    assert!((value(&caller, "tollway_control_connected") - 1.0).abs() < 0.1);
    let settled = retry_until(PATIENCE, "every watcher to acknowledge", || {
        let control = page(&world.mesh.east.control);
        (value(&control, "tollway_watcher_lag_revisions") == 0.0).then_some(control)
    });
    let control = settled.unwrap();
    // The gateway, the sidecar of the app, and the control plane of the joined network.
    assert!(value(&control, "tollway_watchers") >= 3.0, "{control}");
    for (name, wanted) in [
        ("tollway_networks_joined", 1.0),
        ("tollway_networks_reachable", 1.0),
        ("tollway_gateways", 1.0),
        ("tollway_workloads", 1.0),
        ("tollway_services{scope=\"local\"}", 1.0),
        ("tollway_store_commits_failed_total", 0.0),
    ] {
        assert!((value(&control, name) - wanted).abs() < 0.1, "{name} in\n{control}");
    }
    assert!(value(&control, "tollway_store_commit_duration_seconds_count") >= 3.0);
    assert!(value(&control, "tollway_store_entries") >= 3.0);
    let file = value(&control, "tollway_store_file_bytes");
    assert!(file >= value(&control, "tollway_store_live_bytes"), "{control}");
}

fn page(process: &Process) -> String {
    let answer = get(process.port("admin").unwrap(), "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Names and types as the page introduces them.
fn shown(page: &str) -> BTreeMap<&str, &str> {
    page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// Names and types of the rows of `docs/metrics.md` that are for `part`.
fn documented(part: &str) -> BTreeMap<&'static str, &'static str> {
    let rows = include_str!("../../../docs/metrics.md").lines().filter(|l| l.starts_with("| `"));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, kind, parts) = (cells[1].trim_matches('`'), cells[2], cells[4]);
        (parts == "all" || parts.split(", ").any(|word| word == part)).then_some((name, kind))
    })
    .collect()
}

fn value(page: &str, name: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in:\n{page}")).parse().unwrap()
}
