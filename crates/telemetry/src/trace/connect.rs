//! A connection to the collector, in the clear or in TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollway_identity::{public_config, system_roots};

use super::endpoint::{TraceEndpoint, TraceProtocol};

/// Time for name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why TLS to the collector cannot be prepared.
#[derive(Debug, Error)]
pub enum TrustError {
    #[error("cannot read the authorities in {}; it must be PEM", path.display())]
    File { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("no certificate in {} can be used as an authority", path.display())]
    NoneInFile { path: PathBuf },
    #[error("this system has no trusted authorities; name a file of them for the collector")]
    NoneInSystem,
    #[error("`{host}` is no name that a certificate can have")]
    Name { host: String },
    #[error("TLS cannot be set up")]
    Library(#[source] rustls::Error),
}

/// A stream of bytes, whatever carries it.
pub(super) trait Carrier: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Carrier for T {}

pub(super) type Stream = TokioIo<Box<dyn Carrier>>;

/// Makes connections to one collector.
#[derive(Clone)]
pub(super) struct Dialler {
    endpoint: TraceEndpoint,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Dialler {
    /// Trusts the authorities in the file, or those of the system.
    pub(super) fn new(endpoint: TraceEndpoint, ca: Option<&Path>) -> Result<Self, TrustError> {
        let tls = if endpoint.tls { Some(prepare_tls(&endpoint, ca)?) } else { None };
        Ok(Self { endpoint, tls })
    }

    /// Connects.
    pub(super) async fn dial(&self) -> io::Result<Stream> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn connect(&self) -> io::Result<Stream> {
        let target = (self.endpoint.host.as_str(), self.endpoint.port);
        let tcp = TcpStream::connect(target).await?;
        tcp.set_nodelay(true)?;
        let carrier: Box<dyn Carrier> = match &self.tls {
            Some((connector, name)) => Box::new(connector.connect(name.clone(), tcp).await?),
            None => Box::new(tcp),
        };
        Ok(TokioIo::new(carrier))
    }
}

fn prepare_tls(
    endpoint: &TraceEndpoint,
    ca: Option<&Path>,
) -> Result<(TlsConnector, ServerName<'static>), TrustError> {
    let roots = match ca {
        Some(path) => roots_in(path)?,
        None => Some(system_roots())
            .filter(|roots| !roots.is_empty())
            .ok_or(TrustError::NoneInSystem)?,
    };
    let alpn: &[u8] = match endpoint.protocol {
        TraceProtocol::Grpc => b"h2",
        TraceProtocol::Http => b"http/1.1",
    };
    let config = public_config(roots, &[alpn], None).map_err(TrustError::Library)?;
    let host = endpoint.host.clone();
    let name = ServerName::try_from(host.clone()).map_err(|_| TrustError::Name { host })?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn roots_in(path: &Path) -> Result<RootCertStore, TrustError> {
    let failed = |source| TrustError::File { path: path.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
        // One that is no authority is of no use, and harmless.
        let _ = roots.add(certificate.map_err(failed)?);
    }
    if roots.is_empty() {
        return Err(TrustError::NoneInFile { path: path.to_owned() });
    }
    Ok(roots)
}
