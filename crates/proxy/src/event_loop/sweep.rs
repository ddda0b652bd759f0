//! The rounds made ten times a second: connections that are due, exchanges that took too long,
//! pools, held credit, the drain. What a round costs does not grow with idle connections.

use tollway_http::h2::ErrorCode;
use tollway_model::ErrorCode as Code;
use tollway_net::Key;
use tollway_routing::Failure;

use super::EventLoop;
use super::finish::describe;
use crate::connection::{Connection, ListenerKind, Role};
use crate::exchange::Upstream;
use crate::request_error::{RequestError, Within};

/// Rounds in which all exchanges are looked at once: about a second.
const EXCHANGE_ROUNDS: usize = 10;
/// Exchanges looked at in a round however few there are.
const EXCHANGES_AT_LEAST: usize = 256;
/// Rounds after which memory of a peak that is over is given back: five seconds.
const GIVE_BACK_ROUNDS: u64 = 50;
/// So much less than at the peak is in use where it is over.
const GIVE_BACK_BYTES: usize = 8 << 20;
/// About what a connection or an exchange takes besides the bytes that wait.
const PLACE_BYTES: usize = 16 << 10;

/// The most memory that was in use: since it was given back, and lately.
#[derive(Default)]
pub(super) struct Peak {
    highest: usize,
    lately: usize,
}

impl Peak {
    fn note(&mut self, bytes: usize) {
        self.lately = self.lately.max(bytes);
    }

    /// Whether much less was in use all the time since this was asked last.
    fn is_over(&mut self) -> bool {
        let lately = std::mem::take(&mut self.lately);
        let is_over = self.highest.saturating_sub(lately) > GIVE_BACK_BYTES;
        self.highest = if is_over { lately } else { self.highest.max(lately) };
        is_over
    }
}

impl EventLoop {
    pub(super) fn sweep(&mut self) {
        self.resume_accepting();
        self.sweep_connections();
        self.sweep_exchanges();
        self.sweep_asked();
        self.sweep_pools();
        self.metrics.waiting_bytes.set(self.buffered_bytes as u64);
        self.sweep_held();
        self.release_held_credit();
        self.sweep_drain();
        self.serve_late();
        self.give_memory_back();
    }

    fn give_memory_back(&mut self) {
        let places = self.conns.len() + self.exchanges.len();
        self.peak.note(self.buffered_bytes + places * PLACE_BYTES);
        if self.round.is_multiple_of(GIVE_BACK_ROUNDS)
            && (self.conns.shrink() | self.exchanges.shrink() | self.peak.is_over())
        {
            tollway_net::let_free_memory_go();
        }
    }

