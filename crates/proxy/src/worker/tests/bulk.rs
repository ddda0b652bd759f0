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
    open: AtomicUsize,
}

/// Bytes that a connection carries back before it stands still: less than the transfer, more than
/// all small requests.
const CARRIES: usize = 8 * 1024 * 1024;

impl Line {
    /// A relay to `target`, and its address.
    fn start(target: SocketAddr) -> (Arc<Self>, SocketAddr) {
        let line = Arc::new(Self::default());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relays = Arc::clone(&line);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(target).unwrap());
                let (near_end, far_end) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || copy(near_end, far_end, |_| {}));
                let line = Arc::clone(&relays);
                std::thread::spawn(move || {
                    line.open.fetch_add(1, Ordering::SeqCst);
                    copy(far, near, |carried| line.pass(carried));
                    line.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
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

/// Copies to the end; before each piece `pass` is told how much there was so far.
fn copy(mut from: TcpStream, mut to: TcpStream, pass: impl Fn(usize)) {
    let mut buffer = vec![0; 65536];
    let mut carried = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        pass(carried);
        carried += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Gone already is as well.
    let _ = to.shutdown(std::net::Shutdown::Write);
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_transfer_that_is_held_up_holds_up_no_small_request() {
    let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
    let app = Some(AppTarget { address: start_app(), protocol: AppProtocol::Http });
    let credentials = network.credentials(&stock, "s-1", &[]);
    let callee = Running::start(stock.clone(), credentials, &[Door::Inbound], app, None);
    let (line, address) = Line::start(callee.addresses[0]);
    let timeouts = Timeouts { bulk_rest: Duration::from_millis(300), ..patient() };
    let credentials = network.credentials(&web, "w-1", &[]);
    let any = "127.0.0.1:0".parse().unwrap();
    let caller = Running::start_at(
        any,
        (Limits::default(), timeouts),
        web,
        credentials,
        &[Door::HttpApi],
        None,
        None,
    );
    caller.tell(
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

    line.free();
    reader.join().unwrap();
    until("one connection is enough again", || line.open.load(Ordering::SeqCst) == 1);
    let answer = talk(&mut small, get("/small").as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(caller.metrics.dials.value(), 2);
}
