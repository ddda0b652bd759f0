//! Reverse connections: `plant` only dials out, and `cloud` calls it by what its gateways have opened.

use std::cell::{Cell, RefCell};

use rustls::StreamOwned;
use tollway_identity::{Expected, UPSTREAM_FAILED_RECORD, client_config};
use tollway_model::{NetworkName, TrustDomain};
use tollway_wire::NetworkState;

use super::gateway::hello as gateway_hello;
use super::sim::Stream;
use super::*;

type Tls = StreamOwned<rustls::ClientConnection, Stream>;

const ALPN: &[u8] = b"tollway-reverse/1";
const KEEP: u8 = 1;
const TAKE: u8 = 2;
const REFUSE: u8 = 3;
/// As many wait as a gateway opens at first.
const LEAST: u64 = 4;

/// A gateway of `cloud`, which takes calls to other networks at its second listener.
struct Cloud {
    gateway: Running,
    board: Board,
    cloud: Network,
    plant: Network,
}

fn gateway(
    network: &Network,
    instance: &str,
    peers: &[&Network],
    listeners: &[ListenerKind],
    board: &Board,
) -> Running {
    let name = label(network.authority.network().as_str());
    let own = service(&format!("gateway.tollway.{name}"));
    let routes = routes_of(name, vec![unused_address()]);
    let reverse = ReverseOptions {
        credentials: network.gateway_credentials_of(instance, peers),
        own: own.clone(),
        holds: listeners.contains(&ListenerKind::GatewayInside),
        dials_out: listeners.is_empty(),
        thread: 0,
        board: board.clone(),
    };
    let bounds = (Limits::default(), patient());
    let config = LoopConfig { limits: bounds.0, timeouts: bounds.1, ..LoopConfig::of_test(own) };
    let plane = Gateway::new(routes, reverse);
    Running::of(None, Arc::new(config), listeners, Around::default(), plane)
}

fn joined(network: &str, dials_out: bool, reverse_to: &[SocketAddr]) -> Command {
    Command::Networks(vec![NetworkUpdate {
        network: label(network),
        revision: Revision(1),
        state: NetworkState::Joined {
            trust_domain: TrustDomain::default_for(&label(network)),
            gateways: [].into(),
            reachable: true,
            dials_out,
            reverse_to: reverse_to.into(),
            probe_secret: None,
        },
    }])
}

impl Cloud {
    fn start() -> Self {
        let (cloud, plant) = (Network::new("cloud"), Network::new("plant"));
        Self::with(cloud, plant, &[])
    }

    fn with(cloud: Network, plant: Network, others: &[&Network]) -> Self {
        let board = Board::default();
        let peers: Vec<&Network> = others.iter().copied().chain([&plant]).collect();
        let listeners = [ListenerKind::Gateway, ListenerKind::GatewayInside];
        let gateway = gateway(&cloud, "g-1", &peers, &listeners, &board);
        gateway.commands.send(joined("plant", true, &[]));
        Self { gateway, board, cloud, plant }
    }

    fn outside(&self) -> SocketAddr {
        self.gateway.addresses[0]
    }

    fn inside(&self) -> SocketAddr {
        self.gateway.addresses[1]
    }

    fn reached(&self) -> Vec<NetworkName> {
        self.board.changes().held().into_iter().collect()
    }

    fn waiting(&self) -> u64 {
        self.gateway.metrics.gateway_reverse_connections.value()
    }

    fn refused(&self) -> u64 {
        self.gateway.metrics.gateway_reverse_refused.value()
    }

    /// A gateway of plant, which opens reverse connections to that of cloud.
    fn gateway_of_plant(&self, instance: &str) -> Running {
        let opener = gateway(&self.plant, instance, &[&self.cloud], &[], &Board::default());
        opener.commands.send(joined("cloud", false, &[self.outside()]));
        opener
    }

    /// A peer with these credentials opens a reverse connection, as the test likes.
    fn open(&self, credentials: &Credentials) -> Tls {
        let own = service("gateway.tollway.cloud");
        let expected = Expected::service(&own, &TrustDomain::default_for(&label("cloud")));
        let config = client_config(credentials, &expected, &[ALPN]).unwrap();
        let name = expected.server_name().unwrap();
        let tls = rustls::ClientConnection::new(config, name).unwrap();
        StreamOwned::new(tls, connect(self.outside()))
    }

