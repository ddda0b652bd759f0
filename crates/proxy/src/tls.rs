//! TLS of the listeners and dials: of the mesh, made from the present credentials, or of a front.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::{ClientConfig, ServerConfig};
use tollway_identity::{Credentials, Expected, TlsError};
use tollway_model::{Instance, ServiceName, TrustDomain};
use tollway_net::{ConnError, Tls};

use crate::cause::Cause;
use crate::front::Served;

/// Application protocols between data planes.
pub(crate) mod alpn {
    /// HTTP/2.
    pub(crate) const H2: &[u8] = b"h2";
    /// HTTP/1.1: foreign peers, and requests that ask to leave HTTP.
    pub(crate) const HTTP1: &[u8] = b"http/1.1";
    /// The app's bytes.
    pub(crate) const TCP: &[u8] = b"tollway-tcp/1";
}

/// What a data plane shows to those who come, and believes of them.
#[derive(Clone)]
pub(crate) enum PlaneTls {
    Mesh(MeshTls),
    Front(Served),
}

impl PlaneTls {
    /// Of a member of the mesh. To put it in another's place ends every session ticket.
    pub(crate) fn mesh(credentials: Arc<Credentials>) -> Self {
        Self::Mesh(MeshTls::new(credentials))
    }

    pub(crate) fn is_front(&self) -> bool {
        matches!(self, Self::Front(_))
    }

    /// The dialler's side; a front dials nobody over TLS.
    pub(crate) fn as_mesh(&mut self) -> Option<&mut MeshTls> {
        match self {
            Self::Mesh(mesh) => Some(mesh),
            Self::Front(_) => None,
        }
    }

    /// The identity of this process in the mesh.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Mesh(mesh) => Some(&mesh.credentials),
            Self::Front(_) => None,
        }
    }

    /// The side of who is connected to.
    pub(crate) fn server(&mut self) -> Result<Tls, TlsError> {
        let config = match self {
            Self::Mesh(mesh) => mesh.server()?,
            Self::Front(served) => Arc::clone(&served.config),
        };
        Ok(UnbufferedServerConnection::new(config).map_err(TlsError::Library)?.into())
    }

    /// Why an accepted connection broke in its handshake.
    pub(crate) fn why_refused(&self, error: &ConnError) -> Cause {
        match (self, error) {
            (Self::Front(_), ConnError::Tls(refusal)) => {
                let reason = tollway_identity::front_explain(refusal);
                Cause::coded(tollway_identity::front_code_of(refusal), reason)
            }
            _ => Cause::from(error),
        }
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
type ClientConfigKey = (ServiceName, Option<Instance>, TrustDomain, &'static [u8]);

impl MeshTls {
    fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, server: None, clients: HashMap::new() }
    }

    /// The callee's side.
    fn server(&mut self) -> Result<Arc<ServerConfig>, TlsError> {
        Ok(match &self.server {
            Some(config) => Arc::clone(config),
            None => {
                let protocols = [alpn::H2, alpn::HTTP1, alpn::TCP];
                let config = tollway_identity::server_config(&self.credentials, &protocols)?;
                Arc::clone(self.server.insert(config))
            }
        })
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

    /// Forgets the configurations towards a service nobody calls.
    pub(crate) fn forget(&mut self, service: &ServiceName) {
        self.clients.retain(|(name, ..), _| name != service);
    }

    /// Forgets what was made for one workload of a service.
    pub(crate) fn forget_workload(&mut self, service: &ServiceName, instance: &Instance) {
        self.clients.retain(|(name, of, ..), _| name != service || of.as_ref() != Some(instance));
    }
}

/// Why a connection broke, with what TLS refused in words an operator can act on.
pub(crate) fn explain(error: &ConnError) -> String {
    match error {
        ConnError::Tls(refusal) => format!("TLS failed: {}", tollway_identity::explain(refusal)),
        ConnError::Connect(_) | ConnError::Socket(_) => error.to_string(),
    }
}
