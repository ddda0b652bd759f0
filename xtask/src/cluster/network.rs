//! The networks: a namespace for each cluster with a bridge that routes, one for each machine on it, and
//! the link between the clusters. All are made in the mount namespace of the supervisor, and end with it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::{FdFlags, fcntl_setfd};

use super::plan::{self, CLUSTERS, Cluster, Machine};
use super::state::{Link, State};
use crate::process;

/// Where `ip netns` has the namespaces.
const FOLDER: &str = "/run/netns";
/// The device of the link, in both networks.
const LINK: &str = "wan";
const BRIDGE: &str = "machines";
/// How long the program of a link may take to start.
const LINK_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

impl Link {
    /// Whether a pair of the kernel's devices does.
    pub(super) fn is_plain(&self) -> bool {
        self.delay.is_zero() && self.loss_percent == 0.0
    }
}

/// The namespace of a cluster's network, as seen by the supervisor.
pub(super) fn file(cluster: &Cluster) -> PathBuf {
    Path::new(FOLDER).join(cluster.name)
}

/// Makes all of it. The rig's folder has the link's program where packets are delayed or lost.
pub(super) fn make(state: &State, link: &Link) -> Result<()> {
    for cluster in &CLUSTERS {
        network(cluster)?;
    }
    for (cluster, machine) in plan::machines() {
        attach(cluster, machine)?;
    }
    match link.is_plain() {
        true => pair()?,
        false => emulated(state, link)?,
    }
    let [a, b] = &CLUSTERS;
    for (here, there) in [(a, b), (b, a)] {
        let (range, by) = (there.range(), there.link_end.to_string());
        ip_in(here.name, &["route", "add", &range, "via", &by, "dev", LINK])?;
    }
    Ok(())
}

fn network(cluster: &Cluster) -> Result<()> {
    let name = cluster.name;
    ip(&["netns", "add", name])?;
    ip_in(name, &["link", "set", "lo", "up"])?;
    ip_in(name, &["link", "add", BRIDGE, "type", "bridge"])?;
    ip_in(name, &["addr", "add", &format!("{}/24", cluster.router), "dev", BRIDGE])?;
    ip_in(name, &["link", "set", BRIDGE, "up"])?;
    set(name, "net/ipv4/ip_forward", "1")?;
    set(name, "net/bridge/bridge-nf-call-iptables", "0")
}

fn attach(cluster: &Cluster, machine: &Machine) -> Result<()> {
    let (network, name) = (cluster.name, machine.name);
    ip(&["netns", "add", name])?;
    ip_in(name, &["link", "set", "lo", "up"])?;
    ip_in(network, &["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name])?;
    ip_in(network, &["link", "set", name, "master", BRIDGE, "up"])?;
    ip_in(name, &["addr", "add", &format!("{}/24", machine.address), "dev", "eth0"])?;
    ip_in(name, &["link", "set", "eth0", "up"])?;
    ip_in(name, &["route", "add", "default", "via", &cluster.router.to_string()])?;
    for other in cluster.machines.iter().filter(|other| other.name != name) {
        ip_in(name, &["route", "add", other.pods, "via", &other.address.to_string()])?;
    }
    set(name, "net/ipv4/ip_forward", "1")?;
    // So that a pod's answer to another one on the same machine passes what translated the request.
    set(name, "net/bridge/bridge-nf-call-iptables", "1")
}

/// A link that does nothing to packets.
fn pair() -> Result<()> {
    let [a, b] = &CLUSTERS;
    ip_in(a.name, &["link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", b.name])?;
    for end in [a, b] {
        let address = format!("{}/30", end.link_end);
        ip_in(end.name, &["addr", "add", &address, "dev", LINK])?;
        ip_in(end.name, &["link", "set", LINK, "up"])?;
    }
    Ok(())
}

/// A link that delays and loses packets: the lab's.
fn emulated(state: &State, link: &Link) -> Result<()> {
    let [left, right] = &CLUSTERS;
    let open = |cluster: &Cluster| -> Result<File> {
        let file = file(cluster);
        let failed = || format!("could not open {}", file.display());
        let opened = File::open(&file).with_context(failed)?;
        // The link's program inherits it.
        fcntl_setfd(&opened, FdFlags::empty()).with_context(failed)?;
        Ok(opened)
    };
    let networks = [open(left)?, open(right)?];
    let [left_fd, right_fd] = networks.each_ref().map(|file| file.as_raw_fd().to_string());
    let ports = state.root().join("link.ports");
    let mut program = Command::new(state.link_program());
    program.args(["lab", "link", "--left-fd", &left_fd, "--right-fd", &right_fd]);
    program.args(["--left-device", LINK, "--left-address", &left.link_end.to_string()]);
    program.args(["--right-device", LINK, "--right-address", &right.link_end.to_string()]);
    program.args(["--delay-us", &link.delay.as_micros().to_string()]);
    program.args(["--loss", &(link.loss_percent / 100.0).to_string()]);
    program.arg("--counts-file").arg(state.root().join("link.counts"));
    program.arg("--ports-file").arg(&ports);
    let mut child = program.spawn().context("could not start the program of the link")?;
    let deadline = Instant::now() + LINK_LIMIT;
    while !ports.is_file() {
        if let Some(status) = child.try_wait().context("could not wait for the link")? {
            bail!("the program of the link ended: {status}");
        }
        if Instant::now() > deadline {
            bail!("the program of the link did not start within {LINK_LIMIT:?}");
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::output(Command::new("ip").args(arguments)).map(drop)
}

fn ip_in(namespace: &str, arguments: &[&str]) -> Result<()> {
    ip(&[&["-n", namespace], arguments].concat())
}

/// Sets a parameter of the kernel that each network namespace has for itself.
fn set(namespace: &str, name: &str, value: &str) -> Result<()> {
    let script = format!("echo {value} > /proc/sys/{name}");
    ip(&["netns", "exec", namespace, "sh", "-c", &script])
}
