//! When a connection is looked at for what only time can tell, and what has run out for it then:
//! handshakes, heads and dials that took too long, idle connections, certificates that end.
//!
//! Every connection has one entry in a timer wheel, for the earliest time at which something may
//! run out. Traffic only moves that time away: the entry fires, finds that it came too soon, and
//! is set anew. So a connection costs nothing between two looks, and requests cost nothing at all.

use std::time::{Duration, Instant, SystemTime};

use tollway_model::ErrorCode;
use tollway_net::Key;

use super::dial::DialFailure;
use super::{EventLoop, SWEEP, mark};
use crate::connection::{Connection, Http2Link, Role};
use crate::limits::Timeouts;

/// Longest time between two looks at a connection: certificates end by the wall clock, which may
/// be set.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
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
    /// A TLS handshake did not end in time.
    Handshake,
    /// A gateway was not told a server name in time.
    Hello,
    /// Close both sides of a relay.
    Relay,
    /// A head did not come in time.
    Head,
    /// A dial took too long.
    Dial,
    /// Finish what is under way, then close.
    Retire,
    /// It is long enough since it carried bulk.
    Apart,
    /// The codec's own clock.
    Codec(String),
}

impl EventLoop {
    /// Looks at the connections that are due, and at nothing else.
    pub(super) fn sweep_connections(&mut self) {
        let mut due = Vec::new();
        self.looks.expire(self.now, &mut due);
        let wall = SystemTime::now();
        for key in due {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            // Entries stay in the wheel when an earlier one is set: only the earliest counts.
            if conn.look_at.is_none_or(|at| at > self.now) {
                continue;
            }
            conn.look_at = None;
            match self.expired(key, wall) {
                Expired::No => {}
                Expired::Close => {
                    self.leave_pool(key);
                    self.remove(key);
                }
                Expired::Relay => {
                    self.metrics.faults.add(1);
                    self.fail_line(key, ErrorCode::TimedOut);
                    self.on_relay_failed(key);
                }
                Expired::Handshake => self.refuse_slow_handshake(key),
                Expired::Hello => {
                    self.metrics.gateway_refused.add(1);
                    self.remove(key);
                }
                Expired::Head => self.refuse_slow_h1(key),
                Expired::Dial => self.on_dial_failed(key, &DialFailure::TimedOut),
                Expired::Retire => self.retire_link(key),
                Expired::Apart => self.end_apart(key),
                Expired::Codec(reason) => self.refuse_h2_connection(key, &reason),
            }
            self.look_in_time(key);
        }
    }

    /// Sees to it that a connection is looked at no later than what may run out for it. To be
    /// called when it enters a state with a shorter time than the one before.
    pub(super) fn look_in_time(&mut self, key: Key) {
        let clock = self.clock();
        let Some(conn) = self.conns.get_mut(key) else { return };
        let wait = next_look(conn, self.now, clock, &self.config.timeouts);
        let at = self.now + wait.clamp(SWEEP, LONGEST_LOOK);
        if conn.look_at.is_none_or(|earlier| at < earlier) {
            conn.look_at = Some(at);
            self.looks.set(at, key);
        }
    }

    /// The same for every connection: the times have changed.
    pub(super) fn look_at_all_in_time(&mut self) {
        for key in self.conns.keys() {
            self.look_in_time(key);
        }
    }

    /// The same for what an HTTP/2 peer began and did not finish; nearly free when there is
    /// nothing.
    pub(super) fn look_if_owed(&mut self, key: Key) {
        let Some(conn) = self.conns.get(key) else { return };
        let (Role::Http2Server(link) | Role::Http2Client(link)) = &conn.role else { return };
        if link.codec.deadline().is_some() {
            self.look_in_time(key);
        }
    }

    /// Bulk has ended: the connection is one like others, and one of them may be too many.
    fn end_apart(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http2Client(link) = &mut conn.role else { return };
        link.end_apart();
        if let Some(destination) = link.destination.clone() {
            self.keep_dialled(&destination);
        }
    }

