//! A control plane with several addresses: lists, names with several, SRV records, with addresses among
//! them that drop packets, refuse, or belong to something else. The server of names is dnsmasq.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use tollway_testkit::{need_right, need_tool, retry_until};
use tollway_tests::mesh::{Mesh, Network, PATIENCE, Sidecar};
use tollway_tests::name_server::{NameServer, Srv};
use tollway_tests::names::Hosts;
use tollway_tests::site::Site;

/// The control plane and the gateway of west; those of east, which has another authority.
const WEST: &str = "10.79.0.1";
const WEST_6: &str = "fd79::1";
const EAST: &str = "10.79.0.2";
/// No packet to it arrives.
const DROPPED: &str = "10.79.0.9";
const NAMES: &str = "10.79.0.53";

/// Two networks, not joined, on one machine, with a server of names that a test sets up.
struct World {
    site: Site,
    mesh: Arc<Mutex<Mesh>>,
    dnsmasq: PathBuf,
    unshare: PathBuf,
}

impl World {
    fn start(nft: &Path, dnsmasq: &Path, unshare: &Path) -> Result<Self, String> {
        let site = Site::new("names")?;
        for address in [WEST, EAST, DROPPED, NAMES] {
            site.add_address("lo", &format!("{address}/32"));
        }
        site.allow_ipv6("lo");
        site.add_address("lo", &format!("{WEST_6}/128"));
        let dropped = format!("ip daddr {DROPPED} drop");
        site.firewall(
            nft,
            &format!(
                "table inet hole {{\n  chain input {{\n    type filter hook input priority 0;\n    \
                 {dropped}\n  }}\n}}\n"
            ),
        )?;
        let start = || Mesh {
            west: Network::start("west", WEST, &[]),
            east: Network::start("east", EAST, &[]),
        };
        let mesh = site.start(start);
        let (dnsmasq, unshare) = (dnsmasq.to_owned(), unshare.to_owned());
        Ok(Self { site, mesh: Arc::new(Mutex::new(mesh)), dnsmasq, unshare })
    }