    /// The same, until it waits for a connection to carry.
    fn open_one_of_plant(&self, instance: &str) -> Tls {
        let credentials = self.plant.gateway_credentials_of(instance, &[&self.cloud]);
        let mut opened = self.open(&credentials);
        opened.write_all(&[KEEP]).unwrap();
        assert_eq!(next(&mut opened), Some(KEEP));
        opened
    }

    /// A caller's connection to plant that has sent its ClientHello.
    fn call(&self) -> (Stream, Vec<u8>) {
        let hello = gateway_hello("press.default.plant.mesh");
        let mut caller = connect(self.inside());
        caller.write_all(&hello).unwrap();
        (caller, hello)
    }
}

/// The next byte; `None` at the end.
fn next(stream: &mut impl Read) -> Option<u8> {
    let mut byte = [0];
    stream.read(&mut byte).ok().filter(|count| *count == 1).map(|_| byte[0])
}

#[track_caller]
fn expect(stream: &mut impl Read, expected: &[u8]) {
    let mut found = vec![0; expected.len()];
    stream.read_exact(&mut found).unwrap();
    assert!(found == expected, "other bytes came");
}

/// `web` in cloud and `press` in plant, which has two gateways.
struct World {
    cloud: Cloud,
    openers: Vec<Running>,
    caller: Running,
    _callee: Running,
}

impl World {
    fn new(protocol: AppProtocol) -> Self {
        let cloud = Cloud::start();
        let (web, press) = (service("web.default.cloud"), service("press.default.plant"));
        let callee = Running::start(
            press.clone(),
            cloud.plant.credentials(&press, "p-1", &[&cloud.cloud]),
            &[ListenerKind::Inbound],
            Some(AppTarget::at(start_app(), protocol)),
            None,
        );
        let trust_domain = cloud.plant.trust_domain.clone();
        let openers: Vec<Running> =
            ["g-1", "g-2"].into_iter().map(|instance| cloud.gateway_of_plant(instance)).collect();
        for opener in &openers {
            let endpoint = Endpoint::new(label("p-1"), callee.addresses[0]);
            let (endpoints, trust_domain) = ([endpoint].into(), trust_domain.clone());
            opener.send_state(
                &press,
                ServiceState::Local { unready: [].into(), endpoints, protocol, trust_domain },
            );
        }
        let caller = Running::start(
            web.clone(),
            cloud.cloud.credentials(&web, "w-1", &[&cloud.plant]),
            &[ListenerKind::HttpApi],
            None,
            None,
        );
        let remote = Remote {
            network: label("plant"),
            ready_replicas: 1,
            gateways: [cloud.inside()].into(),
            beyond: [].into(),
        };
        caller.send_state(&press, ServiceState::Remote { remote, protocol, trust_domain });
        until("reverse connections", || cloud.waiting() == 2 * LEAST);
        Self { cloud, openers, caller, _callee: callee }
    }

