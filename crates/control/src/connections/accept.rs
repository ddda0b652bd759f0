//! The accept loop of the port: takes connections, admits them within the limits, and hands those
//! with a finished handshake to the server.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::server::TlsStream;
use tollway_identity::{CertificateDer, Credentials, Distrust, home_control_dns_san};
use tollway_model::{ErrorCode, TrustDomain};
use tollway_telemetry::LogLimiter;
use tonic::transport::server::Connected;
use tracing::{debug, error, warn};

use super::caller::{Caller, Peer};
use super::handshake::{Refusal, handshake};
use super::limits::{ConnectionLimits, Permit, Reason};
use super::open_connections::{OpenConnections, Stay};
use super::stream::{Admission, BoundedStream};
use super::tls::CurrentTls;
use crate::addresses::Origin;
use crate::background::Background;
use crate::instance_keys::InstanceKeys;

/// Connections that wait to be served.
const READY_LIMIT: usize = 64;
/// Pause after the system refused a connection, such as without free descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What the server gets: only connections with a finished handshake.
pub(crate) type Accepted = Result<Connection, io::Error>;

/// A connection with its caller.
pub(crate) struct Connection {
    stream: BoundedStream<Box<TlsStream<TcpStream>>>,
    /// What the peer has shown, until it is entered.
    certificates: Vec<CertificateDer<'static>>,
    /// Of a peer with a certificate.
    stay: Option<Stay>,
    peer: Peer,
}

/// What the accept loop works with.
pub(crate) struct Acceptor {
    /// The network's own: others connect by their control planes alone.
    pub(crate) home: TrustDomain,
    /// Each handshake uses the credentials of that moment.
    pub(crate) credentials: watch::Receiver<Arc<Credentials>>,
    /// Has them renewed.
    pub(crate) ended: Arc<Notify>,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) limits: Arc<ConnectionLimits>,
    pub(crate) open_connections: Arc<OpenConnections>,
    pub(crate) background: Background,
}

