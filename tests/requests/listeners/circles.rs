//! Requests and connections that would go round for ever end: gateways that name each other, or
//! themselves, as the gateway of a network; apps that forward requests to themselves.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollway_identity::UNRECOGNIZED_NAME_RECORD;
use tollway_testkit::{End, Process, RawClient, retry_until};

use crate::listeners::tls_listener::West;
use tollway_tests::network::{Network, PATIENCE, metric, until_status};
use tollway_tests::tls_client::client_hello;

const PASSED_ON: &str = "tollway_gateway_connections_total";
const CAME_BACK: &str = "tollway_gateway_loops_total";
const NORTH: &str = "stock.default.north.mesh";

/// Gateways lead to other networks only where workloads may not dial out, and only from inside.
const BY_GATEWAY: &[&str] = &["--remote-calls", "gateway"];
const INSIDE: &[&str] = &["--inside-listen", "127.0.0.1:0"];

/// A network that is joined, and then advertises `address` as its gateway too. It has a gateway of
/// its own until it is dropped.
fn misled(joins: &Network, name: &str, address: SocketAddr) -> (Network, [Process; 2]) {
    let network = Network::start(name);
    let gateway = network.gateway();
    joins.join_with(&network, &["--follow-gateways"]);
    let elsewhere = network.gateway_at(&address.to_string());
    (network, [gateway, elsewhere])
}

/// Connects to `gateway` until a connection of that name has come back to it.
#[track_caller]
fn until_a_circle(gateway: &Process, name: &str) {
    let came = || counts(gateway).iter().sum::<u64>();
    let (before, mut sent) = (came(), 0);
    let waited = retry_until(PATIENCE, "a connection that comes back", || {
        RawClient::exchange(inside_of(gateway), client_hello(name), PATIENCE).ok()?;
        sent += 1;
        (came() - before > sent).then_some(())
    });
    assert!(waited.is_ok(), "none of {sent} to {name} came back");
}

fn inside_of(gateway: &Process) -> SocketAddr {
    gateway.port("inside").unwrap()
}

/// Connections that a gateway has passed on, and those that it has ended since they came back.
fn counts(gateway: &Process) -> [u64; 2] {
    [metric(gateway, PASSED_ON), metric(gateway, CAME_BACK)]
}

/// West has east's gateway as that of north, east has west's, each by the listener that is meant for
/// the own network: a firewall is missing. West does not take its own gateway as that of south.
#[test]
fn connections_that_go_round_between_gateways_end_where_they_come_back() {
    const AT_ONCE: usize = 50;
    let mut west = West::of(Network::start_with("west", BY_GATEWAY), INSIDE);
    let mut east = Network::start_with("east", BY_GATEWAY);
    let east_gateway = east.gateway_with(INSIDE);
    let to_west = inside_of(&west.gateway);
    let to_east = inside_of(&east_gateway);
    let others = [
        misled(&west.network, "north", to_east),
        misled(&east, "north", to_west),
        misled(&west.network, "south", to_west),
    ];
    until_a_circle(&west.gateway, NORTH);
    until_a_circle(&east_gateway, NORTH);
    let log = retry_until(PATIENCE, "a refused address", || {
        let log = west.network.control.log();
        log.contains("ERR_ADDRESS_REFUSED").then_some(log)
    });
    assert!(log.unwrap().contains("is an address of this network itself"));
    // From here on no address leads anywhere but round.
    drop(others);

    // Without control planes, which probe each other, only the test's connections come.
    west.network.control.kill().unwrap();
    east.control.kill().unwrap();
    let entrance = &west.listeners()[1];
    let honest = west.honest("web", entrance);
    let idle = || {
        let open = [&west.gateway, &east_gateway].map(|g| metric(g, "tollway_connections"));
        (open == [0, 0]).then_some(())
    };
    retry_until(PATIENCE, "gateways without connections", idle).unwrap();

    let refused = |name: &str| {
        let answer = RawClient::exchange(to_west, client_hello(name), PATIENCE).unwrap();
        assert_eq!((&answer.bytes[..], answer.end), (&UNRECOGNIZED_NAME_RECORD[..], End::Closed));
    };
    let before = [counts(&west.gateway), counts(&east_gateway)];
    refused(NORTH);
    let after = [counts(&west.gateway), counts(&east_gateway)];
    assert_eq!(grown(before[0], after[0]), [1, 1], "west, of north");
    assert_eq!(grown(before[1], after[1]), [1, 0], "east, of north");

    let own = after[0];
    // Many at once, while others are served.
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| refused(NORTH));
        }
        for _ in 0..5 {
            let answer = entrance.call(Arc::clone(&honest));
            assert!(answer.is_ok(), "{answer:?}");
        }
    });
    let many = AT_ONCE as u64;
    let last = [counts(&west.gateway), counts(&east_gateway)];
    assert_eq!(grown(own, last[0]), [many + 5, many], "west, of many");
    assert_eq!(grown(after[1], last[1]), [many, 0], "east, of many");
    let log = west.gateway.log();
    assert!(
        log.contains("ERR_LOOP") && log.contains(NORTH) && log.contains("--advertise"),
        "{log}"
    );
}

fn grown(before: [u64; 2], after: [u64; 2]) -> [u64; 2] {
    [after[0] - before[0], after[1] - before[1]]
}

/// An app that calls its own service through its sidecar, with every field that it got.
#[test]
fn a_request_that_an_app_passes_on_to_itself_ends() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let network = Network::start("west");
    let stock = network.sidecar("stock", &["--app-port", &port]);
    let api = stock.port("http").unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || pass_on(stream.unwrap(), api, &counted));
        }
    });
    // It is there when a path that it answers itself is answered.
    let get = |path: &str| {
        format!(
            "GET /v1.0/invoke/stock/method/{path} HTTP/1.1\r\nhost: localhost\r\n\
             connection: close\r\n\r\n"
        )
    };
    until_status(api, &get("here"), 200);
    let faults = || metric(&stock, "tollway_request_failures_total");
    let before = faults();
    let answer = RawClient::exchange(api, get("round"), PATIENCE).unwrap();
    assert_eq!(answer.statuses(), [508], "{}", answer.text());
    assert!(answer.text().contains("ERR_LOOP"), "{}", answer.text());
    // Each round adds one address or more.
    let rounds = calls.load(Ordering::Relaxed);
    assert!((2..=32).contains(&rounds), "{rounds} rounds");
    assert_eq!(faults() - before, 1);
    until_status(api, &get("here"), 200);
}

/// One request, whose answer is what the app is answered where it passes it on.
fn pass_on(mut caller: TcpStream, api: SocketAddr, calls: &AtomicUsize) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // A probe of the app sends nothing.
        if !matches!(caller.read(&mut byte), Ok(1)) {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let answer = if head.contains("/round ") {
        calls.fetch_add(1, Ordering::Relaxed);
        let fields = head.split_once("\r\n").unwrap().1;
        let line = "GET /v1.0/invoke/stock/method/round HTTP/1.1\r\nconnection: close\r\n";
        RawClient::exchange(api, format!("{line}{fields}"), PATIENCE).unwrap().bytes
    } else {
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()
    };
    // The sidecar may have given up.
    let _ = caller.write_all(&answer);
}
