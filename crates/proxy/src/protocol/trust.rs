//! What the end of trust does to connections that stand: those of a network that is trusted no
//! more end at once, in either direction and whatever they carry.

use tollway_identity::TrustBundles;
use tollway_model::ErrorCode;
use tollway_net::Closed;

use super::{http1_client, http1_server, http2, relay};
use crate::conn::{ConnKey, Connection, Connections, Role, access_log};
use crate::cx::Cx;
use crate::exchange::Exchanges;

/// Ends the connections whose peers belong to a trust domain that is not in `bundles`. Their
/// handshakes would fail now, and waiting for their certificates to end may take days.
pub(crate) fn cut_untrusted(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    bundles: &TrustBundles,
) {
    for key in conns.keys() {
        let Some(conn) = conns.get(key) else { continue };
        if !is_trusted(conn, bundles) {
            let peer = conn.peer.as_ref().map(|peer| peer.spiffe.to_string());
            tracing::info!(peer, "a connection ends: its network is trusted no more");
            cut(cx, conns, exchanges, key);
        }
    }
}

fn cut(cx: &mut Cx, conns: &mut Connections, exchanges: &mut Exchanges, key: ConnKey) {
    let Some(conn) = conns.get(key) else { return };
    match conn.role {
        Role::Http1Server(_) => {
            http1_server::on_closed(cx, conns, exchanges, key, Closed::Truncated)
        }
        Role::Http1Client(_) => {
            http1_client::on_closed(cx, conns, exchanges, key, Closed::Truncated)
        }
        Role::Http2Server(_) | Role::Http2Client(_) => {
            http2::on_over(cx, conns, exchanges, key, "the peer's network is trusted no more");
        }
        Role::Relay(_) => {
            access_log::fail_line(conns, key, ErrorCode::ForeignAuthority);
            relay::on_failed(cx, conns, key);
        }
        Role::Accepting
        | Role::Dialling(_)
        | Role::Detect { .. }
        | Role::Hello(_)
        | Role::Lingering(_) => {}
    }
    // What is queued for such a peer is not for it any more.
    if let Some(conn) = conns.get_mut(key) {
        conn.io.abort_on_close();
    }
    conns.close(cx, key);
}

fn is_trusted(conn: &Connection, bundles: &TrustBundles) -> bool {
    conn.peer.as_ref().is_none_or(|peer| bundles.get(&peer.spiffe.trust_domain).is_some())
}
