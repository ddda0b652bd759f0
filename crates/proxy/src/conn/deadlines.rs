//! When a connection is examined for what only time can change, and what has expired for it then:
//! handshakes, heads and dials that took too long, idle connections, certificates that end.
//!
//! Every connection has one entry in a timer wheel, for the earliest time at which something may
//! expire. Traffic only moves that time away: the entry fires, finds that it came too soon, and is
//! set again. So a connection costs nothing between two examinations, and requests cost nothing.

use std::time::{Duration, Instant, SystemTime};

use tollway_model::{ErrorCode, ServiceName};

use super::{Connection, Connections, Http2Link, ListenerKind, ReverseSide, Role};
use crate::conn::ConnKey;
use crate::cx::Cx;
use crate::limits::Timeouts;

/// How often the loop does what only time can cause.
pub(crate) const SWEEP: Duration = Duration::from_millis(100);
/// Longest time between two examinations of a connection: certificates end by the wall clock, which
/// may be set.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Longest time before the end of a peer's certificate at which its connection is given up.
const CERTIFICATE_MARGIN: Duration = Duration::from_secs(60);
/// Time for the first bytes of an intercepted connection to a service that is away and never was known.
const FIRST_BYTES_WITHIN: Duration = Duration::from_millis(500);
/// Streams that were on their way when the end of a connection was announced are taken for this
/// long.
const GOAWAY_GRACE: Duration = Duration::from_secs(1);

/// What has expired for a connection.
pub(crate) enum Expired {
    /// Nothing yet.
    No,
    /// Close without a word.
    Close,
    /// A TLS handshake did not end in time.
    Handshake,
    /// A gateway's client sent no server name in time.
    Hello,
    /// Close both sides of a relay, for this reason.
    Relay(ErrorCode),
    /// Nothing has come on a connection that leads to this service of HTTP alone.
    NoRequest(ServiceName),
    /// Reset a connection that leads nowhere, for this reason.
    Refuse(ErrorCode),
    /// The control plane does not say what the address of a connection is.
    Unanswered,
    /// A request's head did not come in time.
    Head,
    /// A dial took too long.
    Dial,
    /// Finish what is under way, then close.
    Retire,
    /// Bulk ended long enough ago.
    BulkPause,
    /// A time of the codec's own, with its reason.
    Codec(String),
}

impl Connections {
    /// Sees to it that a connection is examined no later than something may expire for it. To be
    /// called when it enters a state with a shorter time than the one before.
    pub(crate) fn schedule(&mut self, cx: &Cx, key: ConnKey) {
        let Some(conn) = self.slab.get_mut(key) else { return };
        let wait =
            next_examination(conn, cx.now, cx.since_start(), cx.clocks.wall, &cx.config.timeouts);
        let at = cx.now + wait.clamp(SWEEP, LONGEST_WAIT);
        if conn.listed.examine_at.is_none_or(|earlier| at < earlier) {
            conn.listed.examine_at = Some(at);
            self.timers.set(at, key);
        }
    }

