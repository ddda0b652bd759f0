//! One name for a service in several networks: who serves it, and who gets nothing.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollway_testkit::retry_until;
use tollway_tests::load_command;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::tcp::{echo, until_echoed};
use tollway_tests::mesh::{App, AppProtocol, Mesh, Network, PATIENCE, Sidecar, counter};

const RATE: u32 = 300;
const INBOUND: &str = "tollway_inbound_requests_total";
const LEFT_WITHIN: Duration = Duration::from_secs(9);
const CALL: &str = "/v1.0/invoke/stock.default.any/method/echo";

/// West, whose apps call, with east and north, which it has joined.
struct World {
    mesh: Mesh,
    north: Network,
}

impl World {
    fn start() -> Self {
        let mesh = Mesh::start();
        let north = Network::start("north", "127.0.3.1", &[]);
        mesh.west.accept(&north);
        Self { mesh, north }
    }

    /// Names the networks that may serve `service` in any network.
    fn name(&self, service: &str, networks: &str) {
        let object = if service == "*" { "all" } else { service };
        let file = format!(
            "apiVersion: tollway.dev/v1\nkind: Failover\nmetadata: {{name: {object}}}\n\
             spec: {{service: '{service}', networks: {networks}}}\n"
        );
        self.mesh.west.apply(&file);
    }

    /// A caller in west to which every one of these services is known.
    fn caller(&self, services: &[&str], options: &[&str]) -> Sidecar {
        let caller = self.mesh.west.caller(options);
        services.iter().for_each(|service| caller.until_served(service));
        caller
    }
}

fn seen(app: &App) -> u64 {
    counter(&app.sidecar.process, INBOUND)
}

fn stop(app: &mut App) {
    let status = app.sidecar.process.terminate(LEFT_WITHIN).unwrap();
    assert!(status.success(), "{status}: {}", app.sidecar.process.log());
}

/// The replica that answers a call.
fn answered_by(caller: &Sidecar) -> String {
    let answer = get(caller.http(), CALL);
    let name = answer.lines().find_map(|line| line.strip_prefix("x-echo-name: "));
    name.map_or(answer.clone(), str::to_owned)
}

#[track_caller]
fn until_answered_by(caller: &Sidecar, replica: &str) {
    let is_it = || (answered_by(caller) == replica).then_some(());
    retry_until(PATIENCE, &format!("{replica} answering"), is_it).unwrap();
}

#[test]
fn east_serves_when_west_stops_and_west_again_when_it_is_back() {
    let world = World::start();
    let west = &world.mesh.west;
    let mut own = west.app("stock", "in-west", AppProtocol::Http);
    let far = world.mesh.east.app("stock", "in-east", AppProtocol::Http);
    let unnamed = world.north.app("stock", "in-north", AppProtocol::Http);
    // Without the word of the operator no network serves.
    let services = ["stock.default.west", "stock.default.east", "stock.default.north"];
    let caller = world.caller(&services, &[]);
    let refused = get(caller.http(), CALL);
    assert!(
        refused.starts_with("HTTP/1.1 404") && refused.contains("ERR_NO_FAILOVER"),
        "{refused}"
    );
    world.name("stock", "[{network: west}, {network: east, priority: 1}]");
    assert_eq!(answered_by(&caller), "in-west", "applied, so the next call goes by it");

    let of_north = seen(&unnamed);
    let url = format!("http://{}{CALL}", caller.http());
    let load = Load::http(&url, RATE, Duration::from_secs(6));
    let before = seen(&far);
    let is_under_way = || (seen(&own) > 150).then_some(());
    retry_until(PATIENCE, "load", is_under_way).unwrap();
    stop(&mut own);
    let is_taken_over = || (seen(&far) > before + 150).then_some(());
    retry_until(PATIENCE, "east serving", is_taken_over).unwrap();
    let own = west.app("stock", "in-west", AppProtocol::Http);
    let is_back = || (seen(&own) > 150).then_some(());
    retry_until(PATIENCE, "west serving again", is_back).unwrap();
    load.assert_no_errors();
    until_answered_by(&caller, "in-west");

    // A replica that is lost without a word costs the next request no more than its way.
    let mut own = own;
    own.kill();
    let began = Instant::now();
    assert_eq!(answered_by(&caller), "in-east");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let explained = load_command::tollway(&[
        "call",
        "stock.default.any/echo",
        "--explain",
        "--sidecar",
        &format!("http://{}", caller.http()),
    ]);
    let text = String::from_utf8(explained.stderr).unwrap();
    assert!(text.contains("network   east for stock.default.any, priority 1: "), "{text}");
    assert!(text.contains("name      stock.default.east\n"), "{text}");

    // North is joined, has the service, and was not named.
    drop(far);
    until_no_network_serves(&caller);
    assert_eq!(seen(&unnamed), of_north, "nothing reached north");
    // It was joined all the time.
    let direct = get(caller.http(), "/v1.0/invoke/stock.default.north/method/echo");
    assert!(direct.starts_with("HTTP/1.1 200"), "{direct}");
    world.name("stock", "[{network: west}, {network: north, priority: 1}]");
    assert_eq!(answered_by(&caller), "in-north");
}

