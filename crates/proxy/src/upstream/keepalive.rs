//! Signs of life: a mesh connection on which a request waits and nothing comes is asked for one
//! (HTTP/2 PING), which its sidecar gives however slow the app is. Where none comes, something on
//! the way stands still or loses everything: new requests go elsewhere, and so do those under way
//! that may be repeated; the others wait for it to go on, until it is given up.
//!
//! Requests cost nothing here: the sweep, which looks at every exchange once a second, asks. Time
//! is counted in rounds of the sweep, since a process that itself stood still has received nothing.

use std::time::Duration;
use tollway_model::ErrorCode;
use tollway_routing::Failure;

use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, Role, SWEEP};
use crate::cx::{Cx, Effect};
use crate::exchange::ExchangeKey;
use crate::exchange::{Destination, Exchanges, UpstreamState, describe, fail};
use crate::protocol::http2;
use crate::upstream::{Upstreams, pools};

/// Longest time between two questions, for exchanges that have waited long.
const RAREST: Duration = Duration::from_secs(15);
/// An exchange asks again after so much of the time that it has waited.
const SHARE: u32 = 4;

/// The upstreams that were asked whether they still answer.
#[derive(Default)]
pub(crate) struct Keepalive {
    /// Sweeps made.
    round: u64,
    /// Connections that were sent a PING and have not answered.
    asked: Vec<ConnKey>,
}

/// State of a connection that was sent a PING.
enum PingState {
    /// The answer came, or does not matter any more.
    Answered,
    Pending,
    /// The answer is late: requests go elsewhere.
    Late,
    /// The answer is so late that the connection is closed.
    Dead,
}

/// Sends a PING on a connection on which an exchange has waited for `quiet`, unless it has received
/// something lately. A connection with bulk is left alone, since bulk may fill the path.
pub(crate) fn probe(
    cx: &mut Cx,
    conns: &mut Connections,
    keepalive: &mut Keepalive,
    key: ConnKey,
    quiet: Duration,
) {
    let pause = (quiet / SHARE).clamp(cx.config.timeouts.ping_after, RAREST);
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http2Client(link) = &mut conn.role else { return };
    let is_of_mesh = link.destination.as_ref().is_some_and(Destination::is_of_mesh);
    let silence = cx.now.saturating_duration_since(link.received);
    if !is_of_mesh || link.asked.is_some() || silence < pause || link.carries_bulk() {
        return;
    }
    link.asked = Some(keepalive.round);
    link.codec.ping(keepalive.round.to_be_bytes(), conn.io.out());
    conns.mark_dirty(key);
    keepalive.asked.push(key);
}

/// Looks at the connections that were asked.
pub(crate) fn sweep(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    keepalive: &mut Keepalive,
) {
    keepalive.round += 1;
    for key in std::mem::take(&mut keepalive.asked) {
        match sign(cx, conns, keepalive, key) {
            PingState::Answered => continue,
            PingState::Pending => {}
            PingState::Late => on_silent(cx, conns, exchanges, upstreams, key),
            PingState::Dead => {
                let seconds = cx.config.timeouts.silence.as_secs();
                let reason = format!("the connection gave no sign of life for {seconds} s");
                http2::on_over(cx, conns, exchanges, key, Cause::coded(ErrorCode::Silent, reason));
                continue;
            }
        }
        keepalive.asked.push(key);
    }
}

fn sign(cx: &Cx, conns: &Connections, keepalive: &mut Keepalive, key: ConnKey) -> PingState {
    let Some(Role::Http2Client(link)) = conns.get(key).map(|conn| &conn.role) else {
        return PingState::Answered;
    };
    let Some(asked) = link.asked else { return PingState::Answered };
    let rounds = u32::try_from(keepalive.round - asked).unwrap_or(u32::MAX);
    let waited = SWEEP.saturating_mul(rounds);
    if waited > cx.config.timeouts.silence {
        PingState::Dead
    } else if waited > cx.config.timeouts.ping_answer && !link.is_silent {
        PingState::Late
    } else {
        PingState::Pending
    }
}

/// A connection gives no sign of life: it is the last resort from now on.
fn on_silent(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let (address, instance) = (conn.remote, conn.peer.as_ref().and_then(|p| p.instance.clone()));
    let Role::Http2Client(link) = &mut conn.role else { return };
    link.is_silent = true;
    let Some(destination) = link.destination.clone() else { return };
    let mut waiting: Vec<ExchangeKey> = link.streams.values().copied().collect();
    waiting.sort_unstable();
    cx.metrics.keepalive_timeouts.add(1);
    let subject = format!("{destination:?} {address:?}");
    if let Some(left_out) = cx.log.admit("silent", subject, cx.now) {
        let (peer, at) = (describe(&destination), address.map(|address| address.to_string()));
        let instance = instance.map(|instance| instance.to_string());
        tracing::warn!(peer, at, instance, left_out, "no sign of life; requests go elsewhere");
    }
    pools::back_off(cx, upstreams, &destination, address, cx.now + cx.config.timeouts.dial_backoff);
    cx.effects.push(Effect::Scale(destination.clone()));
    for exchange in waiting {
        move_elsewhere(cx, conns, exchanges, exchange);
    }
}

/// Sends a request once more where that is harmless, and lets it wait on where it is not.
fn move_elsewhere(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let may_move = exchanges.get(key).is_some_and(|exchange| {
        let waits = matches!(exchange.up, UpstreamState::Open(_)) && !exchange.has_response_begun();
        waits && exchange.may_retry(Failure::Silent)
    });
    if may_move {
        fail::cancel_upstream(cx, conns, exchanges, key);
        cx.effects.push(Effect::AttemptFailed {
            exchange: key,
            failure: Failure::Silent,
            cause: "it gave no sign of life".into(),
        });
    }
}

/// A connection that was taken for dead speaks: it is one like others.
pub(crate) fn on_revived(cx: &mut Cx, conns: &Connections, key: ConnKey) {
    let Some(conn) = conns.get(key) else { return };
    let Role::Http2Client(link) = &conn.role else { return };
    let Some(destination) = link.destination.clone() else { return };
    cx.effects.push(Effect::ServeWaiting(destination.clone()));
    cx.effects.push(Effect::Scale(destination));
}
