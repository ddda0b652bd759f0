//! What the end of trust does to connections that stand: those of a network that is trusted no
//! more, and of an identity that was revoked, end at once, in either direction and whatever they
//! carry.

use std::collections::BTreeMap;

use tollway_identity::{Distrust, TrustBundles};
use tollway_model::Label;
use tollway_net::Closed;

use super::{http1_client, http1_server, http2, relay};
use crate::conn::{ConnKey, Connections, Role, access_log};
use crate::cx::Cx;
use crate::exchange::Exchanges;

/// Ends the connections whose peers `bundles`, which follow `former`, do not accept. Their handshakes would
/// fail now, and waiting for their certificates to end may take days.
pub(crate) fn cut_untrusted(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    former: &TrustBundles,
    bundles: &TrustBundles,
) {
    let without_roots = bundles.without_roots_of(former);
    let now = (cx.clocks.wall)();
    let mut ended: BTreeMap<String, usize> = BTreeMap::new();
    for key in conns.keys() {
        let Some(conn) = conns.get(key) else { continue };
        let Some(peer) = conn.peer.as_ref() else {
            // A handshake that goes by the former roots is not over yet.
            if !without_roots.is_empty() && matches!(conn.role, Role::Accepting) {
                conns.close(cx, key);
            }
            continue;
        };
        let mut judged = bundles.judge(peer);
        if judged.is_ok() && without_roots.contains(&peer.spiffe.trust_domain) {
            let shown = conn.io.peer();
            let certificates = shown.as_ref().map_or(&[][..], |peer| peer.certificates);
            judged = bundles.judge_chain(peer, certificates, now);
        }
        if let Err(distrust) = judged {
            let instance = peer.instance.as_ref().map_or("-", Label::as_str);
            let who = format!("{} (instance {instance}): {distrust}", peer.spiffe);
            *ended.entry(who).or_default() += 1;
            cut(cx, conns, exchanges, key, distrust);
        }
    }
    for (peer, connections) in ended {
        tracing::warn!(peer, connections, "connections were ended");
    }
}

fn cut(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ConnKey,
    distrust: Distrust,
) {
    let Some(conn) = conns.get(key) else { return };
    match conn.role {
        Role::Http1Server(_) => {
            http1_server::on_closed(cx, conns, exchanges, key, Closed::Truncated)
        }
        Role::Http1Client(_) => {
            http1_client::on_closed(cx, conns, exchanges, key, Closed::Truncated)
        }
        Role::Http2Server(_) | Role::Http2Client(_) => {
            let reason = match distrust {
                Distrust::Network => "the peer's network is trusted no more",
                Distrust::Revoked => "the peer's identity was revoked",
                Distrust::Root => "the root of the peer's certificate is trusted no more",
            };
            http2::on_over(cx, conns, exchanges, key, reason);
        }
        Role::Relay(_) => {
            access_log::fail_line(conns, key, distrust.code());
            relay::on_failed(cx, conns, key);
        }
        Role::Accepting
        | Role::Dialling(_)
        | Role::Detect { .. }
        | Role::Hello(_)
        | Role::Reverse(_)
        | Role::Lingering(_) => {}
    }
    // What is queued for such a peer is not for it any more.
    if let Some(conn) = conns.get_mut(key) {
        conn.io.abort_on_close();
    }
    conns.close(cx, key);
}
