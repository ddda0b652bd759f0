//! Raw bytes between two connections: plain TCP, upgraded HTTP, CONNECT, gateways.

use std::net::SocketAddr;
use std::time::Duration;

use tollway_http::{ResponseHead, h1};
use tollway_identity::UPSTREAM_FAILED_RECORD;
use tollway_model::{AppProtocol, ErrorCode};
use tollway_net::Key;

use super::EventLoop;
use super::policy::Upgraded;
use crate::cause::Cause;
use crate::connection::{Connection, ListenerKind, Purpose, Relay, Role};
use crate::headers::{self, ResponseOrigin};
use crate::observe::Kind;

/// Addresses that are dialled for one relayed connection before it is given up.
const RELAY_DIALS: u32 = 3;
/// A callee that has not answered a caller who waited so long stands still.
const UNANSWERED: Duration = Duration::from_secs(1);

impl EventLoop {
    pub(super) fn on_relay_bytes(&mut self, key: Key, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let Some(other) = self.touch_relay(key, data.len()) else {
            let Some(relay) = self.relay(key) else { return };
            relay.early.extend_from_slice(data);
            if relay.early.len() >= self.config.limits.pipe_bytes {
                self.pause(key);
            }
            return;
        };
        self.metrics.relayed_bytes.add(data.len() as u64);
        let Some(conn) = self.conns.get_mut(other) else { return };
        conn.io.out().extend_from_slice(data);
        if let Some(told) = &mut conn.told {
            told.response_bytes += data.len() as u64;
        }
        let full = conn.io.pending() >= self.config.limits.out_bytes;
        self.mark_dirty(other);
        if full {
            self.pause(key);
        }
    }

    /// Bytes in either direction keep both sides alive. Gives the other side, if there is one.
    fn touch_relay(&mut self, key: Key, bytes: usize) -> Option<Key> {
        let now = self.now;
        let conn = self.conns.get_mut(key)?;
        if let Some(told) = &mut conn.told {
            told.request_bytes += bytes as u64;
        }
        let Role::Relay(relay) = &mut conn.role else { return None };
        relay.active = now;
        relay.has_spoken = true;
        let other = relay.other?;
        if let Some(relay) = self.relay(other) {
            relay.active = now;
        }
        Some(other)
    }

    fn relay(&mut self, key: Key) -> Option<&mut Relay> {
        match &mut self.conns.get_mut(key)?.role {
            Role::Relay(relay) => Some(relay),
            _ => None,
        }
    }

