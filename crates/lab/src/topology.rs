//! Networks and the links between them, in one of two forms.
//!
//! With namespaces each network is one of the kernel's, and a link delays packets. On loopback all
//! networks share 127.0.0.1, and connections between networks go through a relay that delays
//! streams. A scenario calls [`Topology::address_from`] and need not know which.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use std::os::fd::{AsFd, AsRawFd};

use tollway_net::link::Shape;
use tollway_net::netns::{NetNs, NetnsError};
use tollway_net::tun::{Tun, TunConfig};

use crate::commands::Commands;
use crate::error::LabError;
use crate::link_command::LinkArgs;
use crate::process::{Spec, Supervisor};
use crate::relay::{Forward, RelayArgs, Target};
use tollway_net::ports_file as ports;

/// How long a link or relay may take to carry traffic.
const LINK_READY_LIMIT: Duration = Duration::from_secs(10);

/// What keeps networks apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    Namespaces,
    /// All on one loopback, with the reason why nothing better was possible.
    Loopback {
        reason: String,
    },
}

impl Isolation {
    /// Finds out what this process may do, and becomes root of a user namespace if that helps.
    /// Call it first in the process: the kernel allows the latter only to a single thread.
    #[must_use]
    pub fn prepare() -> Self {
        let privileged = rustix::process::geteuid().is_root();
        let attempt = if privileged { probe() } else { Err(String::new()) };
        let Err(as_we_are) = attempt else { return Self::Namespaces };
        match tollway_net::netns::become_namespace_root().map_err(|e| tollway_model::chain(&e)) {
            Ok(()) => {
                probe().map_or_else(|reason| Self::Loopback { reason }, |()| Self::Namespaces)
            }
            Err(_) if privileged => Self::Loopback { reason: as_we_are },
            Err(reason) => Self::Loopback { reason },
        }
    }
}

/// Makes and drops a namespace with a TUN device.
fn probe() -> Result<(), String> {
    let (local, peer) = (Ipv4Addr::new(10, 201, 255, 1), Ipv4Addr::new(10, 201, 255, 2));
    let config = TunConfig {
        name: "probe".into(),
        local,
        peer,
        mtu: 1_500,
        queue_packets: 1,
        offload: Shape::delaying(Duration::ZERO).wants_offload(),
    };
    let namespace = NetNs::create("probe").map_err(|e| tollway_model::chain(&e))?;
    let device = namespace.run(|| Tun::open(&config)).map_err(|e| tollway_model::chain(&e))?;
    device.map(drop).map_err(|e| tollway_model::chain(&e))
}

/// One network.
#[derive(Debug, Clone)]
pub struct Network {
    pub name: String,
    /// Where its processes are reached from other networks and each other.
    pub address: IpAddr,
    /// Where a server listens that is to be reached at `address` and on loopback.
    pub listen_ip: IpAddr,
    pub namespace: Option<Arc<NetNs>>,
}

impl Network {
    /// The address at which a listener bound to `bound` is reached.
    #[must_use]
    pub fn reachable(&self, bound: SocketAddr) -> SocketAddr {
        let ip = if bound.ip().is_unspecified() { self.address } else { bound.ip() };
        SocketAddr::new(ip, bound.port())
    }

    /// Runs `work` in the network.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        match &self.namespace {
            Some(namespace) => namespace.run(work),
            None => Ok(work()),
        }
    }
}

/// A link from the first network to another.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    /// Index of the network at the other end.
    pub to: usize,
    pub rtt: Duration,
    /// In one direction.
    pub jitter: Duration,
    /// Share of packets lost, in each direction.
    pub loss: f64,
    pub rate_bps: Option<u64>,
    pub seed: u64,
}

/// A listener of a network that others call.
#[derive(Debug, Clone)]
pub struct Published {
    /// Index of its network.
    pub network: usize,
    /// Unique in its network: `gateway`.
    pub name: String,
    pub ports_file: PathBuf,
    /// Its name in the ports file.
    pub port: &'static str,
}

/// A star: the first network is linked to each of the others.
#[derive(Debug)]
pub struct Topology {
    pub networks: Vec<Network>,
    links: Vec<LinkSpec>,
    published: Vec<Published>,
}

impl Topology {
    /// Makes the networks; nothing runs yet.
    pub fn create(
        isolation: &Isolation,
        names: &[&str],
        links: Vec<LinkSpec>,
    ) -> Result<Self, LabError> {
        let alone = links.is_empty();
        let make = |(index, name): (usize, &&str)| match isolation {
            Isolation::Loopback { .. } => {
                let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
                Ok(Network { name: (*name).into(), address: ip, listen_ip: ip, namespace: None })
            }
            Isolation::Namespaces => {
                let host = u8::try_from(index + 1).unwrap_or(u8::MAX);
                let address = Ipv4Addr::new(10, 201, 0, host);
                let namespace = NetNs::create(name)?;
                if alone {
                    // Else its links bring the address.
                    namespace.set_own_address(address)?;
                }
                Ok(Network {
                    name: (*name).into(),
                    address: address.into(),
                    listen_ip: Ipv4Addr::UNSPECIFIED.into(),
                    namespace: Some(Arc::new(namespace)),
                })
            }
        };
        let networks = names.iter().enumerate().map(make).collect::<Result<_, NetnsError>>()?;
        Ok(Self { networks, links, published: Vec::new() })
    }

