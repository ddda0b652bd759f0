//! Gateways: who is led where, and what they pass on before the callee has answered.

use tollway_identity::{
    GatewayState, ProbeQuestion, UNRECOGNIZED_NAME_RECORD, UPSTREAM_FAILED_RECORD,
};
use tollway_model::ProbeSecret;

use super::sim::{Listening, Stream};
use super::*;

/// What a service that reads lines takes for commands.
const LINES: &[u8] = b"\r\nGET secret\r\nSET owned yes\r\n";
const SERVER_HELLO: &[u8] = &[22, 3, 3, 0, 6, 2, 0, 0, 2, 3, 3];
const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 40];

/// With what east's control plane probes.
const EAST: ProbeSecret = ProbeSecret::new([3; 32]);

/// A gateway of west, joined with east, with a listener for others and one for its own network.
struct Site {
    gateway: Running,
    /// What east states as its gateway.
    east: Listening,
    /// What a workload of `stock` in west states as its address.
    stock: Listening,
}

impl Site {
    fn start() -> Self {
        Self::start_with(vec!["127.0.0.1:1".parse().unwrap()])
    }

    /// The same, with a control plane of west at these addresses.
    fn start_with(control: Vec<SocketAddr>) -> Self {
        Self::start_as(routes_of(label("west"), control))
    }

    fn start_as(routes: GatewayRoutes) -> Self {
        let west = Network::new("west");
        let name = service("gateway");
        let credentials = west.credentials(&name, "g-1", &[]);
        let kinds = [ListenerKind::Gateway, ListenerKind::GatewayInside];
        let gateway = Running::start(name, credentials, &kinds, None, Some(routes));
        let (east, stock) = (listen(), listen());
        gateway.commands.send(Command::Networks(vec![NetworkUpdate {
            network: label("east"),
            revision: Revision(1),
            state: tollway_wire::NetworkState::Joined {
                trust_domain: TrustDomain::default_for(&label("east")),
                gateways: [east.address].into(),
                reachable: true,
                dials_out: false,
                reverse_to: [].into(),
                probe_secret: Some(EAST),
            },
        }]));
        gateway.commands.send(Command::Services(vec![ServiceUpdate {
            service: service("stock"),
            revision: Revision(1),
            state: ServiceState::Local {
                unready: [].into(),
                endpoints: [Endpoint::new(label("s-1"), stock.address)].into(),
                protocol: AppProtocol::Http,
                trust_domain: west.trust_domain,
            },
            routes: Arc::default(),
            traffic: Arc::default(),
        }]));
        Self { gateway, east, stock }
    }

    /// A connection from another network, or from the own one, that has sent a ClientHello and more.
    fn dial(&self, is_inside: bool, server_name: &str, more: &[u8]) -> (Stream, Vec<u8>) {
        let hello = hello(server_name);
        let mut client = connect(self.gateway.addresses[usize::from(is_inside)]);
        client.write_all(&[&hello, more].concat()).unwrap();
        (client, hello)
    }

    /// What the callee gets of a ClientHello and more.
    fn arrived(callee: &Listening, hello: &[u8]) -> Stream {
        let mut callee = callee.accept();
        let mut bytes = vec![0; hello.len()];
        callee.read_exact(&mut bytes).unwrap();
        assert!(bytes == hello, "the ClientHello goes on unchanged");
        advance(SWEEP);
        assert!(!callee.has_arrived(), "more than the ClientHello goes on");
        callee
    }
}

pub(super) fn hello(server_name: &str) -> Vec<u8> {
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server_name = server_name.to_owned().try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), server_name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    hello
}

fn rest_of(mut stream: Stream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
    rest
}

const NAMES_OF_EAST: [&str; 4] = [
    "control.east.mesh",
    "gateway.east.mesh",
    "stock.default.east.mesh",
    "i.stock.default.east.mesh",
];

/// What a probe with this secret finds.
fn probed(site: &Site, secret: ProbeSecret) -> Result<Option<GatewayState>, Vec<u8>> {
    let question = ProbeQuestion::new(secret, label("west")).unwrap();
    let mut client = connect(site.gateway.addresses[0]);
    client.write_all(&question.hello()).unwrap();
    let answer = rest_of(client);
    let whole = answer.clone().try_into().map_err(|_| answer)?;
    Ok(question.read(&whole))
}