/// The named networks serve no more.
#[track_caller]
fn until_no_network_serves(caller: &Sidecar) {
    let mut last = String::new();
    let is_refused = || {
        last = get(caller.http(), CALL);
        last.contains("ERR_NO_NETWORK").then_some(())
    };
    retry_until(PATIENCE, "no network that serves", is_refused).unwrap();
    assert!(last.starts_with("HTTP/1.1 503"), "{last}");
    assert!(last.contains("west does not have it, east does not have it"), "{last}");
}

#[test]
fn weights_share_the_calls_of_one_priority() {
    let world = World::start();
    let east = world.mesh.east.app("stock", "in-east", AppProtocol::Http);
    let north = world.north.app("stock", "in-north", AppProtocol::Http);
    let caller = world.caller(&["stock.default.east", "stock.default.north"], &[]);
    let networks = "[{network: east, weight: 3}, {network: north}]";
    world.name("stock", networks);
    assert!(get(caller.http(), CALL).starts_with("HTTP/1.1 200"));
    let before = [seen(&east), seen(&north)];
    let url = format!("http://{}{CALL}", caller.http());
    let count = 20_000_u32;
    let requests = count.to_string();
    let result = load_command::run(&[
        "http",
        &url,
        "--requests",
        &requests,
        "--connections",
        "8",
        "--warm-up",
        "0s",
    ]);
    assert_eq!((result.traffic.requests, result.traffic.errors), (u64::from(count), 0));
    let of_north = seen(&north) - before[1];
    assert_eq!(seen(&east) - before[0] + of_north, u64::from(count));
    let share = of_north as f64 / f64::from(count);
    assert!((share - 0.25).abs() < 0.015, "{share}");
}

#[test]
fn grpc_calls_and_connections_of_bytes_go_to_the_next_network_too() {
    let world = World::start();
    let (west, east) = (&world.mesh.west, &world.mesh.east);
    let mut near = west.app("orders", "in-west", AppProtocol::Grpc);
    let far = east.app("orders", "in-east", AppProtocol::Grpc);
    let mut lines = west.app("lines", "in-west", AppProtocol::Tcp);
    let far_lines = east.app("lines", "in-east", AppProtocol::Tcp);
    let upstream = ["--upstream", "0=lines.default.any"];
    let caller = world.caller(&["orders.default.west", "orders.default.east"], &upstream);
    let both = "[{network: west}, {network: east, priority: 1}]";
    world.name("*", both);

    let load = Load::grpc(caller.grpc(), "orders.default.any", RATE, Duration::from_secs(3));
    let before = seen(&far);
    let is_under_way = || (seen(&near) > 150).then_some(());
    retry_until(PATIENCE, "load", is_under_way).unwrap();
    stop(&mut near);
    load.assert_no_errors();
    assert!(seen(&far) > before + 50, "east has taken over");

    let address = caller.upstream("lines.default.any");
    drop(until_echoed(address));
    let relayed = |app: &App| counter(&app.sidecar.process, "tollway_relayed_bytes_total");
    assert_eq!((relayed(&lines) > 0, relayed(&far_lines)), (true, 0));
    lines.kill();
    for _ in 0..5 {
        echo(&mut TcpStream::connect(address).unwrap(), b"a line").unwrap();
    }
    assert!(relayed(&far_lines) > 0);
}

#[test]
fn a_network_cannot_be_called_any() {
    let directory = tollway_testkit::TempDir::new().unwrap();
    let store = directory.path().to_str().unwrap();
    let started = load_command::tollway(&["control", "--network", "any", "--store", store]);
    assert!(!started.status.success());
    let text = String::from_utf8(started.stderr).unwrap();
    assert!(text.contains("a network cannot be called `any`"), "{text}");
    assert!(text.contains("ERR_BAD_NAME"), "{text}");
}
