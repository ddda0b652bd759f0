//! What only time can tell: handshakes, heads, responses and idle connections that took too
//! long, certificates that end, the drain.

use std::time::{Duration, SystemTime};

use tollway_http::h2::ErrorCode;
use tollway_identity::PeerIdentity;
use tollway_net::Key;
use tollway_routing::Failure;

use super::dial::DialFailure;
use super::exchange::describe;
use super::{Worker, mark};
use crate::connection::{Connection, Door, Role};
use crate::exchange::Upstream;
use crate::fault::Fault;

/// Longest time before the end of a peer's certificate at which its connection is given up.
const CERTIFICATE_MARGIN: Duration = Duration::from_secs(60);

/// Streams that were on their way when the end of a connection was announced are taken for this
/// long.
const GOAWAY_GRACE: Duration = Duration::from_secs(1);

/// What has run out for a connection.
enum Expired {
    No,
    /// Close without a word.
    Close,
    /// Close both sides of a relay.
    Relay,
    /// A head did not come in time.
    Head,
    /// A dial took too long.
    Dial,
    /// Finish what is under way, then close.
    Retire,
    /// The codec's own clock.
    Codec(String),
}

impl Worker {
    pub(super) fn sweep(&mut self) {
        self.resume_accepting();
        self.sweep_connections();
        self.sweep_exchanges();
        self.sweep_pools();
        self.release_held_credit();
        self.sweep_drain();
    }

    fn sweep_connections(&mut self) {
        let wall = SystemTime::now();
        for key in self.conns.keys() {
            match self.expired(key, wall) {
                Expired::No => {}
                Expired::Close => {
                    self.leave_pool(key);
                    self.remove(key);
                }
                Expired::Relay => self.on_relay_failed(key),
                Expired::Head => {
                    self.refuse_h1(key, 408, "the head of the request did not come in time");
                }
                Expired::Dial => self.on_dial_failed(key, &DialFailure::Late),
                Expired::Retire => self.retire_link(key),
                Expired::Codec(reason) => self.on_h2_over(key, &reason),
            }
        }
    }

    fn expired(&mut self, key: Key, wall: SystemTime) -> Expired {
        let (now, clock, timeouts) = (self.now, self.clock(), self.config.timeouts);
        let Some(conn) = self.conns.get_mut(key) else { return Expired::No };
        let waited = now.saturating_duration_since(conn.since);
        let certificate_ended = conn.peer.as_ref().is_some_and(|peer| ends_soon(peer, wall));
        match &mut conn.role {
            Role::Accepting if waited > timeouts.handshake => Expired::Close,
            Role::Hello(_) | Role::Detect { .. } if waited > timeouts.head => Expired::Close,
            Role::Lingering if waited > timeouts.linger => Expired::Close,
            Role::Dialling(_) if waited > timeouts.connect => Expired::Dial,
            Role::H1Server(server) => {
                conn.draining |= certificate_ended;
                if server.in_head && waited > timeouts.head {
                    Expired::Head
                } else if server.exchange.is_none()
                    && !server.in_head
                    && (waited > timeouts.downstream_idle || conn.draining)
                {
                    Expired::Close
                } else {
                    Expired::No
                }
            }
            Role::H1Client(client) => {
                let idle = client.exchange.is_none() && waited > timeouts.app_idle;
                if idle { Expired::Close } else { Expired::No }
            }
            Role::H2Server(link) => {
                if let Err(error) = link.codec.tick(clock, conn.io.out()) {
                    return Expired::Codec(error.to_string());
                }
                let empty = link.streams.is_empty();
                let leaves = certificate_ended
                    || conn.draining
                    || (empty && waited > timeouts.downstream_idle);
                let retire = if link.goaway_at.is_some() { empty } else { leaves };
                if link.goaway_at.is_some_and(|at| now.saturating_duration_since(at) > GOAWAY_GRACE)
                {
                    // A peer that keeps a stream open must not open others for ever.
                    link.codec.goaway_final(conn.io.out());
                    mark(&mut self.dirty, &mut conn.dirty, key);
                }
                if retire { Expired::Retire } else { Expired::No }
            }
            Role::H2Client(link) => {
                if let Err(error) = link.codec.tick(clock, conn.io.out()) {
                    return Expired::Codec(error.to_string());
                }
                let idle = link.streams.is_empty() && waited > timeouts.mesh_idle;
                let done = conn.draining && link.streams.is_empty();
                if idle || done || (certificate_ended && !conn.draining) {
                    Expired::Retire
                } else {
                    Expired::No
                }
            }
            Role::Relay(relay) => {
                let idle = now.saturating_duration_since(relay.active);
                let dead = relay.other.is_none() && waited > timeouts.discovery;
                if idle > timeouts.stream_idle || dead { Expired::Relay } else { Expired::No }
            }
            Role::Accepting
            | Role::Hello(_)
            | Role::Detect { .. }
            | Role::Lingering
            | Role::Dialling(_) => Expired::No,
        }
    }

