//! The TLS handshake of one connection, and the identity that it proves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollway_identity::{PeerError, explain, peer_identity};
use tracing::debug;

use super::caller::Caller;
use super::limits::Reason;

/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a refused peer may take to read the alert, and how many of its bytes are read meanwhile.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_LIMIT_BYTES: usize = 64 * 1024;

/// Why a connection was refused.
#[derive(Debug, Error)]
pub(super) enum Refusal {
    #[error("no handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    #[error("the handshake failed: {0}")]
    Handshake(String),
    #[error("the certificate names no workload")]
    Certificate(#[from] PeerError),
    #[error("the certificate has ended")]
    Ended,
    #[error("it was evicted for another connection before its handshake ended")]
    Evicted,
    #[error("the limit of connections with a certificate is reached")]
    Full,
    #[error(
        "the certificate is a workload's of a joined network; only its control plane may connect"
    )]
    Foreign,
}

impl Refusal {
    /// The reason that it is counted under, unless it was counted already.
    pub(super) fn reason(&self) -> Option<Reason> {
        match self {
            Self::Timeout => Some(Reason::Timeout),
            Self::Handshake(_) => Some(Reason::Tls),
            Self::Certificate(_) | Self::Ended => Some(Reason::Identity),
            Self::Foreign => Some(Reason::Foreign),
            Self::Evicted | Self::Full => None,
        }
    }
}

/// The TLS stream, and the peer that its certificate names.
pub(super) async fn handshake(
    tcp: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
    grace: Duration,
) -> Result<(Box<TlsStream<TcpStream>>, Caller), Refusal> {
    if let Err(reason) = tcp.set_nodelay(true) {
        debug!(%from, %reason, "cannot switch off Nagle's algorithm");
    }
    let accepting = TlsAcceptor::from(config).accept(tcp).into_fallible();
    let accepting = Box::pin(tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting));
    let stream = match accepting.await.map_err(|_| Refusal::Timeout)? {
        Ok(stream) => Box::new(stream),
        Err((error, tcp)) => {
            Box::pin(close(tcp)).await;
            return Err(Refusal::Handshake(reason(&error)));
        }
    };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let now = SystemTime::now();
    let caller = match peer_identity(shown) {
        Ok(identity) if identity.valid_at(now) => Caller::Authenticated(Arc::new(identity)),
        // The handshake has judged of which trust domain it may be.
        Ok(identity) if identity.ended_within(grace, now) => Caller::Ended(Arc::new(identity)),
        Ok(_) => return Err(Refusal::Ended),
        Err(PeerError::NoCertificate) => Caller::Anonymous,
        Err(error) => return Err(error.into()),
    };
    Ok((stream, caller))
}

/// Closes a refused connection so that the peer gets the alert. Its last bytes are read first: to
/// close over unread bytes resets the connection, and the alert is lost.
async fn close(mut tcp: TcpStream) {
    let mut rest = [0; 1024];
    let close = async {
        tcp.shutdown().await?;
        let mut left = CLOSE_LIMIT_BYTES;
        while left > 0 {
            match tcp.read(&mut rest).await? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
}

fn reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or_else(|| error.to_string(), explain)
}
