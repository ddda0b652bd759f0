//! TLS of the mesh, made from the present credentials.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};
use tollway_identity::{Credentials, Expected, TlsError};
use tollway_model::{AppProtocol, Called, Instance, ServiceName, TrustDomain};
use tollway_net::{ConnError, Tls};

use crate::served_ports::ServedPorts;

/// Application protocols between data planes.
pub(crate) mod alpn {
    /// HTTP/2.
    pub(crate) const H2: &[u8] = b"h2";
    /// HTTP/1.1: foreign peers, and requests that ask to leave HTTP.
    pub(crate) const HTTP1: &[u8] = b"http/1.1";
    /// The app's bytes.
    pub(crate) const TCP: &[u8] = b"tollway-tcp/1";
    /// Reverse connections between gateways.
    pub(crate) const REVERSE: &[u8] = b"tollway-reverse/1";
}

/// What a connection between data planes carries, and for which port of the callee's app; without one, for
/// the port that its sidecar is set to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Carried {
    pub(crate) protocol: &'static [u8],
    pub(crate) port: Option<u16>,
}

impl Carried {
    /// Of the port that a sidecar is set to.
    pub(crate) const fn of(protocol: &'static [u8]) -> Self {
        Self { protocol, port: None }
    }

    /// All that an app may be sent that speaks so.
    pub(crate) fn all_of(app: AppProtocol, port: Option<u16>) -> impl Iterator<Item = Self> {
        let protocols: &[&'static [u8]] = match app {
            AppProtocol::Http | AppProtocol::H2c | AppProtocol::Grpc => &[alpn::H2, alpn::HTTP1],
            AppProtocol::Tcp => &[alpn::TCP],
        };
        protocols.iter().map(move |protocol| Self { protocol, port })
    }

    /// As it is offered in a handshake: `h2`, or `h2:7070`.
    pub(crate) fn name(self) -> Cow<'static, [u8]> {
        match self.port {
            None => Cow::Borrowed(self.protocol),
            Some(port) => Cow::Owned([self.protocol, b":", port.to_string().as_bytes()].concat()),
        }
    }

    /// What was agreed on; `None` for what no data plane offers.
    pub(crate) fn read(agreed: &[u8]) -> Option<Self> {
        let known = [alpn::H2, alpn::HTTP1, alpn::TCP];
        let (protocol, rest) = known
            .into_iter()
            .find_map(|protocol| Some((protocol, agreed.strip_prefix(protocol)?)))?;
        if rest.is_empty() {
            return Some(Self::of(protocol));
        }
        let port = std::str::from_utf8(rest.strip_prefix(b":")?).ok()?.parse().ok()?;
        Some(Self { protocol, port: Some(port) })
    }
}

/// Configurations by what they are for; all die with the credentials they came from, and with
/// them every session ticket.
#[derive(Clone)]
pub(crate) struct MeshTls {
    credentials: Arc<Credentials>,
    server: Option<Arc<ServerConfig>>,
    clients: HashMap<ClientConfigKey, Arc<ClientConfig>>,
}

/// A client configuration is for any workload of a service or for one, a trust domain, and a protocol.
type ClientConfigKey = (ServiceName, Option<Instance>, TrustDomain, Carried);

