//! A service that is called in any network: `stock.default.any`.

use tollway_model::failover::{FailoverNetwork, FailoverRules};
use tollway_model::route::{Backend, HeaderEdits, PathEdit, RouteRule};
use tollway_model::{Caller, ObjectName, Route, ServiceRef, SpiffeId, UnavailableReason};
use tollway_routing::RouteSet;

use super::*;
use crate::mesh::{RoutesUpdate, ServiceRoutes};

const SECOND: Duration = Duration::from_secs(1);
const CALL: &str = "/v1.0/invoke/stock.default.any/method";

/// The service stock in one network: its authority, and its only replica while it runs.
struct Site {
    network: Network,
    stock: ServiceName,
    app: SocketAddr,
    protocol: AppProtocol,
    address: SocketAddr,
    replica: Option<Running>,
}

impl Site {
    fn new(name: &'static str, protocol: AppProtocol) -> Self {
        let stock = service(&format!("stock.default.{name}"));
        let app = match protocol {
            AppProtocol::Tcp => listen_with(move |mut peer| {
                spawn(async move {
                    use tokio::io::AsyncWriteExt;
                    let _ = peer.write_all(name.as_bytes()).await;
                    let _ = peer.shutdown().await;
                });
            }),
            AppProtocol::Http | AppProtocol::H2c | AppProtocol::Grpc => {
                serve(move |request| async move {
                    let mut response = answer(request).await?;
                    response.headers_mut().insert("x-app", name.parse().unwrap());
                    Ok(response)
                })
            }
        };
        let network = Network::new(name);
        Self { network, stock, app, protocol, address: unused_address(), replica: None }
    }

    /// Starts the replica at its address. `west` is the network of its callers.
    fn start(&mut self, west: &Network) {
        let peers: &[&Network] = if self.stock.network == label("west") { &[] } else { &[west] };
        let credentials = self.network.credentials(&self.stock, "s-1", peers);
        self.replica = Some(Running::start_at(
            Some(self.address),
            (Limits::default(), patient()),
            self.stock.clone(),
            credentials,
            &[ListenerKind::Inbound],
            Some(AppTarget::at(self.app, self.protocol)),
            None,
        ));
    }

    /// Requests and connections that reached the replica.
    fn seen(&self) -> u64 {
        let metrics = &self.replica.as_ref().unwrap().metrics;
        metrics.inbound_requests.value() + metrics.tls_handshakes.value()
    }

    /// As sidecars in west see it, with so many replicas.
    fn state(&self, replicas: u32) -> ServiceState {
        if self.stock.network == label("west") {
            let endpoint = Endpoint::new(label("s-1"), self.address);
            return ServiceState::Local {
                unready: [].into(),
                endpoints: [endpoint].into(),
                protocol: self.protocol,
                trust_domain: self.network.trust_domain.clone(),
            };
        }
        ServiceState::Remote {
            remote: Remote {
                network: self.stock.network.clone(),
                ready_replicas: replicas,
                gateways: [self.address].into(),
                beyond: [].into(),
            },
            protocol: self.protocol,
            trust_domain: self.network.trust_domain.clone(),
        }
    }
}

/// web in west calls stock, which is in west, east and north.
struct Shop {
    caller: Running,
    sites: [Site; 3],
}

const WEST: usize = 0;
const EAST: usize = 1;
const NORTH: usize = 2;

impl Shop {
    fn new(protocol: AppProtocol) -> Self {
        let mut sites = ["west", "east", "north"].map(|name| Site::new(name, protocol));
        let [west, east, north] = &mut sites;
        west.start(&Network::new("unused"));
        east.start(&west.network);
        north.start(&west.network);
        let web = service("web");
        let peers = [&east.network, &north.network];
        let caller = Running::start(
            web.clone(),
            west.network.credentials(&web, "w-1", &peers),
            &[ListenerKind::HttpApi, ListenerKind::Outbound, ListenerKind::Tcp(any())],
            None,
            None,
        );
        let shop = Self { caller, sites };
        for site in &shop.sites {
            shop.caller.send_state(&site.stock, site.state(1));
        }
        shop
    }

