//! Signs of life: a mesh connection on which a request waits and nothing comes is asked for one
//! (HTTP/2 PING), which its sidecar gives however slow the app is. Where none comes, something on
//! the way stands still or loses everything: new requests go elsewhere, and so do those under way
//! that may be repeated; the others wait for it to go on, until it is given up.
//!
//! Requests cost nothing here: the sweep, which looks at every exchange once a second, asks. Time
//! is counted in rounds of the sweep, since a process that itself stood still has heard nothing.

use std::time::Duration;

use tollway_model::ErrorCode;
use tollway_net::Key;
use tollway_routing::Failure;

use super::{EventLoop, SWEEP};
use crate::cause::Cause;
use crate::conn::Role;
use crate::exchange::describe;
use crate::exchange::{Destination, Upstream};
use crate::exchange::{fail, retry};
use crate::protocol::http2;

/// Longest time between two questions, for exchanges that have waited long.
const RAREST: Duration = Duration::from_secs(15);
/// An exchange asks again after so much of the time that it has waited.
const SHARE: u32 = 4;

/// What is known of a connection that was asked.
enum Sign {
    /// It came, or is of no interest any more.
    Given,
    Awaited,
    /// It is late.
    Missing,
    /// It is so late that nobody waits for it.
    NoMore,
}

impl EventLoop {
    /// An exchange has waited on a connection for `quiet`: asks it for a sign of life if it has
    /// not given one lately. The peer's window is not the question, so bulk is left alone: it may
    /// have filled the way.
    pub(super) fn ask_for_life(&mut self, key: Key, quiet: Duration) {
        let pause = (quiet / SHARE).clamp(self.cx.config.timeouts.ping_after, RAREST);
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http2Client(link) = &mut conn.role else { return };
        let is_of_mesh = link.destination.as_ref().is_some_and(Destination::is_of_mesh);
        let silence = self.cx.now.saturating_duration_since(link.heard);
        if !is_of_mesh || link.asked.is_some() || silence < pause || link.is_apart() {
            return;
        }
        link.asked = Some(self.round);
        link.codec.ping(self.round.to_be_bytes(), conn.io.out());
        self.conns.mark_dirty(key);
        self.asked.push(key);
    }

    /// Looks at the connections that were asked.
    pub(super) fn sweep_asked(&mut self) {
        self.round += 1;
        for key in std::mem::take(&mut self.asked) {
            match self.sign(key) {
                Sign::Given => continue,
                Sign::Awaited => {}
                Sign::Missing => self.on_link_silent(key),
                Sign::NoMore => {
                    let seconds = self.cx.config.timeouts.silence.as_secs();
                    let reason = format!("the connection gave no sign of life for {seconds} s");
                    http2::on_over(
                        &mut self.cx,
                        &mut self.conns,
                        &mut self.exchanges,
                        key,
                        Cause::coded(ErrorCode::Silent, reason),
                    );
                    continue;
                }
            }
            self.asked.push(key);
        }
    }

    fn sign(&self, key: Key) -> Sign {
        let Some(Role::Http2Client(link)) = self.conns.get(key).map(|conn| &conn.role) else {
            return Sign::Given;
        };
        let Some(asked) = link.asked else { return Sign::Given };
        let rounds = u32::try_from(self.round - asked).unwrap_or(u32::MAX);
        let waited = SWEEP.saturating_mul(rounds);
        if waited > self.cx.config.timeouts.silence {
            Sign::NoMore
        } else if waited > self.cx.config.timeouts.ping_answer && !link.is_silent {
            Sign::Missing
        } else {
            Sign::Awaited
        }
    }

    /// A connection gives no sign of life: it is the last resort from now on.
    fn on_link_silent(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let (address, instance) =
            (conn.remote, conn.peer.as_ref().and_then(|p| p.instance.clone()));
        let Role::Http2Client(link) = &mut conn.role else { return };
        link.is_silent = true;
        let Some(destination) = link.destination.clone() else { return };
        let mut waiting: Vec<Key> = link.streams.values().copied().collect();
        waiting.sort_unstable();
        self.cx.metrics.connections_silent.add(1);
        if self.cx.log.should_log(format!("silent {destination:?} {address:?}"), self.cx.now) {
            let (peer, at) = (describe(&destination), address.map(|address| address.to_string()));
            let instance = instance.map(|instance| instance.to_string());
            tracing::warn!(peer, at, instance, "no sign of life; requests go elsewhere");
        }
        self.rest(&destination, address, self.cx.now + self.cx.config.timeouts.dial_backoff);
        self.keep_dialled(&destination);
        for exchange in waiting {
            self.move_elsewhere(exchange);
        }
    }

    /// Sends a request once more where that is harmless, and lets it wait on where it is not.
    fn move_elsewhere(&mut self, key: Key) {
        let waits = self.exchanges.get(key).is_some_and(|exchange| {
            !exchange.responding && matches!(exchange.up, Upstream::Open(_))
        });
        if waits && retry::may_retry(&self.exchanges, key, Failure::Silent) {
            fail::cancel_upstream(&mut self.cx, &mut self.conns, &mut self.exchanges, key);
            self.on_attempt_failed(key, Failure::Silent, "it gave no sign of life");
        }
    }

    /// A connection that was taken for dead speaks: it is one like others.
    pub(super) fn on_link_revived(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        let Role::Http2Client(link) = &conn.role else { return };
        let Some(destination) = link.destination.clone() else { return };
        self.serve_waiting(&destination);
        self.keep_dialled(&destination);
    }
}