    /// The answer to a call of press by web.
    fn call(&self) -> String {
        let mut stream = connect(self.caller.addresses[0]);
        let request = "GET /v1.0/invoke/press.default.plant/method/x HTTP/1.1\r\n\
            host: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_network_that_only_dials_out_is_called_by_who_the_caller_is() {
    for protocol in [AppProtocol::Http, AppProtocol::H2c] {
        let world = World::new(protocol);
        assert_eq!(world.cloud.reached(), [label("plant")]);
        let answer = world.call();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-caller: spiffe://cloud.tollway/ns/default/web"), "{answer}");
        let carried = |running: &Running| running.metrics.gateway_reverse_carried.value();
        let of_plant: u64 = world.openers.iter().map(carried).sum();
        // A sidecar opens several connections to a service that is far away.
        assert!(of_plant > 0);
        assert_eq!(carried(&world.cloud.gateway), of_plant);
        until("others in their places", || world.cloud.waiting() >= 2 * LEAST);
    }
}

#[test]
fn a_gateway_that_dies_takes_no_call_with_it_that_begins_later() {
    let mut world = World::new(AppProtocol::Http);
    world.openers.pop();
    for _ in 0..3 {
        assert!(world.call().starts_with("HTTP/1.1 200"));
    }
    world.openers.pop();
    until("that no one reaches plant", || world.cloud.reached().is_empty());
    // Nothing is there to wait for: the caller is sent away at once.
    let (mut caller, _) = world.cloud.call();
    let begun = now();
    expect(&mut caller, &UPSTREAM_FAILED_RECORD);
    assert!(now() - begun < Duration::from_secs(1));
    // A new gateway of plant is a way again.
    let _opener = world.cloud.gateway_of_plant("g-3");
    until("a way", || !world.cloud.reached().is_empty());
}

#[test]
fn more_callers_than_reverse_connections_wait_for_further_ones() {
    let world = World::new(AppProtocol::Http);
    let callers: Vec<_> = sim::at_once(|| (0..40).map(|_| world.cloud.call()).collect());
    let carried = || world.cloud.gateway.metrics.gateway_reverse_carried.value();
    until("all of them carried", || carried() == 40);
    assert_eq!(callers.len(), 40);
    // More wait than before, for the next ones.
    until("more that wait", || world.cloud.waiting() > 2 * LEAST);
}

#[test]
fn only_gateways_of_networks_that_only_dial_out_are_a_way_and_to_their_own_network_alone() {
    let (cloud, plant) = (Network::new("cloud"), Network::new("plant"));
    let (mine, shop) = (Network::new("mine"), Network::new("shop"));
    let site = Cloud::with(cloud, plant, &[&mine, &shop]);
    site.gateway.commands.send(joined("mine", true, &[]));
    site.gateway.commands.send(joined("shop", false, &[]));
    let web = site.cloud.credentials(&service("web.default.cloud"), "w-1", &[]);
    let press = service("press.default.plant");
    let press = site.plant.credentials(&press, "p-1", &[&site.cloud]);
    let own = site.cloud.gateway_credentials_of("g-9", &[]);
    let dialled = shop.gateway_credentials_of("g-1", &[&site.cloud]);
    let refused = [("web", web), ("press", press), ("own", own), ("shop", dialled)];
    for (count, (who, credentials)) in refused.iter().enumerate() {
        let mut opened = site.open(credentials);
        opened.write_all(&[KEEP]).unwrap();
        assert_eq!(next(&mut opened), Some(REFUSE), "{who}");
        assert_eq!(site.refused(), count as u64 + 1, "{who}");
    }
    // A stranger has made an authority of that name.
    let stranger = Network::new("plant").gateway_credentials_of("g-1", &[&site.cloud]);
    let mut opened = site.open(&stranger);
    let _ = opened.write_all(&[KEEP]);
    assert_eq!(next(&mut opened), None);
    assert_eq!(site.refused(), refused.len() as u64 + 1);
    assert_eq!(site.reached(), []);
    // A way into mine carries nothing for plant.
    let of_mine = mine.gateway_credentials_of("g-1", &[&site.cloud]);
    let mut opened = site.open(&of_mine);
    opened.write_all(&[KEEP]).unwrap();
    assert_eq!(next(&mut opened), Some(KEEP));
    let (mut caller, _) = site.call();
    expect(&mut caller, &UPSTREAM_FAILED_RECORD);
    advance(SWEEP);
    assert!(!opened.sock.has_arrived());
    assert_eq!(site.reached(), [label("mine")]);
    // Nor does one of plant carry what comes from elsewhere than from within cloud.
    let mut of_plant = site.open_one_of_plant("g-1");
    let mut outside = connect(site.outside());
    outside.write_all(&gateway_hello("press.default.plant.mesh")).unwrap();
    expect(&mut outside, &tollway_identity::UNRECOGNIZED_NAME_RECORD);
    advance(SWEEP);
    assert!(!of_plant.sock.has_arrived());
    let (_caller, hello) = site.call();
    expect(&mut of_plant, &[&[TAKE], &hello[..]].concat());
}

#[test]
fn a_gateway_without_a_listener_for_its_own_network_takes_none() {
    let (cloud, plant) = (Network::new("cloud"), Network::new("plant"));
    let board = Board::default();
    let alone = gateway(&cloud, "g-1", &[&plant], &[ListenerKind::Gateway], &board);
    alone.commands.send(joined("plant", true, &[]));
    let opener = gateway(&plant, "g-1", &[&cloud], &[], &Board::default());
    opener.commands.send(joined("cloud", false, &[alone.addresses[0]]));
    advance(Duration::from_secs(10));
    assert_eq!(opener.metrics.gateway_reverse_connections.value(), 0);
    let failed = opener.metrics.dial_failures.value();
    assert!((4..60).contains(&failed), "{failed} dials in 10 s");
}

#[test]
fn what_a_silent_gateway_does_not_take_goes_to_the_next_one_unchanged() {
    let site = Cloud::start();
    let mut silent = site.open_one_of_plant("g-1");
    let mut live = site.open_one_of_plant("g-2");
    let (mut caller, hello) = site.call();
    caller.write_all(b"later").unwrap();
    expect(&mut silent, &[&[TAKE], &hello[..]].concat());
    assert!(!live.sock.has_arrived());
    expect(&mut live, &[&[TAKE], &hello[..]].concat());
    assert_eq!(site.gateway.metrics.gateway_reverse_silent.value(), 1);
    // The first one is closed: what it answers now reaches no one.
    let _ = silent.write_all(&[TAKE]);
    assert_eq!(next(&mut silent), None);
    live.write_all(&[&[KEEP, TAKE], SERVER_HELLO].concat()).unwrap();
    expect(&mut caller, SERVER_HELLO);
    expect(&mut live, b"later");
}

const SERVER_HELLO: &[u8] = &[22, 3, 3, 0, 6, 2, 0, 0, 2, 3, 3];

#[test]
fn what_a_gateway_closes_unread_goes_to_the_next_one_and_at_last_back() {
    let site = Cloud::start();
    let mut opened: Vec<Tls> = ["g-1", "g-2", "g-3"]
        .into_iter()
        .map(|instance| site.open_one_of_plant(instance))
        .collect();
    let (mut caller, hello) = site.call();
    for mut one in opened.drain(..) {
        expect(&mut one, &[&[TAKE], &hello[..]].concat());
    }
    expect(&mut caller, &UPSTREAM_FAILED_RECORD);
}

#[test]
fn an_answer_that_is_not_tls_ends_the_relay_and_not_before_the_confirmation() {
    let site = Cloud::start();
    let mut opened = site.open_one_of_plant("g-1");
    let (mut caller, hello) = site.call();
    expect(&mut opened, &[&[TAKE], &hello[..]].concat());
    opened.write_all(&[&[TAKE], &b"220 mail ESMTP\r\n"[..]].concat()).unwrap();
    expect(&mut caller, &UPSTREAM_FAILED_RECORD);
    assert_eq!(site.gateway.metrics.gateway_answers_refused.value(), 1);
}

#[test]
fn who_breaks_the_protocol_of_reverse_connections_loses_them() {
    for wrong in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[TAKE], &[REFUSE], &[0], &[KEEP, KEEP, TAKE]] {
        let site = Cloud::start();
        let mut opened = site.open_one_of_plant("g-1");
        opened.write_all(wrong).unwrap();
        while let Some(byte) = next(&mut opened) {
            assert_eq!(byte, REFUSE, "{wrong:?}");
        }
        assert_eq!(site.refused(), 1, "{wrong:?}");
        until("no way any more", || site.reached().is_empty());
    }
    // What it was to carry goes on by another one.
    let site = Cloud::start();
    let mut wrong = site.open_one_of_plant("g-1");
    let mut right = site.open_one_of_plant("g-2");
    let (_caller, hello) = site.call();
    expect(&mut wrong, &[&[TAKE], &hello[..]].concat());
    wrong.write_all(b"nonsense").unwrap();
    expect(&mut right, &[&[TAKE], &hello[..]].concat());
}

