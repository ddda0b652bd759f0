//! Two networks in a network namespace each, with an emulated link between them: `west` has a control
//! plane, a gateway and a caller; `east` has a control plane, two gateways and an app, and may only dial
//! out.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tollway_model::chain;
use tollway_net::link::{Link, Shape};
use tollway_net::tun::{Tun, TunConfig};
use tollway_testkit::{Process, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{App, AppProtocol, Mesh, Network, Sidecar, counter};

use tollway_tests::site::Site;

/// Far more than anything here takes; what waits for it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
const WEST: &str = "10.211.0.1";
const EAST: &str = "10.211.0.2";
const CALL: &str = "/v1.0/invoke/echo.default.east/method/healthz";
/// The replicas of east and west answer with their names.
const CALL_ANY: &str = "/v1.0/invoke/echo.default.any/method/echo";
const OF_EAST: &str = "x-echo-name: e-1\r\n";
const OF_WEST: &str = "x-echo-name: w-1\r\n";
const FAILOVER: &str = "apiVersion: tollway.dev/v1\nkind: Failover\nmetadata: {name: echo}\n\
    spec: {service: echo, networks: [{network: east}, {network: west, priority: 1}]}\n";
/// Times of a link within a country.
const DELAY: Duration = Duration::from_millis(10);
/// From one call to the next while an answer is awaited.
const CALL_EVERY: Duration = Duration::from_millis(25);
const ADMIN: [&str; 2] = ["--admin-listen", "127.0.0.1:0"];
/// Reverse connections that a gateway keeps open to another one at least.
const REVERSE_LEAST: u64 = 4;

/// How east is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum East {
    Dialled,
    /// By reverse connections alone.
    DialsOut,
}

pub(crate) struct World {
    mesh: Arc<Mutex<Mesh>>,
    /// The second gateway of east.
    pub(crate) second: Process,
    caller: Sidecar,
    _apps: [App; 2],
    west: Site,
    _east: Site,
    link: Link,
    seed: u64,
    pub(crate) kind: East,
}

/// Calls until one had the answer that was waited for.
#[derive(Default)]
pub(crate) struct Calls {
    /// From the first call to that answer.
    pub(crate) after: Duration,
    answered: usize,
    /// The answers that are no good ones.
    pub(crate) failed: Vec<String>,
}

impl Calls {
    fn take(&mut self, answer: &str) {
        self.answered += 1;
        if !answer.starts_with("HTTP/1.1 200") {
            self.failed.push(answer.to_owned());
        }
    }
}

impl World {
    /// An error where this machine gives no namespaces or links.
    pub(crate) fn start(seed: u64, kind: East) -> Result<Self, String> {
        let (west, east) = (Site::new("west")?, Site::new("east")?);
        let open = |site: &Site, local, peer| {
            let opened = site.within(|| Tun::open(&end(local, peer)));
            opened.map_err(|error| chain(&error))
        };
        let (of_west, of_east) = (open(&west, WEST, EAST)?, open(&east, EAST, WEST)?);
        let calm = |seed| Shape { seed, ..Shape::delaying(DELAY) };
        let link = Link::start(of_west, of_east, calm(seed), calm(seed + 1));
        let link = link.map_err(|error| chain(&error))?;
        let mesh = Arc::new(Mutex::new(Mesh {
            west: west.start(|| Network::start("west", WEST, &ADMIN)),
            east: east.start(move || match kind {
                East::Dialled => Network::start("east", EAST, &ADMIN),
                East::DialsOut => Network::start_dialling_out("east", EAST),
            }),
        }));
        let started = Arc::clone(&mesh);
        let second = east.start(move || started.lock().unwrap().east.another_gateway(&[]));
        {
            let mesh = mesh.lock().unwrap();
            match kind {
                East::Dialled => mesh.west.accept(&mesh.east),
                East::DialsOut => mesh.east.accept(&mesh.west),
            }
        }
        let started = Arc::clone(&mesh);
        let far =
            east.start(move || started.lock().unwrap().east.app("echo", "e-1", AppProtocol::Http));
        let started = Arc::clone(&mesh);
        let near =
            west.start(move || started.lock().unwrap().west.app("echo", "w-1", AppProtocol::Http));
        mesh.lock().unwrap().west.apply(FAILOVER);
        let started = Arc::clone(&mesh);
        let caller = west.start(move || started.lock().unwrap().west.caller(&[]));
        let _apps = [far, near];
        let world = Self { mesh, second, caller, _apps, west, _east: east, link, seed, kind };
        world.until_both_gateways();
        world.until_served();
        Ok(world)
    }

