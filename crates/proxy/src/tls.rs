//! TLS of the mesh, made from the present credentials.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};
use tollway_identity::{Credentials, Expected, TlsError};
use tollway_model::{Called, Instance, ServiceName, TrustDomain};
use tollway_net::{ConnError, Tls};

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

/// Configurations by what they are for; all die with the credentials they came from, and with
/// them every session ticket.
#[derive(Clone)]
pub(crate) struct MeshTls {
    credentials: Arc<Credentials>,
    server: Option<Arc<ServerConfig>>,
    clients: HashMap<ClientConfigKey, Arc<ClientConfig>>,
}

/// A client configuration is for any workload of a service or for one, a trust domain, and a protocol.
type ClientConfigKey = (ServiceName, Option<Instance>, TrustDomain, &'static [u8]);

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
    pub(crate) fn server(&mut self) -> Result<Tls, TlsError> {
        self.server_of(&[alpn::H2, alpn::HTTP1, alpn::TCP])
    }

    /// The side of a gateway to which another one opens a reverse connection.
    ///
    /// # Errors
    /// The TLS library refuses the credentials.
    pub(crate) fn reverse_server(&mut self) -> Result<Tls, TlsError> {
        self.server_of(&[alpn::REVERSE])
    }

    /// One process is only ever asked for one set of protocols.
    fn server_of(&mut self, protocols: &[&[u8]]) -> Result<Tls, TlsError> {
        let config = match &self.server {
            Some(config) => Arc::clone(config),
            None => {
                let config = tollway_identity::server_config(&self.credentials, protocols)?;
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
        protocol: &'static [u8],
    ) -> Result<Tls, TlsError> {
        let dns_san = match instance {
            Some(instance) => service.instance_dns_san(instance),
            None => service.dns_san(),
        };
        let key = (service.clone(), instance.cloned(), trust_domain.clone(), protocol);
        let config = match self.clients.get(&key) {
            Some(config) => Arc::clone(config),
            None => {
                let expected =
                    Expected { spiffe: service.spiffe_id(trust_domain), dns_san: dns_san.clone() };
                let config =
                    tollway_identity::client_config(&self.credentials, &expected, &[protocol])?;
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