    /// Names the networks that may serve, each with its priority and weight.
    fn name(&self, networks: &[(usize, u32, u32)], spill_over: Option<u32>) {
        let network = |(site, priority, weight): &(usize, u32, u32)| FailoverNetwork {
            network: self.sites[*site].stock.network.clone(),
            priority: *priority,
            weight: *weight,
        };
        let rules = FailoverRules {
            networks: networks.iter().map(network).collect(),
            threshold: 70,
            spill_over,
        };
        rules.check().unwrap();
        let registered = vec![1; networks.len()].into();
        let state = ServiceState::Failover { rules: Arc::new(rules), registered };
        self.caller.send_state(&any(), state);
    }

    fn west_before_east() -> Self {
        let shop = Self::new(AppProtocol::Http);
        shop.name(&[(WEST, 0, 1), (EAST, 1, 1)], None);
        shop
    }

    fn stop(&mut self, site: usize) {
        self.sites[site].replica = None;
    }

    fn start(&mut self, site: usize) {
        let (west, others) = self.sites.split_at_mut(1);
        match site {
            WEST => west[0].start(&Network::new("unused")),
            other => others[other - 1].start(&west[0].network),
        }
    }

    /// A request that is not safe to repeat, on a connection of its own.
    fn post(&self, path: &str) -> String {
        let request = format!("POST {CALL}{path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        talk(&mut connect(self.caller.addresses[0]), request.as_bytes(), b"\r\n\r\n")
    }

    fn counts(&self) -> [u64; 5] {
        let of = &self.caller.metrics.failover;
        [&of.priority, &of.health, &of.load, &of.last_resort, &of.retry].map(|of| of.value())
    }

    fn route(&self, site: usize, path: &str) {
        self.route_to(site, &self.sites[site].stock, path);
    }

    /// Requests for stock of a network go to another service, with this path.
    fn route_to(&self, site: usize, backend: &ServiceName, path: &str) {
        let (home, stock) = (service("web"), &self.sites[site].stock);
        let backend = Backend {
            service: ServiceRef::parse(&backend.to_string()).unwrap(),
            weight: 1,
            request: HeaderEdits::default(),
            response: HeaderEdits::default(),
        };
        let mut rule = RouteRule::forward(vec![backend]);
        rule.rewrite.path = Some(PathEdit::Full(path.to_owned()));
        let route = Route {
            name: ObjectName::new("default", "stock").unwrap(),
            service: ServiceRef::parse(&stock.to_string()).unwrap(),
            rules: vec![rule],
            created_unix_ms: 0,
        };
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/default/web").unwrap();
        let caller = Caller { spiffe: &spiffe, network: &home.network };
        let set = RouteSet::new(stock, &[Arc::new(route)], caller, &home).unwrap();
        let routes = set.map(|set| Arc::new(ServiceRoutes::new(set)));
        sim::keep_routed(&self.caller, RoutesUpdate::known(stock.clone(), routes));
    }
}

fn any() -> ServiceName {
    service("stock.default.any")
}

#[track_caller]
fn assert_from(answer: &str, network: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains(&format!("x-app: {network}\r\n")), "{answer}");
}

#[test]
fn the_next_network_serves_at_once_and_the_first_one_again_when_it_is_back() {
    let mut shop = Shop::west_before_east();
    assert_from(&shop.post("/"), "west");
    for _ in 0..2 {
        shop.stop(WEST);
        let began = now();
        for _ in 0..20 {
            assert_from(&shop.post("/"), "east");
        }
        assert!(now() - began < SECOND, "{:?}", now() - began);
        // Nothing is sent to west while it is away, however long.
        advance(5 * SECOND);
        let [_, _, _, _, retries] = shop.counts();
        for _ in 0..20 {
            assert_from(&shop.post("/"), "east");
        }
        assert_eq!(shop.counts()[4], retries, "no request has tried west in vain");
        shop.start(WEST);
        advance(3 * SECOND);
        for _ in 0..5 {
            assert_from(&shop.post("/"), "west");
        }
    }
    assert_eq!(shop.sites[NORTH].seen(), 0);
    // The connection that broke showed it: no request had to find out.
    assert_eq!(shop.counts(), [11, 80, 0, 0, 0]);
}

