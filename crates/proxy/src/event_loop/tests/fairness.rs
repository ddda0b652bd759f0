//! One connection whose requests hang leaves others their part of the connections to the app.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::sim::Peer;
use super::*;

/// More than any connection gets here.
const MANY: usize = 20;

/// An app over HTTP/1.1 that never answers `/stuck`, and counts who waits for it.
struct HangingApp {
    address: SocketAddr,
    hung: Arc<Hung>,
}

#[derive(Default)]
struct Hung {
    now: AtomicUsize,
    ever: AtomicUsize,
}

impl HangingApp {
    fn start() -> Self {
        let hung = Arc::new(Hung::default());
        let count = Arc::clone(&hung);
        let address = listen_with(move |peer| {
            spawn(serve(peer, Arc::clone(&count)));
        });
        Self { address, hung }
    }
}

async fn serve(mut peer: Peer, hung: Arc<Hung>) {
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = peer.read(&mut buffer).await {
        input.extend_from_slice(&buffer[..count]);
        if !input.ends_with(b"\r\n\r\n") {
            continue;
        }
        if input.starts_with(b"GET /stuck ") {
            hung.ever.fetch_add(1, Ordering::SeqCst);
            hung.now.fetch_add(1, Ordering::SeqCst);
            while matches!(peer.read(&mut buffer).await, Ok(1..)) {}
            hung.now.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        input.clear();
    }
}

/// A callee with `app_connections`, and what its callers need to know.
struct Shared {
    app: HangingApp,
    callee: Running,
    network: Network,
    state: ServiceState,
}

impl Shared {
    fn new(app_connections: usize, timeouts: Timeouts) -> Self {
        let (network, stock) = (Network::new("west"), service("stock"));
        let app = HangingApp::start();
        let target = Some(AppTarget::at(app.address, AppProtocol::Http));
        let credentials = network.credentials(&stock, "s-1", &[]);
        let limits = Limits { app_connections, ..Limits::default() };
        let listeners = [ListenerKind::Inbound];
        let callee = Running::start_at(
            None,
            (limits, timeouts),
            stock,
            credentials,
            &listeners,
            target,
            None,
        );
        let endpoints = [Endpoint::new(label("s-1"), callee.addresses[0])].into();
        let trust_domain = network.trust_domain.clone();
        let state = ServiceState::Local {
            unready: [].into(),
            endpoints,
            protocol: AppProtocol::Http,
            trust_domain,
        };
        Self { app, callee, network, state }
    }

    /// All callers are the same service: only their connections differ.
    fn caller(&self) -> Running {
        let web = service("web");
        let credentials = self.network.credentials(&web, "1", &[]);
        let caller = Running::start(web, credentials, &[ListenerKind::HttpApi], None, None);
        caller.send_state(&service("stock"), self.state.clone());
        caller
    }

    /// Has `count` requests of a caller hang, of which `stuck` get to the app; with those that did
    /// before.
    fn hang(&self, caller: &Running, count: usize, stuck: usize) -> Vec<Stream> {
        let before = self.callee.metrics.inbound_requests.value();
        let ask = || {
            let mut stream = connect(caller.addresses[0]);
            stream.write_all(request("stuck").as_bytes()).unwrap();
            stream
        };
        let streams = std::iter::repeat_with(ask).take(count).collect();
        until("the requests reaching the callee", || {
            self.callee.metrics.inbound_requests.value() == before + count as u64
        });
        self.until_stuck(stuck);
        streams
    }

    #[track_caller]
    fn until_stuck(&self, count: usize) {
        until("the requests reaching the app", || self.stuck() == count);
    }

    fn stuck(&self) -> usize {
        self.app.hung.now.load(Ordering::SeqCst)
    }
}

fn request(path: &str) -> String {
    format!("GET /v1.0/invoke/stock/method/{path} HTTP/1.1\r\nhost: a\r\n\r\n")
}

#[track_caller]
fn check_served(caller: &Running) {
    let answer = talk(&mut connect(caller.addresses[0]), request("x").as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn each_connection_leaves_others_as_many_as_it_has() {
    let shared = Shared::new(16, patient());
    let honest = shared.caller();
    let attackers = [(); 4].map(|()| shared.caller());
    let mut hanging = Vec::new();
    for (attacker, stuck) in attackers.iter().zip([8, 12, 14, 15]) {
        hanging.push(shared.hang(attacker, MANY, stuck));
        check_served(&honest);
    }
    assert_eq!(shared.stuck(), 15, "others' calls are no reason to let more in");
    // What one has called off, the line included, is there for those who still wait.
    drop(hanging.remove(0));
    let ever = || shared.app.hung.ever.load(Ordering::SeqCst);
    until("the others getting their part of eight and one", || ever() >= 15 + 5);
    check_served(&honest);
    hanging.clear();
    shared.until_stuck(0);
    for attacker in &attackers {
        check_served(attacker);
    }
}

#[test]
fn a_caller_that_waits_for_the_last_connection_gets_it() {
    for protocol in [MeshProtocol::Http2, MeshProtocol::Http1] {
        let shared = Shared::new(1, patient());
        let (first, second) = (shared.caller(), shared.caller());
        for caller in [&first, &second] {
            caller.configure(protocol, (Limits::default(), patient()));
        }
        let hanging = shared.hang(&first, 1, 1);
        let mut waits = connect(second.addresses[0]);
        waits.write_all(request("x").as_bytes()).unwrap();
        until("two requests", || shared.callee.metrics.inbound_requests.value() == 2);
        assert!(!waits.has_arrived());
        drop(hanging);
        assert!(talk(&mut waits, b"", b"\r\n\r\n").starts_with("HTTP/1.1 200 "));
        check_served(&first);
    }
}

#[test]
fn a_vain_wait_for_a_share_ends_as_overloaded() {
    let shared = Shared::new(4, patient());
    let attacker = shared.caller();
    let _hanging = shared.hang(&attacker, 2, 2);
    let answer = talk(&mut connect(attacker.addresses[0]), request("x").as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("ERR_OVERLOADED") && answer.contains("app is full (4)"), "{answer}");
}
