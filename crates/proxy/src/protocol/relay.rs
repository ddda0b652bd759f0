//! Raw bytes between two connections: plain TCP, upgraded HTTP, CONNECT, gateways.

use std::time::Duration;

use tollway_http::{ResponseHead, h1};
use tollway_identity::UPSTREAM_FAILED_RECORD;
use tollway_model::ErrorCode;

use crate::cause::Cause;
use crate::conn::{ConnKey, Connection, Connections, ListenerKind, Relay, Role, access_log};
use crate::cx::{Cx, Effect};
use crate::exchange::{ExchangeKey, Exchanges, finish, trace};
use crate::headers::{self, ResponseOrigin};
use crate::inbound::Upgraded;

/// Addresses that are dialled for one relayed connection before it is given up.
const RELAY_DIALS: u32 = 3;
/// The same for one to a service in any network, where whole networks may be away.
const ANY_NETWORK_DIALS: u32 = 16;
/// A callee that has not answered a caller who waited so long stands still.
const UNANSWERED: Duration = Duration::from_secs(1);

pub(crate) fn on_bytes(cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let Some(other) = touch(cx, conns, key, data.len()) else {
        let Some(relay) = relay(conns, key) else { return };
        relay.early.extend_from_slice(data);
        if relay.refusal.take().is_some() {
            cx.effects.push(Effect::DispatchRaw(key));
        }
        if relay.is_held {
            cx.effects.push(Effect::HeldBytes(key));
        }
        let is_full = relay.early.len() >= cx.config.limits.pipe_bytes;
        return pause_if(is_full, conns, key);
    };
    cx.metrics.relayed_bytes.add(data.len() as u64);
    let Some(conn) = conns.get_mut(other) else { return };
    conn.io.out().extend_from_slice(data);
    if let Some(entry) = &mut conn.access_log {
        entry.response_bytes += data.len() as u64;
    }
    let full = conn.io.pending() >= cx.config.limits.out_bytes;
    conns.mark_dirty(other);
    pause_if(full, conns, key);
}

/// Reads no more from a connection until its other side has room again.
pub(crate) fn pause_if(is_full: bool, conns: &mut Connections, key: ConnKey) {
    if is_full && let Some(conn) = conns.get_mut(key) {
        conn.paused = true;
    }
}

/// Bytes in either direction keep both sides alive. Gives the other side, if there is one.
fn touch(cx: &mut Cx, conns: &mut Connections, key: ConnKey, bytes: usize) -> Option<ConnKey> {
    let now = cx.now;
    let conn = conns.get_mut(key)?;
    if let Some(entry) = &mut conn.access_log {
        entry.request_bytes += bytes as u64;
    }
    let Role::Relay(side) = &mut conn.role else { return None };
    (side.active, side.heard) = (now, now);
    side.has_spoken = true;
    let other = side.other.filter(|_| !side.is_held)?;
    if let Some(relay) = relay(conns, other) {
        relay.active = now;
    }
    Some(other)
}

/// The relay that a connection is, if it is one.
pub(crate) fn relay(conns: &mut Connections, key: ConnKey) -> Option<&mut Relay> {
    match &mut conns.get_mut(key)?.role {
        Role::Relay(relay) => Some(relay),
        _ => None,
    }
}

/// Whether a connection carries bytes for a service in any network.
pub(crate) fn is_of_any_network(conns: &Connections, key: ConnKey) -> bool {
    let role = conns.get(key).map(|conn| &conn.role);
    matches!(role, Some(Role::Relay(relay)) if relay.network.is_some())
}

/// A flushed connection has room: its source may be read again.
pub(crate) fn on_room(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(Relay { other: Some(other), .. }) = relay(conns, key) else { return };
    let other = *other;
    if conns.get(other).is_some_and(|conn| conn.paused) {
        conns.resume(other);
    }
    close_if_over(cx, conns, key);
}

pub(crate) fn on_closed(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    back_off_if_unanswered(cx, conns, key);
    let Some(relay) = relay(conns, key) else { return };
    relay.ended = true;
    if relay.is_held {
        return cx.effects.push(Effect::HeldBytes(key));
    }
    let Some(other) = relay.other else { return };
    if let Some(conn) = conns.get_mut(other) {
        conn.io.finish();
    }
    conns.mark_dirty(other);
    close_if_over(cx, conns, key);
}

/// Both directions have ended and been sent.
fn close_if_over(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let Some(Relay { other: Some(other), .. }) = relay(conns, key) else { return };
    let other = *other;
    let over = |conn: Option<&Connection>| {
        conn.is_none_or(|conn| conn.io.is_finished() && conn.io.read_ended())
    };
    if over(conns.get(key)) && over(conns.get(other)) {
        conns.close(cx, key);
        conns.close(cx, other);
    }
}

