//! Hands the bytes of a connection over to the parser of its role.

use super::EventLoop;
use crate::gateway::route as gateways;
use crate::outbound::route;
use crate::upstream::dial::DialFailure;

use tollway_net::{Closed, ConnError};

use crate::cause::Cause;
use crate::conn::{ConnKey, Role, accepted};
use crate::outbound::tunnel;
use crate::protocol::http1_server::Next;
use crate::protocol::{http1_client, http1_server, http2, relay};
use crate::upstream::pools;

impl EventLoop {
    /// Bytes came, or (empty) what is left unparsed shall be looked at again.
    pub(super) fn on_bytes(&mut self, key: ConnKey, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let is_new = matches!(conn.role, Role::Accepting | Role::Dialling(_));
        if is_new && (conn.io.is_handshaking() || !self.on_established(key)) {
            return;
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Detect { .. } => self.on_detect_bytes(key, data),
            Role::Http1Server(_) => self.on_http1_server_bytes(key, data),
            Role::Http1Client(_) => self.on_http1_client_bytes(key, data),
            Role::Http2Server(_) | Role::Http2Client(_) => self.on_http2_bytes(key, data),
            Role::Relay(_) => relay::on_bytes(&mut self.cx, &mut self.conns, key, data),
            Role::Hello(_) => gateways::on_bytes(
                &mut self.cx,
                &mut self.conns,
                &mut self.upstreams,
                &mut self.gateway,
                key,
                data,
            ),
            Role::Lingering(_) => {
                if !data.is_empty() {
                    conn.since = self.cx.now;
                }
            }
            Role::Accepting | Role::Dialling(_) => {}
        }
        self.settle();
    }

    fn on_http1_server_bytes(&mut self, key: ConnKey, data: &[u8]) {
        let Some(mut kept) = http1_server::take_input(&mut self.conns, key) else { return };
        let bytes = http1_server::with_kept_input(&mut kept, data);
        let mut at = 0;
        loop {
            let (cx, conns, exchanges) = (&mut self.cx, &mut self.conns, &mut self.exchanges);
            match http1_server::step(cx, conns, exchanges, key, &bytes[at..]) {
                Next::Again(consumed) => at += consumed,
                Next::Wait => break,
                Next::Gone => return,
                Next::Request { arrival, consumed, may_leave_http } => {
                    route::begin(
                        &mut self.cx,
                        &mut self.conns,
                        &mut self.exchanges,
                        &mut self.inbound,
                        arrival,
                    );
                    if may_leave_http {
                        return;
                    }
                    at += consumed;
                }
                Next::Connect(head) => {
                    return tunnel::on_connect(
                        &mut self.cx,
                        &mut self.conns,
                        &mut self.upstreams,
                        &mut self.tls,
                        key,
                        &head,
                    );
                }
            }
            self.settle();
        }
        http1_server::keep_input(&mut self.conns, key, &bytes[at..]);
    }

    fn on_http1_client_bytes(&mut self, key: ConnKey, data: &[u8]) {
        let Some(mut kept) = http1_client::take_input(&mut self.conns, key) else { return };
        let bytes = http1_server::with_kept_input(&mut kept, data);
        let mut at = 0;
        loop {
            let (cx, conns, exchanges) = (&mut self.cx, &mut self.conns, &mut self.exchanges);
            match http1_client::step(cx, conns, exchanges, key, &bytes[at..]) {
                http1_client::Next::Again(consumed) => at += consumed,
                http1_client::Next::Wait => break,
                http1_client::Next::Gone => return,
            }
            self.settle();
        }
        http1_client::keep_input(&mut self.conns, key, &bytes[at..]);
    }

    fn on_http2_bytes(&mut self, key: ConnKey, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.http2_events);
        let received = http2::receive(&mut self.cx, &mut self.conns, key, data, &mut events);
        for event in events.drain(..) {
            let (cx, conns, exchanges) = (&mut self.cx, &mut self.conns, &mut self.exchanges);
            if let Some(arrival) = http2::on_event(cx, conns, exchanges, key, event, data) {
                route::begin(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    &mut self.inbound,
                    arrival,
                );
            }
            self.settle();
        }
        self.http2_events = events;
        let (cx, conns, exchanges) = (&mut self.cx, &mut self.conns, &mut self.exchanges);
        http2::after_bytes(cx, conns, exchanges, key, received);
    }

    /// The peer sends no more.
    pub(super) fn on_closed(&mut self, key: ConnKey, how: Closed) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Http1Server(_) => http1_server::on_closed(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                how,
            ),
            Role::Http1Client(_) => http1_client::on_closed(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                how,
            ),
            Role::Http2Server(_) | Role::Http2Client(_) => {
                http2::on_over(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    key,
                    "the peer closed the connection",
                );
            }
            Role::Relay(_) => relay::on_closed(&mut self.cx, &mut self.conns, key),
            Role::Dialling(_) => {
                self.on_dial_failed(key, &DialFailure::Closed);
            }
            Role::Hello(_) => {
                self.cx.metrics.gateway_connections_refused.add(1);
                self.conns.close(&mut self.cx, key);
            }
            Role::Accepting => {
                self.cx.metrics.tls_handshake_failures.add(1);
                self.conns.close(&mut self.cx, key);
            }
            Role::Detect { .. } | Role::Lingering(_) => self.conns.close(&mut self.cx, key),
        }
    }

    /// Nothing more can be sent. An upstream may have answered before it closed, as one does that
    /// wants no more of a body: what it has said is read first, and the end behind it tells the rest.
    pub(super) fn on_unsendable(&mut self, key: ConnKey, error: &ConnError) {
        let Some(conn) = self.conns.get(key) else { return };
        let may_have_answered = matches!(conn.role, Role::Http1Client(_) | Role::Http2Client(_));
        if !may_have_answered || conn.io.read_ended() {
            return self.on_failed(key, error);
        }
        tracing::debug!(%error, "nothing more can be sent");
        pools::remove(&self.conns, &mut self.upstreams, key);
        self.conns.queue_read(key);
    }

    /// The connection broke.
    pub(super) fn on_failed(&mut self, key: ConnKey, error: &ConnError) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        match &conn.role {
            Role::Http1Server(_) => http1_server::on_closed(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                Closed::Truncated,
            ),
            Role::Http1Client(_) => http1_client::on_closed(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                Closed::Truncated,
            ),
            Role::Http2Server(_) | Role::Http2Client(_) => http2::on_over(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                Cause::from(error),
            ),
            Role::Relay(_) => relay::on_failed(&mut self.cx, &mut self.conns, key),
            Role::Dialling(_) => self.on_dial_failed(key, &DialFailure::Broken(error)),
            Role::Accepting => {
                let cause = self.tls.why_refused(error);
                accepted::refuse_peer(&mut self.cx, &mut self.conns, key, &cause);
            }
            Role::Detect { .. } | Role::Hello(_) | Role::Lingering(_) => {
                self.conns.close(&mut self.cx, key)
            }
        }
    }
}
