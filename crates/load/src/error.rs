//! Why a load run cannot start or go on.

use std::io;
use std::net::SocketAddr;

use tollway_record::HistogramError;

use crate::arrival::ArrivalError;
use crate::tls::TlsError;

/// Failures of a whole run; a failed request is counted in the result instead.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{url:?} is not a URL that can be loaded: {reason}")]
    Url { url: String, reason: &'static str },
    #[error("{name} of {given} is out of bounds: give {least} to {most}")]
    Bounds { name: &'static str, given: u64, least: u64, most: u64 },
    #[error(
        "{0:?} in the path is nothing that varies from request to request: write {{uuid}} or \
         {{1..1000}}, and %7B and %7D for braces themselves"
    )]
    Varied(String),
    #[error("messages that are sent in turn must be as long as each other")]
    UnlikeMessages,
    #[error(transparent)]
    Arrival(#[from] ArrivalError),
    #[error("{0:?} is not an HTTP method")]
    Method(String),
    #[error("{0:?} is not a header: write it as 'name: value'")]
    Header(String),
    #[error("the header {0:?} is set by the client itself")]
    ReservedHeader(String),
    #[error("a body of its own cannot be sent with {0}")]
    BodyNotAllowed(String),
    #[error("the address of {host} cannot be found; is the name right?")]
    Resolve {
        host: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "none of {connections} connections to {address} could be opened; does the target listen \
         there and speak this protocol?"
    )]
    Connect {
        address: SocketAddr,
        connections: usize,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("{address} does not take part in a throughput run; start `tollway echo --tcp` there")]
    NotBulk { address: SocketAddr },
    #[error("a histogram of the run cannot be read back")]
    Histogram(#[source] HistogramError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the load engine's event loop failed")]
    Loop(#[source] io::Error),
}
