//! Pools driven by scripts: connections are values, the clock is the test's own, no socket is open.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_model::traffic_policy::{Balancing, TrafficParts};
use tollway_model::{
    AppProtocol, Caller, Endpoint, Instance, Label, Level, Remote, ServiceName, ServiceState,
    SpiffeId, TrustDomain,
};
use tollway_net::Key;
use tollway_routing::ReplicaId;

use super::links::{Http2State, Link, LinkProtocol, Links};
use super::replicas::ServiceTraffic;
use super::{Candidates, Upstreams, pick, pools, scale};
use crate::conn::ConnKey;
use crate::cx::{Cx, Effect};
use crate::event_loop::{LoopConfig, NoServices};
use crate::exchange::Destination;
use crate::limits::{Limits, Timeouts};

mod near;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn service(name: &str) -> ServiceName {
    ServiceName::parse_in(name, &label("default"), &label("west")).unwrap()
}

/// The last number of an address.
fn host(address: SocketAddr) -> u8 {
    match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(_) => unreachable!("the script has IPv4 alone"),
    }
}

fn address(host: u8) -> SocketAddr {
    ([10, 0, 0, host], 50002).into()
}

/// A connection of the script.
#[derive(Clone)]
struct Fake {
    host: u8,
    instance: Option<Instance>,
    replica: Option<ReplicaId>,
    level: Level,
    is_draining: bool,
    pending: usize,
    state: Http2State,
}

impl Fake {
    fn to(host: u8) -> Self {
        let state = Http2State {
            is_settled: true,
            streams: 0,
            can_open: true,
            resets_left: 100,
            carries_bulk: false,
            is_silent: false,
            ejected_until: None,
            leads_to_runtime: false,
            round_trip: Some(Duration::from_micros(500)),
        };
        let level = Level::Network;
        Self { host, instance: None, replica: None, level, is_draining: false, pending: 0, state }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn streams(self, count: usize) -> Self {
        self.with(|fake| fake.state.streams = count)
    }

    fn instance(self, name: &str) -> Self {
        self.with(|fake| fake.instance = Some(label(name)))
    }
}

impl Links for HashMap<ConnKey, Fake> {
    fn link(&self, key: ConnKey) -> Option<Link<'_>> {
        let fake = self.get(&key)?;
        Some(Link {
            remote: Some(address(fake.host)),
            instance: fake.instance.as_ref(),
            replica: fake.replica,
            level: fake.level,
            is_draining: fake.is_draining,
            pending: fake.pending,
            protocol: LinkProtocol::Http2(fake.state),
        })
    }
}

/// One service's pool, its connections and a clock.
struct Script {
    cx: Cx,
    upstreams: Upstreams,
    links: HashMap<ConnKey, Fake>,
    /// Keys that were made.
    keys: u64,
    stock: Destination,
}

impl Script {
    fn new(state: ServiceState) -> Self {
        let mut config = LoopConfig::of_test(service("web"));
        (config.limits, config.timeouts) = (Limits::default(), Timeouts::default());
        let cx = Cx::new(Arc::new(config), Arc::default(), Instant::now(), 42);
        let stock = Destination::Service(service("stock"));
        let upstreams = Upstreams::new(Box::new(NoServices));
        let (links, keys) = (HashMap::new(), 0);
        let mut script = Self { cx, upstreams, links, keys, stock };
        let pool = pools::pool(&mut script.cx, &mut script.upstreams, &script.stock);
        pool.state = Some(state);
        script
    }

    /// Of replicas with these last numbers of an address, in the own network.
    fn local(hosts: &[u8]) -> Self {
        let endpoint = |host: &u8| Endpoint::new(label(&format!("s-{host}")), address(*host));
        Self::new(ServiceState::Local {
            unready: [].into(),
            endpoints: hosts.iter().map(endpoint).collect(),
            protocol: AppProtocol::Http,
            trust_domain: TrustDomain::default_for(&label("west")),
        })
    }

    /// Of `replicas` behind gateways with these last numbers of an address.
    fn remote(gateways: &[u8], replicas: u32) -> Self {
        let remote = Remote {
            network: label("east"),
            ready_replicas: replicas,
            gateways: gateways.iter().map(|host| address(*host)).collect(),
            beyond: [].into(),
        };
        Self::new(ServiceState::Remote {
            remote,
            protocol: AppProtocol::Http,
            trust_domain: TrustDomain::default_for(&label("east")),
        })
    }

