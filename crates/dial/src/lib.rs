//! Opens TCP connections for asynchronous tasks, with or without TLS, within a time limit, and makes
//! gRPC channels of them. Of a server with several addresses each is tried.
//!
//! What TLS trusts is a configuration of `tollway-identity`; other protocols inside, pools and
//! retries are left to the callers. The data plane's event loop connects by itself, without tasks.

#![forbid(unsafe_code)]

mod finding;
mod race;
mod srv;
mod targets;
mod wall;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint, Uri};

use race::{Miss, race_found};

pub use race::{ADDRESSES_LIMIT, ATTEMPT_EVERY, in_turn, race};
pub use srv::name_servers;
pub use targets::{Targets, TargetsError};
pub use wall::wall_clock_reads;

/// An open connection.
pub type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// TLS to one server.
#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    pub name: ServerName<'static>,
}

impl Tls {
    /// TLS to the server of this host name or IP address.
    ///
    /// # Errors
    /// [`BadName`].
    pub fn to(host: &str, config: Arc<ClientConfig>) -> Result<Self, BadName> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| BadName { host: host.to_owned() })?;
        Ok(Self { config, name })
    }
}

/// No certificate can have such a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{host}` is no name that a certificate can have")]
pub struct BadName {
    pub host: String,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum DialError {
    #[error("no connection within {} s", within.as_secs_f64())]
    Timeout { within: Duration },
    #[error("cannot find the address")]
    Resolve(#[source] io::Error),
    /// The connection was refused, or it broke.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// One side does not accept the other in TLS.
    #[error("TLS is refused")]
    Tls(#[source] rustls::Error),
}

impl From<DialError> for io::Error {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Resolve(source) | DialError::Connect(source) => source,
            DialError::Timeout { .. } => Self::new(io::ErrorKind::TimedOut, error),
            DialError::Tls(source) => Self::new(io::ErrorKind::InvalidData, source),
        }
    }
}

/// A connection to one of a server's addresses.
#[derive(Debug)]
pub struct Dialled {
    pub stream: Stream,
    pub address: SocketAddr,
    /// What was tried before, in vain.
    pub missed: Vec<Missed>,
}

/// An address to which there is no connection, or a name of which there is no address.
#[derive(Debug)]
pub struct Missed {
    /// `ADDRESS:PORT`, `NAME:PORT`, or the name of a service.
    pub at: String,
    pub error: DialError,
}

/// Why there is no connection to any address of a server: each that was tried.
#[derive(Debug, Error)]
pub struct Unreached {
    pub missed: Vec<Missed>,
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            DialError::Resolve(source) | DialError::Connect(source) => {
                write!(f, "{}: {source}", self.at)
            }
            DialError::Tls(refusal) => write!(f, "{}: {}: {refusal}", self.at, self.error),
            DialError::Timeout { .. } => write!(f, "{}: {}", self.at, self.error),
        }
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, missed) in self.missed.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { ", " })?;
            missed.fmt(f)?;
        }
        Ok(())
    }
}

/// Opens a connection to the first address of `to` that accepts one ([`race()`]), with TLS inside if `tls`
/// is given. Small writes go out at once (`TCP_NODELAY`). `within` is the time for the name, TCP and
/// TLS together.
///
/// # Errors
/// [`DialError`].
pub async fn dial(
    to: impl ToSocketAddrs,
    tls: Option<Tls>,
    within: Duration,
) -> Result<Stream, DialError> {
    let opened = async {
        let found = tokio::net::lookup_host(to).await.map_err(DialError::Resolve)?;
        let raced = race(&in_turn(found), TcpStream::connect).await;
        secure(raced.map_err(DialError::Connect)?.0, tls).await
    };
    let opened = tokio::time::timeout(within, opened).await;
    opened.unwrap_or(Err(DialError::Timeout { within }))
}

