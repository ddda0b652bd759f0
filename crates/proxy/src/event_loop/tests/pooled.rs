//! Sidecars that carry one request at a time on each of several mesh connections.

use tollway_net::Token;

use crate::conn::{ConnKey, Connection, Role};
use crate::upstream::{dial, pick};
use tollway_net::{Conn, local_pair};

use super::app_unreachable::{Fleet, read_answer};
use super::*;

/// A fleet whose caller pools its connections.
fn pooled(protocol: AppProtocol, apps: &[SocketAddr]) -> Fleet {
    let fleet = Fleet::new(protocol, apps);
    fleet.caller.configure(MeshProtocol::Http1, (Limits::default(), patient()));
    fleet
}

fn handshakes(fleet: &Fleet) -> u64 {
    fleet.callees.iter().map(|callee| callee.metrics.tls_handshakes.value()).sum()
}

#[track_caller]
fn check_all_answered(fleet: &Fleet, count: usize) {
    for _ in 0..count {
        let answer = fleet.post();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
    }
}

#[test]
fn requests_at_once_have_connections_of_their_own() {
    const AT_ONCE: usize = 5;
    let app = listen();
    let fleet = pooled(AppProtocol::Http, &[app.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let asked = [(); AT_ONCE].map(|()| fleet.begin("POST"));
    // None is answered before all have come.
    for mut stream in [(); AT_ONCE].map(|()| app.accept()) {
        talk(&mut stream, b"", b"hi");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
    }
    for answer in asked.map(read_answer) {
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
    }
    assert_eq!(handshakes(&fleet), AT_ONCE as u64);
}

#[test]
fn a_connection_of_a_pool_is_used_again() {
    let fleet = pooled(AppProtocol::Http, &[start_app()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    check_all_answered(&fleet, 20);
    assert_eq!(handshakes(&fleet), 1);
}

/// As when a ticket of TLS comes in the pass in which a request needs the connection.
#[test]
fn a_connection_with_something_to_read_stays_in_its_pool() {
    let network = Network::new("west");
    let mut event_loop = event_loop_of_web(&network);
    let (ours, _theirs) = local_pair().unwrap();
    let role = Role::Http1Client(Box::new(dial::h1_client(Destination::App, None)));
    let conn = Connection::new(Conn::local(ours), role, event_loop.cx.now);
    let key = event_loop.conns.insert(&event_loop.cx, conn).unwrap();
    let pool = dial::join_pool(
        &mut event_loop.cx,
        &mut event_loop.plane.upstreams,
        key,
        &Destination::App,
        None,
    );
    pool.idle.push(key);
    event_loop.on_ready(Readiness {
        token: Token(key.to_u64()),
        readable: true,
        writable: true,
        closed: false,
    });
    assert_eq!(picked(&mut event_loop), None, "a read comes first");
    event_loop.read_pass(&mut Scratch::new());
    assert_eq!(picked(&mut event_loop), Some(key));
    assert_eq!(picked(&mut event_loop), None, "it is taken once");
}

/// The connection to the app that a request would get now.
fn picked(event_loop: &mut SidecarLoop) -> Option<ConnKey> {
    let EventLoop { cx, conns, plane, .. } = event_loop;
    let pool = plane.upstreams.pool_of(&Destination::App);
    let picked = pool.and_then(|pool| pick::pick(cx, conns, &mut plane.upstreams, pool, &[]));
    event_loop.settle();
    picked
}

pub(super) type SidecarLoop = EventLoop<Http<sidecar::Sidecar>>;

pub(super) fn event_loop_of_web(network: &Network) -> SidecarLoop {
    let config = web_config(MeshProtocol::Http1, (Limits::default(), patient()));
    let credentials = network.credentials(&config.home, "1", &[]);
    let sidecar = Http::sidecar(&config, credentials, Box::new(Around::default()));
    EventLoop::new(Arc::new(config), Vec::new(), Arc::default(), now(), 42, sidecar).unwrap().0
}

#[test]
fn what_is_not_http1_is_multiplexed_all_the_same() {
    let fleet = pooled(AppProtocol::H2c, &[start_app()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    for answer in [(); 20].map(|()| fleet.begin("POST")).map(read_answer) {
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
    }
    assert_eq!(handshakes(&fleet), 1);
}

#[test]
fn a_pool_reaches_all_replicas_and_none_that_is_without_its_app() {
    let fleet =
        pooled(AppProtocol::Http, &[unused_address(), start_app(), start_app(), unused_address()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    check_all_answered(&fleet, 40);
    let served = |at: usize| fleet.callees[at].metrics.inbound_requests.value();
    // A dial to one of them may take longer than forty calls by way of the other.
    ask_until(&fleet, "both replicas serve", || served(1) > 0 && served(2) > 0);
}

#[test]
fn a_pool_leads_through_a_gateway() {
    let fleet = pooled(AppProtocol::Http, &[start_app(), unused_address()]);
    let gateway = fleet.start_gateway(None, &fleet.addresses());
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway.addresses[0]));
    check_all_answered(&fleet, 20);
}

#[test]
fn new_credentials_and_other_endpoints_end_idle_connections() {
    let fleet = pooled(AppProtocol::Http, &[start_app(), start_app()]);
    let [first, second] = fleet.addresses()[..] else { unreachable!("two were started") };
    let send = |address: SocketAddr| {
        fleet.caller.send_state(&fleet.stock, fleet.local(&[address]));
    };
    send(first);
    check_all_answered(&fleet, 3);
    assert_eq!(handshakes(&fleet), 1);
    let credentials = fleet.network.credentials(&service("web"), "w-1", &[]);
    fleet.caller.commands.send(Command::Credentials(credentials));
    ask_until(&fleet, "a connection that proves the new identity", || handshakes(&fleet) == 2);
    send(second);
    let served = |at: usize| fleet.callees[at].metrics.inbound_requests.value();
    ask_until(&fleet, "the endpoint that is there now", || served(1) > 0);
    let before = served(0);
    check_all_answered(&fleet, 3);
    assert_eq!(served(0), before, "the one that has gone is asked no more");
    assert_eq!(handshakes(&fleet), 3, "each change cost one connection");
}

/// Calls go on without a failure until `is_so`.
fn ask_until(fleet: &Fleet, what: &str, is_so: impl Fn() -> bool) {
    until(what, || {
        check_all_answered(fleet, 1);
        is_so()
    });
}