    fn key(&mut self) -> ConnKey {
        self.keys += 1;
        Key::from_u64(self.keys)
    }

    fn join(&mut self, fake: Fake) -> ConnKey {
        let key = self.key();
        self.links.insert(key, fake);
        pools::pool(&mut self.cx, &mut self.upstreams, &self.stock).conns.push(key);
        key
    }

    fn dial(&mut self, host: u8) -> ConnKey {
        let key = self.key();
        self.links.insert(key, Fake::to(host));
        pools::pool(&mut self.cx, &mut self.upstreams, &self.stock).dialling.push(key);
        key
    }

    fn back_off(&mut self, host: u8, time: Duration) {
        let until = self.cx.now + time;
        let (cx, upstreams) = (&mut self.cx, &mut self.upstreams);
        pools::back_off(cx, upstreams, &self.stock, Some(address(host)), until);
    }

    /// The hosts to which connections are missing, as often as one is.
    fn missing(&self) -> Vec<u8> {
        let pool = self.upstreams.pools.get(&self.stock).unwrap();
        let candidates = Candidates::of(pool.state.as_ref().unwrap());
        let missing = scale::missing(&self.cx, &self.links, &self.upstreams, pool, &candidates);
        missing.into_iter().map(host).collect()
    }

    /// What the pool is short of and has too much of, as "dial 2 retire 1".
    fn plan(&self) -> String {
        let pool = self.upstreams.pools.get(&self.stock).unwrap();
        let candidates = Candidates::of(pool.state.as_ref().unwrap());
        let plan = scale::plan(&self.cx, &self.links, &self.upstreams, pool, &candidates);
        format!("dial {} retire {}", plan.dial, plan.retire.len())
    }

    fn pick(&mut self) -> Option<ConnKey> {
        let pool = self.upstreams.pool_of(&self.stock)?;
        pick::pick(&mut self.cx, &self.links, &mut self.upstreams, pool, &[])
    }

    /// Traffic policies of the service hold, and its replicas are those of its state.
    fn police(&mut self, parts: TrafficParts) {
        let (now, of) = (self.cx.now, service("stock"));
        let spiffe = SpiffeId::parse("spiffe://west.tollway/ns/default/web").unwrap();
        let caller = Caller { spiffe: &spiffe, network: &label("west") };
        let pool = pools::pool(&mut self.cx, &mut self.upstreams, &self.stock);
        pool.traffic = ServiceTraffic::new(&Arc::new(parts), &of, caller, now).map(Box::new);
        self.update_replicas();
    }

    fn update_replicas(&mut self) {
        let now = self.cx.now;
        let pool = pools::pool(&mut self.cx, &mut self.upstreams, &self.stock);
        let own = self.cx.config.locality.clone();
        pool.traffic.as_mut().unwrap().update(pool.state.as_ref(), &own, 7, now);
        pool.refresh_near(now);
    }

    fn replica(&self, host: u8) -> ReplicaId {
        let endpoint = Endpoint::new(label(&format!("s-{host}")), address(host));
        let pool = self.upstreams.pools.get(&self.stock).unwrap();
        pool.replicas().unwrap().find(&(&endpoint).into()).unwrap()
    }

    /// A connection to a replica that policies distinguish.
    fn join_replica(&mut self, host: u8) {
        let replica = self.replica(host);
        let instance = format!("s-{host}");
        self.join(Fake::to(host).instance(&instance).with(|fake| fake.replica = Some(replica)));
    }

    fn note_time(&mut self, host: u8, millis: u64) {
        let (id, now) = (self.replica(host), self.cx.now);
        let pool = pools::pool(&mut self.cx, &mut self.upstreams, &self.stock);
        let replicas = pool.traffic.as_mut().unwrap().replicas.as_mut().unwrap();
        replicas.note_time(id, Duration::from_millis(millis), false, now);
    }

    /// How many of 100 requests go to each host, those before it under way.
    fn spread(&mut self) -> HashMap<u8, usize> {
        let mut spread = HashMap::new();
        for _ in 0..100 {
            let key = self.pick().expect("a connection takes it");
            let fake = self.links.get_mut(&key).unwrap();
            fake.state.streams += 1;
            *spread.entry(fake.host).or_default() += 1;
        }
        spread
    }
}