/// As [`dial`], to the first address of a server at which TLS succeeds too, if `tls` is given. The next one
/// is tried at once where one fails, and beside one that is silent. Those of `last` are tried after all
/// others, in this order.
///
/// # Errors
/// With every address and name that was tried.
pub async fn dial_any(
    to: &Targets,
    last: &[SocketAddr],
    tls: Option<&Tls>,
    within: Duration,
) -> Result<Dialled, Unreached> {
    let until = Some(Instant::now() + within);
    let raced = race_found(to.find(), last, until, |address| open(address, tls.cloned())).await;
    let read = |missed: Vec<(String, Miss<DialError>)>| {
        let each = missed.into_iter().map(|(at, miss)| {
            let error = match miss {
                Miss::NotFound(error) => DialError::Resolve(error),
                Miss::Failed(error) => error,
                Miss::Unfinished => DialError::Timeout { within },
            };
            Missed { at, error }
        });
        each.collect()
    };
    match raced {
        Ok(won) => {
            let (stream, address) = (won.connected, won.address);
            Ok(Dialled { stream, address, missed: read(won.missed) })
        }
        Err(missed) => Err(Unreached { missed: read(missed) }),
    }
}

/// Where a connection to `to` would go: the first address that accepts one within the time, else the
/// first of all. A connection is opened only if there are several, and closed at once.
///
/// # Errors
/// When there is no address.
pub async fn reachable(to: impl ToSocketAddrs, within: Duration) -> io::Result<SocketAddr> {
    let addresses = in_turn(tokio::net::lookup_host(to).await?);
    let none = || io::Error::other("the name has no address");
    let first = *addresses.first().ok_or_else(none)?;
    if addresses.len() == 1 {
        return Ok(first);
    }
    let connected = tokio::time::timeout(within, race(&addresses, TcpStream::connect)).await;
    Ok(connected.ok().and_then(Result::ok).map_or(first, |(_, address)| address))
}

/// As [`reachable`], for threads without tasks.
///
/// # Errors
/// When there is no address, or no thread or descriptor for the attempts.
pub fn reachable_blocking(host: &str, port: u16, within: Duration) -> io::Result<SocketAddr> {
    let to = (host.to_owned(), port);
    // A thread of its own: the caller's may have tasks that cannot wait.
    let attempts = std::thread::Builder::new().name("dial".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(reachable((to.0.as_str(), to.1), within))
    })?;
    attempts.join().unwrap_or_else(|_| Err(io::Error::other("the attempts ended early")))
}

async fn open(address: SocketAddr, tls: Option<Tls>) -> Result<Stream, DialError> {
    secure(TcpStream::connect(address).await.map_err(DialError::Connect)?, tls).await
}

async fn secure(tcp: TcpStream, tls: Option<Tls>) -> Result<Stream, DialError> {
    tcp.set_nodelay(true).map_err(DialError::Connect)?;
    let Some(Tls { config, name }) = tls else { return Ok(Either::Left(tcp)) };
    match TlsConnector::from(config).connect(name, tcp).await {
        Ok(stream) => Ok(Either::Right(stream)),
        Err(error) => Err(handshake_error(error)),
    }
}

/// A gRPC channel over a connection that is open, which tonic cannot take by itself. The channel
/// never dials again: a connection that breaks is seen by the caller and not silently replaced.
///
/// # Errors
/// The connection broke before HTTP/2 began.
pub async fn channel(
    endpoint: Endpoint,
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Channel, tonic::transport::Error> {
    let mut connection = Some(TokioIo::new(connection));
    let connector = tower::service_fn(move |_: Uri| {
        let connection = connection.take();
        async move { connection.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
    });
    endpoint.connect_with_connector(connector).await
}

/// A refusal in TLS comes inside an I/O error.
fn handshake_error(error: io::Error) -> DialError {
    match error.downcast::<rustls::Error>() {
        Ok(refusal) => DialError::Tls(refusal),
        Err(error) => DialError::Connect(error),
    }
}

#[cfg(test)]
mod tests;
