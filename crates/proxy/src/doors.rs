//! A data plane's doors: bound before anything is served, once per thread.

use std::net::SocketAddr;

use tollway_model::ServiceName;
use tollway_net::{Listener, ListenerOptions};

use crate::connection::Door;
use crate::dataplane::DataPlaneError;
use crate::live::{ByThread, Upstream, parse_upstream};

/// Bound listeners with their names.
pub(crate) struct Doors {
    pub(crate) open: Vec<(String, Listener, Door)>,
    /// The loopback ports among them that stand for services.
    pub(crate) upstreams: Vec<Upstream>,
    /// Several threads listen on the same addresses.
    shared: bool,
}

impl Doors {
    pub(crate) fn for_threads(threads: usize) -> Self {
        Self { open: Vec::new(), upstreams: Vec::new(), shared: threads > 1 }
    }

    /// Listens; port 0 is any free one. Gives the address bound.
    pub(crate) fn bind(
        &mut self,
        name: &'static str,
        address: SocketAddr,
        door: Door,
    ) -> Result<SocketAddr, DataPlaneError> {
        let listener = self.listen(address).map_err(|source| DataPlaneError::Listen {
            door: name,
            address,
            source,
        })?;
        let bound = listener.address();
        self.open.push((name.to_owned(), listener, door));
        Ok(bound)
    }

    /// Threads share an address among themselves, never with another process: the kernel would
    /// let two sidecars of one user share a port and hand each the other's calls.
    fn listen(&self, address: SocketAddr) -> std::io::Result<Listener> {
        let alone = Listener::bind(address, ListenerOptions::default())?;
        if !self.shared {
            return Ok(alone);
        }
        let address = alone.address();
        drop(alone);
        Listener::bind(address, ListenerOptions { shared: true, ..ListenerOptions::default() })
    }

    /// Opens `PORT=SERVICE` on loopback.
    pub(crate) fn bind_upstream(
        &mut self,
        text: &str,
        home: &ServiceName,
    ) -> Result<(), DataPlaneError> {
        let (port, service) = parse_upstream(text, home)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let bound = self.bind("upstream", address, Door::Tcp(service.clone()))?;
        if let Some((label, ..)) = self.open.last_mut() {
            let name = text.split_once('=').map_or(text, |(_, name)| name);
            *label = format!("upstream:{name}");
        }
        self.upstreams.push(Upstream { text: text.to_owned(), port, service, bound });
        Ok(())
    }

    /// The doors for every thread.
    pub(crate) fn for_each_thread(self, threads: usize) -> Result<ByThread, DataPlaneError> {
        let mut listeners = Vec::new();
        for _ in 1..threads.max(1) {
            listeners.push(self.again()?);
        }
        listeners.push(self.open.into_iter().map(|(_, l, door)| (l, door)).collect());
        Ok(listeners)
    }

    /// The same doors once more, for another thread.
    fn again(&self) -> Result<Vec<(Listener, Door)>, DataPlaneError> {
        self.open
            .iter()
            .map(|(_, listener, door)| {
                let address = listener.address();
                let options = ListenerOptions { shared: true, ..ListenerOptions::default() };
                let listener = Listener::bind(address, options).map_err(|source| {
                    DataPlaneError::Listen { door: "another thread", address, source }
                })?;
                Ok((listener, door.clone()))
            })
            .collect()
    }
}

/// Where others reach a door that is bound to `bound`.
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
            let mut first = Doors::for_threads(threads);
            let taken = first.bind("http", any, Door::HttpApi).unwrap();
            assert_eq!(first.again().is_ok(), threads > 1, "own threads share it");
            let second = Doors::for_threads(threads).bind("http", taken, Door::HttpApi);
            let message = second.map(|_| ()).unwrap_err().to_string();
            assert_eq!(message, format!("cannot listen on {taken} for http"));
        }
    }
}
