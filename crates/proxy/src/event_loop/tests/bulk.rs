//! Bulk beside small requests: a transfer that the network holds up holds up nothing else.

use std::sync::{Condvar, Mutex};

use super::*;

/// A line between two sidecars that stands still for a connection which has carried much back,
/// until it is let go.
#[derive(Default)]
struct Line {
    is_free: Mutex<bool>,
    freed: Condvar,
    stalled: AtomicUsize,
    open: Arc<AtomicUsize>,
}

/// Bytes that a connection carries back before it stands still: less than the transfer, more than
/// all small requests.
const CARRIES: usize = 8 * 1024 * 1024;

impl Line {
    /// A relay to `target`, and its address.
    fn start(target: SocketAddr) -> (Arc<Self>, SocketAddr) {
        let line = Arc::new(Self::default());
        let relayed = Arc::clone(&line);
        let address = relay_to(target, &line.open, |_| {}, move |carried| relayed.pass(carried));
        (line, address)
    }

    fn pass(&self, carried: usize) {
        let mut is_free = self.is_free.lock().unwrap();
        if carried < CARRIES || *is_free {
            return;
        }
        self.stalled.fetch_add(1, Ordering::SeqCst);
        while !*is_free {
            is_free = self.freed.wait(is_free).unwrap();
        }
    }

    fn free(&self) {
        *self.is_free.lock().unwrap() = true;
        self.freed.notify_all();
    }
}

#[test]
fn a_transfer_that_is_held_up_holds_up_no_small_request() {
    let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
    let app = Some(AppTarget { address: start_app(), protocol: AppProtocol::Http });
    let credentials = network.credentials(&stock, "s-1", &[]);
    let callee = Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], app, None);
    let (line, address) = Line::start(callee.addresses[0]);
    let timeouts = Timeouts { bulk_pause: Duration::from_millis(300), ..patient() };
    let credentials = network.credentials(&web, "w-1", &[]);
    let any = "127.0.0.1:0".parse().unwrap();
    let caller = Running::start_at(
        any,
        (Limits::default(), timeouts),
        web,
        credentials,
        &[ListenerKind::HttpApi],
        None,
        None,
    );
    caller.send_state(
        &stock,
        ServiceState::Local {
            endpoints: [Endpoint { instance: label("s-1"), address }].into(),
            protocol: AppProtocol::Http,
            trust_domain: network.trust_domain,
        },
    );
    let get =
        |path: &str| format!("GET /v1.0/invoke/stock/method{path} HTTP/1.1\r\nhost: a\r\n\r\n");

    let mut bulk = connect(caller.addresses[0]);
    bulk.write_all(get("/large").as_bytes()).unwrap();
    // Its reader does read: only the line holds it up.
    let reader = std::thread::spawn(move || {
        bulk.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
        while received < 100_000_000 {
            received += bulk.read(&mut buffer).unwrap();
        }
    });
    until("the transfer stands still", || line.stalled.load(Ordering::SeqCst) == 1);
    let mut small = connect(caller.addresses[0]);
    for _ in 0..50 {
        let answer = talk(&mut small, get("/small").as_bytes(), b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(line.open.load(Ordering::SeqCst), 2, "one connection each");
    assert_eq!(caller.metrics.bulk_bodies.value(), 1, "small ones do not count");

    line.free();
    reader.join().unwrap();
    until("one connection is enough again", || line.open.load(Ordering::SeqCst) == 1);
    let answer = talk(&mut small, get("/small").as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(caller.metrics.dials.value(), 2);
}