#[test]
fn the_callee_sees_a_call_of_its_own_name_and_the_caller_a_usual_answer() {
    let shop = Shop::new(AppProtocol::Http);
    shop.name(&[(EAST, 0, 1)], None);
    let answer = shop.post("/a?q=1");
    assert_from(&answer, "east");
    for line in [
        "x-host: stock.default.east.mesh",
        "x-path: /a?q=1",
        "x-caller: spiffe://west.tollway/ns/default/web",
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{line}: {answer}");
    }
    // By its host name, too.
    let request = "GET http://stock.default.any.mesh/b HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut stream = connect(shop.caller.addresses[1]);
    assert_from(&talk(&mut stream, request.as_bytes(), b"\r\n\r\n"), "east");
}

#[test]
fn networks_of_one_priority_share_by_weight() {
    let shop = Shop::new(AppProtocol::Http);
    shop.name(&[(WEST, 1, 1), (EAST, 0, 3), (NORTH, 0, 1)], None);
    let answers: Vec<String> = (0..400).map(|_| shop.post("/")).collect();
    let count = |network: &str| {
        answers.iter().filter(|answer| answer.contains(&format!("x-app: {network}\r\n"))).count()
    };
    assert_eq!((count("west"), count("east") + count("north")), (0, 400));
    assert!((70..130).contains(&count("north")), "{} of 400", count("north"));
}

#[test]
fn a_network_that_is_not_named_gets_nothing() {
    let mut shop = Shop::new(AppProtocol::Http);
    // It is joined, and states a thousand replicas.
    let north = shop.sites[NORTH].stock.clone();
    shop.caller.send_state(&north, shop.sites[NORTH].state(1000));
    shop.name(&[(WEST, 0, 1), (EAST, 1, 1)], None);
    assert_from(&shop.post("/"), "west");
    shop.stop(WEST);
    shop.stop(EAST);
    let answer = shop.post("/");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    advance(10 * SECOND);
    shop.caller.send_state(
        &shop.sites[EAST].stock,
        ServiceState::Unavailable(UnavailableReason::UnreachableNetwork),
    );
    shop.caller.send_state(
        &shop.sites[WEST].stock,
        ServiceState::Unavailable(UnavailableReason::NoReadyEndpoint),
    );
    let answer = shop.post("/");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_NO_NETWORK\r\n"), "{answer}");
    let body = "no network serves stock.default.any now: west has no ready replica, \
                east cannot be reached";
    assert!(answer.contains(body), "{answer}");
    assert_eq!(shop.sites[NORTH].seen(), 0);
    assert_eq!(shop.caller.around.times_asked(&north), 0, "not even its state is asked for");
}

#[test]
fn without_networks_that_may_serve_the_call_is_refused() {
    let shop = Shop::new(AppProtocol::Http);
    shop.caller.send_state(&any(), ServiceState::Unavailable(UnavailableReason::NoFailover));
    let answer = shop.post("/");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.contains("x-tollway-error: ERR_NO_FAILOVER\r\n"), "{answer}");
    assert!(answer.contains("no network may serve stock.default.any; "), "{answer}");
    for site in &shop.sites {
        assert_eq!(shop.caller.around.times_asked(&site.stock), 0);
    }
    // What is taken back holds for the next request.
    shop.name(&[(EAST, 0, 1)], None);
    assert_from(&shop.post("/"), "east");
    shop.caller.send_state(&any(), ServiceState::Unavailable(UnavailableReason::NoFailover));
    let answer = shop.post("/");
    assert!(answer.contains("x-tollway-error: ERR_NO_FAILOVER\r\n"), "{answer}");
}

/// The gateway of east leads to stock of north.
fn mislead(shop: &Shop) {
    let ServiceState::Remote { mut remote, protocol, trust_domain } = shop.sites[EAST].state(1)
    else {
        panic!("it is in another network");
    };
    remote.gateways = [shop.sites[NORTH].address].into();
    let state = ServiceState::Remote { remote, protocol, trust_domain };
    shop.caller.send_state(&shop.sites[EAST].stock, state);
}