#[test]
fn a_gateway_answers_the_probes_of_joined_networks_and_no_others() {
    let site = Site::start();
    let refused = Err(UNRECOGNIZED_NAME_RECORD.to_vec());
    assert_eq!(probed(&site, EAST), Ok(Some(GatewayState::Serving)));
    assert_eq!(probed(&site, ProbeSecret::new([4; 32])), refused);
    let (client, _) = site.dial(false, "gateway.west.mesh", b"");
    assert_eq!(rest_of(client), UNRECOGNIZED_NAME_RECORD, "a ClientHello without a proof");
    site.gateway.commands.send(Command::Networks(vec![NetworkUpdate {
        network: label("east"),
        revision: Revision(2),
        state: tollway_wire::NetworkState::Removed,
    }]));
    advance(SWEEP);
    assert_eq!(probed(&site, EAST), refused, "it is joined no more");
}

#[test]
fn a_gateway_that_ends_states_so_for_as_long_as_it_takes_connections() {
    let site = Site::start();
    site.gateway.commands.send(Command::Drain);
    assert_eq!(probed(&site, EAST), Ok(Some(GatewayState::Draining)));
}

#[test]
fn a_gateway_uses_the_next_address_of_its_control_plane_and_those_that_it_gets() {
    let (serves, moved) = (listen(), listen());
    let site = Site::start_with(vec![unused_address(), serves.address]);
    for _ in 0..2 {
        let (_client, hello) = site.dial(false, "control.west.mesh", b"");
        Site::arrived(&serves, &hello);
    }
    site.gateway.commands.send(Command::ControlAt(vec![moved.address]));
    advance(SWEEP);
    let (_client, hello) = site.dial(false, "control.west.mesh", b"");
    Site::arrived(&moved, &hello);
    assert_eq!(serves.waiting(), 0);
}

#[test]
fn a_gateway_sends_its_own_network_to_the_gateways_of_joined_ones() {
    let site = Site::start();
    for server_name in NAMES_OF_EAST {
        let (_client, hello) = site.dial(true, server_name, b"");
        Site::arrived(&site.east, &hello);
    }
    assert_eq!(site.gateway.metrics.gateway_connections_refused.value(), 0);
}

#[test]
fn a_stranger_gets_no_way_through_a_gateway_into_other_networks() {
    let site = Site::start();
    for server_name in NAMES_OF_EAST {
        let (client, _) = site.dial(false, server_name, LINES);
        assert_eq!(rest_of(client), UNRECOGNIZED_NAME_RECORD, "{server_name}");
    }
    assert_eq!(site.east.waiting(), 0, "east's gateway was dialled");
    let refused = site.gateway.metrics.gateway_connections_refused.value();
    assert_eq!(refused, NAMES_OF_EAST.len() as u64);
    assert_eq!(site.gateway.metrics.gateway_connections.value(), 0);
}

/// The harm: an inside listener that strangers reach is their way into every joined network.
#[test]
fn a_stranger_at_the_inside_listener_gets_no_further_than_one_outside() {
    let routes = routes_of(label("west"), Vec::new());
    let insiders = Insiders::of(vec!["10.0.0.0/8".parse().unwrap()]);
    let site = Site::start_as(GatewayRoutes { insiders, ..routes });
    // Connections here are from loopback.
    for server_name in NAMES_OF_EAST {
        let (client, _) = site.dial(true, server_name, LINES);
        assert_eq!(rest_of(client), UNRECOGNIZED_NAME_RECORD, "{server_name}");
    }
    assert_eq!(site.east.waiting(), 0, "east's gateway was dialled");
    let metrics = &site.gateway.metrics;
    assert_eq!(metrics.gateway_connections_refused.value(), NAMES_OF_EAST.len() as u64);
    assert_eq!(metrics.gateway_connections.value(), 0);
    // Strangers outside reach the services of this network, too.
    let (_client, hello) = site.dial(true, "stock.default.west.mesh", b"");
    Site::arrived(&site.stock, &hello);
}