/// One side broke, or nothing has gone either way for too long: both end with a reset. The end
/// of what was sent in order would not get by bytes that the peer does not take.
pub(crate) fn on_failed(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    back_off_if_unanswered(cx, conns, key);
    let other = relay(conns, key).and_then(|relay| relay.other);
    access_log::note_break(conns, key, other);
    let Some(other) = other else { return conns.close(cx, key) };
    for side in [key, other] {
        if let Some(conn) = conns.get_mut(side) {
            conn.io.abort_on_close();
        }
        conns.close(cx, side);
    }
}

/// A gateway's caller gives up, and the address that it is relayed to has sent no byte: an address
/// that accepts connections and does not answer is passed over, for as long as a dial may take.
fn back_off_if_unanswered(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let (now, backoff) = (cx.now, cx.config.timeouts.connect);
    let Some(conn) = conns.get(key) else { return };
    let Some((target, address)) = &conn.relays_to else { return };
    let Role::Relay(Relay { other: Some(other), .. }) = &conn.role else { return };
    let Some(other) = conns.get(*other) else { return };
    let waited = now.saturating_duration_since(other.since);
    let is_mute = matches!(&other.role, Role::Relay(relay) if !relay.has_spoken);
    if is_mute && waited > UNANSWERED {
        let (target, address) = (target.clone(), *address);
        cx.effects.push(Effect::BackOffRelay { target, address, until: now + backoff });
    }
}

/// Makes two connections relay to each other; `early` goes to `b` first.
fn join(cx: &mut Cx, conns: &mut Connections, a: ConnKey, b: ConnKey, early: &[u8]) {
    let now = cx.now;
    for (key, other) in [(a, b), (b, a)] {
        let Some(conn) = conns.get_mut(key) else { continue };
        let ended = conn.io.read_ended();
        if !matches!(conn.role, Role::Dialling(_)) {
            let relay = Relay::to_be_dialled(Vec::new(), now);
            conn.role = Role::Relay(Relay { other: Some(other), ended, ..relay });
        }
        conns.resume(key);
        conns.mark_dirty(key);
    }
    if let Some(conn) = conns.get_mut(b) {
        conn.io.out().extend_from_slice(early);
    }
    if relay(conns, a).is_some_and(|relay| relay.ended)
        && let Some(conn) = conns.get_mut(b)
    {
        conn.io.finish();
    }
}

/// A dialled connection stands that is to relay for `down`.
pub(crate) fn on_dialled(cx: &mut Cx, conns: &mut Connections, key: ConnKey, down: ConnKey) {
    if conns.get(down).is_none() {
        return conns.close(cx, key);
    }
    let ended = relay(conns, down).is_some_and(|relay| relay.ended && !relay.is_held);
    let now = cx.now;
    access_log::note_callee(cx, conns, down, key);
    if let Some(conn) = conns.get_mut(key) {
        let relay = Relay::to_be_dialled(Vec::new(), now);
        conn.role = Role::Relay(Relay { other: Some(down), ..relay });
        if ended {
            conn.io.finish();
        }
    }
    conns.mark_dirty(key);
    conns.resume(down);
    if relay(conns, down).is_some_and(|relay| relay.is_held) {
        cx.effects.push(Effect::HeldBytes(down));
    }
}

/// Bytes of `down` go to the dial already: they wait in its buffer.
pub(crate) fn attach(conns: &mut Connections, down: ConnKey, up: ConnKey) {
    let Some(relay) = relay(conns, down) else { return };
    relay.other = Some(up);
    let is_held = relay.is_held;
    let early = if is_held { Vec::new() } else { std::mem::take(&mut relay.early) };
    let ended = relay.ended && !is_held;
    access_log::mark_line(conns, down, |entry| entry.attempts += 1);
    if let Some(conn) = conns.get_mut(up) {
        conn.io.out().extend_from_slice(&early);
        if ended {
            conn.io.finish();
        }
    }
    conns.mark_dirty(up);
}

/// What has come of `down` goes to its other side.
pub(crate) fn pass_early(conns: &mut Connections, down: ConnKey, up: ConnKey) {
    let Some(relay) = relay(conns, down) else { return };
    let early = std::mem::take(&mut relay.early);
    let ended = relay.ended;
    if let Some(conn) = conns.get_mut(up) {
        conn.io.out().extend_from_slice(&early);
        if ended {
            conn.io.finish();
        }
    }
    conns.mark_dirty(up);
    conns.resume(down);
}

