//! Every case of h2spec (github.com/summerwind/h2spec), strictly, on every HTTP/2 listener.
//!
//! h2spec sets no header and no authority of its own, so it calls what answers to a path alone;
//! the cases about flow control need an answer with a body.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tollway_testkit::{Process, TlsRelay, need_tool};

use crate::listeners::listener::{Kind, Listener};
use crate::listeners::relay;
use crate::listeners::tls_listener::H2;
use tollway_tests::network::{Network, tollway, until_status};
use tollway_tests::scripted_app::Script;

/// How often h2spec is run at most.
const TRIES: usize = 3;
/// How long what h2spec writes is gathered.
const GATHERED_FOR: Duration = Duration::from_millis(5);

/// What cannot be judged of a listener.
#[derive(Clone, Copy, Default)]
struct Unjudged {
    /// Cases that fail there by their nature.
    failed: &'static [&'static str],
    /// How many h2spec leaves out.
    skipped: usize,
}

/// Of a listener whose answers to h2spec have no body: it waits for one in the first two, and leaves
/// out those about the windows of the answer.
const BODILESS: Unjudged = Unjudged {
    failed: &[
        "2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
        "3: Sends a PRIORITY frame on half-closed (remote) stream",
    ],
    skipped: 4,
};

fn check(h2spec: &Path, address: SocketAddr, path: &str) {
    check_but(h2spec, address, path, Unjudged::default());
}

/// No case may fail each time. h2spec writes the frames of a case one by one, most without an end
/// of the request: a server that answers between two of them, as is allowed, is past the error of
/// the second. So the relay gathers them; a machine that is suspended between two separates them
/// all the same.
fn check_but(h2spec: &Path, address: SocketAddr, path: &str, unjudged: Unjudged) {
    let unjudged_failed: BTreeSet<String> =
        unjudged.failed.iter().map(ToString::to_string).collect();
    let address = gathering_relay_to(address);
    let mut report = report_of(h2spec, address, path);
    let mut failed = failures(&report, unjudged.skipped);
    for _ in 1..TRIES {
        if failed == unjudged_failed {
            return;
        }
        report = report_of(h2spec, address, path);
        failed = &failed & &failures(&report, unjudged.skipped);
    }
    assert_eq!(failed, unjudged_failed, "failed each of {TRIES} times; the last:\n{report}");
}

/// Leads to `target`, and hands on whole what is written to it in pieces.
fn gathering_relay_to(target: SocketAddr) -> SocketAddr {
    let open = move || {
        let server = TcpStream::connect(target)?;
        server.set_nodelay(true)?;
        Ok(server)
    };
    relay::start(open, GATHERED_FOR)
}

fn report_of(h2spec: &Path, address: SocketAddr, path: &str) -> String {
    let output = Command::new(h2spec)
        .args(["--strict", "--timeout", "2", "--path", path])
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The cases that failed, of all; checks that as many were skipped as given.
fn failures(report: &str, skipped: usize) -> BTreeSet<String> {
    let listed = report.split_once("Failures:").map_or("", |(_, listed)| listed);
    let failed: BTreeSet<String> = listed
        .split('×')
        .skip(1)
        .filter_map(|case| Some(case.lines().next()?.trim().to_owned()))
        .collect();
    let passed = 146 - failed.len() - skipped;
    let total = format!("146 tests, {passed} passed, {skipped} skipped, {} failed", failed.len());
    assert!(report.contains(&total), "{report}");
    failed
}

fn echo() -> Process {
    tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap()
}

struct Stock {
    network: Network,
    _app: Process,
    sidecar: Process,
}

impl Stock {
    fn start() -> Self {
        let network = Network::start("west");
        let app = echo();
        let port = app.port("http").unwrap().port().to_string();
        let sidecar = network.sidecar("stock", &["--app-port", &port]);
        Self { network, _app: app, sidecar }
    }
}

#[test]
fn http_api_in_front_of_a_service_passes() {
    let h2spec = need_tool!("h2spec");
    let stock = Stock::start();
    let api = stock.sidecar.port("http").unwrap();
    let path = "/v1.0/invoke/stock/method/size?bytes=1000";
    until_status(api, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"), 200);
    check(&h2spec, api, path);
}

#[test]
fn http_api_in_front_of_itself_passes() {
    let h2spec = need_tool!("h2spec");
    let stock = Stock::start();
    check(&h2spec, stock.sidecar.port("http").unwrap(), "/v1.0/metadata");
}

/// h2spec's calls are none of gRPC, and the runtime refuses them: the refusals are what is judged.
#[test]
fn grpc_api_passes() {
    let h2spec = need_tool!("h2spec");
    let stock = Stock::start();
    let path = "/dapr.proto.runtime.v1.Dapr/GetMetadata";
    check(&h2spec, stock.sidecar.port("grpc").unwrap(), path);
}

/// The authority is that of the port itself, which is no service: the refusals are judged.
#[test]
fn outbound_port_passes() {
    let h2spec = need_tool!("h2spec");
    let stock = Stock::start();
    check(&h2spec, stock.sidecar.port("outbound").unwrap(), "/");
}

#[test]
fn inbound_listener_passes() {
    let h2spec = need_tool!("h2spec");
    let stock = Stock::start();
    let listener = stock.sidecar.port("inbound").unwrap();
    let relay = stock.network.relay(listener, "web", "stock", b"h2");
    check(&h2spec, relay.address(), "/size?bytes=1000");
}

/// As a known workload, by a call that waits for its message, which never comes: the refusals are
/// judged. No call without a message is answered with a body.
#[test]
fn control_plane_passes() {
    let h2spec = need_tool!("h2spec");
    let network = Network::start("west");
    let (config, name) = network.client_of_control("web");
    let relay = TlsRelay::start(network.control_address(), &name, config).unwrap();
    check_but(&h2spec, relay.address(), "/tollway.v1.Identity/Issue", BODILESS);
}

#[test]
fn front_passes() {
    let h2spec = need_tool!("h2spec");
    let listener = Listener::open_over(H2, Kind::Front, Script::new(), &[]);
    check(&h2spec, listener.address, "/");
}

#[test]
fn echo_server_passes() {
    let h2spec = need_tool!("h2spec");
    check(&h2spec, echo().port("http").unwrap(), "/size?bytes=1000");
}
