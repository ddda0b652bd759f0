//! Connections whose peer is silent or gone: which requests are sent again, and which wait.

use std::cell::{Cell, RefCell};

use tollway_net::memory::Hold;

use super::app_unreachable::{Fleet, read_answer};
use super::*;

/// Stands for an address, as a gateway does, and can stop like a stopped process: connections stand and
/// take bytes up to a limit, and nothing comes out of them.
struct Relay {
    address: SocketAddr,
    state: Rc<RelayState>,
}

#[derive(Default)]
struct RelayState {
    is_stopped: Cell<bool>,
    taken: RefCell<Vec<Hold>>,
}

impl Relay {
    fn to(callee: SocketAddr) -> Self {
        let state = Rc::<RelayState>::default();
        let taken = Rc::clone(&state);
        let address = sim::forward(callee, Duration::ZERO, move |line| {
            line.hold(taken.is_stopped.get());
            taken.taken.borrow_mut().push(line);
        });
        Self { address, state }
    }

    fn stop(&self) {
        self.state.hold(true);
    }

    fn go_on(&self) {
        self.state.hold(false);
    }

    fn taken(&self) -> usize {
        self.state.taken.borrow().len()
    }
}

impl RelayState {
    fn hold(&self, is_stopped: bool) {
        self.is_stopped.set(is_stopped);
        self.taken.borrow().iter().for_each(|line| line.hold(is_stopped));
    }
}

#[track_caller]
fn assert_ok(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
}

#[test]
fn a_silent_relay_delays_only_what_must_not_be_sent_twice() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let callee = fleet.addresses()[0];
    let (stopped, other) = (Relay::to(callee), Relay::to(callee));
    let state = fleet.remote_through(&[stopped.address, other.address], &[]);
    fleet.caller.send_state(&fleet.stock, state);
    assert_ok(&fleet.post());
    until("both relays are used", || stopped.taken() >= 2 && other.taken() >= 2);
    // Every connection stands and has carried something.
    (0..20).for_each(|_| assert_ok(&fleet.post()));
    stopped.stop();
    let begin = |method| (0..16).map(|_| fleet.begin(method)).collect::<Vec<_>>();
    let (posts, puts) = sim::at_once(|| (begin("POST"), begin("PUT")));
    let begun = now();
    puts.into_iter().for_each(|put| assert_ok(&read_answer(put)));
    let waited = now() - begun;
    let patience = patient().ping_after + patient().ping_answer;
    assert!(waited < patience * 2, "the silent relay delays them by {waited:?}");
    assert!(fleet.caller.metrics.keepalive_timeouts.value() > 0);
    assert!(fleet.caller.metrics.retries.value() > 0, "what may be repeated goes elsewhere");
    // New requests use the other relay.
    (0..20).for_each(|_| assert_ok(&fleet.post()));
    let waiting = posts.iter().filter(|post| !post.has_arrived()).count();
    assert!((1..16).contains(&waiting), "{waiting} of 16 wait on the silent relay");
    stopped.go_on();
    posts.into_iter().for_each(|post| assert_ok(&read_answer(post)));
    assert_eq!(fleet.caller.metrics.request_failures.value(), 0);
}

#[test]
fn requests_wait_for_the_only_relay_although_it_is_silent() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    assert_ok(&fleet.post());
    relay.stop();
    let first = fleet.begin("POST");
    until("it is found silent", || fleet.caller.metrics.keepalive_timeouts.value() > 0);
    let later = fleet.begin("POST");
    advance(patient().connect * 2);
    assert!(!first.has_arrived() && !later.has_arrived(), "both wait");
    relay.go_on();
    assert_ok(&read_answer(first));
    assert_ok(&read_answer(later));
}

/// What is queued cannot be taken back, so calling off does not free it.
#[test]
fn cancelled_requests_do_not_pile_up_on_a_silent_relay() {
    const CALLS: u64 = 200;
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&[relay.address]));
    assert_ok(&fleet.post());
    relay.stop();
    let large = format!(
        "GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\nx-large: {}\r\n\r\n",
        "x".repeat(50_000)
    );
    for nth in 1..=CALLS {
        connect(fleet.caller.addresses[0]).write_all(large.as_bytes()).unwrap();
        until("it is called off", || fleet.caller.metrics.requests_cancelled.value() == nth);
    }
    assert!(fleet.caller.metrics.backpressure_pauses.value() > 0, "it is given no more requests");
    relay.go_on();
    assert_ok(&fleet.post());
    // Those that were queued, and those that were on the way.
    let sent = fleet.callees[0].metrics.inbound_requests.value();
    assert!((3..CALLS / 3).contains(&sent), "{sent} requests of 50 KB were sent");
}

#[test]
fn a_silent_connection_is_given_up_and_its_request_fails() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    assert_ok(&fleet.post());
    relay.stop();
    let begun = now();
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("\"errorCode\":\"ERR_SILENT\""), "{answer}");
    assert!(answer.contains("no sign of life for 20 s"), "{answer}");
    let waited = now() - begun;
    assert!((patient().silence..patient().silence * 3 / 2).contains(&waited), "{waited:?}");
}

#[test]
fn an_app_that_takes_its_time_is_not_taken_for_dead() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    let stuck = "POST /v1.0/invoke/stock/method/stuck HTTP/1.1\r\nhost: a\r\n\
                 content-length: 0\r\n\r\n";
    let mut stream = connect(fleet.caller.addresses[0]);
    stream.write_all(stuck.as_bytes()).unwrap();
    advance(patient().request / 2);
    assert_eq!(fleet.caller.metrics.keepalive_timeouts.value(), 0);
    assert!(!stream.has_arrived(), "it waits for its app");
    assert_ok(&fleet.post());
    // It is asked for a sign of life: without one the relay is found out.
    relay.stop();
    advance(patient().request / 4);
    assert_eq!(fleet.caller.metrics.keepalive_timeouts.value(), 1);
}

#[test]
fn connections_are_made_anew_when_the_remote_gateways_change() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    let [gone, stays] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
    let send = |beyond: &[SocketAddr]| {
        fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], beyond));
    };
    send(&[gone, stays]);
    assert_ok(&fleet.post());
    until("there are as many as there should be", || relay.taken() == 4);
    send(&[stays]);
    let begun = now();
    let anew = |taken| {
        assert_ok(&fleet.post());
        relay.taken() >= taken
    };
    until("each is made anew", || anew(8));
    send(&[stays, gone]);
    until("one that has come gets its share", || anew(12));
    let waited = now() - begun;
    assert!(waited < Duration::from_secs(30), "{waited:?}");
    advance(Duration::from_secs(60));
    assert_eq!(relay.taken(), 12, "once is enough");
    assert_eq!(fleet.caller.metrics.request_failures.value(), 0);
}
