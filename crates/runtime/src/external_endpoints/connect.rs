//! Connections to endpoints outside of the network, plain or over TLS, in a pool.
//!
//! Over TLS the endpoint's certificate is verified with the authorities of the resource, or with
//! those of the system.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::Error;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tollway_dial::{Stream, Tls};
use tollway_identity::{ClientPair, public_config, roots_in_pem, system_roots};
use tollway_model::EgressDefault;
use tollway_proxy::AppEgress;
use tonic::body::Body;

/// Time for name resolution, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection without a request stays open, and how many stay open to one host.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_CONNECTIONS: usize = 32;

/// TLS settings of an endpoint, in PEM.
#[derive(Clone, Default)]
pub struct EndpointTls {
    /// Authorities in place of the system's.
    pub root_ca: Option<String>,
    /// The client certificate with its chain, and its key.
    pub certificate: Option<(String, String)>,
}

impl std::fmt::Debug for EndpointTls {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointTls").field("root_ca", &self.root_ca).finish_non_exhaustive()
    }
}

/// Why the TLS settings of an endpoint cannot be used.
#[derive(Debug, Error)]
pub enum EndpointTlsError {
    #[error(
        "no certificate in clientTLS.rootCA of HTTPEndpoint `{endpoint}` can be used as an authority; it must be PEM"
    )]
    NoAuthority { endpoint: String },
    #[error(
        "clientTLS.certificate of HTTPEndpoint `{endpoint}` holds no certificate; it must be PEM"
    )]
    NoCertificate { endpoint: String },
    #[error("clientTLS.privateKey of HTTPEndpoint `{endpoint}` is no key; it must be PEM")]
    NoKey { endpoint: String, source: rustls::pki_types::pem::Error },
    #[error(
        "the certificate and the key of HTTPEndpoint `{endpoint}` cannot be used; check that they belong together"
    )]
    Refused { endpoint: String, source: rustls::Error },
}

/// The system has no trusted authorities.
#[derive(Debug, Error)]
#[error("this system has no trusted authorities; name some in clientTLS.rootCA of an HTTPEndpoint")]
pub(crate) struct NoTrust;

/// Sends requests to one endpoint, or to any URL.
#[derive(Clone)]
pub(crate) struct Client {
    pool: Pool<Dialler, Body>,
    trusts: bool,
}

impl Client {
    /// Checks that there are trusted authorities.
    ///
    /// # Errors
    /// [`NoTrust`].
    pub(crate) fn check_trust(&self) -> Result<(), NoTrust> {
        if self.trusts { Ok(()) } else { Err(NoTrust) }
    }

    /// # Errors
    /// When no connection can be opened, or it closes before the response.
    pub(crate) async fn request(
        &self,
        request: Request<Body>,
    ) -> Result<Response<hyper::body::Incoming>, Error> {
        self.pool.request(request).await
    }
}

/// # Errors
/// [`EndpointTlsError`].
pub(crate) fn client(
    endpoint: &str,
    tls: &EndpointTls,
    egress: &Arc<AppEgress>,
    guard: Guard,
) -> Result<Client, EndpointTlsError> {
    let roots = match &tls.root_ca {
        Some(pem) => roots_in_pem(pem)
            .map_err(|_| EndpointTlsError::NoAuthority { endpoint: endpoint.to_owned() })?,
        None => system_roots(),
    };
    let trusts = !roots.is_empty();
    let refused = |source| EndpointTlsError::Refused { endpoint: endpoint.to_owned(), source };
    let pair = client_pair(endpoint, tls)?;
    let config = public_config(roots, &[b"http/1.1"], pair).map_err(refused)?;
    let dialler = Dialler { tls: Arc::new(config), egress: Arc::clone(egress), guard };
    let pool = Pool::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .build(dialler);
    Ok(Client { pool, trusts })
}

/// The certificate and key to show, if there are any.
fn client_pair(endpoint: &str, tls: &EndpointTls) -> Result<Option<ClientPair>, EndpointTlsError> {
    let Some((certificate, key)) = &tls.certificate else { return Ok(None) };
    let endpoint = endpoint.to_owned();
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(certificate.as_bytes()).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(EndpointTlsError::NoCertificate { endpoint });
    }
    match PrivateKeyDer::from_pem_slice(key.as_bytes()) {
        Ok(key) => Ok(Some((chain, key))),
        Err(source) => Err(EndpointTlsError::NoKey { endpoint, source }),
    }
}

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Dialler {
    tls: Arc<ClientConfig>,
    egress: Arc<AppEgress>,
    guard: Guard,
}

/// Which addresses of a name may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// None of this machine, its link and this sidecar, unless an egress names it.
    Always,
    /// The same where what no egress allows is refused; elsewhere any.
    IfClosed,
}

impl Dialler {
    /// The addresses of a host that may be called.
    async fn egress_addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        // An address is decided by itself.
        let rules = self.egress.rules().filter(|_| host.parse::<IpAddr>().is_err());
        let Some(rules) = rules else { return Ok(found) };
        if self.guard == Guard::IfClosed && rules.by_default() != EgressDefault::Closed {
            return Ok(found);
        }
        let may = |address: &SocketAddr| self.egress.may_be_behind_a_name(&rules, *address);
        let usable: Vec<SocketAddr> = found.iter().copied().filter(may).collect();
        match (usable.is_empty(), found.first()) {
            (true, Some(first)) => {
                let ip = first.ip();
                let reason = format!("its address {ip} is of this machine or its link");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
            _ => Ok(usable),
        }
    }

    async fn dial(self, to: Uri) -> io::Result<Link> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let host = to.host().ok_or_else(|| wrong("the URL has no host"))?;
        // Only URLs have the brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_tls = to.scheme_str() == Some("https");
        let port = to.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = is_tls.then(|| Tls::to(host, Arc::clone(&self.tls))).transpose();
        let tls = tls.map_err(|error| wrong(&error.to_string()))?;
        let dial = async {
            let addresses = self.egress_addresses(host, port).await?;
            Ok::<_, io::Error>(tollway_dial::dial(&addresses[..], tls, CONNECT_TIMEOUT).await?)
        };
        let dialled = tokio::time::timeout(CONNECT_TIMEOUT, dial).await;
        let stream = dialled.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)))?;
        Ok(Link(TokioIo::new(stream)))
    }
}

impl tower::Service<Uri> for Dialler {
    type Response = Link;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Link>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        Box::pin(self.clone().dial(to))
    }
}

/// A connection in the form that the pool takes.
pub(crate) struct Link(TokioIo<Stream>);

impl Connection for Link {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_pem_is_refused_with_its_field() {
        let egress = Arc::default();
        let refused = |tls: EndpointTls| {
            client("shop", &tls, &egress, Guard::IfClosed).err().unwrap().to_string()
        };
        let nothing = "nothing".to_owned();
        let root = refused(EndpointTls { root_ca: Some(nothing.clone()), certificate: None });
        assert!(root.contains("clientTLS.rootCA of HTTPEndpoint `shop`"), "{root}");
        let certificate = Some((nothing.clone(), nothing));
        let shown = refused(EndpointTls { root_ca: None, certificate });
        assert!(shown.contains("clientTLS.certificate of HTTPEndpoint `shop`"), "{shown}");
    }
}