#[test]
fn a_network_that_presents_the_identity_of_another_is_refused() {
    let shop = Shop::new(AppProtocol::Http);
    mislead(&shop);
    shop.name(&[(EAST, 0, 1)], None);
    let answer = shop.post("/");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let requests = || shop.sites[NORTH].replica.as_ref().unwrap().metrics.inbound_requests.value();
    assert_eq!(requests(), 0);
    // The next one serves instead.
    shop.name(&[(EAST, 0, 1), (WEST, 1, 1)], None);
    for _ in 0..10 {
        assert_from(&shop.post("/"), "west");
        advance(SECOND);
    }
    assert_eq!(requests(), 0);
}

/// The gateway of east accepts connections and never answers; north comes after it.
fn east_is_silent() -> (Shop, sim::Listening) {
    east_is_silent_for(AppProtocol::Http)
}

fn east_is_silent_for(protocol: AppProtocol) -> (Shop, sim::Listening) {
    let shop = Shop::new(protocol);
    let silent = listen();
    let ServiceState::Remote { mut remote, protocol, trust_domain } = shop.sites[EAST].state(1)
    else {
        panic!("it is in another network");
    };
    remote.gateways = [silent.address].into();
    let state = ServiceState::Remote { remote, protocol, trust_domain };
    shop.caller.send_state(&shop.sites[EAST].stock, state);
    shop.name(&[(EAST, 0, 1), (NORTH, 1, 1)], None);
    (shop, silent)
}

#[test]
fn a_network_that_swallows_connections_is_left_before_the_time_of_a_dial_is_over() {
    let (shop, silent) = east_is_silent();
    let began = now();
    assert_from(&shop.post("/"), "north");
    let waited = now() - began;
    assert!(waited <= Duration::from_millis(2200), "{waited:?}");
    // Those that come later do not wait, nor while it is dialled again and again.
    for _ in 0..30 {
        let began = now();
        assert_from(&shop.post("/"), "north");
        assert!(now() - began < SWEEP * 2, "{:?}", now() - began);
        advance(SECOND / 2);
    }
    assert!(silent.waiting() > 1, "it is tried again");
    shop.caller.send_state(&shop.sites[EAST].stock, shop.sites[EAST].state(1));
    advance(2 * SECOND);
    assert_from(&shop.post("/"), "east");
}