    fn pause(&mut self, key: Key) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.paused = true;
        }
    }

    /// A flushed connection has room: its source may be read again.
    pub(super) fn relay_room(&mut self, key: Key) {
        let Some(Relay { other: Some(other), .. }) = self.relay(key) else { return };
        let other = *other;
        if self.conns.get(other).is_some_and(|conn| conn.paused) {
            self.resume(other);
        }
        self.end_relay_if_over(key);
    }

    pub(super) fn on_relay_closed(&mut self, key: Key) {
        self.rest_if_unanswered(key);
        let Some(relay) = self.relay(key) else { return };
        relay.ended = true;
        let Some(other) = relay.other else { return };
        if let Some(conn) = self.conns.get_mut(other) {
            conn.io.finish();
        }
        self.mark_dirty(other);
        self.end_relay_if_over(key);
    }

    /// Both directions have ended and been sent.
    fn end_relay_if_over(&mut self, key: Key) {
        let Some(Relay { other: Some(other), .. }) = self.relay(key) else { return };
        let other = *other;
        let over = |conn: Option<&Connection>| {
            conn.is_none_or(|conn| conn.io.is_finished() && conn.io.read_ended())
        };
        if over(self.conns.get(key)) && over(self.conns.get(other)) {
            self.remove(key);
            self.remove(other);
        }
    }

    /// One side broke, or nothing has gone either way for too long: both end with a reset. The end
    /// of what was sent in order would not get by bytes that the peer does not take.
    pub(super) fn on_relay_failed(&mut self, key: Key) {
        self.rest_if_unanswered(key);
        let other = self.relay(key).and_then(|relay| relay.other);
        self.note_break(key, other);
        let Some(other) = other else { return self.remove(key) };
        for side in [key, other] {
            if let Some(conn) = self.conns.get_mut(side) {
                conn.io.abort_on_close();
            }
            self.remove(side);
        }
    }

    /// A gateway's caller gives up, and who it was passed to has not said a word: whoever takes
    /// connections and stands still is avoided for as long as callers wait for a handshake.
    fn rest_if_unanswered(&mut self, key: Key) {
        let (now, rest) = (self.now, self.config.timeouts.connect);
        let Some(conn) = self.conns.get(key) else { return };
        let Some((target, address)) = &conn.relays_to else { return };
        let Role::Relay(Relay { other: Some(other), .. }) = &conn.role else { return };
        let Some(other) = self.conns.get(*other) else { return };
        let waited = now.saturating_duration_since(other.since);
        let is_mute = matches!(&other.role, Role::Relay(relay) if !relay.has_spoken);
        if is_mute && waited > UNANSWERED {
            let (target, address) = (target.clone(), *address);
            self.rest_relayed(&target, address, now + rest);
        }
    }

    /// Makes two connections relay to each other; `early` goes to `b` first.
    fn join(&mut self, a: Key, b: Key, early: &[u8]) {
        let now = self.now;
        for (key, other) in [(a, b), (b, a)] {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let ended = conn.io.read_ended();
            if !matches!(conn.role, Role::Dialling(_)) {
                let relay = Relay::to_be_dialled(Vec::new(), now);
                conn.role = Role::Relay(Relay { other: Some(other), ended, ..relay });
            }
            self.resume(key);
            self.mark_dirty(key);
        }
        if let Some(conn) = self.conns.get_mut(b) {
            conn.io.out().extend_from_slice(early);
        }
        if self.relay(a).is_some_and(|relay| relay.ended)
            && let Some(conn) = self.conns.get_mut(b)
        {
            conn.io.finish();
        }
    }

    /// A dialled connection stands that is to relay for `down`.
    pub(super) fn on_relay_dialled(&mut self, key: Key, down: Key) {
        if self.conns.get(down).is_none() {
            return self.remove(key);
        }
        let ended = self.relay(down).is_some_and(|relay| relay.ended);
        let now = self.now;
        self.note_callee(down, key);
        if let Some(conn) = self.conns.get_mut(key) {
            let relay = Relay::to_be_dialled(Vec::new(), now);
            conn.role = Role::Relay(Relay { other: Some(down), ..relay });
            if ended {
                conn.io.finish();
            }
        }
        self.mark_dirty(key);
        self.resume(down);
    }

    /// Bytes of `down` go to the dial already: they wait in its buffer.
    pub(super) fn attach_relay(&mut self, down: Key, up: Key) {
        let Some(relay) = self.relay(down) else { return };
        relay.other = Some(up);
        let early = std::mem::take(&mut relay.early);
        let ended = relay.ended;
        self.mark_line(down, |told| told.attempts += 1);
        if let Some(conn) = self.conns.get_mut(up) {
            conn.io.out().extend_from_slice(&early);
            if ended {
                conn.io.finish();
            }
        }
        self.mark_dirty(up);
    }

    /// Dials, without TLS, where `down` leads. False when that failed at once and `down` is gone.
    pub(super) fn dial_relayed(&mut self, down: Key, address: SocketAddr) -> bool {
        match self.dial_plain(address, Purpose::Relay(down)) {
            Ok(up) => {
                self.attach_relay(down, up);
                true
            }
            Err(cause) => {
                if cause.code.is_none() {
                    let until = self.now + self.config.timeouts.dial_backoff;
                    self.rest_relay(down, address, until);
                }
                let early = self.relay(down).map(|relay| std::mem::take(&mut relay.early));
                self.on_relay_dial_failed(down, early.unwrap_or_default(), &cause);
                self.relay(down).is_some_and(|relay| relay.other.is_some())
            }
        }
    }

    /// A dial for a relay failed, and nothing was delivered: another address is tried as long as
    /// there are tries left; then the caller's connection ends too.
    pub(super) fn on_relay_dial_failed(&mut self, down: Key, unsent: Vec<u8>, cause: &Cause) {
        let Some(conn) = self.conns.get_mut(down) else { return };
        let Role::Relay(relay) = &mut conn.role else { return };
        relay.other = None;
        relay.early = unsent;
        relay.failed_dials += 1;
        let again = relay.failed_dials < RELAY_DIALS;
        match (&conn.via, conn.raw_target.clone()) {
            (Some(ListenerKind::Gateway), _) if again => self.relay_elsewhere(down),
            (Some(ListenerKind::Tcp(_) | ListenerKind::Outbound), Some(service)) if again => {
                self.dispatch_tcp(down, service);
            }
            _ => {
                tracing::info!(reason = cause.reason, "TCP call failed");
                self.refuse_undialled(down, cause);
            }
        }
    }

    /// Counts a dial that failed at once; whether another address may be tried.
    pub(super) fn may_dial_again(&mut self, down: Key) -> bool {
        let Some(relay) = self.relay(down) else { return false };
        relay.failed_dials += 1;
        relay.failed_dials < RELAY_DIALS
    }

    fn refuse_undialled(&mut self, down: Key, cause: &Cause) {
        let via = self.conns.get(down).and_then(|conn| conn.via.as_ref());
        let is_app = via == Some(&ListenerKind::Inbound);
        let code = if is_app { ErrorCode::AppUnreachable } else { ErrorCode::Unreachable };
        self.refuse_relay(down, cause.code.unwrap_or(code));
    }

    /// Ends a connection that leads nowhere. A gateway's client is in a TLS handshake of which
    /// nothing was passed on, so it can still be told.
    pub(super) fn refuse_relay(&mut self, down: Key, code: ErrorCode) {
        let Some(conn) = self.conns.get_mut(down) else { return };
        if conn.via != Some(ListenerKind::Gateway) {
            return self.refuse_tcp(down, code);
        }
        self.metrics.faults.add(1);
        conn.io.out().extend_from_slice(&UPSTREAM_FAILED_RECORD);
        self.linger(down);
    }

    /// A mesh peer wants the app's bytes: only if that is what the app speaks.
    pub(super) fn open_app_tcp(&mut self, key: Key) -> bool {
        self.begin_line(key, Kind::Tcp, None);
        let Some(app) = self.config.app.filter(|app| app.protocol == AppProtocol::Tcp) else {
            self.metrics.faults.add(1);
            self.fail_line(key, ErrorCode::NotTcp);
            self.remove(key);
            return false;
        };
        if !self.admit_tcp(key) {
            return false;
        }
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
        self.dial_relayed(key, app.address)
    }

    /// A 101: passes it on, and from here on bytes.
    pub(super) fn leave_http(&mut self, up: Key, exchange: Key, head: &ResponseHead, rest: &[u8]) {
        let Some(state) = self.exchanges.get(exchange) else { return self.remove(up) };
        let (down, protocol) = (
            state.down.conn,
            state.head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or_default(),
        );
        let protocol = head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or(protocol);
        let upgraded = (state.via == ListenerKind::Inbound).then(|| Upgraded::new(&state.head));
        let origin = ResponseOrigin::of(state);
        let mut head = head.clone();
        self.hear_of_way(exchange, &head);
        headers::response(&mut head, origin);
        self.tell_way(exchange, &mut head, None);
        let Some(conn) = self.conns.get_mut(down) else { return self.remove(up) };
        let Role::Http1Server(server) = &mut conn.role else { return self.remove(up) };
        let early = std::mem::take(&mut server.input);
        conn.upgraded = upgraded;
        let options = h1::ResponseOptions {
            connection: h1::Connection::Upgrade(&protocol),
            ..h1::ResponseOptions::default()
        };
        h1::write_response(conn.io.out(), &head, h1::BodyLength::None, &options);
        conn.io.out().extend_from_slice(rest);
        self.exchange_left_http(exchange);
        self.mark_line(down, |told| {
            told.request_bytes += early.len() as u64;
            told.response_bytes += rest.len() as u64;
        });
        self.join(down, up, &early);
        // Policies may have changed while the app was asked.
        self.judge_relay_again(down);
    }
}