    fn expired(&mut self, key: Key, wall: SystemTime) -> Expired {
        let (now, clock, timeouts) = (self.now, self.clock(), self.config.timeouts);
        let Some(conn) = self.conns.get_mut(key) else { return Expired::No };
        let waited = now.saturating_duration_since(conn.since);
        let certificate_ended = certificate_left(conn, wall).is_zero();
        let unread = unread_for(conn, &timeouts);
        match &mut conn.role {
            Role::Accepting if waited > timeouts.handshake => Expired::Handshake,
            Role::Hello(_) if waited > timeouts.head => Expired::Hello,
            Role::Detect { .. } if waited > timeouts.head => Expired::Close,
            Role::Lingering(began) => {
                let long = now.saturating_duration_since(*began);
                let is_over = match unread {
                    Some(limit) => long > limit,
                    None => waited > timeouts.linger || long > timeouts.linger_longest,
                };
                if is_over { Expired::Close } else { Expired::No }
            }
            Role::Dialling(_) if waited > timeouts.connect => Expired::Dial,
            Role::Http1Server(server) => {
                conn.draining |= certificate_ended;
                if server.in_head && waited > timeouts.head {
                    Expired::Head
                } else if server.exchange.is_none()
                    && !server.in_head
                    && (waited > unread.unwrap_or(timeouts.downstream_idle)
                        || (conn.draining && unread.is_none()))
                {
                    Expired::Close
                } else {
                    Expired::No
                }
            }
            Role::Http1Client(client) => {
                conn.draining |= certificate_ended;
                let limit = pooled_idle(conn.peer.is_some(), &timeouts);
                let over = conn.draining || waited > limit;
                if client.exchange.is_none() && over { Expired::Close } else { Expired::No }
            }
            Role::Http2Server(link) => {
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
            Role::Http2Client(link) => {
                if let Err(error) = link.codec.tick(clock, conn.io.out()) {
                    return Expired::Codec(error.to_string());
                }
                let idle = link.streams.is_empty() && waited > timeouts.mesh_idle;
                let done = conn.draining && link.streams.is_empty();
                if idle || done || (certificate_ended && !conn.draining) {
                    Expired::Retire
                } else if link.apart_for(now, timeouts.bulk_rest).is_some_and(|d| d.is_zero()) {
                    Expired::Apart
                } else {
                    Expired::No
                }
            }
            Role::Relay(relay) => {
                let idle = now.saturating_duration_since(relay.active);
                let dead = relay.other.is_none() && waited > timeouts.discovery;
                if idle > timeouts.stream_idle || dead { Expired::Relay } else { Expired::No }
            }
            Role::Accepting | Role::Hello(_) | Role::Detect { .. } | Role::Dialling(_) => {
                Expired::No
            }
        }
    }
}

/// How long a peer may take for what it is owed: a slow reader is neither idle nor gone. `None` if
/// it is owed nothing.
fn unread_for(conn: &Connection, timeouts: &Timeouts) -> Option<Duration> {
    (conn.io.pending() > 0).then_some(timeouts.stream_idle)
}

/// How long until something may run out for a connection that is left alone.
fn next_look(conn: &Connection, now: Instant, clock: Duration, timeouts: &Timeouts) -> Duration {
    if conn.draining {
        return SWEEP;
    }
    let waited = now.saturating_duration_since(conn.since);
    // Of what begins only when something else has ended, nothing runs out sooner than this.
    let rest = |is_running: bool, limit: Duration| {
        if is_running { limit.saturating_sub(waited) } else { limit }
    };
    let is_unread = unread_for(conn, timeouts).is_some();
    let slow = if is_unread { timeouts.linger } else { Duration::ZERO };
    match &conn.role {
        Role::Accepting => rest(true, timeouts.handshake),
        Role::Hello(_) | Role::Detect { .. } => rest(true, timeouts.head),
        Role::Lingering(began) => {
            let long = now.saturating_duration_since(*began);
            rest(true, timeouts.linger).min(timeouts.linger_longest.saturating_sub(long)).max(slow)
        }
        Role::Dialling(_) => rest(true, timeouts.connect),
        Role::Http1Server(server) if server.in_head => rest(true, timeouts.head),
        Role::Http1Server(server) => {
            let idle = rest(server.exchange.is_none(), timeouts.downstream_idle);
            idle.max(slow).min(trusted(conn))
        }
        Role::Http1Client(client) => {
            let idle = pooled_idle(conn.peer.is_some(), timeouts);
            rest(client.exchange.is_none(), idle).min(trusted(conn))
        }
        Role::Http2Server(link) => rest(link.streams.is_empty(), timeouts.downstream_idle)
            .min(owed(link, clock))
            .min(trusted(conn)),
        Role::Http2Client(link) => rest(link.streams.is_empty(), timeouts.mesh_idle)
            .min(link.apart_for(now, timeouts.bulk_rest).unwrap_or(LONGEST_LOOK))
            .min(owed(link, clock))
            .min(trusted(conn)),
        Role::Relay(relay) => {
            let idle = now.saturating_duration_since(relay.active);
            let undialled = rest(relay.other.is_none(), timeouts.discovery);
            let silent = timeouts.stream_idle.saturating_sub(idle);
            if relay.other.is_none() { undialled.min(silent) } else { silent }
        }
    }
}

/// How long a connection of HTTP/1.1 is kept for the next request: less than the other end keeps
/// it, an app or, over the mesh, a sidecar.
fn pooled_idle(is_mesh: bool, timeouts: &Timeouts) -> Duration {
    if is_mesh { timeouts.mesh_idle.min(timeouts.downstream_idle / 2) } else { timeouts.app_idle }
}

/// How long until the codec may have something to say; it may not have begun to count.
fn owed(link: &Http2Link, clock: Duration) -> Duration {
    link.codec.deadline().map_or(LONGEST_LOOK, |at| at.saturating_sub(clock))
}

fn trusted(conn: &Connection) -> Duration {
    certificate_left(conn, SystemTime::now())
}

/// How long until a peer's certificate is in the last twentieth of its life, at most a minute:
/// time to dial again while requests under way finish. The longest time if it showed none.
fn certificate_left(conn: &Connection, wall: SystemTime) -> Duration {
    let of_client = || {
        let certificate = conn.client.as_ref()?.certificate.as_ref()?;
        Some((certificate.not_before, certificate.not_after))
    };
    let of_peer = conn.peer.as_ref().map(|peer| (peer.not_before, peer.not_after));
    let Some((not_before, not_after)) = of_peer.or_else(of_client) else { return LONGEST_LOOK };
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let margin = (life / 20).min(CERTIFICATE_MARGIN);
    let left = not_after.duration_since(wall).unwrap_or_default();
    left.saturating_sub(margin)
}
