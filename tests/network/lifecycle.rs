//! Processes that come and go under load: none that leaves in order costs a request.

use std::net::TcpStream;
use std::time::Duration;

use hyper::Request;
use rustix::process::Signal;
use tollway_testkit::{Process, retry_until};
use tollway_tests::mesh::http::{Client, Version, empty, get, runtime};
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::tcp::{echo, until_echoed};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, counter, until_counted};

const SERVICE: &str = "echo.default.east";
const RATE: u32 = 300;
/// How long load runs for each thing that happens under it.
const CALM: Duration = Duration::from_millis(1500);
/// Requests after which load counts as under way.
const UNDER_WAY: u64 = 150;
const INBOUND: &str = "tollway_inbound_requests_total";
const OUTBOUND: &str = "tollway_outbound_requests_total";
const RELAYED: &str = "tollway_relayed_bytes_total";
/// Until a process that was asked to leave has ended: less than its time to drain (10 s), which
/// only requests that take so long need.
const LEFT_WITHIN: Duration = Duration::from_secs(9);

#[test]
fn a_replica_that_leaves_costs_no_request() {
    let mesh = Mesh::start();
    let mut leaving = mesh.east.app("echo", "a", AppProtocol::Http);
    let _staying = mesh.east.app("echo", "b", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    until_answered_by(&caller, &["a", "b"]);
    let load = Load::http(&echo_url(&caller), RATE, CALM * 3);
    until_counted(&leaving.sidecar.process, INBOUND, UNDER_WAY);
    let status = leaving.sidecar.process.terminate(LEFT_WITHIN).unwrap();
    assert!(status.success(), "{status}: {}", leaving.sidecar.process.log());
    load.assert_no_errors();
}

#[test]
fn a_replica_that_leaves_costs_no_grpc_call() {
    let mesh = Mesh::start();
    let mut leaving = mesh.east.app("echo", "a", AppProtocol::Grpc);
    let _staying = mesh.east.app("echo", "b", AppProtocol::Grpc);
    let caller = mesh.west.caller(&[]);
    until_answered_by(&caller, &["a", "b"]);
    let load = Load::grpc(caller.grpc(), SERVICE, RATE, CALM * 3);
    until_counted(&leaving.sidecar.process, INBOUND, UNDER_WAY);
    let status = leaving.sidecar.process.terminate(LEFT_WITHIN).unwrap();
    assert!(status.success(), "{status}: {}", leaving.sidecar.process.log());
    load.assert_no_errors();
}

#[test]
fn a_request_under_way_is_finished_by_all_that_leave() {
    let mesh = Mesh::start();
    let mut app = mesh.east.app("echo", "a", AppProtocol::Http);
    let mut caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let listener = caller.http();
    runtime().block_on(async {
        for version in [Version::Http1, Version::Http2] {
            let mut client = Client::connect(version, listener).await;
            let uri = format!("http://sidecar/v1.0/invoke/{SERVICE}/method/status/200");
            let warm = client.exchange(Request::get(uri).body(empty()).unwrap()).await;
            assert_eq!(warm.status, 200);
        }
        let came = || counter(&app.sidecar.process, INBOUND);
        let before = came();
        let mut client = Client::connect(Version::Http1, listener).await;
        let uri = format!("http://sidecar/v1.0/invoke/{SERVICE}/method/delay?ms=1500");
        let slow = tokio::spawn(async move {
            client.exchange(Request::get(uri).body(empty()).unwrap()).await.status
        });
        let is_under_way = || (came() > before).then_some(());
        retry_until(PATIENCE, "the request at the app's sidecar", is_under_way).unwrap();
        app.sidecar.process.signal(Signal::TERM).unwrap();
        caller.process.signal(Signal::TERM).unwrap();
        assert_eq!(slow.await.unwrap(), 200);
    });
    for process in [&mut app.sidecar.process, &mut caller.process] {
        let status = process.wait(PATIENCE).unwrap();
        assert!(status.success(), "{status}: {}", process.log());
    }
}

#[test]
fn gateways_that_leave_cost_no_request() {
    let mut mesh = Mesh::not_joined(&[]);
    let mut second = mesh.east.another_gateway(&[]);
    until_registered(&second);
    until_registered(&mesh.east.gateway);
    mesh.join();
    let _apps = ["a", "b"].map(|name| mesh.east.app("echo", name, AppProtocol::Http));
    let caller = mesh.west.caller(&[]);
    until_answered_by(&caller, &["a", "b"]);
    let _rpc = mesh.east.app("rpc", "r", AppProtocol::Grpc);
    caller.until_served("rpc.default.east");
    let load = Load::http(&echo_url(&caller), RATE, CALM * 5);
    let calls = Load::grpc(caller.grpc(), "rpc.default.east", RATE, CALM * 5);
    leave_in_order(&mut second);
    // The only remaining route is one that came later.
    let third = mesh.east.another_gateway(&[]);
    until_registered(&third);
    until_counted(&third, RELAYED, 1);
    leave_in_order(&mut mesh.east.gateway);
    load.assert_no_errors();
    calls.assert_no_errors();
}

#[test]
fn a_tcp_connection_through_a_gateway_that_leaves_goes_on_until_it_is_done() {
    let mut mesh = Mesh::start();
    let _lines = mesh.east.app("lines", "l", AppProtocol::Tcp);
    let caller = mesh.west.caller(&["--upstream", "0=lines.default.east"]);
    let mut stream = until_echoed(caller.upstream("lines.default.east"));
    let gateway = &mut mesh.east.gateway;
    let listener = gateway.port("gateway").unwrap();
    gateway.signal(Signal::TERM).unwrap();
    let is_closed = || TcpStream::connect(listener).is_err().then_some(());
    retry_until(PATIENCE, "the gateway closing its port", is_closed).unwrap();
    echo(&mut stream, b"meanwhile").unwrap();
    drop(stream);
    let status = gateway.wait(LEFT_WITHIN).unwrap();
    assert!(status.success(), "{status}: {}", gateway.log());
}

/// The load passes the gateway, and still it ends long before its time to drain is up: who comes
/// through it goes elsewhere by itself.
fn leave_in_order(gateway: &mut Process) {
    until_counted(gateway, RELAYED, 50_000);
    let status = gateway.terminate(LEFT_WITHIN).unwrap();
    assert!(status.success(), "{status}: {}", gateway.log());
}

#[test]
fn renewed_certificates_cost_no_request() {
    // The shortest there is.
    const LIFE: Duration = Duration::from_secs(10);
    let life = LIFE.as_secs().to_string();
    let mesh = Mesh::with(&["--certificate-ttl-s", &life]);
    let app = mesh.east.app("echo", "a", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    caller.until_served(SERVICE);
    let sidecars = [&caller, &app.sidecar];
    let handshakes = |sidecar: &Sidecar| counter(&sidecar.process, "tollway_tls_handshakes_total");
    let before = handshakes(&app.sidecar);
    // Until the first certificates of all have ended, and some.
    Load::http(&echo_url(&caller), RATE, LIFE + CALM).assert_no_errors();
    for sidecar in sidecars {
        let log = sidecar.process.log();
        assert!(log.matches("new credentials").count() >= 2, "renewed too rarely: {log}");
    }
    // A connection does not outlive the certificates that it was made with.
    assert!(handshakes(&app.sidecar) > before, "the old connections are still in use");
}

#[test]
fn control_planes_may_go_and_come_back() {
    let mut mesh = Mesh::start();
    let _apps = ["a", "b"].map(|name| mesh.east.app("echo", name, AppProtocol::Http));
    let caller = mesh.west.caller(&[]);
    until_answered_by(&caller, &["a", "b"]);
    let load = Load::http(&echo_url(&caller), RATE, CALM * 5);
    until_counted(&caller.process, OUTBOUND, UNDER_WAY);
    mesh.west.control.kill().unwrap();
    mesh.east.control.kill().unwrap();
    let away = |status: &str| {
        let path = "/v1.0/healthz/outbound";
        let seen = retry_until(PATIENCE, "the caller's health", || {
            get(caller.http(), path).starts_with(&format!("HTTP/1.1 {status} ")).then_some(())
        });
        seen.unwrap();
    };
    away("500");
    until_counted(&caller.process, OUTBOUND, UNDER_WAY);
    mesh.east.restart_control();
    mesh.west.restart_control();
    away("204");
    load.assert_no_errors();
    // The join, the tokens and the authority are those of before.
    let _new = mesh.east.app("late", "late-1", AppProtocol::Http);
    caller.until_served("late.default.east");
    caller.until_served(SERVICE);
}

fn echo_url(caller: &Sidecar) -> String {
    format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", caller.http())
}

/// Waits until each of the replicas has answered.
fn until_answered_by(caller: &Sidecar, replicas: &[&str]) {
    caller.until_served(SERVICE);
    let mut missing: Vec<String> =
        replicas.iter().map(|name| format!("x-echo-name: {name}\r\n")).collect();
    let path = format!("/v1.0/invoke/{SERVICE}/method/healthz");
    let all = retry_until(PATIENCE, "every replica answering", || {
        let answer = get(caller.http(), &path);
        missing.retain(|name| !answer.contains(name));
        missing.is_empty().then_some(())
    });
    assert!(all.is_ok(), "no answer from {missing:?}");
}

fn until_registered(gateway: &Process) {
    let registered = retry_until(PATIENCE, "the gateway registering", || {
        gateway.log().contains("registered").then_some(())
    });
    registered.unwrap();
}
