//! Connections that the kernel has led here from an app: what they were meant for decides.

use std::net::Ipv4Addr;

use tollway_model::failover::{FailoverNetwork, FailoverRules};
use tollway_net::Conn;
use tollway_routing::intercept::{LeftAlone, Meaning, Spared};

use super::app_unreachable::tcp_echo;
use super::sim::{Stream, listen_at};
use super::*;
use crate::interception::{Interception, NameTable, Origins};

/// A port that is left alone.
const LEFT_ALONE: u16 = 4;

/// Every connection was meant for what this has at the moment.
#[derive(Debug, Default)]
struct MeantFor(Mutex<Option<SocketAddr>>);

impl Origins for MeantFor {
    fn take(&self, _: SocketAddr, _: &Conn) -> Option<SocketAddr> {
        *self.0.lock().unwrap()
    }
}

/// `web`, whose app is intercepted, and `stock` in the same network.
pub(super) struct Site {
    pub(super) network: Network,
    stock: ServiceName,
    pub(super) callee: Running,
    pub(super) caller: Running,
    meant: Arc<MeantFor>,
    pub(super) names: Arc<NameTable>,
}

impl Site {
    pub(super) fn new(protocol: AppProtocol, app: SocketAddr) -> Self {
        let site = Self::without_egress(protocol, app);
        site.caller.send_egress(tollway_routing::EgressRules::default());
        site
    }

    /// Nothing has come of what the app may call out of the mesh.
    pub(super) fn without_egress(protocol: AppProtocol, app: SocketAddr) -> Self {
        let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
        let credentials = network.credentials(&stock, "s-1", &[]);
        let app = Some(AppTarget::at(app, protocol));
        let callee =
            Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], app, None);
        let (meant, names) = (Arc::<MeantFor>::default(), Arc::<NameTable>::default());
        let interception = Interception {
            port: 0,
            origins: Arc::clone(&meant) as _,
            names: names.clone(),
            network: None,
            left_alone: LeftAlone::new(vec![Spared::Port(LEFT_ALONE)], false),
            is_in_cluster: true,
        };
        let config = Arc::new(LoopConfig {
            interception: Some(interception),
            timeouts: patient(),
            ..LoopConfig::of_test(web.clone())
        });
        let credentials = network.credentials(&web, "w-1", &[]);
        let around = Around::default();
        let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
        let listeners = [ListenerKind::Intercepted, ListenerKind::Outbound];
        let caller = Running::of(None, config, &listeners, around, sidecar);
        Self { network, stock, callee, caller, meant, names }
    }

    fn send_stock(&self, protocol: AppProtocol) {
        let endpoint = Endpoint::new(label("s-1"), self.callee.addresses[0]);
        let trust_domain = self.network.trust_domain.clone();
        let endpoints = [endpoint].into();
        self.caller.send_state(
            &self.stock,
            ServiceState::Local { unready: [].into(), endpoints, protocol, trust_domain },
        );
    }

    fn send_away(&self) {
        let reason = tollway_model::UnavailableReason::NoReadyEndpoint;
        self.caller.send_state(&self.stock, ServiceState::Unavailable(reason));
    }

    /// A connection of the app to a name.
    fn call(&self, name: &str) -> Stream {
        let Meaning::Service(address) = self.names.ask(name) else { panic!("{name}") };
        self.dial(Some(SocketAddr::from((address, 8080))))
    }

    pub(super) fn dial(&self, meant: Option<SocketAddr>) -> Stream {
        *self.meant.0.lock().unwrap() = meant;
        connect(self.caller.addresses[0])
    }

    /// How connections were decided: declared, learned, by first bytes, silent, outside, refused.
    pub(super) fn counts(&self) -> [u64; 6] {
        let counts = &self.caller.metrics.intercepted;
        [
            &counts.declared,
            &counts.learned,
            &counts.first_bytes,
            &counts.silent,
            &counts.outside,
            &counts.refused,
        ]
        .map(tollway_telemetry::metrics::Counter::value)
    }
}

const GET: &[u8] = b"GET /a HTTP/1.1\r\nhost: stock.mesh:8080\r\n\r\n";

/// Whether nothing comes but the end.
pub(super) fn is_reset(mut stream: Stream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_err() && rest.is_empty()
}

/// West may serve stock in any network.
fn serve_in_any(site: &Site) {
    let west = FailoverNetwork { network: label("west"), priority: 0, weight: 1 };
    let rules = FailoverRules { networks: vec![west], threshold: 70, spill_over: None };
    let state = ServiceState::Failover { rules: Arc::new(rules), registered: [1].into() };
    site.caller.send_state(&service("stock.default.any"), state);
}

#[test]
fn a_name_in_any_network_has_an_address_for_requests_and_for_bytes() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.send_stock(AppProtocol::Http);
    serve_in_any(&site);
    let mut stream = site.call("stock.default.any.mesh");
    let answer = talk(&mut stream, GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("x-host: stock.default.west.mesh\r\n"), "{answer}");
    assert_eq!(site.caller.metrics.failover.priority.value(), 1);

    let site = Site::new(AppProtocol::Tcp, start_tcp_echo());
    site.send_stock(AppProtocol::Tcp);
    serve_in_any(&site);
    let mut stream = site.call("stock.default.any.mesh");
    stream.write_all(b"bytes").unwrap();
    stream.finish();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bytes");
    assert_eq!(site.caller.metrics.failover.priority.value(), 1);
}

