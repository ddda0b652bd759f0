//! Why an echo server cannot start or go on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::tls::ServerTlsError;

/// Failures of a whole server; a failed connection ends alone.
#[derive(Debug, thiserror::Error)]
pub enum EchoError {
    #[error("the echo server cannot listen on {address}; is the port taken?")]
    Bind {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] ServerTlsError),
    #[error("the ports file {path:?} cannot be written")]
    PortsFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the echo server's event loop failed")]
    Loop(#[source] io::Error),
}
