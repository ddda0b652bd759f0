//! Networks that only dial out: `plant` is behind a firewall that drops every connection from outside, and
//! `cloud` calls it by the connections that its gateways have opened.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tollway_identity::{Credentials, Expected, client_config};
use tollway_model::{ServiceName, chain};
use tollway_net::link::{Link, Shape};
use tollway_net::tun::{Tun, TunConfig};
use tollway_testkit::{Process, need_right, need_tool, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::tcp::until_echoed;
use tollway_tests::mesh::{
    App, AppProtocol, Mesh, Network, PATIENCE, Sidecar, counter, until_counted,
};
use tollway_tests::network::{self, issue, issue_system, label};
use tollway_tests::site::Site;

const CLOUD: &str = "10.77.0.1";
const PLANT: &str = "10.77.0.2";
/// The device of the link between both.
const DEVICE: &str = "way";
/// Long enough for a connection on this machine, where nothing drops it.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// What a data thread of a gateway keeps open to each gateway of another network at least.
const LEAST: u64 = 4;
const WAITING: &str = "tollway_gateway_reverse_connections";
const REFUSED: &str = "tollway_gateway_reverse_refused_total";
const CARRIED: &str = "tollway_gateway_reverse_carried_total";

/// Both networks with the link between them, and the firewall in front of plant.
struct World {
    /// `west` is plant, which accepts the bundle of `east`, cloud.
    mesh: Arc<Mutex<Mesh>>,
    cloud: Site,
    plant: Site,
    _link: Link,
}

impl World {
    fn start(nft: &Path) -> Result<Self, String> {
        let (cloud, plant) = (Site::new("cloud")?, Site::new("plant")?);
        let open = |site: &Site, local, peer| {
            let opened = site.within(|| Tun::open(&end(local, peer)));
            opened.map_err(|error| chain(&error))
        };
        let (of_cloud, of_plant) = (open(&cloud, CLOUD, PLANT)?, open(&plant, PLANT, CLOUD)?);
        let good = Shape::delaying(Duration::ZERO);
        let back = Shape { seed: good.seed + 1, ..good };
        let link = Link::start(of_cloud, of_plant, good, back).map_err(|error| chain(&error))?;
        plant.firewall(nft, &firewall())?;
        let mesh = Mesh {
            east: cloud.start(|| Network::start("cloud", CLOUD, &[])),
            west: plant.start(|| Network::start_dialling_out("plant", PLANT)),
        };
        mesh.join();
        Ok(Self { mesh: Arc::new(Mutex::new(mesh)), cloud, plant, _link: link })
    }

    fn mesh(&self) -> MutexGuard<'_, Mesh> {
        self.mesh.lock().unwrap()
    }

    /// Starts something of cloud.
    fn in_cloud<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Network) -> T + Send + 'static,
    ) -> T {
        let mesh = Arc::clone(&self.mesh);
        self.cloud.start(move || work(&mut mesh.lock().unwrap().east))
    }

    /// Starts something of plant.
    fn in_plant<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Network) -> T + Send + 'static,
    ) -> T {
        let mesh = Arc::clone(&self.mesh);
        self.plant.start(move || work(&mut mesh.lock().unwrap().west))
    }

    /// An app of plant.
    fn app(&self, app: &'static str, protocol: AppProtocol) -> App {
        self.in_plant(move |plant| plant.app(app, "p-1", protocol))
    }

    /// A caller in cloud that reaches the apps of plant.
    fn caller(&self, options: &'static [&'static str], apps: &[&str]) -> Sidecar {
        let caller = self.in_cloud(move |cloud| cloud.caller(options));
        for app in apps {
            self.cloud.within(|| caller.until_served(&format!("{app}.default.plant")));
        }
        caller
    }
}

/// Waits until a gateway has opened or holds at least so many reverse connections.
fn until_waiting(site: &Site, gateway: &Process, least: u64) {
    let waits = || (counter(gateway, WAITING) >= least).then_some(());
    site.within(|| retry_until(PATIENCE, WAITING, waits).unwrap());
}