    /// The connections that are to be examined now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<ConnKey> {
        let mut due = Vec::new();
        self.timers.expire(now, &mut due);
        due.retain(|key| {
            let Some(conn) = self.slab.get_mut(*key) else { return false };
            // Entries stay in the wheel when an earlier one is set: only the earliest counts.
            conn.listed.examine_at.take_if(|at| *at <= now).is_some()
        });
        due
    }

    /// What has expired for a connection by `cx.now` and, for certificates, by `wall`.
    pub(crate) fn expired(&mut self, cx: &Cx, key: ConnKey, wall: SystemTime) -> Expired {
        let (now, clock, timeouts) = (cx.now, cx.since_start(), cx.config.timeouts);
        let Some(conn) = self.slab.get_mut(key) else { return Expired::No };
        let waited = now.saturating_duration_since(conn.since);
        let certificate_ended = certificate_left(conn, wall).is_zero();
        let unread = unread_for(conn, &timeouts);
        match &mut conn.role {
            Role::Accepting if waited > timeouts.handshake => Expired::Handshake,
            Role::Hello(_) if waited > timeouts.head => Expired::Hello,
            Role::Detect { .. } if waited > timeouts.head => match &conn.via {
                Some(ListenerKind::Tunnel(service)) => Expired::NoRequest(service.clone()),
                _ => Expired::Close,
            },
            Role::Lingering(began) => {
                let long = now.saturating_duration_since(*began);
                let is_over = match unread {
                    Some(limit) => long > limit,
                    None => waited > timeouts.linger || long > timeouts.linger_longest,
                };
                if is_over { Expired::Close } else { Expired::No }
            }
            Role::Dialling(dial) if waited > dial.limit(timeouts.connect) => Expired::Dial,
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
                    self.mark_dirty(key);
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
                } else if link
                    .bulk_pause_left(now, timeouts.bulk_pause)
                    .is_some_and(|d| d.is_zero())
                {
                    Expired::BulkPause
                } else {
                    Expired::No
                }
            }
            Role::Relay(relay) => {
                let idle = now.saturating_duration_since(relay.active);
                let dead = relay.other.is_none() && waited > timeouts.discovery;
                if certificate_ended {
                    Expired::Relay(ErrorCode::CertificateExpired)
                } else if let Some(code) = relay.refusal.filter(|_| waited > FIRST_BYTES_WITHIN) {
                    cx.metrics.intercepted.silent.add(1);
                    Expired::Refuse(code)
                } else if dead && conn.raw_target.as_ref().is_some_and(ServiceName::is_address) {
                    Expired::Unanswered
                } else if idle > timeouts.stream_idle || dead {
                    Expired::Relay(ErrorCode::TimedOut)
                } else {
                    Expired::No
                }
            }
            Role::Reverse(reverse) => {
                // What one was sent goes to the next one, which only its gateway can do.
                let may_close = !matches!(reverse.side, ReverseSide::Offered { .. });
                let is_over = certificate_ended || conn.draining;
                if may_close && is_over { Expired::Close } else { Expired::No }
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
fn next_examination(
    conn: &Connection,
    now: Instant,
    clock: Duration,
    wall: fn() -> SystemTime,
    timeouts: &Timeouts,
) -> Duration {
    if conn.draining {
        return SWEEP;
    }
    let waited = now.saturating_duration_since(conn.since);
    // Of what begins only when something else has ended, nothing runs out sooner than this.
    let left = |is_running: bool, limit: Duration| {
        if is_running { limit.saturating_sub(waited) } else { limit }
    };
    let is_unread = unread_for(conn, timeouts).is_some();
    let slow = if is_unread { timeouts.linger } else { Duration::ZERO };
    match &conn.role {
        Role::Accepting => left(true, timeouts.handshake),
        Role::Hello(_) | Role::Detect { .. } => left(true, timeouts.head),
        Role::Lingering(began) => {
            let long = now.saturating_duration_since(*began);
            left(true, timeouts.linger).min(timeouts.linger_longest.saturating_sub(long)).max(slow)
        }
        Role::Dialling(dial) => left(true, dial.limit(timeouts.connect)),
        Role::Http1Server(server) if server.in_head => left(true, timeouts.head),
        Role::Http1Server(server) => {
            let idle = left(server.exchange.is_none(), timeouts.downstream_idle);
            idle.max(slow).min(certificate_left(conn, wall()))
        }
        Role::Http1Client(client) => {
            let idle = pooled_idle(conn.peer.is_some(), timeouts);
            left(client.exchange.is_none(), idle).min(certificate_left(conn, wall()))
        }
        Role::Http2Server(link) => left(link.streams.is_empty(), timeouts.downstream_idle)
            .min(time_to_read(link, clock))
            .min(certificate_left(conn, wall())),
        Role::Http2Client(link) => left(link.streams.is_empty(), timeouts.mesh_idle)
            .min(link.bulk_pause_left(now, timeouts.bulk_pause).unwrap_or(LONGEST_WAIT))
            .min(time_to_read(link, clock))
            .min(certificate_left(conn, wall())),
        Role::Reverse(_) => certificate_left(conn, wall()),
        Role::Relay(relay) => {
            let idle = now.saturating_duration_since(relay.active);
            let limit = relay.refusal.map_or(timeouts.discovery, |_| FIRST_BYTES_WITHIN);
            let undialled = left(relay.other.is_none(), limit);
            let silent = timeouts.stream_idle.saturating_sub(idle);
            let certified = certificate_left(conn, wall());
            if relay.other.is_none() { undialled.min(silent) } else { silent.min(certified) }
        }
    }
}

/// How long a connection of HTTP/1.1 is kept for the next request: less than the other end keeps
/// it, an app or, over the mesh, a sidecar.
fn pooled_idle(is_mesh: bool, timeouts: &Timeouts) -> Duration {
    if is_mesh { timeouts.mesh_idle.min(timeouts.downstream_idle / 2) } else { timeouts.app_idle }
}

/// How long until the codec may have something to say; it may not have begun to count.
fn time_to_read(link: &Http2Link, clock: Duration) -> Duration {
    link.codec.deadline().map_or(LONGEST_WAIT, |at| at.saturating_sub(clock))
}

/// How long until a peer's certificate is in the last twentieth of its life, at most a minute:
/// time to dial again while requests under way finish. The longest time if it showed none.
fn certificate_left(conn: &Connection, wall: SystemTime) -> Duration {
    let of_client = || {
        let certificate = conn.client.as_ref()?.certificate.as_ref()?;
        Some((certificate.not_before, certificate.not_after))
    };
    let of_peer = conn.peer.as_ref().map(|peer| (peer.not_before, peer.not_after));
    let Some((not_before, not_after)) = of_peer.or_else(of_client) else { return LONGEST_WAIT };
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let margin = (life / 20).min(CERTIFICATE_MARGIN);
    let left = not_after.duration_since(wall).unwrap_or_default();
    left.saturating_sub(margin)
}
