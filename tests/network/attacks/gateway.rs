//! Strangers and workloads of other networks at the gateway, and strangers at every port with TLS.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};
use tollway_identity::{Expected, client_config};
use tollway_model::{ServiceName, TrustDomain};
use tollway_testkit::{Process, RawClient};
use tollway_tests::h2_attacker::Aim;
use tollway_tests::line_service::{LINES, LineService, hello_with_a_line};
use tollway_tests::mesh::http::runtime;
use tollway_tests::network::label;
use tollway_tests::tls_client::{bad_hello, dial};

use super::control::Crowd;
use super::member::Member;
use super::world::{Scene, World, token};
use super::{Attack, Extent, Found};

pub(crate) const ATTACKS: [Attack; 5] = [
    Attack::new(
        "connections of another network's workload",
        "workload of a joined network",
        foreign,
    )
    .in_scene(Scene::Joined),
    Attack::new("through the gateway to a stated gateway", "stranger, joined network", pivot)
        .in_scene(Scene::Joined),
    Attack::new("through the gateway to a stated workload", "stranger, workload", own_pivot),
    Attack::new("lines in the logs", "stranger", log_flood),
    Attack::new("reverse connections of others", "workload, joined network", reverse)
        .in_scene(Scene::Joined),
];

const WITHIN: Duration = Duration::from_secs(10);
/// What the service of lines answers to a command.
const SECRET: &str = "internal-secret";

fn foreign(world: &mut World, extent: &Extent) -> Found {
    let east = world.east.as_ref().unwrap();
    let token = token(east, &[]);
    let nobody = Member::enrol(east.control_address, &token, "nobody.far.east", "n-1");
    let nobody = runtime().block_on(nobody).unwrap();
    let expected = Expected::control(&label("west"), &TrustDomain::default_for(&label("west")));
    let config = client_config(&nobody.credentials, &expected, &[b"h2"]).unwrap();
    let name = "control.west.mesh".to_owned();
    let aim = Aim { address: world.gateway(), tls: Some((config, name)) };
    let (mut crowd, opened) = Crowd::open(&aim, extent.of(200), extent.time / 2);
    let stay = crowd.stay(extent.time / 4);
    let got = format!("{stay} stay");
    Found::new(format!("{opened} connections that answer pings"), got)
        .promise(stay == 0, format!("{stay} connections stay"))
        .holding(crowd)
}

/// What keeps a reverse connection, and the answer to it.
const KEEP: u8 = 1;

/// Reverse connections of a workload of either network: calls into a network go to who holds them.
fn reverse(world: &mut World, extent: &Extent) -> Found {
    let east = world.east.as_ref().unwrap();
    let enrol = |control, token: &str, service| {
        let member = Member::enrol(control, token, service, "r-1");
        runtime().block_on(member).unwrap()
    };
    let far = enrol(east.control_address, &token(east, &[]), "far.default.east");
    let near = enrol(world.control(), &world.any_token, "near.default.west");
    let own =
        ServiceName { app: label("gateway"), namespace: label("tollway"), network: label("west") };
    let expected = Expected::service(&own, &TrustDomain::default_for(&label("west")));
    let name = expected.server_name().unwrap();
    let configs = [far, near].map(|member| {
        client_config(&member.credentials, &expected, &[b"tollway-reverse/1"]).unwrap()
    });
    let (began, mut sent, mut kept) = (Instant::now(), 0, 0);
    while began.elapsed() < extent.time && sent < extent.of(2_000) {
        for config in &configs {
            let tls = ClientConnection::new(Arc::clone(config), name.clone()).unwrap();
            let mut stream = StreamOwned::new(tls, dial(world.gateway(), WITHIN));
            let mut answer = [0];
            // What is refused may end before it has read anything.
            let _ = stream.write_all(&[KEEP]);
            kept += usize::from(stream.read(&mut answer).is_ok() && answer == [KEEP]);
            sent += 1;
        }
    }
    let got = format!("{kept} are kept");
    Found::new(format!("{sent} reverse connections of workloads of both networks"), got)
        .promise(kept == 0, format!("{kept} reverse connections of workloads are kept"))
}

