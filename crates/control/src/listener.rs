//! The one port: accepts TCP, does the TLS handshake, and says who is there. Whether there is a
//! place for them is decided in `places`.

use std::future::Future as _;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tollway_identity::{
    Credentials, PeerError, TlsError, control_server_config, explain, peer_identity,
};
use tollway_model::ErrorCode;
use tonic::transport::server::Connected;
use tracing::{debug, error, warn};

use crate::caller::Caller;
use crate::frames::Frames;
use crate::peering::dial::ALPN;
use crate::places::{Place, Places, Reason};
use crate::plane::Plane;
use crate::untaken::Untaken;

/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the preface of HTTP/2 to follow, and its bytes. From then on the server pings whoever is
/// silent.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
const PREFACE_BYTES: usize = 24;
/// How long a refused peer may take to hear why, and how much of what it sends meanwhile is read.
const PARTING_TIMEOUT: Duration = Duration::from_secs(1);
const PARTING_LIMIT_BYTES: usize = 64 * 1024;
/// Life of a connection without a certificate: joining is one call.
const VISIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections that wait to be served.
const READY_LIMIT: usize = 64;
/// Pause after the system refused a connection, such as without free descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The log says this often at most that not all who come find a place.
const TOLD_EVERY: Duration = Duration::from_secs(10);

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
    #[error("it gave way to another connection before it had said who it is")]
    GaveWay,
    #[error("as many connections with a certificate as may be are open already")]
    Full,
}

impl Refusal {
    /// What it counts as, unless it was counted already.
    fn reason(&self) -> Option<Reason> {
        match self {
            Self::Timeout => Some(Reason::Timeout),
            Self::Handshake(_) => Some(Reason::Tls),
            Self::Certificate(_) | Self::Ended => Some(Reason::Identity),
            Self::GaveWay | Self::Full => None,
        }
    }
}

/// What the server takes; only connections whose caller is known come through.
pub(crate) type Accepted = Result<Connection, io::Error>;

/// A connection with its caller.
pub(crate) struct Connection {
    stream: Limited<Box<TlsStream<TcpStream>>>,
    peer: Peer,
}

/// The other end of a connection, as the calls on it know it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) caller: Caller,
    /// What it has been answered and has not taken.
    pub(crate) untaken: Arc<Untaken>,
}

/// A stream that has to begin in time, and that may have an end set to its life.
struct Limited<S> {
    stream: S,
    preface: Option<Preface>,
    stay: Stay,
    untaken: Arc<Untaken>,
    /// What is written, and where is counted what that refuses.
    frames: Frames,
    places: Arc<Places>,
}

/// What is still to come of the preface, and until when.
struct Preface {
    bytes: usize,
    end: Pin<Box<Sleep>>,
}

/// The place of a connection for as long as it lives.
enum Stay {
    Known { _place: OwnedSemaphorePermit },
    Visit(Visit),
}

/// The place of a visitor, and when it has to leave.
struct Visit {
    end: Pin<Box<Sleep>>,
    leave: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: Place,
}