#[test]
fn a_local_service_has_a_connection_to_each_endpoint() {
    let mut script = Script::local(&[1, 2, 3]);
    assert_eq!(script.plan(), "dial 3 retire 0");
    script.join(Fake::to(1));
    script.dial(2);
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.join(Fake::to(3));
    assert_eq!(script.plan(), "dial 0 retire 0");
    script.join(Fake::to(3));
    assert_eq!(script.plan(), "dial 0 retire 1");
}

#[test]
fn callers_of_many_replicas_use_all_of_them_together() {
    let hosts: Vec<u8> = (1..=40).collect();
    let mut callers: HashMap<u8, usize> = HashMap::new();
    for seed in 0..200 {
        let mut script = Script::local(&hosts);
        pools::pool(&mut script.cx, &mut script.upstreams, &script.stock).seed = seed;
        let chosen = script.missing();
        assert_eq!(chosen.len(), 16);
        chosen.iter().for_each(|host| *callers.entry(*host).or_default() += 1);
        // What stands stays, and the order does: one takes the turn of one that fails.
        chosen.iter().for_each(|host| _ = script.join(Fake::to(*host)));
        assert_eq!(script.missing(), Vec::<u8>::new());
        script.back_off(chosen[0], Duration::from_secs(1));
        pools::pool(&mut script.cx, &mut script.upstreams, &script.stock).conns.clear();
        let then = script.missing();
        assert_eq!(then.iter().filter(|host| chosen[1..].contains(host)).count(), 15, "{then:?}");
        assert!(then.len() == 16 && !then.contains(&chosen[0]), "{then:?}");
    }
    // Each has 80 of the 3,200 connections, give or take.
    assert_eq!(callers.len(), hosts.len());
    assert!(callers.values().all(|count| count.abs_diff(80) < 40), "{callers:?}");
}

#[test]
fn an_endpoint_that_could_not_be_dialled_is_left_alone_for_its_time() {
    let mut script = Script::local(&[1, 2]);
    script.back_off(1, Duration::from_secs(1));
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.cx.now += Duration::from_secs(1);
    assert_eq!(script.plan(), "dial 2 retire 0");
}

#[test]
fn a_connection_with_bulk_or_without_room_is_made_up_for() {
    let mut script = Script::local(&[1]);
    let key = script.join(Fake::to(1));
    assert_eq!(script.plan(), "dial 0 retire 0");
    script.links.get_mut(&key).unwrap().state.carries_bulk = true;
    assert_eq!(script.plan(), "dial 1 retire 0");
    let state = &mut script.links.get_mut(&key).unwrap().state;
    (state.carries_bulk, state.can_open) = (false, false);
    assert_eq!(script.plan(), "dial 1 retire 0");
}

#[test]
fn a_draining_or_silent_connection_does_not_count() {
    let mut script = Script::local(&[1]);
    script.join(Fake::to(1).with(|fake| fake.is_draining = true));
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.join(Fake::to(1).with(|fake| fake.state.is_silent = true));
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.join(Fake::to(1));
    assert_eq!(script.plan(), "dial 0 retire 0");
}

#[test]
fn while_no_address_answers_one_dial_at_a_time_is_made() {
    let mut script = Script::local(&[1, 2, 3]);
    let now = script.cx.now;
    pools::pool(&mut script.cx, &mut script.upstreams, &script.stock).outage = Some(now);
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.dial(1);
    assert_eq!(script.plan(), "dial 0 retire 0");
}

#[test]
fn a_gateway_that_no_connection_leads_through_gets_one() {
    let mut script = Script::remote(&[1, 2], 2);
    for instance in ["a", "b", "a", "b"] {
        script.join(Fake::to(1).instance(instance));
    }
    assert_eq!(script.plan(), "dial 1 retire 0");
    script.dial(2);
    assert_eq!(script.plan(), "dial 0 retire 0");
}

#[test]
fn requests_go_to_the_less_loaded_of_two() {
    let mut script = Script::local(&[1, 2]);
    script.join(Fake::to(1));
    script.join(Fake::to(2));
    let spread = script.spread();
    assert_eq!(spread[&1] + spread[&2], 100);
    assert!(spread[&1].abs_diff(spread[&2]) <= 1, "{spread:?}");
}