#[test]
fn a_reverse_connection_without_keepalives_is_closed_and_one_with_them_is_not() {
    let site = Cloud::start();
    let mut silent = site.open_one_of_plant("g-1");
    let opener = site.gateway_of_plant("g-2");
    until("all of them", || site.waiting() == LEAST + 1);
    advance(Duration::from_secs(40));
    assert_eq!(next(&mut silent), None);
    assert_eq!(site.waiting(), LEAST);
    assert_eq!(site.gateway.metrics.tls_handshakes.value(), LEAST + 1, "none was replaced");
    drop(opener);
}

#[test]
fn one_that_does_not_answer_keepalives_is_replaced() {
    let site = Cloud::start();
    let far = Duration::from_millis(1);
    let holds = Rc::new(RefCell::new(Vec::new()));
    let taken = Rc::clone(&holds);
    let via = sim::forward(site.outside(), far, move |hold| taken.borrow_mut().push(hold));
    let opener = gateway(&site.plant, "g-1", &[&site.cloud], &[], &Board::default());
    opener.commands.send(joined("cloud", false, &[via]));
    until("all of them", || site.waiting() == LEAST);
    for hold in holds.borrow().iter() {
        hold.hold(true);
    }
    advance(Duration::from_secs(20));
    assert!(holds.borrow().len() as u64 >= 2 * LEAST, "others were opened");
}