impl MeshTls {
    /// TLS with these credentials. To put it in another's place ends every session ticket.
    pub(crate) fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, server: None, clients: HashMap::new() }
    }

    /// The identity of this process in the mesh.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The callee's side.
    ///
    /// # Errors
    /// The TLS library refuses the credentials.
    pub(crate) fn server(&mut self, ports: &ServedPorts) -> Result<Tls, TlsError> {
        self.server_of(|| {
            let own = [alpn::H2, alpn::HTTP1, alpn::TCP].map(Cow::Borrowed);
            own.into_iter().chain(ports.carried().map(Carried::name)).collect()
        })
    }

    /// Callers may offer other protocols from now on.
    pub(crate) fn renew_server(&mut self) {
        self.server = None;
    }

    /// The side of a gateway to which another one opens a reverse connection.
    ///
    /// # Errors
    /// The TLS library refuses the credentials.
    pub(crate) fn reverse_server(&mut self) -> Result<Tls, TlsError> {
        self.server_of(|| vec![Cow::Borrowed(alpn::REVERSE)])
    }

    /// One process is asked for one set of protocols until [`MeshTls::renew_server`].
    fn server_of(
        &mut self,
        protocols: impl FnOnce() -> Vec<Cow<'static, [u8]>>,
    ) -> Result<Tls, TlsError> {
        let config = match &self.server {
            Some(config) => Arc::clone(config),
            None => {
                let protocols = protocols();
                let protocols: Vec<&[u8]> = protocols.iter().map(|name| &**name).collect();
                let config = tollway_identity::server_config(&self.credentials, &protocols)?;
                Arc::clone(self.server.insert(config))
            }
        };
        Ok(UnbufferedServerConnection::new(config).map_err(TlsError::Library)?.into())
    }

    /// The caller's side towards `service`, whose authority is that of `trust_domain`; or towards
    /// one workload of it alone.
    pub(crate) fn client(
        &mut self,
        service: &ServiceName,
        instance: Option<&Instance>,
        trust_domain: &TrustDomain,
        carried: Carried,
    ) -> Result<Tls, TlsError> {
        let dns_san = match instance {
            Some(instance) => service.instance_dns_san(instance),
            None => service.dns_san(),
        };
        let key = (service.clone(), instance.cloned(), trust_domain.clone(), carried);
        let config = match self.clients.get(&key) {
            Some(config) => Arc::clone(config),
            None => {
                let expected =
                    Expected { spiffe: service.spiffe_id(trust_domain), dns_san: dns_san.clone() };
                let config = tollway_identity::client_config(
                    &self.credentials,
                    &expected,
                    &[&*carried.name()],
                )?;
                Arc::clone(self.clients.entry(key).or_insert(config))
            }
        };
        let name = ServerName::try_from(dns_san.clone())
            .map_err(|source| TlsError::ServerName { name: dns_san, source })?;
        Ok(UnbufferedClientConnection::new(config, name).map_err(TlsError::Library)?.into())
    }

    /// Forgets the configurations towards a service that is not called any more. For a Service of a cluster
    /// these are towards any app of its namespace; what is called yet is made again.
    pub(crate) fn forget(&mut self, service: &ServiceName) {
        let is_app = service.called() == Called::App;
        self.clients.retain(|(name, ..), _| match is_app {
            true => name != service,
            false => !is_in_namespace_of(name, service),
        });
    }

    /// Forgets what was made for one workload of a service.
    pub(crate) fn forget_workload(&mut self, service: &ServiceName, instance: &Instance) {
        self.clients.retain(|(name, of, ..), _| {
            !is_in_namespace_of(name, service) || of.as_ref() != Some(instance)
        });
    }
}

fn is_in_namespace_of(name: &ServiceName, other: &ServiceName) -> bool {
    name.namespace == other.namespace && name.network == other.network
}

/// Why a connection broke, with what TLS refused in words an operator can act on.
pub(crate) fn explain(error: &ConnError) -> String {
    match error {
        ConnError::Tls(refusal) => format!("TLS failed: {}", tollway_identity::explain(refusal)),
        ConnError::Connect(_) | ConnError::Socket(_) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_reads_back_and_nothing_else_does() {
        for protocol in [alpn::H2, alpn::HTTP1, alpn::TCP] {
            for port in [None, Some(80), Some(65_535)] {
                let carried = Carried { protocol, port };
                assert_eq!(Carried::read(&carried.name()), Some(carried));
            }
        }
        for other in
            ["", "h3", "h2:", "h2:x", "h2:65536", "h2 :80", "h2:80:80", "tollway-reverse/1"]
        {
            assert_eq!(Carried::read(other.as_bytes()), None, "{other}");
        }
    }
}