/// A ClientHello of that name and lines behind it, again and again; how many were sent, and how many
/// were answered by what is at the other end.
pub(super) fn send_lines(gateway: SocketAddr, names: &[&str], time: Duration) -> (usize, usize) {
    let (began, mut sent, mut answered) = (Instant::now(), 0, 0);
    while began.elapsed() < time {
        let name = names[sent % names.len()];
        let bytes = [&hello_with_a_line(name), LINES].concat();
        let answer = RawClient::exchange(gateway, bytes, Duration::from_secs(2));
        answered += usize::from(answer.is_ok_and(|answer| answer.text().contains(SECRET)));
        sent += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    (sent, answered)
}

/// What a gateway let through to a service of lines.
fn judge(service: &LineService, (sent, answered): (usize, usize)) -> Found {
    let (taken, executed) = (service.taken(), service.executed().len());
    let got = format!(
        "{answered} answers; the service got {taken} connections and executed {executed} lines"
    );
    Found::new(format!("{sent} ClientHellos with lines behind them"), got)
        .promise(answered == 0, "the service answers a stranger")
        .promise(executed == 0, format!("{executed} lines of a stranger are executed"))
}

fn pivot(world: &mut World, extent: &Extent) -> Found {
    let service = LineService::start();
    let place = service.address.to_string();
    let misleading = world.east.as_ref().unwrap().another_gateway(&["--advertise", &place]);
    let names = ["x.default.east.mesh", "control.east.mesh", "gateway.east.mesh"];
    let sent = send_lines(world.gateway(), &names, extent.time);
    judge(&service, sent).holding(misleading)
}

fn own_pivot(world: &mut World, extent: &Extent) -> Found {
    let service = LineService::start();
    let place = service.address.to_string();
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = app.local_addr().unwrap().port().to_string();
    let pivot = world.west.sidecar("pivot", &["--app-port", &port, "--advertise", &place]);
    let sent = send_lines(world.gateway(), &["pivot.default.west.mesh"], extent.time);
    judge(&service, sent).holding((pivot, app))
}

/// Lines of a log at the usual levels.
fn lines(process: &Process) -> usize {
    process.log().lines().filter(|line| !line.contains(" DEBUG ")).count()
}

fn log_flood(world: &mut World, extent: &Extent) -> Found {
    let hello = bad_hello();
    let targets = [
        ("gateway", world.gateway(), &world.west.gateway),
        ("control plane", world.control(), &world.west.control),
        ("sidecar", world.stock.process.port("inbound").unwrap(), &world.stock.process),
    ];
    let (mut sent, mut written, mut most) = (0, Vec::new(), 0.0_f64);
    for (name, address, process) in targets {
        let (before, began, mut own) = (lines(process), Instant::now(), 0);
        while own < extent.of(2_000) && began.elapsed() < extent.time / 3 {
            for bytes in [&hello[..], &b"GET / HTTP/1.1\r\n\r\n"[..]] {
                let mut stream = dial(address, WITHIN);
                // It may be closed before it has read all of it.
                let _ = stream.write_all(bytes).and_then(|()| stream.read(&mut [0; 16]));
                own += 1;
            }
        }
        let lines = (lines(process) - before) as f64 * 1e3 / f64::from(own as u32);
        written.push(format!("{name} {lines:.0}"));
        most = most.max(lines - allowed(own, began.elapsed()));
        sent += own;
    }
    let sent = format!("{sent} connections: a bad server name, or no TLS");
    Found::new(sent, format!("lines for each 1,000: {}", written.join(", ")))
        .promise(most <= 0.0, format!("{most:.0} lines too many for each 1,000"))
}

/// Lines of two kinds that so many may cause, for each 1,000: 100 at once and one a second
/// (docs/limits.md), and a few of other kinds.
fn allowed(connections: usize, within: Duration) -> f64 {
    let lines = 2.0 * (100.0 + within.as_secs_f64() + 1.0) + 20.0;
    lines * 1e3 / connections as f64
}
