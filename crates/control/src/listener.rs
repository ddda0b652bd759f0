//! The one port: accepts TCP, does the TLS handshake, and says who is there.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollway_identity::{
    Credentials, PeerError, TlsError, control_server_config, explain, peer_identity,
};
use tonic::transport::server::Connected;
use tracing::{debug, error, warn};

use crate::caller::Caller;
use crate::peering::dial::ALPN;
use crate::plane::Plane;

/// Connections at once, handshakes included.
const CONNECTIONS_LIMIT: usize = 20_000;
/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a refused peer may take to hear why, and how much of what it sends meanwhile is read.
const PARTING_TIMEOUT: Duration = Duration::from_secs(1);
const PARTING_LIMIT_BYTES: usize = 64 * 1024;
/// Connections at once without a certificate: those that come to join. They never crowd out the
/// workloads, gateways and networks that have one.
const VISITORS_LIMIT: usize = 1_000;
/// Life of such a connection: joining is one call.
const VISIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections that wait to be served.
const READY_LIMIT: usize = 64;
/// Pause after the system refused a connection, such as without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a connection was refused.
#[derive(Debug, Error)]
enum Refusal {
    #[error("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the handshake failed: {0}")]
    Handshake(String),
    #[error("the certificate names nobody")]
    Certificate(#[from] PeerError),
    #[error("the certificate has ended")]
    Ended,
    #[error("{VISITORS_LIMIT} connections without a certificate are open already")]
    Crowded,
}

/// What the server takes; only connections whose caller is known come through.
pub(crate) type Accepted = Result<Connection, io::Error>;

/// A connection with its caller.
pub(crate) struct Connection {
    stream: Limited<TlsStream<TcpStream>>,
    caller: Caller,
    /// Counts the connection for as long as it lives.
    _place: OwnedSemaphorePermit,
}

/// A stream that may have an end set to its life.
struct Limited<S> {
    stream: S,
    visit: Option<Visit>,
}

/// The place of a visitor, and when it has to leave.
struct Visit {
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = Caller;
    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

/// Accepts until the control plane stops. Each handshake uses the credentials of that moment.
pub(crate) async fn accept(
    plane: Arc<Plane>,
    listener: TcpListener,
    connections: mpsc::Sender<Accepted>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_LIMIT));
    let visitors = Arc::new(Semaphore::new(VISITORS_LIMIT));
    let mut tls = CurrentTls::new(plane.credentials.clone());
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = plane.stop.cancelled() => return,
        };
        let (tcp, from) = match accepted {
            Ok(accepted) => accepted,
            Err(reason) => {
                warn!(%reason, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let config = match tls.config() {
            Ok(config) => config,
            Err(reason) => {
                error!(reason = %tollway_model::chain(&reason), "no TLS configuration; a connection was dropped");
                continue;
            }
        };
        let (connections, visitors) = (connections.clone(), visitors.clone());
        plane.tasks.spawn(plane.stop.clone().run_until_cancelled_owned(async move {
            match handshake(tcp, from, config, visitors).await {
                Ok((stream, caller)) => {
                    let _ = connections.send(Ok(Connection { stream, caller, _place: place })).await;
                }
                Err(reason) => {
                    debug!(%from, reason = %tollway_model::chain(&reason), "a connection was refused");
                }
            }
        }));
    }
}

async fn handshake(
    tcp: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    visitors: Arc<Semaphore>,
) -> Result<(Limited<TlsStream<TcpStream>>, Caller), Refusal> {
    if let Err(reason) = tcp.set_nodelay(true) {
        debug!(%from, %reason, "cannot switch off Nagle's algorithm");
    }
    let accepting = TlsAcceptor::from(config).accept(tcp).into_fallible();
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting).await;
    let stream = match accepted.map_err(|_| Refusal::Timeout)? {
        Ok(stream) => stream,
        Err((error, tcp)) => {
            part(tcp).await;
            return Err(Refusal::Handshake(reason(&error)));
        }
    };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let caller = match peer_identity(shown) {
        Ok(identity) if identity.valid_at(SystemTime::now()) => Caller::Known(Box::new(identity)),
        Ok(_) => return Err(Refusal::Ended),
        Err(PeerError::NoCertificate) => Caller::Anonymous,
        Err(error) => return Err(error.into()),
    };
    let visit = match &caller {
        Caller::Known(_) => None,
        Caller::Anonymous => Some(Visit::begin(visitors)?),
    };
    Ok((Limited { stream, visit }, caller))
}

/// Closes a refused connection so that the peer hears the alert: what it still sends is read, since
/// closing over unread bytes resets the connection and takes the alert back.
async fn part(mut tcp: TcpStream) {
    let mut rest = [0; 1024];
    let leave = async {
        tcp.shutdown().await?;
        let mut left = PARTING_LIMIT_BYTES;
        while left > 0 {
            match tcp.read(&mut rest).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(PARTING_TIMEOUT, leave).await;
}

fn reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or_else(|| error.to_string(), explain)
}

/// The TLS configuration of the present credentials, made once for each.
struct CurrentTls {
    credentials: watch::Receiver<Arc<Credentials>>,
    config: Option<Arc<ServerConfig>>,
}

impl CurrentTls {
    fn new(credentials: watch::Receiver<Arc<Credentials>>) -> Self {
        Self { credentials, config: None }
    }

    fn config(&mut self) -> Result<Arc<ServerConfig>, TlsError> {
        if let Some(config) = &self.config
            && !self.credentials.has_changed().unwrap_or(false)
        {
            return Ok(config.clone());
        }
        let credentials = self.credentials.borrow_and_update().clone();
        let config = control_server_config(&credentials, ALPN)?;
        self.config = Some(config.clone());
        Ok(config)
    }
}

impl Visit {
    fn begin(visitors: Arc<Semaphore>) -> Result<Self, Refusal> {
        let place = visitors.try_acquire_owned().map_err(|_| Refusal::Crowded)?;
        Ok(Self { end: Box::pin(tokio::time::sleep(VISIT_TIMEOUT)), _place: place })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(visit) = &mut self.visit
            && visit.end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream.stream).poll_shutdown(context)
    }
}

/// The queue between handshakes and the server.
pub(crate) fn ready_queue() -> (mpsc::Sender<Accepted>, mpsc::Receiver<Accepted>) {
    mpsc::channel(READY_LIMIT)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_visit_ends_and_frees_its_place() {
        let visitors = Arc::new(Semaphore::new(2));
        let first = Visit::begin(visitors.clone()).unwrap();
        let _second = Visit::begin(visitors.clone()).unwrap();
        assert!(matches!(Visit::begin(visitors.clone()), Err(Refusal::Crowded)));

        let (mut near, stream) = tokio::io::duplex(64);
        let mut visitor = Limited { stream, visit: Some(first) };
        near.write_all(b"hello").await.unwrap();
        let mut bytes = [0; 64];
        assert_eq!(visitor.read(&mut bytes).await.unwrap(), 5);
        let begun = Instant::now();
        let ended = visitor.read(&mut bytes).await.unwrap_err();
        assert_eq!((ended.kind(), begun.elapsed()), (io::ErrorKind::TimedOut, VISIT_TIMEOUT));
        drop(visitor);
        assert!(Visit::begin(visitors).is_ok());
    }
}
