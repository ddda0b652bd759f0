//! The pages of metrics of real processes: what the documentation promises, true values, and a
//! form that Prometheus's own parser and linter accept.

use std::time::{SystemTime, UNIX_EPOCH};

use tollway_testkit::{Process, metric_in, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{App, AppProtocol, Mesh, PATIENCE, Sidecar};
use tollway_tests::metrics_page::{check_documented, check_lint};

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
        check_documented(part, &process.metrics().unwrap());
    }
}

#[test]
fn prometheus_own_linter_finds_no_fault_with_any_page() {
    let promlint = tollway_testkit::need_tool!("promlint");
    let world = World::start();
    for (part, process) in world.parts() {
        check_lint(&promlint, part, &process.metrics().unwrap());
    }
}

#[test]
fn values_are_those_of_the_processes() {
    let world = World::start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for (_, process) in world.parts() {
        let page = process.metrics().unwrap();
        assert!(value(&page, "tollway_certificate_expiry_timestamp_seconds") > now + 3600.0);
        assert!(value(&page, "process_resident_memory_bytes") > 1e6);
        assert!(value(&page, "process_cpu_seconds_total") > 0.0);
        let started = value(&page, "process_start_time_seconds");
        assert!((now - 300.0..now + 1.0).contains(&started), "{started} is not before {now}");
        let open = value(&page, "process_open_fds");
        assert!((5.0..value(&page, "process_max_fds")).contains(&open), "{open}");
    }
    get(world.caller.http(), "/v1.0/invoke/made-up-by-the-app.default.east/method/x");
    let caller = world.caller.process.metrics().unwrap();
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
        let control = world.mesh.east.control.metrics().unwrap();
        (value(&control, "tollway_watcher_lag_revisions") == 0.0).then_some(control)
    });
    let control = settled.unwrap();
    // The gateway, the sidecar of the app, and the control plane of the joined network.
    assert!(value(&control, "tollway_watchers") >= 3.0, "{control}");
    for (name, wanted) in [
        ("tollway_joined_networks", 1.0),
        ("tollway_joined_networks_reachable", 1.0),
        ("tollway_gateways", 1.0),
        ("tollway_workloads", 1.0),
        ("tollway_services{scope=\"local\"}", 1.0),
        ("tollway_store_commit_failures_total", 0.0),
    ] {
        assert!((value(&control, name) - wanted).abs() < 0.1, "{name} in\n{control}");
    }
    assert!(value(&control, "tollway_store_commit_duration_seconds_count") >= 3.0);
    assert!(value(&control, "tollway_store_entries") >= 3.0);
    let file = value(&control, "tollway_store_file_bytes");
    assert!(file >= value(&control, "tollway_store_live_bytes"), "{control}");
}

fn value(page: &str, name: &str) -> f64 {
    metric_in(page, name).unwrap()
}