    fn mesh(&self) -> MutexGuard<'_, Mesh> {
        self.mesh.lock().unwrap()
    }

    fn port(&self) -> u16 {
        self.mesh().west.control_address.port()
    }

    fn control_addresses(&self) -> (SocketAddr, SocketAddr) {
        let mesh = self.mesh();
        (mesh.west.control_address, mesh.east.control_address)
    }

    fn serve_names(&self, hosts: &[(&str, &str)], srvs: &[Srv]) -> NameServer {
        let hosts = hosts.iter().map(|(name, at)| ((*name).to_owned(), (*at).to_owned()));
        let hosts: Vec<(String, String)> = hosts.collect();
        let (dnsmasq, srvs) = (self.dnsmasq.clone(), srvs.to_vec());
        self.site.start(move || NameServer::start(&dnsmasq, NAMES, &hosts, &srvs))
    }

    fn resolver(&self, servers: &[&str]) -> Option<Hosts> {
        Hosts::of_servers(&self.unshare, servers)
    }

    /// A sidecar of west that finds its control plane there.
    fn sidecar(&self, names: &Hosts, control: &str, app: &'static str) -> Sidecar {
        let (mesh, control) = (Arc::clone(&self.mesh), control.to_owned());
        let start = names.start().arg("sidecar").ready_within(PATIENCE);
        self.site.start(move || {
            let mesh = mesh.lock().unwrap();
            mesh.west.sidecar_of_control(&control, start, app, &[])
        })
    }

    fn until_registered(&self, sidecar: &Sidecar) {
        let connected = || {
            let count = sidecar.process.metric("tollway_control_connected").ok()?;
            (count == 1).then_some(())
        };
        let waited = self.site.within(|| retry_until(PATIENCE, "a control plane", connected));
        assert!(waited.is_ok(), "{}", sidecar.process.log());
    }

    /// What `tollway check` finds without a token: the address that takes a connection, or why none does.
    fn check(&self, names: &Hosts, control: &str) -> String {
        let mut command = names.command();
        command.args(["check", "sidecar", "--app-id", "x", "--control", control]);
        command.env_remove("TOLLWAY_TOKEN");
        let output = self.site.within(|| command.output()).unwrap();
        let found = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        // On one line.
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

macro_rules! world {
    () => {{
        let (nft, dnsmasq) = (need_tool!("nft"), need_tool!("dnsmasq"));
        let unshare = need_tool!("unshare");
        need_tool!("ip");
        need_right!(World::start(&nft, &dnsmasq, &unshare))
    }};
}

macro_rules! resolver {
    ($world:expr, $servers:expr) => {
        match $world.resolver($servers) {
            Some(names) => names,
            None => tollway_testkit::skip!("mount namespaces are not permitted here"),
        }
    };
}

fn srv(name: &'static str, host: &str, port: u16, priority: u16, weight: u16) -> Srv {
    Srv { name, host: host.to_owned(), port, priority, weight }
}

#[test]
fn a_control_plane_is_found_past_addresses_that_are_silent_refuse_or_are_another() {
    let world = world!();
    let names = resolver!(world, &[NAMES]);
    let (port, other) = (world.port(), world.mesh().east.control_address);
    let _server = world.serve_names(
        &[
            ("silent", DROPPED),
            ("refuses", EAST),
            ("other", EAST),
            ("control", DROPPED),
            ("control", WEST),
            ("control", WEST_6),
        ],
        &[
            srv("west", "silent", port, 0, 0),
            srv("west", "refuses", 1, 1, 0),
            srv("west", "other", other.port(), 2, 0),
            srv("west", "gone", port, 3, 0),
            srv("west", "control", port, 4, 0),
        ],
    );
    let by_service = "srv:_tollway._tcp.west.mesh.test".to_owned();
    let by_name = format!("control.mesh.test:{port}");
    let by_list = format!("{DROPPED}:{port},{EAST}:1,{other},none.mesh.test:1,{WEST}:{port}");
    for (control, app, has_other) in
        [(by_service, "a", true), (by_name, "b", false), (by_list, "c", true)]
    {
        let sidecar = world.sidecar(&names, &control, app);
        world.until_registered(&sidecar);
        let log = sidecar.process.log();
        let reports_other = log.lines().any(|line| {
            line.contains("an address of the control plane is passed over")
                && line.contains("ERR_CONTROL_FOREIGN")
                && line.contains(&other.to_string())
        });
        assert_eq!(reports_other, has_other, "{control}: {log}");
    }
}

#[test]
fn an_error_names_every_address_and_why_it_failed() {
    let world = world!();
    let names = resolver!(world, &[NAMES]);
    let port = world.port();
    let _server = world.serve_names(
        &[("two", EAST), ("two", DROPPED)],
        &[srv("closed", "two", 1, 0, 0), srv("gone", "none", 1, 0, 0)],
    );
    let closed = world.check(&names, "srv:_tollway._tcp.closed.mesh.test");
    assert!(closed.contains(&format!("{EAST}:1: Connection refused")), "{closed}");
    assert!(closed.contains(&format!("{DROPPED}:1: no connection within 5 s")), "{closed}");
    let none = world.check(&names, "srv:_tollway._tcp.none.mesh.test");
    assert!(none.contains("the name has no SRV records"), "{none}");
    let gone = world.check(&names, "srv:_tollway._tcp.gone.mesh.test");
    assert!(gone.contains("none.mesh.test:1: "), "{gone}");
    let list = world.check(&names, &format!("none.mesh.test:1,{EAST}:1"));
    for part in ["none.mesh.test:1: ", &format!("{EAST}:1: Connection refused")] {
        assert!(list.contains(part), "{part}: {list}");
    }
    // A server that refuses to answer is named.
    let foreign = world.check(&names, "srv:_tollway._tcp.example.org");
    assert!(foreign.contains(&format!("name server {NAMES}:53: it answers REFUSED")), "{foreign}");
    let bad = world.check(&names, &format!("{WEST}:{port},::1:15010"));
    assert!(bad.contains("write it in brackets, [ADDRESS]:PORT"), "{bad}");
}

#[test]
fn records_are_used_by_priority_and_weight_and_answers_that_do_not_fit_come_over_tcp() {
    let world = world!();
    let names = resolver!(world, &[NAMES]);
    let (west, east) = world.control_addresses();
    let long = "x".repeat(50);
    let mut hosts = vec![("west", WEST), ("east", EAST)];
    let many: Vec<String> = (0..60).map(|n| format!("{long}-{n}")).collect();
    hosts.extend(many.iter().map(|name| (name.as_str(), DROPPED)));
    let mut srvs = vec![
        srv("first", "west", west.port(), 2, 60_000),
        srv("first", "east", east.port(), 1, 0),
        srv("heavy", "west", west.port(), 0, 65_535),
        srv("heavy", "east", east.port(), 0, 0),
        srv("even", "west", west.port(), 0, 10),
        srv("even", "east", east.port(), 0, 10),
    ];
    srvs.extend(many.iter().map(|name| srv("long", name, 1, 9, 0)));
    srvs.push(srv("long", "west", west.port(), 0, 0));
    let server = world.serve_names(&hosts, &srvs);
    let found_at = |name: &str, tries: usize| {
        let control = format!("srv:_tollway._tcp.{name}.mesh.test");
        let at_west = format!("something listens at {west}");
        let at_east = format!("something listens at {east}");
        let mut counts = [0, 0];
        for _ in 0..tries {
            let found = world.check(&names, &control);
            assert!(found.contains(&at_west) || found.contains(&at_east), "{found}");
            counts[usize::from(found.contains(&at_east))] += 1;
        }
        counts
    };
    assert_eq!(found_at("first", 5), [0, 5], "the lower priority comes first");
    let [heavy, light] = found_at("heavy", 20);
    assert!(heavy >= 18, "{heavy} of {}", heavy + light);
    // One that is never first comes up once in 2^39 runs.
    assert!(found_at("even", 40).iter().all(|count| *count > 0));
    assert_eq!(found_at("long", 1), [1, 0]);
    assert!(!server.log().is_empty());
}

#[test]
fn the_next_name_server_answers_where_one_is_silent() {
    let world = world!();
    let names = resolver!(world, &[DROPPED, NAMES]);
    let west = world.mesh().west.control_address;
    let _server = world.serve_names(&[("west", WEST)], &[srv("west", "west", west.port(), 0, 0)]);
    let found = world.check(&names, "srv:_tollway._tcp.west.mesh.test");
    assert!(found.contains(&format!("something listens at {west}")), "{found}");
    let none = resolver!(world, &[DROPPED]);
    let silent = world.check(&none, "srv:_tollway._tcp.west.mesh.test");
    assert!(silent.contains(&format!("name server {DROPPED}:53: no answer")), "{silent}");
}