#[test]
fn requests_go_to_the_service_of_their_address() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.send_stock(AppProtocol::Http);
    let mut stream = site.call("stock.mesh");
    for _ in 0..2 {
        let answer = talk(&mut stream, GET, b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-path: /a\r\n"), "{answer}");
        assert!(answer.contains("x-caller: spiffe://west.tollway/ns/default/web\r\n"), "{answer}");
    }
    assert_eq!(site.counts(), [1, 0, 0, 0, 0, 0]);
}

/// The server speaks first, and its client sends nothing before.
#[test]
fn bytes_go_to_a_service_that_declares_them_without_waiting() {
    let app = listen_with(|mut peer| {
        spawn(async move {
            tokio::io::AsyncWriteExt::write_all(&mut peer, b"greeting").await.unwrap();
        });
    });
    let site = Site::new(AppProtocol::Tcp, app);
    site.send_stock(AppProtocol::Tcp);
    let mut stream = site.call("stock.default.mesh");
    let before = now();
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "greeting");
    assert!(now() - before < SWEEP, "nothing waits for a time");
    assert_eq!(site.counts(), [1, 0, 0, 0, 0, 0]);
}

/// The harm: a database that was not declared as `tcp` keeps its clients for good.
#[test]
fn a_client_that_waits_for_a_server_of_http_to_speak_first_is_let_go() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.send_stock(AppProtocol::Http);
    let mut stream = site.call("stock.mesh");
    let before = now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    let waited = now() - before;
    let head = Timeouts::default().head;
    assert!(waited > head && waited < head + 2 * SWEEP, "{waited:?}");
}

#[test]
fn a_service_that_is_away_answers_requests_and_resets_bytes() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.send_away();
    // Nothing is known of it, and its first bytes show HTTP.
    let answer = talk(&mut site.call("stock.mesh"), GET, b"}");
    assert!(answer.contains("ERR_NO_READY_ENDPOINT"), "{answer}");
    assert_eq!(site.counts(), [0, 0, 1, 0, 0, 0]);
    // They may come in pieces.
    let mut stream = site.call("stock.mesh");
    stream.write_all(b"GE").unwrap();
    advance(SWEEP);
    let answer = talk(&mut stream, b"T /a HTTP/1.1\r\nhost: a\r\n\r\n", b"}");
    assert!(answer.contains("ERR_NO_READY_ENDPOINT"), "{answer}");
    let mut stream = site.call("stock.mesh");
    stream.write_all(b"\x16\x03\x01").unwrap();
    assert!(is_reset(stream));
    assert_eq!(site.counts(), [0, 0, 3, 0, 0, 0]);
    // A client that waits for its server is not kept waiting.
    let before = now();
    assert!(is_reset(site.call("stock.mesh")));
    assert!(now() - before < Duration::from_secs(1));
    assert_eq!(site.counts(), [0, 0, 3, 1, 0, 0]);
    // It comes, declares bytes, and goes: its word is remembered.
    site.send_stock(AppProtocol::Tcp);
    drop(site.call("stock.mesh"));
    until("its declaration", || site.counts()[0] == 1);
    site.send_away();
    assert!(is_reset(site.call("stock.mesh")));
    assert_eq!(site.counts(), [1, 1, 3, 1, 0, 0]);
}

/// What a database gets that is declared as HTTP, since nothing else is: its clients wait for it to speak.
#[test]
fn a_client_that_sends_nothing_to_a_service_of_http_is_let_go() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.send_stock(AppProtocol::Http);
    let before = now();
    let mut stream = site.call("stock.mesh");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    let waited = now() - before;
    assert!(waited >= patient().head && waited < 2 * patient().head, "{waited:?}");
    assert_eq!(site.counts(), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn other_connections_are_passed_on() {
    let site = Site::new(AppProtocol::Http, start_app());
    let at = |port| SocketAddr::from((Ipv4Addr::new(203, 0, 113, 7), port));
    // One that is left alone is passed on as well, and is not counted.
    for (port, count) in [(7, 1), (LEFT_ALONE, 1)] {
        listen_at(at(port), tcp_echo);
        let mut stream = site.dial(Some(at(port)));
        let sent = vec![b'q'; 2_000_000];
        stream.send_meanwhile(&sent[..]);
        stream.finish();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == sent, "{} of {}", back.len(), sent.len());
        assert_eq!(site.counts(), [0, 0, 0, 0, count, 0]);
    }
    // One that cannot be made ends the app's.
    assert!(is_reset(site.dial(Some(at(8)))));
    assert_eq!(site.counts(), [0, 0, 0, 0, 2, 0]);
}

/// `NotIntercepted` and `UnknownAddress`: the sidecar's own port would lead in a circle, and an address
/// out of the range for names leads nowhere.
#[test]
fn what_was_meant_for_nothing_is_reset() {
    let site = Site::new(AppProtocol::Http, start_app());
    assert!(is_reset(site.dial(None)));
    assert!(is_reset(site.dial(Some((Ipv4Addr::new(240, 1, 2, 3), 80).into()))));
    assert_eq!(site.counts(), [0, 0, 0, 0, 0, 2]);
}
