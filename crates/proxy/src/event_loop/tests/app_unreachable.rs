//! Apps, endpoints and gateways that refuse connections, for good or for a moment.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::sim::Peer;
use super::*;

/// Answers every connection with the bytes it sent.
pub(super) fn start_tcp_echo() -> SocketAddr {
    listen_with(tcp_echo)
}

pub(super) fn tcp_echo(mut peer: Peer) {
    spawn(async move {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).await.unwrap();
        peer.write_all(&all).await.unwrap();
    });
}

/// `stock` in the caller's own network, with a sidecar for each app, or behind a gateway.
pub(super) struct Fleet {
    pub(super) network: Network,
    pub(super) stock: ServiceName,
    protocol: AppProtocol,
    pub(super) callees: Vec<Running>,
    pub(super) caller: Running,
}

impl Fleet {
    pub(super) fn new(protocol: AppProtocol, apps: &[SocketAddr]) -> Self {
        Self::with(patient(), protocol, apps)
    }

    /// `timeouts` are the caller's.
    pub(super) fn with(timeouts: Timeouts, protocol: AppProtocol, apps: &[SocketAddr]) -> Self {
        let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
        let start = |(index, app): (usize, &SocketAddr)| {
            let credentials = network.credentials(&stock, &format!("s-{index}"), &[]);
            let app = Some(AppTarget::at(*app, protocol));
            Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], app, None)
        };
        let callees = apps.iter().enumerate().map(start).collect();
        let listeners = [ListenerKind::HttpApi, ListenerKind::Tcp(stock.clone())];
        let credentials = network.credentials(&web, "w-1", &[]);
        let bounds = (Limits::default(), timeouts);
        let caller = Running::start_at(None, bounds, web, credentials, &listeners, None, None);
        Self { network, stock, protocol, callees, caller }
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.callees.iter().map(|callee| callee.addresses[0]).collect()
    }

    pub(super) fn local(&self, addresses: &[SocketAddr]) -> ServiceState {
        let endpoint = |(index, address): (usize, &SocketAddr)| {
            Endpoint::new(label(&format!("s-{index}")), *address)
        };
        ServiceState::Local {
            unready: [].into(),
            endpoints: addresses.iter().enumerate().map(endpoint).collect(),
            protocol: self.protocol,
            trust_domain: self.network.trust_domain.clone(),
        }
    }

    pub(super) fn remote(&self, gateway: SocketAddr) -> ServiceState {
        self.remote_through(&[gateway], &[])
    }

    pub(super) fn remote_through(
        &self,
        gateways: &[SocketAddr],
        beyond: &[SocketAddr],
    ) -> ServiceState {
        ServiceState::Remote {
            remote: Remote {
                network: label("west"),
                ready_replicas: u32::try_from(self.callees.len()).unwrap(),
                gateways: gateways.into(),
                beyond: beyond.into(),
            },
            protocol: self.protocol,
            trust_domain: self.network.trust_domain.clone(),
        }
    }

    pub(super) fn start_gateway(
        &self,
        address: Option<SocketAddr>,
        endpoints: &[SocketAddr],
    ) -> Running {
        let name = service("gateway");
        let routes = routes_of(label("west"), vec![unused_address()]);
        let credentials = self.network.credentials(&name, "g-1", &[]);
        let gateway = Running::start_at(
            address,
            (Limits::default(), patient()),
            name,
            credentials,
            &[ListenerKind::Gateway],
            None,
            Some(routes),
        );
        gateway.send_state(&self.stock, self.local(endpoints));
        gateway
    }

    /// One request that is not safe to repeat, on a connection of its own.
    pub(super) fn post(&self) -> String {
        self.ask("POST")
    }

    pub(super) fn ask(&self, method: &str) -> String {
        read_answer(self.begin(method))
    }

    /// Asks and does not wait for the answer.
    pub(super) fn begin(&self, method: &str) -> Stream {
        let request = format!(
            "{method} /v1.0/invoke/stock/method/echo HTTP/1.1\r\nhost: a\r\n\
             connection: close\r\ncontent-length: 2\r\n\r\nhi"
        );
        let mut stream = connect(self.caller.addresses[0]);
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn echo_tcp(&self) -> Vec<u8> {
        let mut stream = connect(self.caller.addresses[1]);
        stream.write_all(b"over and back").unwrap();
        stream.finish();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        back
    }
}

/// What comes on a connection until it ends.
pub(super) fn read_answer(mut stream: Stream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_replica_without_its_app_costs_no_request() {
    for protocol in [AppProtocol::Http, AppProtocol::H2c] {
        let fleet = Fleet::new(protocol, &[unused_address(), start_app(), unused_address()]);
        fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
        for _ in 0..30 {
            let answer = fleet.post();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.ends_with("hi"), "{answer}");
        }
        let refused: u64 =
            fleet.callees.iter().map(|callee| callee.metrics.request_failures.value()).sum();
        assert!((1..=10).contains(&refused), "{refused} of 30 requests went to an absent app");
    }
}

#[test]
fn a_replica_behind_a_gateway_without_its_app_costs_no_request() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app(), unused_address()]);
    let gateway = fleet.start_gateway(None, &fleet.addresses());
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway.addresses[0]));
    for _ in 0..30 {
        let answer = fleet.post();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn an_app_without_a_listener_is_reported_with_the_hop_that_dialled() {
    let app = unused_address();
    let fleet = Fleet::new(AppProtocol::Http, &[app]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\"errorCode\":\"ERR_APP_UNREACHABLE\""), "{answer}");
    let message = "the sidecar of stock.default.west cannot connect to its app: ";
    assert!(answer.contains(message), "{answer}");
    assert!(!answer.contains(&app.port().to_string()), "where the app is shows: {answer}");
    assert!(!answer.contains("x-tollway-unprocessed"), "a word among sidecars: {answer}");
}

