//! Two networks on machines with a cable between them, over IPv6 alone, and over both families while
//! one of them is dead.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use tollway_testkit::{Process, need_right, need_tool, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::tcp::until_echoed;
use tollway_tests::mesh::{App, AppProtocol, Mesh, Network, PATIENCE, Sidecar, start_tollway};
use tollway_tests::site::Site;

const WAY: &str = "way";
const WEST_4: &str = "10.79.0.1";
const EAST_4: &str = "10.79.0.2";
const WEST_6: &str = "fd79::1";
const EAST_6: &str = "fd79::2";
/// The private ranges of these machines.
const RANGES: &[&str] = &["--peer-addresses", "fd79::/16", "--peer-addresses", "10.79.0.0/16"];
const LOCAL: &str = "[::1]:0";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

/// Two machines.
struct World {
    west: Site,
    east: Site,
    mesh: Arc<Mutex<Mesh>>,
}

impl World {
    /// Networks that listen at these addresses, `[…]` around those of IPv6; not joined.
    fn start(west: &'static str, east: &'static str, families: &[Family]) -> Result<Self, String> {
        let (at_west, at_east) = (Site::new("west")?, Site::new("east")?);
        at_west.cable(&at_east, WAY);
        for site in [&at_west, &at_east] {
            site.allow_ipv6("lo");
        }
        for family in families {
            let (west, east) = match family {
                Family::V4 => (format!("{WEST_4}/24"), format!("{EAST_4}/24")),
                Family::V6 => (format!("{WEST_6}/64"), format!("{EAST_6}/64")),
            };
            at_west.add_address(WAY, &west);
            at_east.add_address(WAY, &east);
        }
        let mesh = Mesh {
            west: at_west.start(move || Network::start("west", west, RANGES)),
            east: at_east.start(move || Network::start("east", east, RANGES)),
        };
        Ok(Self { west: at_west, east: at_east, mesh: Arc::new(Mutex::new(mesh)) })
    }

    fn mesh(&self) -> MutexGuard<'_, Mesh> {
        self.mesh.lock().unwrap()
    }

    fn in_west<T: Send + 'static>(&self, work: impl FnOnce(&Mesh) -> T + Send + 'static) -> T {
        let mesh = Arc::clone(&self.mesh);
        self.west.start(move || work(&mesh.lock().unwrap()))
    }

    fn in_east<T: Send + 'static>(&self, work: impl FnOnce(&mut Mesh) -> T + Send + 'static) -> T {
        let mesh = Arc::clone(&self.mesh);
        self.east.start(move || work(&mut mesh.lock().unwrap()))
    }

    /// Drops what comes over the cable to west in a family.
    fn kill(&self, nft: &Path, family: Family) -> Result<(), String> {
        let family = match family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        let rules = format!(
            "table inet dead {{\n  chain input {{\n    type filter hook input priority 0;\n    \
             iifname {WAY} meta nfproto {family} drop\n  }}\n}}\n"
        );
        self.west.firewall(nft, &rules)
    }

    fn until_served(&self, caller: &Sidecar, service: &str) {
        self.west.within(|| caller.until_served(service));
    }
}

/// A sidecar of which every listener is of IPv6, as its app is.
fn sidecar_of_ipv6(network: &Network, ip: &str, app: &str, port: u16) -> Sidecar {
    let file = network.file(&format!("{app}.token"));
    let token = network.done(&["token", "create", "--app", app], "");
    tollway_net::secret_file::write(&file, token.as_ref()).unwrap();
    let process = start_tollway("sidecar")
        .args(["--app-id", app, "--control", &network.control_address.to_string()])
        .arg("--token-file")
        .arg(file)
        .args(["--http-listen", LOCAL, "--grpc-listen", LOCAL, "--outbound-listen", LOCAL])
        .args(["--admin-listen", LOCAL, "--inbound-listen", &format!("[{ip}]:0")])
        .args(["--app-address", "::1", "--app-port", &port.to_string()])
        .start_listening()
        .unwrap();
    Sidecar { process }
}