    /// Starts all links and waits until they carry traffic. `published` is what is called across
    /// them; its ports files may be written later.
    pub fn start_links(
        &mut self,
        supervisor: &mut Supervisor,
        commands: &Commands,
        published: Vec<Published>,
    ) -> Result<(), LabError> {
        self.published = published;
        let specs: Vec<(String, Spec)> = self
            .links
            .iter()
            .map(|link| {
                let name = self.link_name(link.to);
                (name.clone(), self.link_process(supervisor, commands, link, &name))
            })
            .collect();
        for (_, spec) in &specs {
            supervisor.start(spec)?;
        }
        for (name, _) in &specs {
            supervisor.wait_ports(name, LINK_READY_LIMIT)?;
        }
        Ok(())
    }

    /// Name of the process that is the link to a network: `link/west-near`.
    #[must_use]
    pub fn link_name(&self, to: usize) -> String {
        format!("link/{}-{}", self.networks[0].name, self.networks[to].name)
    }

    #[must_use]
    pub fn link_to(&self, to: usize) -> Option<&LinkSpec> {
        self.links.iter().find(|link| link.to == to)
    }

    /// Whether packets cross the links, rather than relayed streams.
    #[must_use]
    pub fn has_packets(&self) -> bool {
        self.networks.iter().all(|network| network.namespace.is_some())
    }

    /// Where a published listener is reached from another network, or from its own.
    pub fn address_from(
        &self,
        supervisor: &Supervisor,
        from: usize,
        network: usize,
        name: &str,
    ) -> Result<SocketAddr, LabError> {
        if from == network || self.has_packets() {
            let found = self.published.iter().find(|p| p.network == network && p.name == name);
            let published = found.ok_or_else(|| LabError::Unpublished { name: name.into() })?;
            let bound = read_port(&published.ports_file, published.port)?;
            return Ok(self.networks[network].reachable(bound));
        }
        self.relayed(supervisor, from.max(network), network, name)
    }

    /// Where other networks reach a listener that will be bound to `fixed` in its own.
    pub fn advertised(
        &self,
        supervisor: &Supervisor,
        network: usize,
        name: &str,
        fixed: SocketAddr,
    ) -> Result<SocketAddr, LabError> {
        if self.has_packets() {
            return Ok(fixed);
        }
        // The hub is behind each of its links; one advertised address must do, the first's.
        let link = if network == 0 { self.links.first().map_or(0, |l| l.to) } else { network };
        self.relayed(supervisor, link, network, name)
    }

    fn relayed(
        &self,
        supervisor: &Supervisor,
        link: usize,
        network: usize,
        name: &str,
    ) -> Result<SocketAddr, LabError> {
        let path = supervisor.ports_path(&self.link_name(link));
        read_port(&path, &self.forward_name(network, name))
    }

    fn forward_name(&self, network: usize, name: &str) -> String {
        format!("{}.{name}", self.networks[network].name)
    }

    fn link_process(
        &self,
        supervisor: &Supervisor,
        commands: &Commands,
        link: &LinkSpec,
        name: &str,
    ) -> Spec {
        let ports_file = supervisor.ports_path(name);
        let namespaces = (&self.networks[0].namespace, &self.networks[link.to].namespace);
        let (Some(left), Some(right)) = namespaces else {
            return commands.relay(name, &self.relay_args(link, ports_file));
        };
        let args = self.link_args(link, left, right, ports_file);
        let mut spec = commands.link(name, &args);
        spec.lend = vec![Arc::clone(left), Arc::clone(right)];
        spec
    }

    fn link_args(
        &self,
        link: &LinkSpec,
        left: &NetNs,
        right: &NetNs,
        ports_file: PathBuf,
    ) -> LinkArgs {
        let address = |network: usize| match self.networks[network].address {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        LinkArgs {
            left_fd: left.as_fd().as_raw_fd(),
            right_fd: right.as_fd().as_raw_fd(),
            left_address: address(0),
            right_address: address(link.to),
            left_device: format!("to-{}", self.networks[link.to].name),
            right_device: format!("to-{}", self.networks[0].name),
            delay_us: microseconds(link.rtt / 2),
            jitter_us: microseconds(link.jitter),
            rate_bps: link.rate_bps,
            queue_us: 100_000,
            loss: link.loss,
            seed: link.seed,
            counts_file: ports_file.with_extension("counts"),
            ports_file,
        }
    }

    fn relay_args(&self, link: &LinkSpec, ports_file: PathBuf) -> RelayArgs {
        let crossing = self.published.iter().filter(|p| p.network == link.to || p.network == 0);
        let forwards = crossing.map(|published| Forward {
            name: self.forward_name(published.network, &published.name),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            target: Target::InFile {
                path: published.ports_file.clone(),
                name: published.port.into(),
            },
        });
        RelayArgs {
            forwards: forwards.collect(),
            delay_us: microseconds(link.rtt / 2),
            ordinary_priority: false,
            ports_file,
        }
    }
}

fn read_port(path: &Path, name: &str) -> Result<SocketAddr, LabError> {
    let ports = ports::read(path)?.unwrap_or_default();
    Ok(ports::port(path, &ports, name)?)
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