    /// Ends an HTTP/2 connection in order: GOAWAY, then, when its streams are done, the end.
    pub(super) fn retire_link(&mut self, key: Key) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.draining = true;
        let over = match &mut conn.role {
            Role::Http2Server(link) => {
                if link.goaway_at.is_none() {
                    link.goaway_at = Some(now);
                    link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
                    false
                } else {
                    link.codec.goaway_final(conn.io.out());
                    true
                }
            }
            Role::Http2Client(link) => {
                let over = link.streams.is_empty();
                if over {
                    link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
                }
                over
            }
            _ => false,
        };
        self.mark_dirty(key);
        self.look_in_time(key);
        self.on_link_draining(key);
        if over {
            self.linger(key);
        }
    }

    /// Asks callers over the mesh to take their next requests elsewhere.
    pub(super) fn retire_inbound(&mut self) {
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get(key) else { continue };
            let stays = conn.draining || conn.via != Some(ListenerKind::Inbound);
            if !stays && matches!(conn.role, Role::Http2Server(_)) {
                self.retire_link(key);
            }
        }
    }

    fn sweep_exchanges(&mut self) {
        let timeouts = self.config.timeouts;
        let mut expired = Vec::new();
        let mut late = Vec::new();
        let mut silent = Vec::new();
        let mut unserved = Vec::new();
        let mut unconnected = Vec::new();
        let mut quiet_on = Vec::new();
        let part = (self.exchanges.places() / EXCHANGE_ROUNDS).max(EXCHANGES_AT_LEAST);
        let from = self.exchanges_swept;
        let to = from + part;
        self.exchanges_swept = if to < self.exchanges.places() { to } else { 0 };
        for (key, exchange) in self.exchanges.iter_places(from..to) {
            let quiet = self.now.saturating_duration_since(exchange.active);
            let answered = exchange.responding;
            if exchange.deadline.is_some_and(|deadline| self.now >= deadline) {
                expired.push(key);
            } else if exchange.request.finished && !answered && quiet > timeouts.request {
                late.push(key);
            } else if quiet > timeouts.stream_idle {
                silent.push(key);
            } else if exchange.up == Upstream::Slot && quiet > timeouts.request {
                unserved.push(key);
            } else if matches!(exchange.up, Upstream::Waiting | Upstream::FairQueue)
                && quiet > timeouts.discovery + timeouts.connect
            {
                unconnected.push(key);
            } else if let Upstream::Open(up) = exchange.up
                && quiet > timeouts.ping_after
            {
                quiet_on.push((up.conn, quiet));
            }
        }
        for key in expired {
            self.end_expired(key);
        }
        for key in late {
            self.cancel_upstream(key);
            self.on_attempt_failed(key, Failure::TimedOut, "");
        }
        for key in silent {
            self.end_silent(key);
        }
        for key in unserved {
            let limit = self.config.app_concurrency.unwrap_or_default();
            self.fail(
                key,
                &RequestError::Overloaded { what: "the list of requests at the app", limit },
            );
        }
        for key in unconnected {
            self.give_up_waiting(key);
        }
        for (conn, quiet) in quiet_on {
            self.ask_for_life(conn, quiet);
        }
    }

    /// The time that a caller of gRPC gave its call is over. It knows that by itself; where it does
    /// not act on it, or has not been heard of since, the app is not kept busy for it.
    fn end_expired(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if exchange.responding {
            return self.break_off(key);
        }
        let given = exchange.deadline.map(|deadline| deadline - exchange.started);
        let within = Within(given.unwrap_or_default());
        self.fail(key, &RequestError::TimedOut { peer: describe(&exchange.destination), within });
    }

    fn give_up_waiting(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if exchange.up == Upstream::FairQueue {
            let limit = self.config.limits.app_connections;
            let what = "the list of connections to the app";
            return self.fail(key, &RequestError::Overloaded { what, limit });
        }
        let destination = exchange.destination.clone();
        if let Some(silent) = self.choose_last_resort(&destination) {
            return self.send_request(key, silent);
        }
        let peer = describe(&destination);
        let reason = "no connection could be made in time".to_owned();
        let code = Code::Unreachable;
        self.fail(key, &RequestError::Unreachable { code, peer, reason });
    }

    /// Neither side has sent a byte for too long: tells the caller if that is still possible.
    fn end_silent(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if exchange.responding {
            return self.break_off(key);
        }
        let within = Within(self.config.timeouts.stream_idle);
        let error = if exchange.request.ended || !exchange.request.is_empty() {
            RequestError::TimedOut { peer: describe(&exchange.destination), within }
        } else {
            RequestError::BodyTimedOut { within }
        };
        self.fail(key, &error);
    }

    /// Time is over for an answer that has begun.
    fn break_off(&mut self, key: Key) {
        self.metrics.faults.add(1);
        self.cancel_upstream(key);
        self.abort_down(key, ErrorCode::CANCEL);
    }

    /// Gives back the connection credit held while the thread held too much.
    fn release_held_credit(&mut self) {
        if !self.holds_credit || self.buffered_bytes > self.config.limits.buffered_bytes {
            return;
        }
        self.holds_credit = false;
        for key in self.conns.keys() {
            if self.conns.get(key).is_some_and(has_held_credit) {
                self.repay_connection(key, 0);
            }
        }
    }

    /// LogLimiter to end: the listeners close, idle connections end, busy ones end when they are done.
    fn sweep_drain(&mut self) {
        let Some(since) = self.draining else { return };
        let waited = self.now.saturating_duration_since(since);
        if waited < self.config.timeouts.withdraw {
            return;
        }
        if !self.listeners.is_empty() {
            tracing::info!("draining: no new connections");
            self.listeners.clear();
        }
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let leads_to_control = conn.leads_to_control;
            if !conn.draining && !is_upstream(&conn.role) {
                conn.draining = true;
                self.look_in_time(key);
            }
            if leads_to_control {
                // It would not end by itself, and control planes come back where they can.
                self.on_relay_failed(key);
            }
        }
        if waited > self.config.timeouts.drain {
            let cut = self.exchanges.len();
            if cut > 0 {
                tracing::warn!(requests = cut, "drain time is over; requests are cut off");
            }
            for key in self.conns.keys() {
                self.remove(key);
            }
        }
    }

    /// Whether a drain has nothing left to wait for.
    pub(super) fn is_drained(&self) -> bool {
        let Some(since) = self.draining else { return false };
        let waited = self.now.saturating_duration_since(since);
        waited >= self.config.timeouts.withdraw
            && self.listeners.is_empty()
            && self.conns.iter().all(|(_, conn)| is_expendable(conn))
    }
}

fn has_held_credit(conn: &Connection) -> bool {
    match &conn.role {
        Role::Http2Server(link) | Role::Http2Client(link) => link.held_credit > 0,
        _ => false,
    }
}

/// Whether a connection carries requests onward: those that still come need it to the last.
fn is_upstream(role: &Role) -> bool {
    match role {
        Role::Http1Client(_) | Role::Http2Client(_) | Role::Dialling(_) => true,
        Role::Http1Server(_)
        | Role::Http2Server(_)
        | Role::Relay(_)
        | Role::Hello(_)
        | Role::Detect { .. }
        | Role::Accepting
        | Role::Lingering(_) => false,
    }
}

/// Whether a connection need not be waited for at the end.
fn is_expendable(conn: &Connection) -> bool {
    match &conn.role {
        Role::Http2Client(link) => link.streams.is_empty(),
        Role::Http1Client(client) => client.exchange.is_none(),
        Role::Dialling(_) | Role::Hello(_) | Role::Detect { .. } | Role::Accepting => true,
        Role::Lingering(_) => conn.io.pending() == 0,
        Role::Http1Server(_) | Role::Http2Server(_) | Role::Relay(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_over_once_when_much_less_was_in_use_for_a_while() {
        let mut peak = Peak::default();
        let mut was_in_use = |most: usize| {
            peak.note(most);
            peak.note(most / 2);
            peak.is_over()
        };
        let large = 2 * GIVE_BACK_BYTES;
        assert!(!was_in_use(1000), "nothing was");
        assert!(!was_in_use(large), "it grows");
        assert!(!was_in_use(large - GIVE_BACK_BYTES / 2), "it is much still");
        assert!(was_in_use(1000));
        assert!(!was_in_use(0), "it was given back");
    }
}
