//! What a sidecar needs to take connections that the kernel leads to it from an app which knows
//! nothing of it: what each was meant for, and which names addresses stand for.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tollway_model::{HostName, NameError, ServiceName};
use tollway_net::{AppNetwork, Conn};
use tollway_routing::ExternalNames;
use tollway_routing::intercept::{LeftAlone, Meaning, MeshNames, dns};

/// Where intercepted connections are taken: loopback, at one port.
pub(crate) fn listen(port: u16) -> [SocketAddr; 2] {
    let at = |ip: IpAddr| SocketAddr::new(ip, port);
    [at(Ipv4Addr::LOCALHOST.into()), at(Ipv6Addr::LOCALHOST.into())]
}

/// Knows what connections were meant for.
pub trait Origins: Send + Sync + fmt::Debug {
    /// What the accepted connection from `source` was meant for; it is forgotten here. `None` for one
    /// that was not led to the sidecar.
    fn take(&self, source: SocketAddr, accepted: &Conn) -> Option<SocketAddr>;
}

/// Connections that the kernel has redirected within the network namespace of the app keep what they
/// were meant for.
#[derive(Debug)]
pub struct RedirectedOrigins;

impl Origins for RedirectedOrigins {
    fn take(&self, _: SocketAddr, accepted: &Conn) -> Option<SocketAddr> {
        accepted.original_destination()
    }
}

/// Interception as a sidecar meets it.
#[derive(Clone, Debug)]
pub struct Interception {
    /// The port of loopback where they come; 0 takes a free one.
    pub port: u16,
    pub origins: Arc<dyn Origins>,
    pub names: Arc<NameTable>,
    /// The network namespace of the app, if it has one of its own.
    pub network: Option<Arc<AppNetwork>>,
    /// What comes here and is only passed on.
    pub left_alone: LeftAlone,
    /// Whether the app runs in a Kubernetes cluster whose Services the control plane may follow: it is asked
    /// what private addresses are.
    pub is_in_cluster: bool,
}

/// Where an intercepted connection goes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Meant {
    Service(ServiceName),
    /// To what the control plane says that this address is.
    InCluster(ServiceName),
    /// Out of the mesh.
    Outside(SocketAddr),
    /// To an address with which the sidecar has nothing to do.
    LeftAlone(SocketAddr),
    /// Nothing has led it here.
    Nowhere,
    /// The address is of the range for names, and stands for none.
    NoName(Ipv4Addr),
    /// Its name is none that a service of this network's view can have.
    BadName(NameError),
}

impl Interception {
    /// Decides where the connection from `source` goes; `home` completes short names.
    pub(crate) fn meant(&self, source: SocketAddr, accepted: &Conn, home: &ServiceName) -> Meant {
        let Some(address) = self.origins.take(source, accepted) else { return Meant::Nowhere };
        match address.ip() {
            IpAddr::V4(ip) if MeshNames::is_of_range(ip) => match self.names.service(ip, home) {
                Some(Ok(service)) => Meant::Service(service),
                Some(Err(error)) => Meant::BadName(error),
                None => Meant::NoName(ip),
            },
            IpAddr::V4(_) | IpAddr::V6(_) if self.left_alone.contains(address) => {
                Meant::LeftAlone(address)
            }
            ip if self.is_in_cluster && is_private(ip) => {
                let address = SocketAddr::new(ip.to_canonical(), address.port());
                Meant::InCluster(ServiceName::of_address(address, home))
            }
            IpAddr::V4(_) | IpAddr::V6(_) => Meant::Outside(address),
        }
    }
}

/// Whether an address is of the ranges that networks use inside, as clusters do for pods and Services.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let is_shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            ip.is_private() || is_shared
        }
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

/// How a question for a name was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameAnswer {
    /// From the table: a service.
    Service,
    /// From the table: no service has such a name.
    NoService,
    /// By another server.
    Forwarded,
    /// No server answered, or too many had questions.
    Failed,
}

impl NameAnswer {
    /// In the order of the counts.
    pub(crate) const WORDS: [&str; 4] = ["service", "no_service", "forwarded", "failed"];
}

/// The table of names, which the server of names fills and data threads read.
#[derive(Debug, Default)]
pub struct NameTable {
    names: Mutex<MeshNames>,
    /// Names out of the mesh, of the answers that were passed on.
    external: Mutex<ExternalNames>,
    counts: [AtomicU64; NameAnswer::WORDS.len()],
}

