//! The stream of an admitted connection: it ends when the HTTP/2 preface is late, when answers wait
//! too long for the peer, and, without a certificate, after a time or when it is evicted.

use std::future::Future as _;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tollway_identity::control_spiffe_id;
use tollway_model::TrustDomain;

use super::caller::{Caller, holder};
use super::frames::Frames;
use super::handshake::Refusal;
use super::limits::{ConnectionLimits, Permit, Reason};
use super::send_backlog::SendBacklog;
use super::shares::Share;

/// Time for the preface of HTTP/2 to follow the handshake, and its bytes. From then on the server
/// pings silent peers.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
const PREFACE_BYTES: usize = 24;
/// Life of a connection without a certificate: joining is one call.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(60);

/// A stream with deadlines.
pub(super) struct BoundedStream<S> {
    stream: S,
    preface: Option<Preface>,
    admission: Admission,
    pub(super) backlog: Arc<SendBacklog>,
    /// Follows the written frames, of which mistakes of the peer are counted.
    frames: Frames,
    limits: Arc<ConnectionLimits>,
}

/// The missing bytes of the preface, and their deadline.
struct Preface {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

/// The permit of a connection for as long as it lives.
pub(super) enum Admission {
    Authenticated(Authenticated),
    Unauthenticated(Unauthenticated),
}

/// The share of an authenticated connection.
pub(super) struct Authenticated {
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    _share: Share,
}

/// The permit of an unauthenticated connection, and when it ends.
pub(super) struct Unauthenticated {
    deadline: Pin<Box<Sleep>>,
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: Permit,
}

impl Admission {
    /// Acquires the permit of a connection whose handshake has ended.
    pub(super) async fn acquire(
        caller: &Caller,
        home: &TrustDomain,
        from: IpAddr,
        limits: &ConnectionLimits,
    ) -> Result<Self, Refusal> {
        match caller {
            Caller::Authenticated(identity) => {
                let holder = holder(identity);
                let share = if identity.spiffe.trust_domain == *home {
                    limits.authenticated(&holder).await
                } else if identity.spiffe == control_spiffe_id(&identity.spiffe.trust_domain) {
                    limits.joined(&holder).await
                } else {
                    return Err(Refusal::Foreign);
                };
                Ok(Self::Authenticated(Authenticated::begin(share.map_err(|_| Refusal::Full)?)))
            }
            // To renew is one call, as to join is.
            Caller::Anonymous | Caller::Ended(_) => {
                let permit = limits.unauthenticated(from).await;
                Ok(Self::Unauthenticated(Unauthenticated::begin(permit)))
            }
        }
    }
}

impl Authenticated {
    fn begin(share: Share) -> Self {
        Self { evicted: Box::pin(share.evicted().clone().cancelled_owned()), _share: share }
    }
}

impl Unauthenticated {
    fn begin(permit: Permit) -> Self {
        Self {
            deadline: Box::pin(tokio::time::sleep(UNAUTHENTICATED_TIMEOUT)),
            evicted: Box::pin(permit.evicted().clone().cancelled_owned()),
            _permit: permit,
        }
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.evicted.as_mut().poll(context).is_ready()
            || self.deadline.as_mut().poll(context).is_ready()
    }
}

impl<S> BoundedStream<S> {
    pub(super) fn new(stream: S, admission: Admission, limits: Arc<ConnectionLimits>) -> Self {
        let deadline = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        let preface = Some(Preface { bytes: PREFACE_BYTES, deadline });
        let backlog = SendBacklog::new(limits.backlog_bytes.clone());
        Self { stream, preface, admission, backlog, frames: Frames::default(), limits }
    }