#[test]
fn a_service_without_tls_is_sent_no_line_of_a_caller() {
    // Each of these speaks first, echoes, or answers what it does not understand.
    for answer in
        [&b"-ERR unknown command\r\n"[..], b"220 mail ESMTP\r\n", b"\x16\x03\x01\x02\x00\x01"]
    {
        for (is_inside, server_name) in [
            (false, "stock.default.west.mesh"),
            (false, "s-1.stock.default.west.mesh"),
            (true, "stock.default.east.mesh"),
        ] {
            let site = Site::start();
            let (client, hello) = site.dial(is_inside, server_name, LINES);
            let mut callee =
                Site::arrived(if is_inside { &site.east } else { &site.stock }, &hello);
            callee.write_all(answer).unwrap();
            assert_eq!(rest_of(client), UPSTREAM_FAILED_RECORD, "{server_name} {answer:?}");
            assert_eq!(rest_of(callee), b"", "{server_name} {answer:?}");
            assert_eq!(site.gateway.metrics.gateway_answers_refused.value(), 1);
        }
    }
}

#[test]
fn what_a_caller_sends_before_the_answer_waits_within_a_limit() {
    let site = Site::start();
    let limit = Limits::default().pipe_bytes;
    let more = vec![b'x'; 4 * limit];
    let (mut client, hello) = site.dial(false, "stock.default.west.mesh", LINES);
    let mut callee = Site::arrived(&site.stock, &hello);
    client.send_meanwhile(more.clone());
    advance(SWEEP);
    assert!(!callee.has_arrived(), "it goes on before the answer");
    // The answer comes byte by byte, and decides only when it is there.
    for (at, byte) in SERVER_HELLO.iter().enumerate() {
        assert!(!callee.has_arrived(), "it goes on after {at} bytes of the answer");
        callee.write_all(&[*byte]).unwrap();
        advance(SWEEP);
    }
    let mut passed = vec![0; LINES.len() + more.len()];
    callee.read_exact(&mut passed).unwrap();
    assert!(passed == [LINES, &more].concat(), "it goes on in order, and whole");
    let mut answer = vec![0; SERVER_HELLO.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, SERVER_HELLO);
    assert_eq!(site.gateway.metrics.gateway_answers_refused.value(), 0);
}

#[test]
fn an_alert_goes_to_the_caller_and_ends_the_relay() {
    let site = Site::start();
    let (client, hello) = site.dial(false, "stock.default.west.mesh", LINES);
    let mut callee = Site::arrived(&site.stock, &hello);
    callee.write_all(&[ALERT, b"secret"].concat()).unwrap();
    assert_eq!(rest_of(client), ALERT);
    assert_eq!(rest_of(callee), b"");
    assert_eq!(site.gateway.metrics.gateway_answers_refused.value(), 0);
}

#[test]
fn a_callee_that_closes_before_it_answers_is_not_passed_over() {
    let site = Site::start();
    let (client, hello) = site.dial(false, "stock.default.west.mesh", LINES);
    drop(Site::arrived(&site.stock, &hello));
    assert_eq!(rest_of(client), UPSTREAM_FAILED_RECORD);
    let (_client, hello) = site.dial(false, "stock.default.west.mesh", b"");
    Site::arrived(&site.stock, &hello);
}

#[test]
fn an_address_without_tls_is_passed_over() {
    let site = Site::start();
    let honest = listen();
    let endpoints = [&site.stock, &honest].map(|at| at.address);
    let endpoints =
        endpoints.map(|address| Endpoint::new(label(&format!("s-{}", address.port())), address));
    site.gateway.commands.send(Command::Services(vec![ServiceUpdate {
        service: service("stock"),
        revision: Revision(2),
        state: ServiceState::Local {
            unready: [].into(),
            endpoints: endpoints.into(),
            protocol: AppProtocol::Http,
            trust_domain: TrustDomain::default_for(&label("west")),
        },
        routes: Arc::default(),
        traffic: Arc::default(),
    }]));
    let mut relays = Vec::new();
    while site.stock.waiting() == 0 {
        relays.push(site.dial(false, "stock.default.west.mesh", b""));
        advance(SWEEP);
    }
    let mut callee = site.stock.accept();
    callee.write_all(b"-ERR\r\n").unwrap();
    advance(SWEEP);
    let before = honest.waiting();
    for _ in 0..3 {
        relays.push(site.dial(false, "stock.default.west.mesh", b""));
    }
    advance(SWEEP);
    assert_eq!((site.stock.waiting(), honest.waiting()), (0, before + 3));
}
