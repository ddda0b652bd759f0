//! TLS of the mesh doors and dials, made from the present credentials.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tollway_identity::{Credentials, Expected, TlsError};
use tollway_model::{ServiceName, TrustDomain};
use tollway_net::ConnError;

/// Application protocols between data planes.
pub(crate) mod alpn {
    /// HTTP/2.
    pub(crate) const H2: &[u8] = b"h2";
    /// HTTP/1.1: foreign peers, and requests that ask to leave HTTP.
    pub(crate) const HTTP1: &[u8] = b"http/1.1";
    /// The app's bytes.
    pub(crate) const TCP: &[u8] = b"tollway-tcp/1";
}

/// Configurations by what they are for; all die with the credentials they came from, and with
/// them every session ticket.
pub(crate) struct MeshTls {
    credentials: Arc<Credentials>,
    server: Option<Arc<ServerConfig>>,
    clients: HashMap<(ServiceName, TrustDomain, &'static [u8]), Arc<ClientConfig>>,
}

impl MeshTls {
    pub(crate) fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, server: None, clients: HashMap::new() }
    }

    /// New connections use `credentials` from now on.
    pub(crate) fn replace(&mut self, credentials: Arc<Credentials>) {
        *self = Self::new(credentials);
    }

    /// Whom this process is.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The callee's side.
    pub(crate) fn server(&mut self) -> Result<Connection, TlsError> {
        let config = match &self.server {
            Some(config) => Arc::clone(config),
            None => {
                let protocols = [alpn::H2, alpn::HTTP1, alpn::TCP];
                let config = tollway_identity::server_config(&self.credentials, &protocols)?;
                Arc::clone(self.server.insert(config))
            }
        };
        Ok(ServerConnection::new(config).map_err(TlsError::Library)?.into())
    }

    /// The caller's side towards `service`, whose authority is that of `trust_domain`.
    pub(crate) fn client(
        &mut self,
        service: &ServiceName,
        trust_domain: &TrustDomain,
        protocol: &'static [u8],
    ) -> Result<Connection, TlsError> {
        let dns_san = service.dns_san();
        let key = (service.clone(), trust_domain.clone(), protocol);
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
        Ok(ClientConnection::new(config, name).map_err(TlsError::Library)?.into())
    }

    /// Forgets the configurations towards a service nobody calls.
    pub(crate) fn forget(&mut self, service: &ServiceName) {
        self.clients.retain(|(name, _, _), _| name != service);
    }
}

/// Why a connection broke, with what TLS refused in words an operator can act on.
pub(crate) fn explain(error: &ConnError) -> String {
    match error {
        ConnError::Tls(refusal) => format!("TLS failed: {}", tollway_identity::explain(refusal)),
        ConnError::Connect(_) | ConnError::Socket(_) => error.to_string(),
    }
}