#[test]
fn others_are_opened_beside_those_that_do_not_answer() {
    let site = Cloud::start();
    let holds = Rc::new(RefCell::new(Vec::new()));
    let taken = Rc::clone(&holds);
    let far = Duration::from_millis(1);
    let via = sim::forward(site.outside(), far, move |hold| taken.borrow_mut().push(hold));
    let opener = gateway(&site.plant, "g-1", &[&site.cloud], &[], &Board::default());
    opener.commands.send(joined("cloud", false, &[via]));
    until("all of them", || site.waiting() == LEAST);
    let opened = || holds.borrow().len() as u64;
    for hold in holds.borrow().iter() {
        hold.hold(true);
    }
    for _ in 0..40 {
        advance(SWEEP);
        assert!(!site.reached().is_empty(), "what is lost on some says nothing of the others");
    }
    assert_eq!(opened(), 2 * LEAST, "as many again, until the others are given up");
    for hold in holds.borrow().iter().take(4) {
        hold.hold(false);
    }
    until("no more than are needed", || site.waiting() == LEAST);
    advance(Duration::from_secs(5));
    assert_eq!((opened(), site.waiting()), (2 * LEAST, LEAST));
}

#[test]
fn a_network_that_is_silent_for_two_seconds_is_not_held_and_one_that_pauses_for_one_is() {
    let site = Cloud::start();
    let is_cut = Rc::new(Cell::new(false));
    let holds = Rc::new(RefCell::new(Vec::new()));
    let (taken, as_it_is) = (Rc::clone(&holds), Rc::clone(&is_cut));
    let far = Duration::from_millis(1);
    let via = sim::forward(site.outside(), far, move |hold| {
        hold.hold(as_it_is.get());
        taken.borrow_mut().push(hold);
    });
    let opener = gateway(&site.plant, "g-1", &[&site.cloud], &[], &Board::default());
    opener.commands.send(joined("cloud", false, &[via]));
    until("all of them", || site.waiting() == LEAST);
    let cut = |cut| {
        is_cut.set(cut);
        holds.borrow().iter().for_each(|hold| hold.hold(cut));
    };
    let is_held = || !site.reached().is_empty();
    let stays_held = |time: Duration| {
        let until = now() + time;
        while now() < until {
            advance(SWEEP);
            assert!(is_held());
        }
    };
    for _ in 0..3 {
        stays_held(Duration::from_secs(3));
        cut(true);
        stays_held(Duration::from_secs(1));
        cut(false);
    }
    stays_held(Duration::from_secs(3));
    cut(true);
    advance(Duration::from_millis(1_900));
    assert!(!is_held(), "nothing has come for so long");
    cut(false);
    until("others", is_held);
    stays_held(Duration::from_secs(5));
}

/// A connection of g-1 that carries a call of a caller, which holds the second value.
fn carrying(site: &Cloud) -> (Tls, Stream) {
    let mut carrying = site.open_one_of_plant("g-1");
    let (mut caller, hello) = site.call();
    expect(&mut carrying, &[&[TAKE], &hello[..]].concat());
    carrying.write_all(&[&[TAKE], SERVER_HELLO].concat()).unwrap();
    expect(&mut caller, SERVER_HELLO);
    (carrying, caller)
}

