//! Requests to the runtime that were called off and that the runtime has not read yet. It is slower
//! than what sends it requests, and a request that is called off takes no stream any more. So
//! without a bound a caller that only calls off would have any number of them wait there, each with
//! its head, and others behind them.
//!
//! A PING behind a reset shows when the reset was read: the runtime answers in the order of the
//! frames. While too many are unread, requests wait on this side, where one that is called off is
//! removed.

use crate::conn::{ConnKey, Connection, Connections, Http2Link, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::Destination;
use crate::upstream::Upstreams;

/// Payload of the PINGs of this module. Those of `keepalive` have the number of a sweep.
const LOOKED: [u8; 8] = *b"backlog?";

/// Whether the limit of requests that were called off and are unread is reached.
pub(crate) fn is_full(cx: &Cx, upstreams: &Upstreams) -> bool {
    upstreams.backlog >= cx.config.limits.runtime_resets
}

/// A request to the runtime was called off on an open stream.
pub(crate) fn add(cx: &mut Cx, conns: &mut Connections, upstreams: &mut Upstreams, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some(link) = served_here(conn) else { return };
    link.called_off.later += 1;
    upstreams.backlog += 1;
    let is_full = upstreams.backlog == cx.config.limits.runtime_resets;
    cx.metrics.backpressure_pauses.add(u64::from(is_full));
    ask(conns, key);
}

/// Asks whether the runtime has read what was called off, unless that is asked already.
fn ask(conns: &mut Connections, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http2Client(link) = &mut conn.role else { return };
    let called_off = &mut link.called_off;
    if called_off.asked > 0 || called_off.later == 0 {
        return;
    }
    called_off.asked = std::mem::take(&mut called_off.later);
    link.codec.ping(LOOKED, conn.io.out());
    conns.mark_dirty(key);
}

/// A PING was answered.
pub(crate) fn on_ping_answered(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    payload: [u8; 8],
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some(link) = served_here(conn).filter(|_| payload == LOOKED) else { return };
    let read = std::mem::take(&mut link.called_off.asked);
    ask(conns, key);
    lessen(cx, upstreams, read);
}

/// So many of them have been read, or their connection is over.
pub(crate) fn lessen(cx: &mut Cx, upstreams: &mut Upstreams, by: usize) {
    let was_full = is_full(cx, upstreams);
    upstreams.backlog = upstreams.backlog.saturating_sub(by);
    if !was_full || is_full(cx, upstreams) {
        return;
    }
    for destination in [Destination::Api, Destination::Callback, Destination::Actors] {
        if upstreams.pools.get(&destination).is_some_and(|pool| !pool.waiting.is_empty()) {
            cx.effects.push(Effect::ServeWaiting(destination.clone()));
            cx.effects.push(Effect::Scale(destination.clone()));
        }
    }
}

/// The connection to the runtime, if this is one.
fn served_here(conn: &mut Connection) -> Option<&mut Http2Link> {
    match &mut conn.role {
        Role::Http2Client(link) if link.leads_to_runtime() => Some(link),
        _ => None,
    }
}