    /// An error once the connection has to end. Reads and writes both check it, so that a peer that
    /// only sends or only reads ends, too.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let is_late = |preface: &mut Preface| preface.deadline.as_mut().poll(context).is_ready();
        let is_late = self.preface.as_mut().is_some_and(is_late);
        let is_over = match &mut self.admission {
            Admission::Authenticated(authenticated) => {
                authenticated.evicted.as_mut().poll(context).is_ready()
            }
            Admission::Unauthenticated(unauthenticated) => unauthenticated.is_over(context),
        };
        // An idle peer at least answers pings.
        let is_overdue = self.backlog.is_overdue();
        if is_overdue {
            self.limits.count(Reason::SendBuffer);
        }
        if is_late || is_over || is_overdue { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Counts received bytes of the preface.
    fn note(&mut self, bytes: usize) {
        self.preface = self.preface.take().and_then(|preface| {
            let left = preface.bytes.saturating_sub(bytes);
            (left > 0).then_some(Preface { bytes: left, ..preface })
        });
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            let refused = self.frames.follow(&bytes[..count]);
            self.limits.count_mistakes(refused);
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::time::Instant;

    use super::super::shares::Holder;
    use super::*;
    use crate::options::ConnectionOptions;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn limits() -> Arc<ConnectionLimits> {
        let options = ConnectionOptions {
            authenticated: 1,
            per_instance: 1,
            joined: 1,
            unauthenticated: 1,
            handshakes: 1,
        };
        Arc::new(ConnectionLimits::new(options))
    }

    async fn unauthenticated(
        limits: &Arc<ConnectionLimits>,
    ) -> (DuplexStream, BoundedStream<DuplexStream>) {
        let (near, stream) = tokio::io::duplex(64);
        let home = TrustDomain::new("west.tollway").unwrap();
        let admission = Admission::acquire(&Caller::Anonymous, &home, FROM, limits).await;
        (near, BoundedStream::new(stream, admission.unwrap(), limits.clone()))
    }

    async fn authenticated(
        limits: &Arc<ConnectionLimits>,
    ) -> (DuplexStream, BoundedStream<DuplexStream>) {
        let (near, stream) = tokio::io::duplex(64);
        let share = limits.authenticated(&Holder::new("shop", "web", "a")).await;
        let admission = Admission::Authenticated(Authenticated::begin(share.expect("one is free")));
        (near, BoundedStream::new(stream, admission, limits.clone()))
    }

    /// Longer than anything lasts here.
    const PATIENCE: Duration = Duration::from_secs(600);

    /// The error that ends a read without data, and after which time.
    async fn end_of(stream: &mut BoundedStream<DuplexStream>) -> (ErrorKind, Duration) {
        let (begun, mut bytes) = (Instant::now(), [0; 64]);
        let ended = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await;
        (ended.expect("it ends").unwrap_err().kind(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_unauthenticated_connection_ends_and_frees_its_permit() {
        let limits = limits();
        let (mut near, mut joining) = unauthenticated(&limits).await;
        near.write_all(PREFACE).await.unwrap();
        assert_eq!(joining.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES);
        assert_eq!(end_of(&mut joining).await, (ErrorKind::TimedOut, UNAUTHENTICATED_TIMEOUT));
        drop(joining);
        let waited = Instant::now();
        drop(limits.unauthenticated(FROM).await);
        assert_eq!(waited.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unauthenticated_connection_is_evicted_whether_it_reads_or_writes() {
        let limits = limits();
        for is_writing in [false, true] {
            let (_near, mut first) = unauthenticated(&limits).await;
            let ending = async {
                // The peer reads nothing.
                let ended = if is_writing {
                    first.write_all(&[0; 1024]).await
                } else {
                    first.read(&mut [0; 64]).await.map(drop)
                };
                drop(first);
                ended.unwrap_err().kind()
            };
            let begun = Instant::now();
            let both = async { tokio::join!(limits.unauthenticated(FROM), ending) };
            let both = tokio::time::timeout(PATIENCE, both).await;
            let (_second, ended) = both.expect("the first one ends");
            assert_eq!((ended, begun.elapsed()), (ErrorKind::TimedOut, Duration::ZERO));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_of_an_instance_gives_way_to_its_next() {
        let limits = limits();
        let (_near, mut first) = authenticated(&limits).await;
        let ending = async {
            let ended = first.read(&mut [0; 64]).await;
            drop(first);
            ended.unwrap_err().kind()
        };
        let both = async { tokio::join!(authenticated(&limits), ending) };
        let (_second, ended) = tokio::time::timeout(PATIENCE, both).await.expect("it ends");
        assert_eq!(ended, ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_begin_in_time_ends() {
        let (mut near, mut stream) = authenticated(&limits()).await;
        // All but the last byte, as slowly as may be.
        near.write_all(&PREFACE[1..]).await.unwrap();
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES - 1);
        assert_eq!(end_of(&mut stream).await, (ErrorKind::TimedOut, PREFACE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_begun_may_be_silent() {
        let (mut near, mut stream) = authenticated(&limits()).await;
        near.write_all(PREFACE).await.unwrap();
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES);
        let mut bytes = [0; 64];
        let silent = stream.read(&mut bytes);
        assert!(tokio::time::timeout(PATIENCE, silent).await.is_err());
    }
}