#[test]
fn a_network_that_drains_is_held_for_what_it_carries_and_for_ten_seconds() {
    let site = Cloud::start();
    let _carried = carrying(&site);
    drop([site.open_one_of_plant("g-1"), site.open_one_of_plant("g-1")]);
    advance(Duration::from_secs(9));
    assert!(!site.reached().is_empty(), "none waits, and what is carried goes on");
    advance(Duration::from_secs(3));
    assert_eq!(site.reached(), []);
}

#[test]
fn a_network_that_is_silent_while_none_waits_is_not_held_for_what_it_carries() {
    let site = Cloud::start();
    let _carried = carrying(&site);
    advance(Duration::from_secs(1));
    assert!(!site.reached().is_empty(), "the next one may be on its way");
    advance(Duration::from_millis(900));
    assert_eq!(site.reached(), []);
    let _next = site.open_one_of_plant("g-1");
    until("it is back", || !site.reached().is_empty());
}

#[test]
fn a_network_from_which_bytes_come_is_held_while_none_waits() {
    let site = Cloud::start();
    let (mut carrying, _caller) = carrying(&site);
    for _ in 0..10 {
        advance(Duration::from_millis(500));
        carrying.write_all(b"x").unwrap();
        assert!(!site.reached().is_empty());
    }
    advance(Duration::from_millis(1_900));
    assert_eq!(site.reached(), []);
}

/// The kernel of a suspended gateway retransmits bytes that a link has lost.
#[test]
fn bytes_of_what_is_carried_are_no_sign_of_life_where_others_wait() {
    let site = Cloud::start();
    let (mut carrying, _caller) = carrying(&site);
    let _waits = site.open_one_of_plant("g-1");
    for _ in 0..3 {
        advance(Duration::from_millis(500));
        assert!(!site.reached().is_empty());
        carrying.write_all(b"x").unwrap();
    }
    advance(Duration::from_millis(400));
    assert_eq!(site.reached(), [], "nothing has come by the one that waits");
    carrying.write_all(b"x").unwrap();
    advance(Duration::from_millis(400));
    assert_eq!(site.reached(), [], "what is carried brings back no way for others");
    let _next = site.open_one_of_plant("g-1");
    until("it is back", || !site.reached().is_empty());
}

/// After a cut, too, when all that came since carries something.
#[test]
fn bytes_of_what_was_carried_before_a_cut_are_no_sign_of_life() {
    let site = Cloud::start();
    let (mut older, _caller) = carrying(&site);
    advance(Duration::from_secs(5));
    assert_eq!(site.reached(), []);
    let (mut newer, _caller) = carrying(&site);
    until("it is back", || !site.reached().is_empty());
    for _ in 0..3 {
        advance(Duration::from_millis(500));
        newer.write_all(b"x").unwrap();
        assert!(!site.reached().is_empty(), "it lives");
    }
    for round in 0..3 {
        advance(Duration::from_millis(500));
        assert!(!site.reached().is_empty(), "{round}");
        older.write_all(b"x").unwrap();
    }
    advance(Duration::from_millis(400));
    assert_eq!(site.reached(), []);
}

/// A link is cut during a handshake; the kernel of a suspended gateway ends it later.
#[test]
fn a_handshake_that_was_under_way_for_long_is_no_sign_of_life() {
    let site = Cloud::start();
    let _waits = site.open_one_of_plant("g-1");
    let credentials = site.plant.gateway_credentials_of("g-1", &[&site.cloud]);
    let late = || {
        let mut late = site.open(&credentials);
        late.conn.write_tls(&mut late.sock).unwrap();
        while late.conn.is_handshaking() {
            late.conn.read_tls(&mut late.sock).unwrap();
            late.conn.process_new_packets().unwrap();
        }
        late
    };
    let mut late = [late(), late()];
    // Its keepalive is in the same segment.
    let end = |late: &mut Tls| late.write_all(&[KEEP]).unwrap();
    advance(Duration::from_millis(1_300));
    end(&mut late[0]);
    advance(Duration::from_millis(600));
    assert_eq!(site.reached(), [], "nothing else has come");
    // Also after the gateway has looked through what it remembers.
    advance(Duration::from_secs(3));
    end(&mut late[1]);
    for _ in 0..10 {
        advance(SWEEP);
        assert_eq!(site.reached(), [], "it brings back no way");
    }
    late[1].write_all(&[KEEP]).unwrap();
    until("it is back, now that it lives", || !site.reached().is_empty());
}