fn end(local: &str, peer: &str) -> TunConfig {
    let [local, peer]: [Ipv4Addr; 2] = [local, peer].map(|address| address.parse().unwrap());
    TunConfig { name: DEVICE.into(), local, peer, mtu: 1_500, queue_packets: 10_000, offload: true }
}

/// Drops what would open a connection from outside.
fn firewall() -> String {
    format!(
        "table inet guard {{\n  chain input {{\n    type filter hook input priority 0;\n    \
         iifname {DEVICE} tcp flags & (syn | ack) == syn counter drop\n  }}\n}}\n"
    )
}

#[test]
fn a_network_behind_a_firewall_is_called_and_calls() {
    let nft = need_tool!("nft");
    let world = need_right!(World::start(&nft));
    let press = world.app("press", AppProtocol::Http);
    let _others = [
        world.app("press-h2c", AppProtocol::H2c),
        world.app("press-grpc", AppProtocol::Grpc),
        world.app("lines", AppProtocol::Tcp),
    ];
    let inbound = press.sidecar.process.port("inbound").unwrap();
    let dial = || TcpStream::connect_timeout(&inbound, DIAL_TIMEOUT).map(drop);
    assert!(world.cloud.within(dial).is_err(), "the firewall lets connections in");
    world.plant.within(dial).unwrap();
    let upstreams = &["--upstream", "0=lines.default.plant"];
    let caller = world.caller(upstreams, &["press", "press-h2c", "press-grpc"]);
    let lines = caller.upstream("lines.default.plant");
    world.cloud.within(|| drop(until_echoed(lines)));
    // Who the callee sees is the caller itself, and no gateway.
    let seen = world.cloud.within(|| {
        get(caller.http(), "/v1.0/invoke/press.default.plant/method/headers").to_lowercase()
    });
    assert!(seen.contains("x-tollway-caller: spiffe://cloud.tollway/ns/default/caller"), "{seen}");
    // And the other way round, which is dialled.
    let _shop = world.in_cloud(|cloud| cloud.app("shop", "c-1", AppProtocol::Http));
    let worker = world.in_plant(|plant| plant.caller(&[]));
    world.plant.within(|| worker.until_served("shop.default.cloud"));
    let carried = world.cloud.within(|| counter(&world.mesh().east.gateway, CARRIED));
    assert!(carried > 0, "calls came another way");
    let listed = world.mesh().east.done(&["join", "list"], "");
    assert!(listed.contains("plant") && listed.contains("only dials out"), "{listed}");
    // No one can join a network in which nothing listens.
    let refused = world.mesh().west.command(&["join", "export"], "");
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("only dial out"), "{refused}");
}

#[test]
fn a_gateway_of_either_side_that_is_killed_comes_back_as_a_way() {
    let nft = need_tool!("nft");
    let world = need_right!(World::start(&nft));
    let _press = world.app("press", AppProtocol::Http);
    let caller = world.caller(&[], &["press"]);
    for strike in ["cloud", "plant"] {
        if strike == "cloud" {
            world.mesh().east.gateway.kill().unwrap();
            world.in_cloud(Network::restart_gateway);
        } else {
            world.mesh().west.gateway.kill().unwrap();
            world.in_plant(Network::restart_gateway);
        }
        until_waiting(&world.cloud, &world.mesh().east.gateway, LEAST);
        world.cloud.within(|| caller.until_served("press.default.plant"));
        let followed = retry_until(PATIENCE, "plant being followed", || {
            let listed = world.mesh().east.done(&["join", "list", "--json"], "");
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            let plant = &listed[0];
            (plant["reachable"] == true && plant["last_error"] == "").then_some(())
        });
        assert!(followed.is_ok(), "{strike}: {}", world.mesh().east.done(&["join", "list"], ""));
    }
}