/// The first `count` bytes of those of `down` that are held go to its other side.
pub(crate) fn pass_held(
    cx: &mut Cx,
    conns: &mut Connections,
    down: ConnKey,
    up: ConnKey,
    count: usize,
) {
    let Some(side) = relay(conns, down) else { return };
    let rest = side.early.split_off(count);
    let passed = std::mem::replace(&mut side.early, rest);
    let ended = side.ended;
    cx.metrics.relayed_bytes.add(passed.len() as u64);
    if let Some(relay) = relay(conns, up) {
        relay.active = cx.now;
    }
    let Some(conn) = conns.get_mut(up) else { return };
    conn.io.out().extend_from_slice(&passed);
    let is_full = conn.io.pending() >= cx.config.limits.out_bytes;
    if ended {
        // What is still held is the beginning of a request without its end.
        conn.io.finish();
    }
    conns.mark_dirty(up);
    match is_full {
        true => pause_if(true, conns, down),
        false => conns.resume(down),
    }
    if ended {
        close_if_over(cx, conns, down);
    }
}

/// Counts a dial that failed at once; whether another address may be tried.
pub(crate) fn may_dial_again(conns: &mut Connections, down: ConnKey) -> bool {
    let Some(relay) = relay(conns, down) else { return false };
    relay.note_failed_dial()
}

impl Relay {
    /// Counts a dial that failed; whether another address may be tried.
    pub(crate) fn note_failed_dial(&mut self) -> bool {
        self.failed_dials += 1;
        let is_in_any = self.network.is_some();
        self.failed_dials < if is_in_any { ANY_NETWORK_DIALS } else { RELAY_DIALS }
    }
}

/// Refuses a relay that could not be dialled.
pub(crate) fn refuse_undialled(cx: &mut Cx, conns: &mut Connections, down: ConnKey, cause: &Cause) {
    let via = conns.get(down).and_then(|conn| conn.via.as_ref());
    let is_app = via == Some(&ListenerKind::Inbound);
    let code = if is_app { ErrorCode::AppUnreachable } else { ErrorCode::Unreachable };
    refuse(cx, conns, down, cause.code.unwrap_or(code));
}

/// Ends a connection that leads nowhere. A gateway's client is in a TLS handshake of which
/// nothing was passed on, so an alert can still be sent.
pub(crate) fn refuse(cx: &mut Cx, conns: &mut Connections, down: ConnKey, code: ErrorCode) {
    let Some(conn) = conns.get_mut(down) else { return };
    if !conn.via.as_ref().is_some_and(ListenerKind::is_gateway) {
        return refuse_tcp(cx, conns, down, code);
    }
    cx.metrics.request_failures.add(1);
    conn.io.out().extend_from_slice(&UPSTREAM_FAILED_RECORD);
    conns.linger(cx, down);
}

/// A 101: passes it on, and from here on bytes.
pub(crate) fn leave_http(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    up: ConnKey,
    exchange: ExchangeKey,
    head: &ResponseHead,
    rest: &[u8],
) {
    let Some(state) = exchanges.get(exchange) else {
        return conns.close(cx, up);
    };
    let (down, protocol) = (
        state.down.conn,
        state.head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or_default(),
    );
    let protocol = head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or(protocol);
    let upgraded = (state.via == ListenerKind::Inbound).then(|| Upgraded::new(&state.head));
    let origin = ResponseOrigin::of(state);
    let mut head = head.clone();
    trace::take_callee_trace(exchanges, exchange, &head);
    headers::response(&mut head, origin);
    trace::add_call_trace(cx, exchanges, exchange, &mut head, None);
    let Some(conn) = conns.get_mut(down) else {
        return conns.close(cx, up);
    };
    let Role::Http1Server(server) = &mut conn.role else {
        return conns.close(cx, up);
    };
    let early = std::mem::take(&mut server.input);
    conn.upgraded = upgraded;
    let options = h1::ResponseOptions {
        connection: h1::Connection::Upgrade(&protocol),
        ..h1::ResponseOptions::default()
    };
    h1::write_response(conn.io.out(), &head, h1::BodyLength::None, &options);
    conn.io.out().extend_from_slice(rest);
    finish::exchange_left_http(cx, conns, exchanges, exchange);
    access_log::mark_line(conns, down, |entry| {
        entry.request_bytes += early.len() as u64;
        entry.response_bytes += rest.len() as u64;
    });
    join(cx, conns, down, up, &early);
    // Policies may have changed while the app was asked.
    cx.effects.push(Effect::JudgeRelay(down));
}

/// Ends a TCP connection by a reset: plain TCP has no other way to report an error.
pub(crate) fn refuse_tcp(cx: &mut Cx, conns: &mut Connections, down: ConnKey, code: ErrorCode) {
    cx.metrics.request_failures.add(1);
    access_log::mark_line(conns, down, |entry| {
        // What had come was not passed on.
        entry.request_bytes = 0;
        entry.fail(code);
    });
    if let Some(conn) = conns.get_mut(down) {
        conn.io.abort_on_close();
    }
    conns.close(cx, down);
}
