//! A control plane with several addresses: lists, names with several, SRV records, with addresses among
//! them that drop packets, refuse, or belong to something else, from the start or for a time. The server of
//! names is dnsmasq.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tollway_testkit::{need_right, need_tool, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{Mesh, Network, PATIENCE, Sidecar, start_newest};
use tollway_tests::name_server::{NameServer, Srv};
use tollway_tests::names::Hosts;
use tollway_tests::site::Site;

/// The control plane and the gateway of west; those of east, which has another authority.
const WEST: &str = "10.79.0.1";
const WEST_6: &str = "fd79::1";
const EAST: &str = "10.79.0.2";
/// Another address of the control plane of west, where a test has it.
const SECOND: &str = "10.79.0.3";
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
        for address in [WEST, EAST, SECOND, DROPPED, NAMES] {
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
            // Whatever address of the machine a registration comes from.
            west: Network::start("west", WEST, &["--workload-addresses", &format!("{WEST}/32")]),
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
        self.sidecar_of(names, control, app, &[])
    }

    /// The same, with an app at this port.
    fn sidecar_of(
        &self,
        names: &Hosts,
        control: &str,
        app: &'static str,
        app_port: &[u16],
    ) -> Sidecar {
        let options: Vec<String> =
            app_port.iter().flat_map(|port| ["--app-port".to_owned(), port.to_string()]).collect();
        let (mesh, control) = (Arc::clone(&self.mesh), control.to_owned());
        let start = names.start().arg("sidecar").ready_within(PATIENCE);
        self.site.start(move || {
            let mesh = mesh.lock().unwrap();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            mesh.west.sidecar_of_control(&control, start, app, &options)
        })
    }

    /// Has the control plane of west at [`SECOND`], too.
    fn open_second(&self, nft: &Path) -> Result<(), String> {
        let lead = format!("ip daddr {SECOND} dnat to {WEST}");
        self.site.firewall(
            nft,
            &format!(
                "table ip second {{\n  chain output {{\n    type nat hook output priority -100;\n    \
                 {lead}\n  }}\n}}\n"
            ),
        )
    }

    /// No packet passes between this address of the control plane and those that have dialled it.
    fn cut(&self, nft: &Path, address: &str) {
        let of_address = format!("ct original ip daddr {address} tcp");
        let port = self.port();
        let rules = format!(
            "table inet cut {{\n  chain input {{\n    type filter hook input priority 0;\n    \
             {of_address} dport {port} drop\n    {of_address} sport {port} drop\n  }}\n}}\n"
        );
        self.site.firewall(nft, &rules).unwrap();
    }

    fn mend(&self, nft: &Path) {
        self.site.firewall(nft, "delete table inet cut\n").unwrap();
    }

    /// Waits until a sidecar is registered over this address of the control plane.
    fn until_registered_over(&self, sidecar: &Sidecar, address: &str) {
        let peer = SocketAddr::new(address.parse().unwrap(), self.port());
        let is_so = || {
            let is_one = |name: &str| sidecar.process.metric(name).is_ok_and(|count| count == 1);
            let has_both =
                is_one("tollway_control_connected") && is_one("tollway_control_registered");
            (has_both && is_connected(sidecar.process.pid(), peer)).then_some(())
        };
        let waited = self.site.within(|| retry_until(PATIENCE, "the other address", is_so));
        assert!(waited.is_ok(), "{peer}: {}", sidecar.process.log());
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

/// Whether a process has a connection to this address.
fn is_connected(pid: u32, peer: SocketAddr) -> bool {
    let SocketAddr::V4(peer) = peer else { return false };
    let Ok(table) = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")) else { return false };
    let remote = format!("{:08X}:{:04X}", u32::from_ne_bytes(peer.ip().octets()), peer.port());
    let own: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .map(|entries| {
            let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            links.map(|link| link.display().to_string()).collect()
        })
        .unwrap_or_default();
    table.lines().any(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        // 01 is an established connection; the tenth cell is the number of its socket.
        let is_there = cells.get(2) == Some(&&*remote) && cells.get(3) == Some(&"01");
        is_there && cells.get(9).is_some_and(|socket| own.contains(&format!("socket:[{socket}]")))
    })
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

/// From one call to the next.
const CALL_EVERY: Duration = Duration::from_millis(10);

/// Cuts one address of the control plane after the other off, under calls; the sidecars are those of the
/// callee and of a caller for each way to write the addresses. Gives the calls, and the answers that are
/// no good ones.
fn lose_addresses(world: &World, names: &Hosts, nft: &Path, rounds: usize) -> (usize, Vec<String>) {
    let port = world.port();
    let hosts = [("first", WEST), ("second", SECOND), ("both", WEST), ("both", SECOND)];
    let srvs = [srv("both", "first", port, 0, 0), srv("both", "second", port, 1, 0)];
    let _server = world.serve_names(&hosts, &srvs);
    let by_list = format!("{WEST}:{port},{SECOND}:{port}");
    let by_name = format!("both.mesh.test:{port}");
    let by_service = "srv:_tollway._tcp.both.mesh.test";
    let start = || start_newest("echo").args(["--http", "127.0.0.1:0"]).start_listening().unwrap();
    let echo = world.site.start(start);
    let app_port = echo.port("http").unwrap().port();
    let callee = world.sidecar_of(names, &by_list, "echo", &[app_port]);
    let callers = [
        world.sidecar_of(names, &by_list, "by-list", &[app_port]),
        world.sidecar_of(names, &by_name, "by-name", &[app_port]),
        world.sidecar_of(names, by_service, "by-service", &[app_port]),
    ];
    world.site.within(|| callers.iter().for_each(|caller| caller.until_served("echo")));
    let is_over = AtomicBool::new(false);
    let call_on = |caller: &Sidecar| {
        let (listener, mut answers) = (caller.http(), Vec::new());
        while !is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            answers.push(get(listener, "/v1.0/invoke/echo/method/healthz"));
            std::thread::sleep(CALL_EVERY.saturating_sub(began.elapsed()));
        }
        answers
    };
    let answers: Vec<String> = std::thread::scope(|scope| {
        let call_on = &call_on;
        let calling =
            callers.each_ref().map(|caller| scope.spawn(|| world.site.within(|| call_on(caller))));
        // What panics in between must not leave the callers calling.
        let struck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (lost, other) in [(WEST, SECOND), (SECOND, WEST)].repeat(rounds) {
                world.cut(nft, lost);
                for sidecar in callers.iter().chain([&callee]) {
                    world.until_registered_over(sidecar, other);
                }
                world.mend(nft);
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        let answers = calling.into_iter().flat_map(|calls| calls.join().unwrap()).collect();
        struck.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        answers
    });
    let count = answers.len();
    let failed = answers.into_iter().filter(|answer| !answer.starts_with("HTTP/1.1 200"));
    (count, failed.collect())
}

#[test]
fn an_address_that_is_lost_and_back_under_calls_costs_none_of_them() {
    let nft = need_tool!("nft");
    let world = world!();
    let names = resolver!(world, &[NAMES]);
    need_right!(world.open_second(&nft));
    let (count, failed) = lose_addresses(&world, &names, &nft, 1);
    assert!(count > 0 && failed.is_empty(), "{} of {count}: {failed:#?}", failed.len());
}

#[test]
#[ignore = "minutes: `cargo xtask proof failover` runs it"]
fn addresses_that_are_lost_and_back_again_and_again_cost_no_call() {
    let nft = need_tool!("nft");
    let world = world!();
    let names = resolver!(world, &[NAMES]);
    need_right!(world.open_second(&nft));
    let (count, failed) = lose_addresses(&world, &names, &nft, 10);
    assert!(count > 0 && failed.is_empty(), "{} of {count}: {failed:#?}", failed.len());
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