/// A request for which no network has an answer yet.
fn waiting_request(shop: &Shop) -> Stream {
    let mut stream = connect(shop.caller.addresses[0]);
    let request = format!("POST {CALL}/ HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    advance(SECOND);
    assert!(!stream.has_arrived());
    stream
}

#[test]
fn a_request_that_waits_goes_on_when_its_network_is_withdrawn() {
    let (shop, _silent) = east_is_silent();
    let mut stream = waiting_request(&shop);
    let withdrawn = ServiceState::Unavailable(UnavailableReason::UnreachableNetwork);
    shop.caller.send_state(&shop.sites[EAST].stock, withdrawn);
    let answer = talk(&mut stream, b"", b"\r\n\r\n");
    assert_from(&answer, "north");
}

#[test]
fn a_request_that_waits_follows_rules_that_change() {
    let (shop, _silent) = east_is_silent();
    let mut stream = waiting_request(&shop);
    // The first network is another one now, which has not been tried.
    shop.name(&[(NORTH, 0, 1), (WEST, 1, 1)], None);
    assert_from(&talk(&mut stream, b"", b"\r\n\r\n"), "north");
}

#[test]
fn connections_of_bytes_go_to_the_next_network_too() {
    let mut shop = Shop::new(AppProtocol::Tcp);
    shop.name(&[(WEST, 0, 1), (EAST, 1, 1)], None);
    let read = |shop: &Shop| {
        let mut stream = connect(shop.caller.addresses[2]);
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    assert_eq!(read(&shop).unwrap(), "west");
    shop.stop(WEST);
    for _ in 0..10 {
        assert_eq!(read(&shop).unwrap(), "east");
        advance(SECOND);
    }
    shop.start(WEST);
    advance(2 * SECOND);
    assert_eq!(read(&shop).unwrap(), "west");
    // By CONNECT as well.
    shop.stop(WEST);
    let mut stream = connect(shop.caller.addresses[1]);
    let request = b"CONNECT stock.default.any.mesh:80 HTTP/1.1\r\n\
        host: stock.default.any.mesh:80\r\n\r\n";
    assert!(talk(&mut stream, request, b"east").starts_with("HTTP/1.1 200 "));
    shop.stop(EAST);
    assert!(read(&shop).is_err() || read(&shop).unwrap().is_empty());
}

#[test]
fn a_connection_of_bytes_leaves_a_network_that_swallows_it() {
    let (shop, _silent) = east_is_silent_for(AppProtocol::Tcp);
    let began = now();
    let mut text = String::new();
    connect(shop.caller.addresses[2]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "north");
    assert!(now() - began <= Duration::from_millis(2200), "{:?}", now() - began);
}

#[test]
fn what_is_over_the_load_spills_to_the_next_priority() {
    let shop = Shop::new(AppProtocol::Http);
    shop.name(&[(WEST, 0, 1), (EAST, 1, 1)], Some(3));
    assert_from(&shop.post("/"), "west");
    let hold = || {
        let mut stream = connect(shop.caller.addresses[0]);
        let request = format!("GET {CALL}/stuck HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let held: Vec<_> = (0..2).map(|_| hold()).collect();
    advance(SWEEP);
    for _ in 0..10 {
        assert_from(&shop.post("/"), "west");
    }
    let third = hold();
    advance(SWEEP);
    for _ in 0..10 {
        assert_from(&shop.post("/"), "east");
    }
    assert_eq!(shop.counts()[2], 10);
    drop(third);
    advance(SWEEP);
    assert_from(&shop.post("/"), "west");
    drop(held);
}

#[test]
fn the_routes_of_the_chosen_network_hold_and_no_others() {
    let mut shop = Shop::west_before_east();
    shop.route(WEST, "/of-west");
    let answer = shop.post("/a");
    assert_from(&answer, "west");
    assert!(answer.contains("x-path: /of-west\r\n"), "{answer}");
    shop.stop(WEST);
    // The head is as it was before the routes of west changed it.
    let answer = shop.post("/a");
    assert_from(&answer, "east");
    assert!(answer.contains("x-path: /a\r\n"), "{answer}");
    shop.route(EAST, "/of-east");
    let answer = shop.post("/a");
    assert_from(&answer, "east");
    assert!(answer.contains("x-path: /of-east\r\n"), "{answer}");
}

#[test]
fn a_route_may_lead_to_a_service_in_any_network_and_holds_once() {
    let mut shop = Shop::west_before_east();
    shop.route_to(WEST, &any(), "/routed");
    // Called by its full name it is routed; called in any network as well, and no further.
    let by_name = |shop: &Shop| {
        let request = "POST /v1.0/invoke/stock.default.west/method/a HTTP/1.1\r\nhost: a\r\n\
                       content-length: 0\r\n\r\n";
        talk(&mut connect(shop.caller.addresses[0]), request.as_bytes(), b"\r\n\r\n")
    };
    for answer in [by_name(&shop), shop.post("/a")] {
        assert_from(&answer, "west");
        assert!(answer.contains("x-path: /routed\r\n"), "{answer}");
    }
    shop.stop(WEST);
    advance(SECOND);
    let answer = by_name(&shop);
    assert_from(&answer, "east");
    assert!(answer.contains("x-path: /routed\r\n"), "{answer}");
    assert_from(&shop.post("/a"), "east");
}

#[test]
fn a_request_that_finds_its_network_away_goes_to_the_next_one_with_its_whole_body() {
    let mut shop = Shop::west_before_east();
    shop.stop(WEST);
    let request = format!("POST {CALL}/count HTTP/1.1\r\nhost: a\r\ncontent-length: 30000\r\n\r\n");
    let mut stream = connect(shop.caller.addresses[0]);
    stream.write_all(request.as_bytes()).unwrap();
    stream.write_all(&[b'x'; 30_000]).unwrap();
    let answer = talk(&mut stream, b"", b"30000");
    assert_from(&answer, "east");
    assert_eq!(shop.counts(), [1, 0, 0, 0, 1]);
}
