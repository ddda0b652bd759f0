//! Connections whose peer is silent or gone: which requests are sent again, and which wait.

use std::sync::atomic::AtomicBool;

use super::app_unreachable::Fleet;
use super::*;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Relays bytes like a gateway, and can stop like a stopped process: the kernel still accepts
/// connections and bytes, and nothing comes back.
struct Relay {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    taken: Arc<AtomicUsize>,
}

impl Relay {
    fn to(callee: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_stopped, taken) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let relay = Self { address, is_stopped, taken };
        let (is_stopped, taken) = (relay.is_stopped.clone(), relay.taken.clone());
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let far = TcpStream::connect(callee).unwrap();
                pass(near.try_clone().unwrap(), far.try_clone().unwrap(), is_stopped.clone());
                pass(far, near, is_stopped.clone());
                taken.fetch_add(1, Ordering::SeqCst);
            }
        });
        relay
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    fn go_on(&self) {
        self.is_stopped.store(false, Ordering::SeqCst);
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, is_stopped: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        // Either side may go at any time.
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            while is_stopped.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

fn attentive() -> Timeouts {
    let (ping_after, ping_answer) = (Duration::from_millis(100), Duration::from_millis(400));
    Timeouts { ping_after, ping_answer, silence: PATIENCE * 3, ..patient() }
}

#[track_caller]
fn assert_ok(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
}

#[test]
fn a_silent_relay_delays_only_what_must_not_be_sent_twice() {
    let fleet = Fleet::with(attentive(), AppProtocol::Http, &[start_app()]);
    let callee = fleet.addresses()[0];
    let (stopped, other) = (Relay::to(callee), Relay::to(callee));
    let state = fleet.remote_through(&[stopped.address, other.address], &[]);
    fleet.caller.send_state(&fleet.stock, state);
    assert_ok(&fleet.post());
    until("both relays are used", || stopped.taken() >= 2 && other.taken() >= 2);
    // Every connection stands and has carried something.
    (0..20).for_each(|_| assert_ok(&fleet.post()));
    stopped.stop();
    std::thread::scope(|scope| {
        let fleet = &fleet;
        let ask = |method| move || fleet.ask(method);
        let posts: Vec<_> = (0..16).map(|_| scope.spawn(ask("POST"))).collect();
        let puts: Vec<_> = (0..16).map(|_| scope.spawn(ask("PUT"))).collect();
        for put in puts {
            assert_ok(&put.join().unwrap());
        }
        assert!(fleet.caller.metrics.keepalive_timeouts.value() > 0);
        assert!(fleet.caller.metrics.retries.value() > 0, "what may be repeated goes elsewhere");
        // New requests use the other relay.
        (0..20).for_each(|_| assert_ok(&fleet.post()));
        let waiting = posts.iter().filter(|post| !post.is_finished()).count();
        assert!((1..16).contains(&waiting), "{waiting} of 16 wait on the silent relay");
        stopped.go_on();
        posts.into_iter().for_each(|post| assert_ok(&post.join().unwrap()));
    });
    assert_eq!(fleet.caller.metrics.request_failures.value(), 0);
}

#[test]
fn requests_wait_for_the_only_relay_although_it_is_silent() {
    let timeouts = Timeouts { connect: Duration::from_millis(500), ..attentive() };
    let fleet = Fleet::with(timeouts, AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    assert_ok(&fleet.post());
    relay.stop();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| fleet.post());
        until("it is found silent", || fleet.caller.metrics.keepalive_timeouts.value() > 0);
        let later = scope.spawn(|| fleet.post());
        std::thread::sleep(Duration::from_secs(3));
        assert!(!first.is_finished() && !later.is_finished(), "both wait");
        relay.go_on();
        assert_ok(&first.join().unwrap());
        assert_ok(&later.join().unwrap());
    });
}

/// What is queued cannot be taken back, so calling off does not free it.
#[test]
fn cancelled_requests_do_not_pile_up_on_a_silent_relay() {
    const CALLS: u64 = 200;
    let fleet = Fleet::with(attentive(), AppProtocol::Http, &[start_app()]);
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
    // Those that were queued, and those that the kernel had taken.
    let sent = fleet.callees[0].metrics.inbound_requests.value();
    assert!((1..CALLS / 3).contains(&sent), "{sent} requests of 50 KB were sent");
}

#[test]
fn a_silent_connection_is_given_up_and_its_request_fails() {
    let timeouts = Timeouts { silence: Duration::from_secs(1), ..attentive() };
    let fleet = Fleet::with(timeouts, AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    assert_ok(&fleet.post());
    relay.stop();
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("\"errorCode\":\"ERR_SILENT\""), "{answer}");
    assert!(answer.contains("no sign of life for 1 s"), "{answer}");
}

#[test]
fn an_app_that_takes_its_time_is_not_taken_for_dead() {
    let fleet = Fleet::with(attentive(), AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    fleet.caller.send_state(&fleet.stock, fleet.remote_through(&[relay.address], &[]));
    let stuck = "POST /v1.0/invoke/stock/method/stuck HTTP/1.1\r\nhost: a\r\n\
                 content-length: 0\r\n\r\n";
    let mut stream = connect(fleet.caller.addresses[0]);
    stream.write_all(stuck.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(fleet.caller.metrics.keepalive_timeouts.value(), 0);
    assert_ok(&fleet.post());
}

#[test]
fn connections_are_made_anew_when_the_remote_gateways_change() {
    let fleet = Fleet::with(patient(), AppProtocol::Http, &[start_app()]);
    let relay = Relay::to(fleet.addresses()[0]);
    let [gone, stays] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
    let send = |beyond: &[SocketAddr]| {
        let state = fleet.remote_through(&[relay.address], beyond);
        let update = ServiceUpdate { service: fleet.stock.clone(), revision: Revision(1), state };
        fleet.caller.commands.send(Command::Services(vec![update]));
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| fleet.post());
        until("it is answered", || {
            send(&[gone, stays]);
            first.is_finished()
        });
        assert_ok(&first.join().unwrap());
    });
    until("there are as many as there should be", || relay.taken() == 4);
    send(&[stays]);
    until("each is made anew", || {
        assert_ok(&fleet.post());
        relay.taken() >= 8
    });
    send(&[stays, gone]);
    until("one that has come gets its share", || {
        assert_ok(&fleet.post());
        relay.taken() >= 12
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(relay.taken(), 12, "once is enough");
    assert_eq!(fleet.caller.metrics.request_failures.value(), 0);
}