impl Connected for Connection {
    type ConnectInfo = Peer;
    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

/// Accepts until the control plane stops. Each handshake uses the credentials of that moment.
pub(crate) async fn accept(
    plane: Arc<Plane>,
    listener: TcpListener,
    connections: mpsc::Sender<Accepted>,
) {
    let stop = plane.stop.clone();
    stop.run_until_cancelled(accept_all(&plane, &listener, &connections)).await;
}

async fn accept_all(
    plane: &Arc<Plane>,
    listener: &TcpListener,
    connections: &mpsc::Sender<Accepted>,
) {
    let mut tls = CurrentTls::new(plane.credentials.clone());
    let mut told = Told::default();
    loop {
        let (tcp, from) = next(listener, &plane.places, &mut told).await;
        let config = match tls.config() {
            Ok(config) => config,
            Err(reason) => {
                error!(reason = %tollway_model::chain(&reason), "no TLS configuration; a connection was dropped");
                continue;
            }
        };
        if plane.places.is_crowded() && told.is_news() {
            warn!(%from, "more connections than may be have not said who they are: the oldest of the address that has the most give way");
        }
        let place = plane.places.handshake(from.ip()).await;
        let (places, connections) = (plane.places.clone(), connections.clone());
        plane.tasks.spawn(plane.stop.clone().run_until_cancelled_owned(async move {
            match admit(tcp, from, config, place, &places).await {
                Ok(connection) => {
                    let _ = connections.send(Ok(connection)).await;
                }
                Err(refusal) => {
                    if let Some(reason) = refusal.reason() {
                        places.count(reason);
                    }
                    debug!(%from, reason = %tollway_model::chain(&refusal), "a connection was refused");
                }
            }
        }));
    }
}

/// The next connection. Those that the system cannot give us for want of descriptors take those of
/// handshakes, and wait where there are none.
async fn next(listener: &TcpListener, places: &Places, told: &mut Told) -> (TcpStream, SocketAddr) {
    loop {
        let reason = match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(reason) => reason,
        };
        if matches!(reason.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) {
            // Gone before it was taken.
            continue;
        }
        let has_room = if ErrorCode::of_io(&reason) == Some(ErrorCode::OutOfDescriptors) {
            make_room(listener, places, told, &reason).await
        } else {
            warn!(%reason, "a connection was not accepted");
            false
        };
        if !has_room {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Has a handshake give its descriptor to whoever waits. Says whether there is one now.
async fn make_room(
    listener: &TcpListener,
    places: &Places,
    told: &mut Told,
    reason: &io::Error,
) -> bool {
    // The kernel refuses as soon as the last one is taken, though nobody may want another.
    if !tollway_net::has_waiting(listener).unwrap_or(true) {
        return false;
    }
    if told.is_news() {
        let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
        let hint = code.entry().remedy;
        warn!(%code, %reason, limit, hint, "new connections wait: no descriptors are left");
    }
    places.free_descriptor().await
}

/// A connection whose caller is known, with a place of its own.
///
/// Futures that hold others are several times as large as what is in them, and holes of that size
/// stay in the heap beside each connection: the parts of this one are boxed.
async fn admit(
    tcp: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    place: Place,
    places: &Arc<Places>,
) -> Result<Connection, Refusal> {
    let handshake = Box::pin(async {
        let (stream, caller) = handshake(tcp, from, config).await?;
        let stay = Stay::begin(&caller, from.ip(), places).await?;
        let stream = Limited::new(stream, stay, places.clone());
        let peer = Peer { caller, untaken: stream.untaken.clone() };
        Ok(Connection { stream, peer })
    });
    let ended = place.leave().run_until_cancelled(handshake).await;
    ended.unwrap_or(Err(Refusal::GaveWay))
}

async fn handshake(
    tcp: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
) -> Result<(Box<TlsStream<TcpStream>>, Caller), Refusal> {
    if let Err(reason) = tcp.set_nodelay(true) {
        debug!(%from, %reason, "cannot switch off Nagle's algorithm");
    }
    let accepting = TlsAcceptor::from(config).accept(tcp).into_fallible();
    let accepting = Box::pin(tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting));
    let stream = match accepting.await.map_err(|_| Refusal::Timeout)? {
        Ok(stream) => Box::new(stream),
        Err((error, tcp)) => {
            Box::pin(part(tcp)).await;
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
    Ok((stream, caller))
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

/// When something was last told that may come about very often.
#[derive(Default)]
struct Told(Option<Instant>);

impl Told {
    fn is_news(&mut self) -> bool {
        let is_news = self.0.is_none_or(|at| at.elapsed() >= TOLD_EVERY);
        if is_news {
            self.0 = Some(Instant::now());
        }
        is_news
    }
}

impl Stay {
    async fn begin(caller: &Caller, from: IpAddr, places: &Places) -> Result<Self, Refusal> {
        match caller {
            Caller::Known(_) => {
                let place = places.known().ok_or(Refusal::Full)?;
                Ok(Self::Known { _place: place })
            }
            Caller::Anonymous => Ok(Self::Visit(Visit::begin(places.visitor(from).await))),
        }
    }
}

impl Visit {
    fn begin(place: Place) -> Self {
        Self {
            end: Box::pin(tokio::time::sleep(VISIT_TIMEOUT)),
            leave: Box::pin(place.leave().clone().cancelled_owned()),
            _place: place,
        }
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.leave.as_mut().poll(context).is_ready() || self.end.as_mut().poll(context).is_ready()
    }
}

impl<S> Limited<S> {
    fn new(stream: S, stay: Stay, places: Arc<Places>) -> Self {
        let end = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        let preface = Some(Preface { bytes: PREFACE_BYTES, end });
        let untaken = Untaken::new(places.untaken.clone());
        Self { stream, preface, stay, untaken, frames: Frames::default(), places }
    }

    /// An error once it has to end. Looked at whatever is done with it: somebody who takes nothing
    /// of what is written must end, too.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_late = |preface: &mut Preface| preface.end.as_mut().poll(context).is_ready();
        let is_late = self.preface.as_mut().is_some_and(is_late);
        let is_over = match &mut self.stay {
            Stay::Known { .. } => false,
            Stay::Visit(visit) => visit.is_over(context),
        };
        // Whoever stays has at least the signs of life that he is asked for.
        let is_overdue = self.untaken.is_overdue();
        if is_overdue {
            self.places.count(Reason::Untaken);
        }
        if is_late || is_over || is_overdue { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// So many bytes have come.
    fn note(&mut self, bytes: usize) {
        self.preface = self.preface.take().and_then(|preface| {
            let left = preface.bytes.saturating_sub(bytes);
            (left > 0).then_some(Preface { bytes: left, ..preface })
        });
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Limited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(buffer.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Limited<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            let refused = self.frames.see(&bytes[..count]);
            self.places.count_mistakes(refused);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::options::ConnectionOptions;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn places() -> Arc<Places> {
        Arc::new(Places::new(ConnectionOptions { known: 1, visitors: 1, handshakes: 1 }))
    }

    async fn visitor(places: &Arc<Places>) -> (DuplexStream, Limited<DuplexStream>) {
        let (near, stream) = tokio::io::duplex(64);
        let stay = Stay::Visit(Visit::begin(places.visitor(FROM).await));
        (near, Limited::new(stream, stay, places.clone()))
    }

    fn known() -> (DuplexStream, Limited<DuplexStream>) {
        let (near, stream) = tokio::io::duplex(64);
        let places = places();
        let stay = Stay::Known { _place: places.known().expect("one is free") };
        (near, Limited::new(stream, stay, places))
    }

    /// Longer than anything lasts here.
    const PATIENCE: Duration = Duration::from_secs(600);

    /// How it ends that somebody reads what never comes, and after which time.
    async fn end_of(stream: &mut Limited<DuplexStream>) -> (ErrorKind, Duration) {
        let (begun, mut bytes) = (Instant::now(), [0; 64]);
        let ended = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await;
        (ended.expect("it ends").unwrap_err().kind(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_visit_ends_and_frees_its_place() {
        let places = places();
        let (mut near, mut visitor) = visitor(&places).await;
        near.write_all(PREFACE).await.unwrap();
        assert_eq!(visitor.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES);
        assert_eq!(end_of(&mut visitor).await, (ErrorKind::TimedOut, VISIT_TIMEOUT));
        drop(visitor);
        let waited = Instant::now();
        drop(places.visitor(FROM).await);
        assert_eq!(waited.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_visitor_gives_way_to_the_next_whether_it_reads_or_writes() {
        let places = places();
        for is_writing in [false, true] {
            let (_near, mut first) = visitor(&places).await;
            let leaving = async {
                // What nobody takes.
                let ended = if is_writing {
                    first.write_all(&[0; 1024]).await
                } else {
                    first.read(&mut [0; 64]).await.map(drop)
                };
                drop(first);
                ended.unwrap_err().kind()
            };
            let begun = Instant::now();
            let both = async { tokio::join!(places.visitor(FROM), leaving) };
            let both = tokio::time::timeout(PATIENCE, both).await;
            let (_second, ended) = both.expect("the first one leaves");
            assert_eq!((ended, begun.elapsed()), (ErrorKind::TimedOut, Duration::ZERO));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_begin_in_time_ends() {
        let (mut near, mut known) = known();
        // All but the last byte, as slowly as may be.
        near.write_all(&PREFACE[1..]).await.unwrap();
        assert_eq!(known.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES - 1);
        assert_eq!(end_of(&mut known).await, (ErrorKind::TimedOut, PREFACE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_begun_may_be_silent() {
        let (mut near, mut known) = known();
        near.write_all(PREFACE).await.unwrap();
        assert_eq!(known.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES);
        let mut bytes = [0; 64];
        let silent = known.read(&mut bytes);
        assert!(tokio::time::timeout(PATIENCE, silent).await.is_err());
    }
}