#[test]
fn a_silent_network_is_not_held_for_what_is_offered_to_it() {
    let site = Cloud::start();
    let _waits = site.open_one_of_plant("g-1");
    advance(Duration::from_secs(1));
    let _offered = site.call();
    advance(Duration::from_millis(500));
    assert!(!site.reached().is_empty());
    advance(Duration::from_millis(400));
    assert_eq!(site.reached(), []);
}

/// A call that is not confirmed closes what waits beside it, and what is carried goes on.
#[test]
fn a_silent_network_is_not_held_for_what_it_carries_where_others_wait() {
    let site = Cloud::start();
    let _carried = carrying(&site);
    let _waits = [site.open_one_of_plant("g-1"), site.open_one_of_plant("g-1")];
    let (_other, _) = site.call();
    advance(Duration::from_secs(2));
    assert_eq!(site.reached(), []);
}

#[test]
fn a_revoked_gateway_loses_its_reverse_connections_and_what_they_carry() {
    let site = Cloud::start();
    let mut idle = site.open_one_of_plant("g-1");
    let mut carrying = site.open_one_of_plant("g-1");
    let (mut caller, hello) = site.call();
    expect(&mut idle, &[&[TAKE], &hello[..]].concat());
    std::mem::swap(&mut idle, &mut carrying);
    carrying.write_all(&[&[TAKE], SERVER_HELLO].concat()).unwrap();
    expect(&mut caller, SERVER_HELLO);
    let trust = site.cloud.gateway_credentials_of("g-1", &[&site.plant]);
    let bundles = trust.bundles().iter().map(|bundle| {
        let is_plant = bundle.network().as_str() == "plant";
        let revocation = tollway_model::Revocation {
            namespace: label("tollway"),
            app: label("gateway"),
            instance: Some(label("g-1")),
        };
        let revoked = is_plant.then_some(revocation);
        bundle.clone().with_revoked(tollway_identity::Revocations::new(revoked))
    });
    let bundles = TrustBundles::new(2, bundles.collect::<Vec<_>>()).unwrap();
    let revoking = Arc::new(trust.with_bundles(bundles).unwrap());
    site.gateway.commands.send(Command::Credentials(revoking));
    assert_eq!(next(&mut idle), None);
    assert_eq!(next(&mut carrying), None);
    assert_eq!(next(&mut caller), None);
    until("no way any more", || site.reached().is_empty());
    let again = site.plant.gateway_credentials_of("g-1", &[&site.cloud]);
    let mut again = site.open(&again);
    let _ = again.write_all(&[KEEP]);
    assert_eq!(next(&mut again), None);
}

#[test]
fn a_network_has_so_many_reverse_connections_that_wait_and_no_more() {
    let site = Cloud::start();
    let credentials = site.plant.gateway_credentials_of("g-1", &[&site.cloud]);
    let mut opened = Vec::new();
    for _ in 0..1024 {
        let mut one = site.open(&credentials);
        one.write_all(&[KEEP]).unwrap();
        assert_eq!(next(&mut one), Some(KEEP));
        opened.push(one);
    }
    let mut more = site.open(&credentials);
    more.write_all(&[KEEP]).unwrap();
    assert_eq!(next(&mut more), Some(REFUSE));
    assert_eq!(site.refused(), 1);
}

#[test]
fn a_gateway_that_drains_closes_the_reverse_connections_that_wait() {
    let site = Cloud::start();
    let opener = site.gateway_of_plant("g-1");
    until("all of them", || site.waiting() == LEAST);
    opener.commands.send(Command::Drain);
    until("the end", || sim::has_ended(opener.node));
    until("no way any more", || site.reached().is_empty());
    assert_eq!(site.refused(), 0);
}