#[test]
fn of_two_gateways_on_each_side_one_may_be_killed_under_load() {
    const RATE: u32 = 100;
    const CONNECTIONS: u64 = 8;
    let nft = need_tool!("nft");
    let world = need_right!(World::start(&nft));
    let mut second = world.in_cloud(|cloud| cloud.another_gateway(&["--threads", "2"]));
    let _second = world.in_plant(|plant| plant.another_gateway(&[]));
    let _press = world.app("press", AppProtocol::Http);
    let caller = world.caller(&[], &["press"]);
    // Two gateways of plant open them to each of cloud's.
    until_waiting(&world.cloud, &second, 2 * LEAST);
    until_waiting(&world.cloud, &world.mesh().east.gateway, 2 * LEAST);
    let url = format!("http://{}/v1.0/invoke/press.default.plant/method/echo", caller.http());
    for kill in ["plant", "cloud"] {
        let url = url.clone();
        let load = world.cloud.start(move || Load::http(&url, RATE, Duration::from_secs(4)));
        world.cloud.within(|| {
            until_counted(&caller.process, "tollway_outbound_requests_total", u64::from(RATE));
        });
        if kill == "plant" {
            world.mesh().west.gateway.kill().unwrap();
        } else {
            second.kill().unwrap();
        }
        let traffic = load.result().traffic;
        let lost = traffic.errors + traffic.unfinished + traffic.dropped;
        assert!(lost <= CONNECTIONS, "{kill}: {lost} lost: {:?}", traffic.errors_by_kind);
        assert!(traffic.requests > 0);
    }
}

/// Bytes of reverse connections.
const KEEP: u8 = 1;
const REFUSE: u8 = 3;

/// What a peer with these credentials gets that opens a reverse connection to the gateway of cloud.
fn open(gateway: &Process, cloud: &network::Network, credentials: &Credentials) -> Option<u8> {
    let own = ServiceName {
        app: label("gateway"),
        namespace: label("tollway"),
        network: label(&cloud.name),
    };
    let expected = Expected::service(&own, &cloud.trust_domain());
    let config = client_config(credentials, &expected, &[b"tollway-reverse/1"]).unwrap();
    let name = expected.server_name().unwrap();
    let tls = rustls::ClientConnection::new(config, name).unwrap();
    let stream = TcpStream::connect(gateway.port("gateway").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, stream);
    let mut answer = [0];
    // What is refused in the handshake may end before anything is sent.
    let _ = stream.write_all(&[KEEP]);
    stream.read(&mut answer).ok().filter(|count| *count == 1).map(|_| answer[0])
}

#[test]
fn no_one_but_a_gateway_of_a_network_that_only_dials_out_is_a_way_to_it() {
    let [cloud, plant, shop] = ["cloud", "plant", "shop"].map(network::Network::start);
    let holder = cloud.gateway_with(&["--inside-listen", "127.0.0.1:0"]);
    let (_opener, _dialled) = (plant.dialling_gateway(), shop.gateway());
    plant.command(&["join", "accept", "-"], &cloud.join_bundle());
    shop.join(&cloud);
    let waits = || (counter(&holder, WAITING) >= LEAST).then_some(());
    retry_until(PATIENCE, WAITING, waits).unwrap();
    let trusted = cloud.authority();
    let gateway_of = |of: &network::Network| {
        let authority = of.authority();
        issue_system(&authority, &trusted, |request, now| authority.issue_gateway(request, now))
    };
    let press = issue(&plant.authority(), plant.service("press"), &trusted);
    let web = issue(&trusted, cloud.service("web"), &trusted);
    for (who, credentials) in [
        ("a workload of plant", press),
        ("a workload of cloud", web),
        ("a gateway of cloud", gateway_of(&cloud)),
        ("a gateway of a network that is dialled", gateway_of(&shop)),
    ] {
        let before = counter(&holder, REFUSED);
        for _ in 0..3 {
            assert_eq!(open(&holder, &cloud, &credentials), Some(REFUSE), "{who}");
        }
        assert_eq!(counter(&holder, REFUSED), before + 3, "{who}");
        let peer = credentials.spiffe_id().to_string();
        let log = holder.log();
        let reported: Vec<_> = log
            .lines()
            .filter(|line| line.contains("ERR_REVERSE_REFUSED") && line.contains(&peer))
            .collect();
        assert_eq!(reported.len(), 1, "{who}: {reported:?}");
    }
    assert_eq!(open(&holder, &cloud, &gateway_of(&plant)), Some(KEEP), "a gateway of plant");
}