impl NameTable {
    /// With further names for services: each with its service (`app[.namespace[.network]]`).
    pub fn new<'a>(aliases: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { names: Mutex::new(MeshNames::new(aliases)), ..Self::default() }
    }

    /// What a name is; that of a service gets an address if it has none.
    pub fn ask(&self, name: &str) -> Meaning {
        self.names().ask(name)
    }

    /// The host name that an address stands for.
    #[must_use]
    pub fn host(&self, address: Ipv4Addr) -> Option<String> {
        self.names().host(address).map(str::to_owned)
    }

    /// Another server's answer goes to the app: its addresses stand for its name from now on.
    pub fn note_answer(&self, answer: &[u8], now: Instant) {
        let Some((name, addresses)) = dns::read_addresses(answer) else { return };
        if let Some(name) = HostName::read(&name) {
            self.external().note(&name, addresses, now);
        }
    }

    /// The names out of the mesh that an address stands for.
    pub(crate) fn external_names(&self, address: IpAddr, now: Instant) -> Vec<HostName> {
        self.external().of(address, now)
    }

    /// An address is called under its name.
    pub(crate) fn note_use(&self, name: &HostName, address: IpAddr, now: Instant) {
        self.external().note_use(name, address, now);
    }

    /// Counts an answer.
    pub fn count(&self, answer: NameAnswer) {
        self.counts[answer as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The answers so far: of services, of none, forwarded, failed.
    #[must_use]
    pub fn counts(&self) -> [u64; NameAnswer::WORDS.len()] {
        std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed))
    }

    /// The service that an address stands for.
    fn service(
        &self,
        address: Ipv4Addr,
        home: &ServiceName,
    ) -> Option<Result<ServiceName, NameError>> {
        let names = self.names();
        names.host(address).map(|host| ServiceName::parse_host(host, home))
    }

    fn external(&self) -> MutexGuard<'_, ExternalNames> {
        self.external.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, MeshNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    /// Every connection is meant for this.
    #[derive(Debug)]
    struct All(Option<SocketAddr>);

    impl Origins for All {
        fn take(&self, _: SocketAddr, _: &Conn) -> Option<SocketAddr> {
            self.0
        }
    }

    fn meant(to: Option<&str>, names: NameTable) -> Meant {
        meant_in(false, to, names)
    }

    fn meant_in(is_in_cluster: bool, to: Option<&str>, names: NameTable) -> Meant {
        let label = |text: &str| Label::new(text).unwrap();
        let home =
            ServiceName { app: label("web"), namespace: label("shop"), network: label("west") };
        let origins = Arc::new(All(to.map(|to| to.parse().unwrap())));
        let left_alone = LeftAlone::new(vec!["10.0.0.0/8".parse().unwrap()], false);
        let names = Arc::new(names);
        let network = None;
        let interception =
            Interception { port: 0, origins, names, network, left_alone, is_in_cluster };
        let (end, _other) = tollway_net::local_pair().unwrap();
        interception.meant("127.0.0.1:4711".parse().unwrap(), &Conn::local(end), &home)
    }

    #[test]
    fn a_connection_goes_where_its_address_means() {
        let names = NameTable::new([("postgres", "db.data.east")]);
        let Meaning::Service(stock) = names.ask("stock.mesh") else { panic!() };
        let Meaning::Service(db) = names.ask("postgres") else { panic!() };
        let (stock, db) = (format!("{stock}:80"), format!("{db}:5432"));
        let service = |meant: Meant| {
            let Meant::Service(service) = meant else { panic!("{meant:?}") };
            service.to_string()
        };
        let tables = || {
            let names = NameTable::new([("postgres", "db.data.east")]);
            names.ask("stock.mesh");
            names.ask("postgres");
            names
        };
        assert_eq!(service(meant(Some(&stock), tables())), "stock.shop.west");
        assert_eq!(service(meant(Some(&db), tables())), "db.data.east");
        let outside: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
        assert_eq!(meant(Some("[2001:db8::1]:443"), tables()), Meant::Outside(outside));
        for text in ["10.1.2.3:443", "127.0.0.1:3500"] {
            let address = text.parse().unwrap();
            assert_eq!(meant(Some(text), tables()), Meant::LeftAlone(address));
        }
    }

    #[test]
    fn in_a_cluster_private_addresses_are_asked_for() {
        let asked = |text: &str| match meant_in(true, Some(text), NameTable::default()) {
            Meant::InCluster(name) => name.to_string(),
            other @ (Meant::Service(_)
            | Meant::Outside(_)
            | Meant::LeftAlone(_)
            | Meant::Nowhere
            | Meant::NoName(_)
            | Meant::BadName(_)) => format!("{other:?}"),
        };
        for (text, name) in [
            ("172.16.0.7:80", "172.16.0.7:80.shop.west"),
            ("172.31.255.255:80", "172.31.255.255:80.shop.west"),
            ("192.168.1.1:443", "192.168.1.1:443.shop.west"),
            ("100.64.0.1:80", "100.64.0.1:80.shop.west"),
            ("100.127.0.1:80", "100.127.0.1:80.shop.west"),
            ("[::ffff:172.16.0.7]:80", "172.16.0.7:80.shop.west"),
            ("[fd00::7]:80", "[fd00::7]:80.shop.west"),
        ] {
            assert_eq!(asked(text), name);
        }
        for text in ["172.32.0.1:80", "100.128.0.1:80", "8.8.8.8:53", "[2001:db8::1]:443"] {
            assert_eq!(asked(text), format!("Outside({text})"));
        }
        // One that is left alone is so here, too.
        assert_eq!(asked("10.1.2.3:80"), "LeftAlone(10.1.2.3:80)");
    }

    #[test]
    fn what_nothing_has_led_here_goes_nowhere() {
        assert_eq!(meant(None, NameTable::default()), Meant::Nowhere);
        let unknown = Ipv4Addr::new(240, 1, 2, 3);
        assert_eq!(meant(Some("240.1.2.3:80"), NameTable::default()), Meant::NoName(unknown));
    }
}
