//! What comes on a connection goes to whom its role says.

use tollway_net::{Closed, ConnError, Key};

use super::EventLoop;
use super::dial::DialFailure;
use crate::cause::Cause;
use crate::connection::Role;

impl EventLoop {
    /// Bytes came, or (empty) what is left unparsed shall be looked at again.
    pub(super) fn on_bytes(&mut self, key: Key, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let is_new = matches!(conn.role, Role::Accepting | Role::Dialling(_));
        if is_new && (conn.io.is_handshaking() || !self.on_established(key)) {
            return;
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Detect { .. } => self.on_detect_bytes(key, data),
            Role::Http1Server(_) => self.on_h1_server_bytes(key, data),
            Role::Http1Client(_) => self.on_h1_client_bytes(key, data),
            Role::Http2Server(_) | Role::Http2Client(_) => self.on_h2_bytes(key, data),
            Role::Relay(_) => self.on_relay_bytes(key, data),
            Role::Hello(_) => self.on_hello_bytes(key, data),
            Role::Lingering(_) => {
                if !data.is_empty() {
                    conn.since = self.now;
                }
            }
            Role::Accepting | Role::Dialling(_) => {}
        }
    }

    /// The peer sends no more.
    pub(super) fn on_closed(&mut self, key: Key, how: Closed) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Http1Server(_) => self.on_h1_server_closed(key, how),
            Role::Http1Client(_) => self.on_h1_client_closed(key, how),
            Role::Http2Server(_) | Role::Http2Client(_) => {
                self.on_h2_over(key, "the peer closed the connection");
            }
            Role::Relay(_) => self.on_relay_closed(key),
            Role::Dialling(_) => {
                self.on_dial_failed(key, &DialFailure::Closed);
            }
            Role::Hello(_) => {
                self.metrics.gateway_refused.add(1);
                self.remove(key);
            }
            Role::Accepting => {
                self.metrics.handshakes_failed.add(1);
                self.remove(key);
            }
            Role::Detect { .. } | Role::Lingering(_) => self.remove(key),
        }
    }

    /// Nothing more can be sent. An upstream may have answered before it closed, as one does that
    /// wants no more of a body: what it has said is read first, and the end behind it tells the rest.
    pub(super) fn on_unsendable(&mut self, key: Key, error: &ConnError) {
        let Some(conn) = self.conns.get(key) else { return };
        let may_have_answered = matches!(conn.role, Role::Http1Client(_) | Role::Http2Client(_));
        if !may_have_answered || conn.io.read_ended() {
            return self.on_failed(key, error);
        }
        tracing::debug!(%error, "nothing more can be sent");
        self.leave_pool(key);
        self.queue_read(key);
    }

    /// The connection broke.
    pub(super) fn on_failed(&mut self, key: Key, error: &ConnError) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Http1Server(_) => self.on_h1_server_closed(key, Closed::Truncated),
            Role::Http1Client(_) => self.on_h1_client_closed(key, Closed::Truncated),
            Role::Http2Server(_) | Role::Http2Client(_) => self.on_h2_over(key, Cause::from(error)),
            Role::Relay(_) => self.on_relay_failed(key),
            Role::Dialling(_) => self.on_dial_failed(key, &DialFailure::Broken(error)),
            Role::Accepting => {
                let cause = self.tls.why_refused(error);
                self.refuse_peer(key, &cause);
            }
            Role::Detect { .. } | Role::Hello(_) | Role::Lingering(_) => self.remove(key),
        }
    }
}
