//! Services far away: how many connections their requests share.

use std::cell::RefCell;

use tollway_net::memory::Hold;

use super::app_unreachable::Fleet;
use super::*;

/// A round trip from which on a service is far away.
const FAR: Duration = Duration::from_millis(10);

/// The connections of a gateway.
#[derive(Clone, Default)]
struct Lines(Rc<RefCell<Vec<Hold>>>);

impl Lines {
    fn open(&self) -> usize {
        self.0.borrow().iter().filter(|line| line.is_open()).count()
    }
}

/// An address that stands for a gateway to `target`, and its connections.
fn start_gateway(target: SocketAddr, round_trip: Duration) -> (Lines, SocketAddr) {
    let lines = Lines::default();
    let taken = lines.clone();
    let address = sim::forward(target, round_trip, move |line| taken.0.borrow_mut().push(line));
    (lines, address)
}

/// Requests that are not answered, each on a connection of its own.
fn hold(fleet: &Fleet, count: usize) -> Vec<Stream> {
    let request = "GET /v1.0/invoke/stock/method/stuck HTTP/1.1\r\nhost: a\r\n\r\n";
    let ask = |_| {
        let mut stream = connect(fleet.caller.addresses[0]);
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    (0..count).map(ask).collect()
}

/// Calls one after the other, all of which are answered.
#[track_caller]
fn call(fleet: &Fleet, count: usize) {
    for _ in 0..count {
        let answer = fleet.post();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

/// Goes on making one call after another until there are so many connections.
#[track_caller]
fn becomes(fleet: &Fleet, lines: &Lines, wanted: std::ops::RangeInclusive<usize>) {
    let begun = now();
    while !wanted.contains(&lines.open()) {
        let is = lines.open();
        assert!(now() < begun + sim::PATIENCE, "{is} connections, not {wanted:?}");
        call(fleet, 1);
        advance(SWEEP);
    }
}

#[test]
fn two_requests_under_way_share_a_connection_over_distance() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let (open, gateway) = start_gateway(fleet.callees[0].addresses[0], FAR);
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway));
    becomes(&fleet, &open, 4..=4);
    let held = hold(&fleet, 40);
    becomes(&fleet, &open, 20..=21);
    drop(held);
    becomes(&fleet, &open, 4..=16);
}

#[test]
fn bulk_beside_them_has_none_of_them_made_again_and_again() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let (open, gateway) = start_gateway(fleet.callees[0].addresses[0], FAR);
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway));
    let _held = hold(&fleet, 30);
    becomes(&fleet, &open, 15..=16);
    let mut bulk = connect(fleet.caller.addresses[0]);
    let request = "GET /v1.0/invoke/stock/method/large/4 HTTP/1.1\r\nhost: a\r\n\r\n";
    bulk.write_all(request.as_bytes()).unwrap();
    let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
    while received < 4_000_000 {
        received += bulk.read(&mut buffer).unwrap();
    }
    // Its connection stays apart for some seconds yet.
    call(&fleet, 40);
    let dials = fleet.caller.metrics.dials.value();
    assert!((15..=20).contains(&dials), "{dials} connections were made");
}

#[test]
fn over_distance_there_are_no_more_connections_than_allowed() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let limits = Limits { mesh_connections: 3, ..Limits::default() };
    fleet.caller.configure(MeshProtocol::Http2, (limits, patient()));
    let (open, gateway) = start_gateway(fleet.callees[0].addresses[0], FAR);
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway));
    let _held = hold(&fleet, 30);
    becomes(&fleet, &open, 3..=3);
    call(&fleet, 20);
    assert_eq!(open.open(), 3);
    assert_eq!(fleet.caller.metrics.dials.value(), 3);
}

#[test]
fn each_endpoint_far_away_has_its_part_and_keeps_it() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app(), start_app()]);
    let stands = fleet.callees.iter().map(|callee| start_gateway(callee.addresses[0], FAR));
    let (open, addresses): (Vec<_>, Vec<_>) = stands.unzip();
    fleet.caller.send_state(&fleet.stock, fleet.local(&addresses));
    let _held = hold(&fleet, 20);
    becomes(&fleet, &open[0], 5..=6);
    becomes(&fleet, &open[1], 5..=6);
    call(&fleet, 40);
    let dials = fleet.caller.metrics.dials.value();
    assert!((10..=13).contains(&dials), "{dials} connections were made");
}

#[test]
fn near_by_one_connection_carries_all() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let (open, endpoint) = start_gateway(fleet.callees[0].addresses[0], FAR / 2);
    fleet.caller.send_state(&fleet.stock, fleet.local(&[endpoint]));
    let _held = hold(&fleet, 30);
    call(&fleet, 40);
    assert_eq!(open.open(), 1);
}
