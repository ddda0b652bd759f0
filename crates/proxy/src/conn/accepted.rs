//! Connections that were accepted: refused in their handshake, or given their protocol.

use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, Http2Link, ListenerKind, Role, access_log, retire};
use crate::cx::Cx;
use crate::front::Client;
use crate::request_error::Within;
use crate::tls::alpn;
use std::time::SystemTime;
use tollway_http::h2;
use tollway_identity::{ClientCertificate, PeerIdentity};
use tollway_model::ErrorCode;
use tollway_net::Peer;

/// A handshake did not end in time.
pub(crate) fn refuse_slow_handshake(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let within = Within(cx.config.timeouts.handshake);
    let reason = format!("the TLS handshake did not end within {within}");
    refuse_peer(cx, conns, key, &Cause::coded(ErrorCode::HandshakeTimedOut, reason));
}

/// A peer that cannot be trusted ends here; the log has each once in a while.
pub(crate) fn refuse_peer(cx: &mut Cx, conns: &mut Connections, key: ConnKey, cause: &Cause) {
    cx.metrics.tls_handshake_failures.add(1);
    let Some(conn) = conns.get(key) else { return };
    let remote = conn.remote.map(|remote| remote.ip());
    let is_client = conn.via == Some(ListenerKind::Front);
    let Cause { code, reason } = cause;
    access_log::log_refused_connection(cx, conns, key, code.unwrap_or(ErrorCode::TlsFailed));
    let code = code.map_or("", ErrorCode::word);
    let who = if is_client { "a client" } else { "a mesh connection" };
    if let Some(left_out) = cx.log.admit("refused", format!("{remote:?} {code}"), cx.now) {
        tracing::info!(?remote, code, reason, left_out, "{who} was refused");
    } else {
        tracing::debug!(?remote, code, reason, "{who} was refused");
    }
    conns.close(cx, key);
}

/// Gives a downstream connection its protocol.
pub(crate) fn begin_server(cx: &mut Cx, conns: &mut Connections, key: ConnKey, is_h2: bool) {
    let Some(conn) = conns.get_mut(key) else { return };
    conn.since = cx.now;
    conn.role = if is_h2 {
        let mut config = cx.config.limits.h2.clone();
        if conn.via == Some(ListenerKind::Loopback) {
            lift_bounds_of_peers(&mut config);
        }
        let codec = h2::Connection::server(config, conn.io.out());
        Role::Http2Server(Box::new(Http2Link::new(codec, cx.now)))
    } else {
        Role::Http1Server(Box::default())
    };
    conns.schedule(cx, key);
    conns.mark_dirty(key);
}

/// Requests of the own runtime stand for those of callers, whose connections are bounded already. One
/// caller's must not be refused, or the connection ended, for what another does.
fn lift_bounds_of_peers(config: &mut h2::Config) {
    config.max_concurrent_streams = u32::MAX;
    config.limits.live_head_bytes = usize::MAX;
    config.limits.resets.burst = u32::MAX;
}

/// A client's handshake is over. Says whether its connection lives on.
pub(crate) fn on_client_accepted(cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool {
    let Some(conn) = conns.get_mut(key) else { return false };
    let Some(peer) = conn.io.peer() else { return false };
    let is_h2 = peer.alpn == Some(alpn::H2);
    match read_certificate(peer.certificates, (cx.clocks.wall)()) {
        Ok(certificate) => conn.client = Some(Box::new(Client::new(conn.remote, certificate))),
        Err(cause) => {
            refuse_peer(cx, conns, key, &cause);
            return false;
        }
    }
    cx.metrics.tls_handshakes.add(1);
    begin_server(cx, conns, key, is_h2);
    true
}

pub(crate) fn retire_clients(cx: &mut Cx, conns: &mut Connections) {
    for key in conns.keys() {
        let Some(conn) = conns.get_mut(key) else { continue };
        if conn.draining || conn.via != Some(ListenerKind::Front) {
            continue;
        }
        match conn.role {
            Role::Http2Server(_) => retire::retire_http2(cx, conns, key),
            Role::Http1Server(_) => {
                conn.draining = true;
                conns.schedule(cx, key);
            }
            // Its handshake uses the old configuration, and it is not admitted yet.
            Role::Accepting => conns.close(cx, key),
            _ => {}
        }
    }
}

/// Who is at the other end, valid at `now`: a resumed session has skipped the check of the time.
pub(crate) fn proven_identity(peer: &Peer<'_>, now: SystemTime) -> Result<PeerIdentity, String> {
    let identity =
        tollway_identity::peer_identity(peer.certificates).map_err(|error| error.to_string())?;
    if identity.valid_at(now) {
        Ok(identity)
    } else {
        Err(format!("the certificate of {} is not valid now", identity.spiffe))
    }
}

/// What the client proved; a resumed session has skipped the check of the time.
fn read_certificate(
    shown: &[tollway_identity::CertificateDer<'_>],
    now: SystemTime,
) -> Result<Option<ClientCertificate>, Cause> {
    let read = ClientCertificate::read(shown)
        .map_err(|error| Cause::coded(ErrorCode::ClientCertificateRefused, error.to_string()))?;
    let is_over = |certificate: &ClientCertificate| !certificate.valid_at(now);
    if read.as_ref().is_some_and(is_over) {
        let reason = "the client's certificate has expired since its session began";
        return Err(Cause::coded(ErrorCode::CertificateExpired, reason));
    }
    Ok(read)
}
