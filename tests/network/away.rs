//! Processes that are killed under load, and return: only requests under way on them are lost.

use std::time::Duration;

use tollway_testkit::{Process, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{App, AppProtocol, Mesh, PATIENCE, Sidecar, until_counted};

const RATE: u32 = 200;
/// How long load runs for each thing that happens under it.
const CALM: Duration = Duration::from_millis(1500);
/// Requests after which load counts as under way.
const UNDER_WAY: u64 = 100;
/// Connections of the load, each with one request at a time: the most that may be under way at a
/// gateway or an app.
const CONNECTIONS: u64 = 8;

#[test]
fn a_killed_app_costs_only_the_requests_under_way_on_it() {
    let mesh = Mesh::start();
    let mut apps = ["a", "b", "c"].map(|name| mesh.east.app("echo", name, AppProtocol::Http));
    // One calls through the gateways, one in the same network.
    let callers =
        [(mesh.west.caller(&[]), "echo.default.east"), (mesh.east.caller(&[]), "echo.default")];
    for (caller, service) in &callers {
        until_all_answer(caller, service, &apps);
    }
    let loads = callers.each_ref().map(|(caller, service)| {
        let url = format!("http://{}/v1.0/invoke/{service}/method/echo", caller.http());
        Load::http(&url, RATE, CALM * 3)
    });
    until_counted(&apps[0].sidecar.process, "tollway_inbound_requests_total", UNDER_WAY);
    apps[0].echo.kill().unwrap();
    for load in loads {
        let traffic = load.result().traffic;
        let lost = traffic.errors + traffic.unfinished + traffic.dropped;
        assert!(lost <= CONNECTIONS, "{lost} requests were lost: {:?}", traffic.errors_by_kind);
    }
}

#[test]
fn a_gateway_that_is_started_again_costs_only_the_requests_under_way() {
    assert_replaced(|mesh| {
        mesh.east.restart_gateway();
        None
    });
}

#[test]
fn a_gateway_that_another_one_replaces_costs_only_the_requests_under_way() {
    assert_replaced(|mesh| Some(mesh.east.another_gateway(&[])));
}

/// Kills the only gateway of a network under load.
fn assert_replaced(replace: impl FnOnce(&mut Mesh) -> Option<Process>) {
    let mut mesh = Mesh::start();
    let apps = ["a", "b"].map(|name| mesh.east.app("echo", name, AppProtocol::Http));
    let caller = mesh.west.caller(&[]);
    until_all_answer(&caller, "echo.default.east", &apps);
    let url = format!("http://{}/v1.0/invoke/echo.default.east/method/echo", caller.http());
    let load = Load::http(&url, RATE, CALM * 4);
    until_counted(&mesh.east.gateway, "tollway_relayed_bytes_total", 50_000);
    mesh.east.gateway.kill().unwrap();
    // The network has no gateway for this time, which is what the load meets.
    std::thread::sleep(Duration::from_millis(300));
    let _successor = replace(&mut mesh);
    let traffic = load.result().traffic;
    let lost = traffic.errors + traffic.unfinished + traffic.dropped;
    assert!(lost <= CONNECTIONS, "{lost} requests were lost: {:?}", traffic.errors_by_kind);
    assert!(traffic.requests > 0);
}

/// Waits until each of the replicas has answered.
fn until_all_answer(caller: &Sidecar, service: &str, apps: &[App]) {
    caller.until_served(service);
    let mut missing: Vec<String> =
        apps.iter().map(|app| format!("x-echo-name: {}\r\n", app.replica)).collect();
    let path = format!("/v1.0/invoke/{service}/method/healthz");
    let all = retry_until(PATIENCE, "every replica answering", || {
        let answer = get(caller.http(), &path);
        missing.retain(|name| !answer.contains(name));
        missing.is_empty().then_some(())
    });
    assert!(all.is_ok(), "no answer from {missing:?}");
}