#[test]
fn two_networks_call_each_other_over_ipv6_alone() {
    need_tool!("ip");
    let world = need_right!(World::start("[fd79::1]", "[fd79::2]", &[Family::V6]));
    world.mesh().join();
    let _apps: Vec<App> = [
        ("stock", AppProtocol::Http),
        ("stock-h2c", AppProtocol::H2c),
        ("stock-grpc", AppProtocol::Grpc),
        ("lines", AppProtocol::Tcp),
    ]
    .map(|(app, protocol)| world.in_east(move |mesh| mesh.east.app(app, "e-1", protocol)))
    .into();
    let upstream = ["--upstream", "0=lines.default.east"];
    let caller = world.in_west(move |mesh| mesh.west.caller(&upstream));
    for app in ["stock", "stock-h2c", "stock-grpc"] {
        world.until_served(&caller, &format!("{app}.default.east"));
    }
    let lines = caller.upstream("lines.default.east");
    let beside = SocketAddr::from((Ipv6Addr::LOCALHOST, lines.port()));
    world.west.within(|| [lines, beside].map(|address| drop(until_echoed(address))));
    // Both sides' listeners of an app and its sidecar, and what they report.
    let echo = || start_tollway("echo").args(["--http", LOCAL]).start_listening().unwrap();
    let (of_west, of_east) = (world.in_west(move |_| echo()), world.in_east(move |_| echo()));
    let port = |echo: &Process| echo.port("http").unwrap().port();
    let (west_port, east_port) = (port(&of_west), port(&of_east));
    let shop = world.in_west(move |mesh| sidecar_of_ipv6(&mesh.west, WEST_6, "shop", west_port));
    let _depot = world.in_east(move |mesh| sidecar_of_ipv6(&mesh.east, EAST_6, "depot", east_port));
    assert!(shop.http().is_ipv6() && shop.outbound().is_ipv6() && shop.grpc().is_ipv6());
    world.until_served(&shop, "depot.default.east");
    let path = "/v1.0/invoke/depot.default.east/method/headers";
    let seen = world.west.within(|| get(shop.http(), path).to_lowercase());
    assert!(seen.contains("x-tollway-caller: spiffe://west.tollway/ns/default/shop"), "{seen}");
    let listed = world.mesh().west.done(&["join", "list"], "");
    assert!(listed.contains(&format!("[{EAST_6}]:")), "{listed}");
    let control = world.mesh().west.control_address;
    let explained = world.west.within(|| {
        let mut call = std::process::Command::new(tollway_tests::program());
        call.args(["call", "depot.default.east/echo", "-d", "x", "--explain"]);
        call.args(["--sidecar", &shop.http().to_string()]);
        call.output().unwrap()
    });
    let text = String::from_utf8_lossy(&explained.stdout).into_owned()
        + &String::from_utf8_lossy(&explained.stderr);
    assert!(explained.status.success() && text.contains(&format!("[{EAST_6}]:")), "{text}");
    assert!(control.is_ipv6());
}

#[test]
fn a_gateway_with_addresses_of_both_families_serves_while_one_is_dead() {
    need_tool!("ip");
    let nft = need_tool!("nft");
    for dead in [Family::V4, Family::V6] {
        let families = [Family::V4, Family::V6];
        let world = need_right!(World::start(WEST_4, EAST_4, &families));
        // The gateway of east has both; it stands in the place of the first.
        let port = world.east.within(|| tollway_testkit::free_port().unwrap());
        let gateway = world.in_east(move |mesh| {
            mesh.east.gateway.kill().unwrap();
            let listen = format!("[::]:{port}");
            let advertise = format!("{EAST_4}:{port},[{EAST_6}]:{port}");
            mesh.east.gateway_at(&listen, &["--advertise", &advertise])
        });
        world.mesh().east.gateway = gateway;
        until_known(&world, port);
        world.mesh().join();
        world.kill(&nft, dead).unwrap();
        let _stock = world.in_east(|mesh| mesh.east.app("stock", "e-1", AppProtocol::Http));
        let caller = world.in_west(|mesh| mesh.west.caller(&[]));
        world.until_served(&caller, "stock.default.east");
        // No request waits for the dead family.
        for _ in 0..20 {
            let path = "/v1.0/invoke/stock.default.east/method/healthz";
            let answer = world.west.within(|| get(caller.http(), path));
            assert!(answer.starts_with("HTTP/1.1 200"), "{dead:?}: {answer}");
        }
    }
}

/// Waits until east's control plane has the gateway at both addresses, and no other one.
fn until_known(world: &World, port: u16) {
    let expected: Vec<SocketAddr> =
        [EAST_4, EAST_6].map(|ip| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)).into();
    let known = retry_until(PATIENCE, "both addresses of the gateway", || {
        let exported = world.mesh().east.command(&["join", "export"], "");
        let text = String::from_utf8_lossy(&exported.stdout).into_owned();
        let bundle: serde_json::Value = serde_json::from_str(&text).ok()?;
        let stated: Vec<SocketAddr> = bundle["gateways"]
            .as_array()?
            .iter()
            .filter_map(|one| one.as_str()?.parse().ok())
            .collect();
        (stated.len() == 2 && expected.iter().all(|one| stated.contains(one))).then_some(())
    });
    known.unwrap();
}