impl Connected for Connection {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// The own network, as its connections show it.
struct Home {
    trust_domain: TrustDomain,
    /// The server name by which only connections from inside it come.
    name: String,
}

/// Accepts connections; runs until it is dropped.
pub(crate) async fn accept(
    acceptor: Acceptor,
    listener: TcpListener,
    connections: mpsc::Sender<Accepted>,
) {
    let Acceptor { home, credentials, ended, keys, limits, open_connections, background } =
        acceptor;
    let home_name = home_control_dns_san(&credentials.borrow().service().network);
    let home = Arc::new(Home { trust_domain: home, name: home_name });
    let mut tls = CurrentTls::new(credentials.clone(), ended, keys.grace());
    let mut log = LogLimiter::default();
    loop {
        let (tcp, from) = next(&listener, &limits, &mut log).await;
        let config = match tls.config().await {
            Ok(config) => config,
            Err(reason) => {
                error!(reason = %tollway_model::chain(&reason), "no TLS configuration; a connection was dropped");
                continue;
            }
        };
        if limits.is_full()
            && let Some(left_out) = log.admit("handshakes", "", now())
        {
            warn!(%from, left_out, "the limit of handshakes is reached: the oldest of the address that has the most are evicted");
        }
        let permit = limits.handshake(from.ip()).await;
        let (limits, connections) = (limits.clone(), connections.clone());
        let (home, keys) = (home.clone(), keys.clone());
        let (open_connections, trust) = (open_connections.clone(), credentials.clone());
        background.spawn_until_stop(async move {
            match admit(tcp, from, (config, &home), permit, &limits, &keys).await {
                Ok(mut connection) => {
                    // The handshake may have used an older trust than the present one.
                    let judged = connection.enter(&open_connections, &trust);
                    if let Err(distrust) = judged {
                        limits.count(Reason::Identity);
                        debug!(%from, %distrust, "a connection was refused");
                        return;
                    }
                    let _ = connections.send(Ok(connection)).await;
                }
                Err(refusal) => {
                    if let Some(reason) = refusal.reason() {
                        limits.count(reason);
                    }
                    debug!(%from, reason = %tollway_model::chain(&refusal), "a connection was refused");
                }
            }
        });
    }
}

/// The next connection. Without free descriptors a handshake is evicted for it; without handshakes
/// it waits.
async fn next(
    listener: &TcpListener,
    limits: &ConnectionLimits,
    log: &mut LogLimiter,
) -> (TcpStream, SocketAddr) {
    loop {
        let reason = match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(reason) => reason,
        };
        if matches!(reason.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) {
            // The peer closed it before it was accepted.
            continue;
        }
        let is_freed = if ErrorCode::of_io(&reason) == Some(ErrorCode::OutOfDescriptors) {
            free_descriptor(listener, limits, log, &reason).await
        } else {
            if let Some(left_out) = log.admit("accept", "", now()) {
                warn!(%reason, left_out, "a connection was not accepted");
            }
            false
        };
        if !is_freed {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Evicts a handshake when a connection waits for its descriptor. Returns whether one is free now.
async fn free_descriptor(
    listener: &TcpListener,
    limits: &ConnectionLimits,
    log: &mut LogLimiter,
    reason: &io::Error,
) -> bool {
    // The kernel refuses as soon as the last one is taken, though no connection may be waiting.
    if !tollway_net::has_waiting(listener).unwrap_or(true) {
        return false;
    }
    if let Some(left_out) = log.admit("descriptors", "", now()) {
        let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
        let hint = code.entry().remedy;
        warn!(%code, %reason, limit, left_out, hint, "new connections wait: no descriptors are left");
    }
    limits.free_descriptor().await
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A connection after its handshake, with a permit of its own.
///
/// A future that holds others is several times as large as its content, and holes of that size stay
/// in the heap next to each connection. So the parts of this one are boxed.
async fn admit(
    tcp: TcpStream,
    from: SocketAddr,
    (config, home): (Arc<ServerConfig>, &Home),
    permit: Permit,
    limits: &Arc<ConnectionLimits>,
    keys: &InstanceKeys,
) -> Result<Connection, Refusal> {
    let handshake = Box::pin(async {
        let (stream, caller) = handshake(tcp, from, config, keys.grace()).await?;
        let name = stream.get_ref().1.server_name();
        // No gateway passes this name on.
        let is_direct = name.is_some_and(|name| name.eq_ignore_ascii_case(&home.name));
        let origin = if is_direct { Origin::Direct(from.ip()) } else { Origin::Relayed };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let admission = Admission::acquire(&caller, &home.trust_domain, from.ip(), limits).await?;
        let stream = BoundedStream::new(stream, admission, limits.clone());
        let peer = Peer { caller, origin, from: from.ip(), backlog: stream.backlog.clone() };
        Ok(Connection { stream, certificates, stay: None, peer })
    });
    let ended = permit.evicted().run_until_cancelled(handshake).await;
    let connection = ended.unwrap_or(Err(Refusal::Evicted))?;
    drop(permit);
    // Before the connection is served: from the first use of a key on, its predecessor renews no more.
    if let Caller::Authenticated(identity) | Caller::Ended(identity) = &connection.peer.caller {
        Box::pin(keys.note_use(identity)).await;
    }
    Ok(connection)
}

impl Connection {
    /// From now on the connection ends when its peer is trusted no more.
    fn enter(
        &mut self,
        open_connections: &Arc<OpenConnections>,
        trust: &watch::Receiver<Arc<Credentials>>,
    ) -> Result<(), Distrust> {
        let (Caller::Authenticated(identity) | Caller::Ended(identity)) = &self.peer.caller else {
            return Ok(());
        };
        // Entered first, so that no change of trust falls between the two.
        let certificates = std::mem::take(&mut self.certificates);
        self.stay = Some(open_connections.enter(identity.clone(), certificates));
        trust.borrow().bundles().judge(identity)
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.stay.as_mut().is_some_and(|stay| stay.is_over(context));
        if is_over { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The queue between handshakes and the server.
pub(crate) fn ready_queue() -> (mpsc::Sender<Accepted>, mpsc::Receiver<Accepted>) {
    mpsc::channel(READY_LIMIT)
}
