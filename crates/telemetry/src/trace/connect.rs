//! Connections to the collector, in the clear or over TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tollway_dial::{BadName, Stream, Tls};
use tollway_identity::{RootsError, public_config, roots_in_file, system_roots};

use super::endpoint::{TraceEndpoint, TraceProtocol};

/// Time for name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why TLS to the collector cannot be prepared.
#[derive(Debug, Error)]
pub enum TrustError {
    #[error("the authorities in {} cannot be used", path.display())]
    File { path: PathBuf, source: RootsError },
    #[error("this system has no trusted authorities; name a file of them for the collector")]
    NoneInSystem,
    #[error("{0}")]
    Name(#[from] BadName),
    #[error("TLS cannot be set up")]
    Library(#[source] rustls::Error),
}

/// Makes connections to one collector.
#[derive(Clone)]
pub(super) struct Dialler {
    endpoint: TraceEndpoint,
    tls: Option<Tls>,
}

impl Dialler {
    /// Trusts the authorities in the file, or those of the system.
    pub(super) fn new(endpoint: TraceEndpoint, ca: Option<&Path>) -> Result<Self, TrustError> {
        let tls = if endpoint.tls { Some(prepare_tls(&endpoint, ca)?) } else { None };
        Ok(Self { endpoint, tls })
    }

    /// Connects.
    pub(super) async fn dial(&self) -> io::Result<TokioIo<Stream>> {
        let target = (self.endpoint.host.as_str(), self.endpoint.port);
        let dialled = tollway_dial::dial(target, self.tls.clone(), CONNECT_TIMEOUT).await?;
        Ok(TokioIo::new(dialled))
    }
}

fn prepare_tls(endpoint: &TraceEndpoint, ca: Option<&Path>) -> Result<Tls, TrustError> {
    let roots = match ca {
        Some(path) => roots_in_file(path)
            .map_err(|source| TrustError::File { path: path.to_owned(), source })?,
        None => Some(system_roots())
            .filter(|roots| !roots.is_empty())
            .ok_or(TrustError::NoneInSystem)?,
    };
    let alpn: &[u8] = match endpoint.protocol {
        TraceProtocol::Grpc => b"h2",
        TraceProtocol::Http => b"http/1.1",
    };
    let config = public_config(roots, &[alpn], None).map_err(TrustError::Library)?;
    Ok(Tls::to(&endpoint.host, Arc::new(config))?)
}
