//! What the end of trust does to connections that stand: those of a network that is trusted no
//! more end at once, whoever made them and whatever they carry.

use tollway_identity::TrustBundles;
use tollway_model::ErrorCode;
use tollway_net::{Closed, Key};

use super::EventLoop;
use crate::connection::{Connection, Role};

impl EventLoop {
    /// Ends the connections whose peers belong to a trust domain that is not in `bundles`. Their
    /// handshakes would fail now, and waiting for their certificates to end may take days.
    pub(super) fn cut_untrusted(&mut self, bundles: &TrustBundles) {
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get(key) else { continue };
            if !is_trusted(conn, bundles) {
                let peer = conn.peer.as_ref().map(|peer| peer.spiffe.to_string());
                tracing::info!(peer, "a connection ends: its network is trusted no more");
                self.cut(key);
            }
        }
    }

    fn cut(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        match conn.role {
            Role::Http1Server(_) => self.on_h1_server_closed(key, Closed::Truncated),
            Role::Http1Client(_) => self.on_h1_client_closed(key, Closed::Truncated),
            Role::Http2Server(_) | Role::Http2Client(_) => {
                self.on_h2_over(key, "the peer's network is trusted no more");
            }
            Role::Relay(_) => {
                self.fail_line(key, ErrorCode::ForeignAuthority);
                self.on_relay_failed(key);
            }
            Role::Accepting
            | Role::Dialling(_)
            | Role::Detect { .. }
            | Role::Hello(_)
            | Role::Lingering(_) => {}
        }
        // What is queued for such a peer is not for it any more.
        if let Some(conn) = self.conns.get_mut(key) {
            conn.io.abort_on_close();
        }
        self.remove(key);
    }
}

fn is_trusted(conn: &Connection, bundles: &TrustBundles) -> bool {
    conn.peer.as_ref().is_none_or(|peer| bundles.get(&peer.spiffe.trust_domain).is_some())
}
