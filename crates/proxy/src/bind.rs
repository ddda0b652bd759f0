//! A data plane's listeners: bound before anything is served, once per thread.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use rustix::io::Errno;
use tollway_model::ServiceName;
use tollway_net::{AppNetwork, Listener, ListenerOptions};

use crate::conn::ListenerKind;
use crate::dataplane::DataPlaneError;
use crate::live::{ByThread, UpstreamPort, parse_upstream};

/// Bytes of a connection, accepted or dialled, that the kernel takes before it can send them. A
/// peer that reads little costs what is fetched for it, and by default that would be megabytes.
pub(crate) const UNSENT_BYTES_LIMIT: u32 = 256 << 10;

/// Bound listeners with their names.
pub(crate) struct BoundListeners {
    pub(crate) open: Vec<(String, Listener, ListenerKind)>,
    /// The loopback ports among them that stand for services.
    pub(crate) upstreams: Vec<UpstreamPort>,
    /// Several threads listen on the same addresses.
    shared: bool,
    /// Where connections of an intercepted app are taken, if its network namespace is its own.
    app_network: Option<Arc<AppNetwork>>,
}

impl BoundListeners {
    pub(crate) fn for_threads(threads: usize) -> Self {
        let (open, upstreams) = (Vec::new(), Vec::new());
        Self { open, upstreams, shared: threads > 1, app_network: None }
    }

    /// Has connections of the app be taken in its own network namespace.
    pub(crate) fn set_app_network(&mut self, network: Option<Arc<AppNetwork>>) {
        self.app_network = network;
    }

    /// Listens; port 0 is any free one. Gives the address bound.
    pub(crate) fn bind(
        &mut self,
        name: &'static str,
        address: SocketAddr,
        via: ListenerKind,
    ) -> Result<SocketAddr, DataPlaneError> {
        let listen = || self.listen(address);
        let listener = self.bind_where(&via, listen).map_err(|source| DataPlaneError::Listen {
            listener: name,
            address,
            source,
        })?;
        let bound = listener.address();
        self.open.push((name.to_owned(), listener, via));
        Ok(bound)
    }

    /// Listens at each address for the same listener: all at the port that the first one has, where
    /// that is any free one. The second is called `NAME-2`. Loopback of the other family beside a
    /// first address serves clients that take either for `localhost`: where the machine has no
    /// such family, or the free port is another's there, it is left out.
    pub(crate) fn bind_all(
        &mut self,
        name: &'static str,
        addresses: &[SocketAddr],
        via: &ListenerKind,
    ) -> Result<(), DataPlaneError> {
        let mut port = None;
        for (index, address) in addresses.iter().enumerate() {
            let mut address = *address;
            let is_free_port = address.port() == 0;
            if is_free_port {
                address.set_port(port.unwrap_or(0));
            }
            let is_beside = index > 0 && address.ip().is_loopback();
            match self.bind(name, address, via.clone()) {
                Ok(bound) => port = Some(bound.port()),
                Err(DataPlaneError::Listen { source, .. })
                    if is_beside && is_left_out(&source, is_free_port) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            }
            if let (Some((label, ..)), 1..) = (self.open.last_mut(), index) {
                *label = format!("{name}-{}", index + 1);
            }
        }
        Ok(())
    }

    /// Binds a listener in the network namespace where its connections come from.
    fn bind_where(
        &self,
        via: &ListenerKind,
        bind: impl FnOnce() -> std::io::Result<Listener> + Send,
    ) -> std::io::Result<Listener> {
        match &self.app_network {
            Some(network) if *via == ListenerKind::Intercepted => {
                network.namespace().run(bind).map_err(std::io::Error::other)?
            }
            Some(_) | None => bind(),
        }
    }

    /// Threads share an address among themselves, never with another process: the kernel would
    /// let two sidecars of one user share a port and hand each the other's calls.
    fn listen(&self, address: SocketAddr) -> std::io::Result<Listener> {
        let alone = Listener::bind(address, options(false))?;
        if !self.shared {
            return Ok(alone);
        }
        let address = alone.address();
        drop(alone);
        Listener::bind(address, options(true))
    }

    /// Opens `PORT=SERVICE` on loopback of both families.
    pub(crate) fn bind_upstream(
        &mut self,
        text: &str,
        home: &ServiceName,
    ) -> Result<(), DataPlaneError> {
        let (port, service) = parse_upstream(text, home)?;
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let addresses = loopback.map(|ip| SocketAddr::new(ip, port));
        let before = self.open.len();
        self.bind_all("upstream", &addresses, &ListenerKind::Tcp(service.clone()))?;
        let name = text.split_once('=').map_or(text, |(_, name)| name);
        let mut bound = Vec::new();
        for (label, listener, _) in &mut self.open[before..] {
            *label = label.replacen("upstream", &format!("upstream:{name}"), 1);
            bound.push(listener.address());
        }
        self.upstreams.push(UpstreamPort { text: text.to_owned(), port, service, bound });
        Ok(())
    }