#[test]
fn an_app_cannot_claim_that_it_did_not_process_a_request() {
    let app = listen();
    let fleet = Fleet::new(AppProtocol::Http, &[app.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let asked = fleet.begin("POST");
    let mut stream = app.accept();
    let answer = "HTTP/1.1 503 No\r\nx-tollway-unprocessed: 1\r\ncontent-length: 2\r\n\r\nno";
    talk(&mut stream, b"", b"hi");
    stream.write_all(answer.as_bytes()).unwrap();
    let answer = read_answer(asked);
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("no"), "{answer}");
    assert_eq!(fleet.caller.metrics.retries.value(), 0);
}

#[test]
fn an_app_of_http2_cannot_either() {
    let fleet = Fleet::new(AppProtocol::H2c, &[start_app()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let request = "POST /v1.0/invoke/stock/method/unprocessed HTTP/1.1\r\nhost: a\r\n\
                   connection: close\r\ncontent-length: 2\r\n\r\nno";
    let answer = talk(&mut connect(fleet.caller.addresses[0]), request.as_bytes(), b"\r\nno");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let retries = |thread: &Running| thread.metrics.retries.value();
    assert_eq!((retries(&fleet.caller), retries(&fleet.callees[0])), (0, 0));
}

#[test]
fn a_request_waits_for_a_gateway_that_is_replaced() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let address = unused_address();
    fleet.caller.send_state(&fleet.stock, fleet.remote(address));
    let asked = fleet.begin("POST");
    advance(Duration::from_millis(400));
    assert!(!asked.has_arrived(), "it waits");
    let _gateway = fleet.start_gateway(Some(address), &fleet.addresses());
    let answer = read_answer(asked);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_dial_to_an_address_that_is_no_longer_named_is_not_waited_for() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    // A listener that never takes its connections: the TLS handshake hangs.
    let hangs = listen();
    fleet.caller.send_state(&fleet.stock, fleet.remote(hangs.address));
    let begun = now();
    let asked = fleet.begin("POST");
    until("the dial", || fleet.caller.metrics.dials.value() > 0);
    let gateway = fleet.start_gateway(None, &fleet.addresses());
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway.addresses[0]));
    let answer = read_answer(asked);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let took = now() - begun;
    assert!(took < Timeouts::default().connect, "it waited for the old one: {took:?}");
}

#[test]
fn a_tcp_connection_finds_the_endpoint_that_is_there() {
    let fleet = Fleet::new(AppProtocol::Tcp, &[start_tcp_echo()]);
    let endpoints = [unused_address(), fleet.addresses()[0], unused_address()];
    fleet.caller.send_state(&fleet.stock, fleet.local(&endpoints));
    for _ in 0..9 {
        assert_eq!(fleet.echo_tcp(), b"over and back");
    }
}

#[test]
fn a_gateway_passes_over_an_endpoint_that_is_away() {
    let fleet = Fleet::new(AppProtocol::Tcp, &[start_tcp_echo()]);
    let gateway =
        fleet.start_gateway(None, &[unused_address(), fleet.addresses()[0], unused_address()]);
    fleet.caller.send_state(&fleet.stock, fleet.remote(gateway.addresses[0]));
    for _ in 0..9 {
        assert_eq!(fleet.echo_tcp(), b"over and back");
    }
    assert_eq!(fleet.caller.metrics.dial_failures.value(), 0, "the caller sees nothing of it");
}

#[test]
fn informational_heads_leave_their_hop_by_hop_fields_behind() {
    let app = listen();
    let fleet = Fleet::new(AppProtocol::Http, &[app.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let asked = fleet.begin("POST");
    let mut stream = app.accept();
    talk(&mut stream, b"", b"hi");
    let answer = "HTTP/1.1 103 Early Hints\r\nconnection: x-hop\r\nx-hop: 1\r\nlink: </a>\r\n\r\n\
                  HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    stream.write_all(answer.as_bytes()).unwrap();
    let answer = read_answer(asked);
    assert!(answer.starts_with("HTTP/1.1 103 "), "{answer}");
    assert!(answer.contains("link: </a>\r\n"), "{answer}");
    assert!(!answer.contains("x-hop"), "{answer}");
}

#[test]
fn a_gateway_that_comes_later_gets_its_share() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    let first = fleet.start_gateway(None, &fleet.addresses());
    let later = unused_address();
    let ServiceState::Remote { mut remote, protocol, trust_domain } =
        fleet.remote(first.addresses[0])
    else {
        unreachable!("that is what it makes")
    };
    remote.gateways = [later, first.addresses[0]].into();
    fleet.caller.send_state(&fleet.stock, ServiceState::Remote { remote, protocol, trust_domain });
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    until("all go through the gateway that answers", || {
        first.metrics.gateway_connections.value() == 4
    });
    let second = fleet.start_gateway(Some(later), &fleet.addresses());
    until("a connection through the other gateway", || {
        second.metrics.gateway_connections.value() > 0
    });
    advance(Duration::from_secs(60));
    assert_eq!(second.metrics.gateway_connections.value(), 1, "one is enough");
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