    pub(crate) fn mesh(&self) -> MutexGuard<'_, Mesh> {
        self.mesh.lock().unwrap()
    }

    /// Waits until west has both gateways of east in its list, or reverse connections of both.
    fn until_both_gateways(&self) {
        let held = || {
            let held = counter(&self.mesh().west.gateway, "tollway_gateway_reverse_connections");
            (held >= 2 * REVERSE_LEAST).then_some(())
        };
        if self.kind == East::DialsOut {
            let waited = || retry_until(PATIENCE, "reverse connections of both gateways", held);
            return self.west.within(waited).unwrap();
        }
        let listed = || {
            let listed = self.mesh().west.done(&["join", "list", "--json"], "");
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            (listed[0]["gateways"].as_array()?.len() == 2).then_some(())
        };
        retry_until(PATIENCE, "both gateways of east", listed).unwrap();
    }

    fn metric(&self, name: &str) -> u64 {
        let mesh = self.mesh();
        self.west.within(|| counter(&mesh.west.control, name))
    }

    /// Times that east was withdrawn in west.
    pub(crate) fn withdrawals(&self) -> u64 {
        self.metric("tollway_joined_networks_withdrawn_total")
    }

    /// Gateways of east that callers of west pass over.
    pub(crate) fn passed_over(&self) -> u64 {
        self.metric("tollway_joined_gateways_passed_over")
    }

    pub(crate) fn until_served(&self) -> Duration {
        self.until("the service", CALL, |answer| answer.starts_with("HTTP/1.1 200")).after
    }

    pub(crate) fn until_refused(&self) -> Duration {
        self.until("the refusal", CALL, |answer| answer.contains("ERR_UNREACHABLE_NETWORK")).after
    }

    /// Until a call in any network is served by east, or by west.
    pub(crate) fn until_any_served_by(&self, is_east: bool) -> Calls {
        let (what, replica) = if is_east { ("east", OF_EAST) } else { ("west", OF_WEST) };
        self.until(what, CALL_ANY, |answer| answer.contains(replica))
    }

    /// Calls every few milliseconds, whether earlier calls have an answer or not, until an answer is so;
    /// where they are in any network, all of them are waited for.
    fn until(&self, what: &str, path: &'static str, is_so: impl Fn(&str) -> bool) -> Calls {
        let (answers, answered) = mpsc::channel();
        let (listener, began) = (self.caller.http(), Instant::now());
        let mut calls = Calls::default();
        let mut sent = 0_usize;
        while began.elapsed() < PATIENCE {
            let answers = answers.clone();
            self.west.within(|| {
                // It stays in the namespace in which it begins. A call without an answer is left alone.
                std::thread::spawn(move || {
                    let _ = answers.send(get(listener, path));
                });
            });
            sent += 1;
            let next = Instant::now() + CALL_EVERY;
            let left = || next.saturating_duration_since(Instant::now());
            while let Ok(answer) = answered.recv_timeout(left()) {
                calls.take(&answer);
                if is_so(&answer) {
                    calls.after = began.elapsed();
                    if path == CALL_ANY {
                        while calls.answered < sent {
                            calls.take(&answered.recv_timeout(PATIENCE).unwrap_or_default());
                        }
                    }
                    return calls;
                }
            }
        }
        panic!("{what}: not within {PATIENCE:?}");
    }

    /// Loses so much of what is sent from now on, each way.
    pub(crate) fn lose(&mut self, loss: f64) {
        self.seed += 2;
        let shape = |seed| Shape { loss, seed, ..Shape::delaying(DELAY) };
        self.link.reshape(shape(self.seed), shape(self.seed + 1)).unwrap();
    }

    pub(crate) fn signal_gateways(&self, signal: Signal) {
        self.mesh().east.gateway.signal(signal).unwrap();
        self.second.signal(signal).unwrap();
    }
}

fn end(local: &str, peer: &str) -> TunConfig {
    let [local, peer]: [Ipv4Addr; 2] = [local, peer].map(|address| address.parse().unwrap());
    TunConfig { name: "way".into(), local, peer, mtu: 1_500, queue_packets: 10_000, offload: false }
}