#[test]
fn a_replica_with_two_connections_gets_no_more_than_one_with_one() {
    let mut script = Script::remote(&[1], 2);
    script.join(Fake::to(1).instance("a"));
    script.join(Fake::to(2).instance("b"));
    script.join(Fake::to(3).instance("b"));
    let spread = script.spread();
    let of = |host: u8| spread.get(&host).copied().unwrap_or_default();
    assert!(of(1).abs_diff(of(2) + of(3)) <= 1, "{spread:?}");
}

#[test]
fn a_slow_replica_gets_less_where_the_expected_time_counts() {
    let mut script = Script::local(&[1, 2, 3]);
    let decay = Balancing::DECAY;
    script.police(TrafficParts {
        balancing: Some(Balancing::PeakEwma { decay }),
        ..TrafficParts::default()
    });
    (1..=3).for_each(|host| script.join_replica(host));
    // Two connections to one replica are no reason to prefer it.
    script.join_replica(2);
    script.cx.now += Duration::from_secs(60);
    for (host, millis) in [(1, 200), (2, 5), (3, 5)] {
        script.note_time(host, millis);
    }
    let spread = script.spread();
    let of = |host: u8| spread.get(&host).copied().unwrap_or_default();
    assert!(of(1) < 10 && of(2).abs_diff(of(3)) < 10, "{spread:?}");
}

#[test]
fn a_replica_that_joins_gets_a_share_that_rises() {
    let mut script = Script::local(&[1, 2]);
    let slow_start = Some(Duration::from_secs(10));
    script.police(TrafficParts { slow_start, ..TrafficParts::default() });
    let state = Script::local(&[1, 2, 3]);
    let state = state.upstreams.pools.get(&state.stock).unwrap().state.clone();
    pools::pool(&mut script.cx, &mut script.upstreams, &script.stock).state = state;
    script.update_replicas();
    (1..=3).for_each(|host| script.join_replica(host));
    let mut shares = Vec::new();
    for _ in 0..3 {
        shares.push(script.spread().get(&3).copied().unwrap_or_default());
        script.links.values_mut().for_each(|fake| fake.state.streams = 0);
        script.cx.now += Duration::from_secs(5);
    }
    assert!(shares[0] < 15 && shares[0] < shares[1] && shares[2].abs_diff(33) < 3, "{shares:?}");
}

#[test]
fn a_connection_that_gives_no_answer_is_the_last_resort() {
    let mut script = Script::local(&[1]);
    let silent = script.join(Fake::to(1).with(|fake| fake.state.is_silent = true));
    assert_eq!(script.pick(), Some(silent), "better than none");
    script.dial(1);
    assert_eq!(script.pick(), None, "the one that is being made is waited for");
    let (cx, upstreams) = (&mut script.cx, &mut script.upstreams);
    let pool = upstreams.pool_of(&script.stock).unwrap();
    let resort = pick::pick_last_resort(cx, &script.links, upstreams, pool);
    assert_eq!(resort, Some(silent));
}

#[test]
fn a_replica_whose_app_could_not_be_reached_is_ejected() {
    let mut script = Script::local(&[1, 2]);
    let until = script.cx.now + Duration::from_secs(1);
    let ejected = script.join(Fake::to(1).with(|fake| fake.state.ejected_until = Some(until)));
    let other = script.join(Fake::to(2).streams(50));
    assert_eq!(script.pick(), Some(other));
    script.cx.now = until;
    assert_eq!(script.pick(), Some(ejected), "its ejection is over, and it has less to do");
}

#[test]
fn a_connection_takes_no_more_than_its_peer_bears_to_see_reset() {
    let mut script = Script::local(&[1]);
    let worn = |fake: &mut Fake| (fake.state.streams, fake.state.resets_left) = (5, 5);
    script.join(Fake::to(1).with(worn));
    assert_eq!(script.pick(), None);
}

#[test]
fn a_pool_that_lost_a_connection_is_filled_where_that_is_asked_for_or_waited_for() {
    let mut script = Script::local(&[1]);
    let key = script.join(Fake::to(1));
    let (cx, upstreams, stock) = (&mut script.cx, &mut script.upstreams, &script.stock);
    pools::on_left_pool(cx, upstreams, key, stock, false);
    assert!(cx.effects.pop().is_none(), "no request waits");
    let waiting = Key::from_u64(0);
    pools::pool(cx, upstreams, stock).waiting.push_back(waiting);
    pools::on_left_pool(cx, upstreams, key, stock, false);
    assert!(matches!(cx.effects.pop(), Some(Effect::Scale(of)) if of == *stock));
    assert!(cx.effects.pop().is_none());
}