    /// The listeners for every thread.
    pub(crate) fn for_each_thread(self, threads: usize) -> Result<ByThread, DataPlaneError> {
        let mut listeners = Vec::new();
        for _ in 1..threads.max(1) {
            listeners.push(self.again()?);
        }
        listeners.push(self.open.into_iter().map(|(_, l, via)| (l, via)).collect());
        Ok(listeners)
    }

    /// The listeners bound once more, for another thread.
    fn again(&self) -> Result<Vec<(Listener, ListenerKind)>, DataPlaneError> {
        self.open
            .iter()
            .map(|(_, listener, via)| {
                let address = listener.address();
                let bind = || Listener::bind(address, options(true));
                let listener = self.bind_where(via, bind).map_err(|source| {
                    DataPlaneError::Listen { listener: "another thread", address, source }
                })?;
                Ok((listener, via.clone()))
            })
            .collect()
    }
}

/// Whether an address beside another one may be missing.
fn is_left_out(error: &std::io::Error, is_free_port: bool) -> bool {
    let errno = Errno::from_io_error(error);
    let is_absent = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT].map(Some).contains(&errno);
    is_absent || (is_free_port && errno == Some(Errno::ADDRINUSE))
}

fn options(shared: bool) -> ListenerOptions {
    ListenerOptions { shared, unsent_bytes: Some(UNSENT_BYTES_LIMIT), ..ListenerOptions::default() }
}

/// Where others reach a listener that is bound to `bound`.
pub(crate) fn advertised(
    wanted: Option<SocketAddr>,
    bound: SocketAddr,
) -> Result<SocketAddr, DataPlaneError> {
    let mut address = wanted.unwrap_or(bound);
    if address.port() == 0 {
        address.set_port(bound.port());
    }
    if address.ip().is_unspecified() {
        return Err(DataPlaneError::NoAdvertise { address });
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_refused_however_many_threads_share_theirs() {
        for threads in [1, 2] {
            let any = "127.0.0.1:0".parse().unwrap();
            let mut first = BoundListeners::for_threads(threads);
            let taken = first.bind("http", any, ListenerKind::HttpApi).unwrap();
            assert_eq!(first.again().is_ok(), threads > 1, "own threads share it");
            let second =
                BoundListeners::for_threads(threads).bind("http", taken, ListenerKind::HttpApi);
            let message = second.map(|_| ()).unwrap_err().to_string();
            assert_eq!(message, format!("cannot listen on {taken} for http"));
        }
    }

    #[test]
    fn several_addresses_of_a_listener_have_one_port_and_a_name_each() {
        let any = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| address.parse().unwrap());
        let mut listeners = BoundListeners::for_threads(1);
        listeners.bind_all("http", &any, &ListenerKind::HttpApi).unwrap();
        let bound: Vec<_> = listeners.open.iter().map(|(name, l, _)| (name, l.address())).collect();
        assert_eq!((bound[0].0.as_str(), bound[1].0.as_str()), ("http", "http-2"));
        assert_eq!(bound[0].1.port(), bound[1].1.port());
    }

    #[test]
    fn an_upstream_is_at_the_loopback_of_each_family_that_the_machine_has() {
        let label = |text| tollway_model::Label::new(text).unwrap();
        let home =
            ServiceName { app: label("web"), namespace: label("default"), network: label("west") };
        let mut listeners = BoundListeners::for_threads(1);
        listeners.bind_upstream("0=db", &home).unwrap();
        let opened = listeners.open.iter().map(|(name, l, _)| (name.as_str(), l.address()));
        let opened: Vec<_> = opened.collect();
        let bound = &listeners.upstreams[0].bound;
        assert_eq!(opened[0], ("upstream:db", bound[0]));
        assert!(bound[0].ip() == Ipv4Addr::LOCALHOST && bound[0].port() != 0);
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            let beside = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), bound[0].port());
            assert_eq!((opened[1], bound[1]), (("upstream:db-2", beside), beside));
        }
    }

    #[test]
    fn an_address_beside_another_is_left_out_where_there_is_no_such_family() {
        let left_out = |errno: Errno, free| is_left_out(&errno.into(), free);
        for free in [false, true] {
            assert!(left_out(Errno::ADDRNOTAVAIL, free) && left_out(Errno::AFNOSUPPORT, free));
            assert!(!left_out(Errno::ACCESS, free));
            assert_eq!(left_out(Errno::ADDRINUSE, free), free, "a port that was asked for is not");
        }
        // No machine has this address; the first of a listener is never left out.
        let none = ["192.0.2.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
        let mut listeners = BoundListeners::for_threads(1);
        assert!(listeners.bind_all("http", &none, &ListenerKind::HttpApi).is_err());
    }
}