    /// Ends an HTTP/2 connection in order: GOAWAY, then, when its streams are done, the end.
    fn retire_link(&mut self, key: Key) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.draining = true;
        let over = match &mut conn.role {
            Role::H2Server(link) => {
                if link.goaway_at.is_none() {
                    link.goaway_at = Some(now);
                    link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
                    false
                } else {
                    link.codec.goaway_final(conn.io.out());
                    true
                }
            }
            Role::H2Client(link) => {
                let over = link.streams.is_empty();
                if over {
                    link.codec.goaway(ErrorCode::NO_ERROR, conn.io.out());
                }
                over
            }
            _ => false,
        };
        self.mark_dirty(key);
        self.on_link_draining(key);
        if over {
            self.linger(key);
        }
    }

    /// Asks callers over the mesh to take their next requests elsewhere.
    pub(super) fn retire_inbound(&mut self) {
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get(key) else { continue };
            let stays = conn.draining || conn.door != Some(Door::Inbound);
            if !stays && matches!(conn.role, Role::H2Server(_)) {
                self.retire_link(key);
            }
        }
    }

    fn sweep_exchanges(&mut self) {
        let timeouts = self.config.timeouts;
        let mut late = Vec::new();
        let mut silent = Vec::new();
        let mut unconnected = Vec::new();
        for (key, exchange) in self.exchanges.iter() {
            let quiet = self.now.saturating_duration_since(exchange.active);
            let answered = exchange.responding;
            if exchange.request.finished && !answered && quiet > timeouts.request {
                late.push(key);
            } else if quiet > timeouts.stream_idle {
                silent.push(key);
            } else if exchange.up == Upstream::Waiting
                && quiet > timeouts.discovery + timeouts.connect
            {
                unconnected.push(key);
            }
        }
        for key in late {
            self.cancel_upstream(key);
            self.on_attempt_failed(key, Failure::TimedOut, "");
        }
        for key in silent {
            self.end_silent(key);
        }
        for key in unconnected {
            self.give_up_waiting(key);
        }
    }

    fn give_up_waiting(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let peer = describe(&exchange.destination);
        let reason = "no connection could be made in time".to_owned();
        self.fail(key, &Fault::Unreachable { peer, reason });
    }

    /// Neither side has sent a byte for too long: tells the caller if that is still possible.
    fn end_silent(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        if exchange.responding {
            self.cancel_upstream(key);
            return self.abort_down(key, ErrorCode::CANCEL);
        }
        let seconds = self.config.timeouts.stream_idle.as_secs();
        let fault = if exchange.request.ended || !exchange.request.is_empty() {
            Fault::TimedOut { peer: describe(&exchange.destination), seconds }
        } else {
            Fault::BodyTimedOut { seconds }
        };
        self.fail(key, &fault);
    }

    /// Gives back the connection credit held while the thread held too much.
    fn release_held_credit(&mut self) {
        if self.held_bytes > self.config.limits.held_bytes {
            return;
        }
        for key in self.conns.keys() {
            if self.conns.get(key).is_some_and(has_held_credit) {
                self.repay_connection(key, 0);
            }
        }
    }

    /// Told to end: the listeners close, idle connections end, busy ones end when they are done.
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
            conn.draining |= !is_upstream(&conn.role);
            if conn.leads_to_control {
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

/// Whether a peer's certificate is in the last twentieth of its life, at most a minute: time to
/// dial again while requests under way finish.
fn ends_soon(peer: &PeerIdentity, now: SystemTime) -> bool {
    let life = peer.not_after.duration_since(peer.not_before).unwrap_or_default();
    let margin = (life / 20).min(CERTIFICATE_MARGIN);
    now.checked_add(margin).is_none_or(|soon| peer.not_after <= soon)
}

fn has_held_credit(conn: &Connection) -> bool {
    match &conn.role {
        Role::H2Server(link) | Role::H2Client(link) => link.held_credit > 0,
        _ => false,
    }
}

/// Whether a connection carries requests onward: those that still come need it to the last.
fn is_upstream(role: &Role) -> bool {
    match role {
        Role::H1Client(_) | Role::H2Client(_) | Role::Dialling(_) => true,
        Role::H1Server(_)
        | Role::H2Server(_)
        | Role::Relay(_)
        | Role::Hello(_)
        | Role::Detect { .. }
        | Role::Accepting
        | Role::Lingering => false,
    }
}

/// Whether a connection need not be waited for at the end.
fn is_expendable(conn: &Connection) -> bool {
    match &conn.role {
        Role::H2Client(link) => link.streams.is_empty(),
        Role::H1Client(client) => client.exchange.is_none(),
        Role::Dialling(_) | Role::Hello(_) | Role::Detect { .. } | Role::Accepting => true,
        Role::Lingering => conn.io.pending() == 0,
        Role::H1Server(_) | Role::H2Server(_) | Role::Relay(_) => false,
    }
}
