//! The connections of one event loop: where they are registered, which of them wait to be read or
//! flushed, and when each is examined for expired times.
//!
//! [`Connections`] owns this state and nothing else does. It knows no requests and no pools: what
//! follows from the end of a connection elsewhere is an [`Effect`].

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod accepted;
pub(crate) mod access_log;
mod connection;
mod deadlines;
pub(crate) mod eviction;
pub(crate) mod retire;

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use tollway_net::{Key, Poller, Readiness, Slab, Token, Wheel};

pub(crate) use connection::{
    Connection, Dial, Http1Client, Http1Server, Http2Link, ListenerKind, Opened, Purpose, Relay,
    RelayedTo, Reverse, ReverseSide, Role, SLOW_DIAL, Unproven,
};
pub(crate) use deadlines::{Expired, SWEEP};

use crate::cx::{Cx, Effect};

/// The key of a connection. It is stale once the connection has closed.
pub(crate) type ConnKey = Key<Connection>;

/// The connections of one event loop.
pub(crate) struct Connections {
    poller: Poller,
    slab: Slab<Connection>,
    /// Connections that a read may find something on, in the order in which they are read.
    to_read: VecDeque<ConnKey>,
    /// Connections that were written to since their last flush.
    dirty: Vec<ConnKey>,
    /// No connection is evicted until then: there was hardly one that could be.
    full_until: Option<Instant>,
    /// When each connection is examined next. An entry stays when an earlier one is set.
    timers: Wheel<ConnKey>,
}

/// In which of the lists of [`Connections`] a connection is.
#[derive(Default)]
struct Listed {
    /// It was written to and is flushed at the end of the pass.
    to_flush: bool,
    /// It is in line for reading.
    to_read: bool,
    /// It is not read until the caller has read the responses that wait for it.
    waits_for_unread: bool,
    /// When it is examined next for expired times.
    examine_at: Option<Instant>,
}

impl Connections {
    /// # Errors
    /// The kernel refuses a poller.
    pub(crate) fn new(now: Instant) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            slab: Slab::new(),
            to_read: VecDeque::new(),
            dirty: Vec::new(),
            full_until: None,
            timers: Wheel::new(now, SWEEP),
        })
    }

    /// Registers listeners and wakes [`Self::wait`]; connections register themselves by [`Self::insert`].
    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Waits for readiness, at most `timeout`, and not at all while reads are outstanding. Says
    /// whether a [`Waker`](tollway_net::Waker) ended the wait.
    ///
    /// # Errors
    /// The kernel's readiness fails.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        ready: &mut Vec<Readiness>,
    ) -> io::Result<bool> {
        let timeout = if self.to_read.is_empty() { timeout } else { Duration::ZERO };
        self.poller.wait(Some(timeout), ready)
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// `None` for a key whose connection has closed meanwhile.
    pub(crate) fn get(&self, key: ConnKey) -> Option<&Connection> {
        self.slab.get(key)
    }

    /// `None` for a key whose connection has closed meanwhile.
    pub(crate) fn get_mut(&mut self, key: ConnKey) -> Option<&mut Connection> {
        self.slab.get_mut(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnKey, &Connection)> {
        self.slab.iter()
    }

    /// The keys of all connections; connections may be closed while they are visited.
    pub(crate) fn keys(&self) -> Vec<ConnKey> {
        self.slab.keys()
    }

    /// Gives memory back after a peak. Says whether it did.
    pub(crate) fn shrink(&mut self) -> bool {
        self.slab.shrink()
    }

    /// Registers a connection. `None` when the kernel has no room for it; it is closed then.
    pub(crate) fn insert(&mut self, cx: &Cx, conn: Connection) -> Option<ConnKey> {
        let key = self.slab.insert(conn);
        let registered =
            self.slab.get(key).map(|conn| self.poller.add(&conn.io, Token(key.to_u64())));
        if let Some(Err(error)) = registered {
            tracing::warn!(%error, "a connection could not be registered");
            self.slab.remove(key);
            return None;
        }
        cx.metrics.connections.set(self.slab.len() as u64);
        self.schedule(cx, key);
        Some(key)
    }

    /// Takes a connection out without a flush; its owner decides what becomes of it.
    pub(crate) fn take(&mut self, cx: &Cx, key: ConnKey) -> Option<Connection> {
        let conn = self.slab.remove(key)?;
        cx.metrics.connections.set(self.slab.len() as u64);
        Some(conn)
    }

    /// Closes a connection after a last flush. Its exchanges are ended by the caller of this method.
    pub(crate) fn close(&mut self, cx: &mut Cx, key: ConnKey) {
        self.leave_pool(cx, key, false);
        let Some(mut conn) = self.take(cx, key) else { return };
        cx.forget_called_off(&mut conn);
        // What is queued may be an alert or a last response; the kernel takes what it can. A call of
        // an actor that waits here was called off meanwhile and must not go out.
        if conn.turns.is_empty() {
            let _ = conn.io.flush();
        }
        if let Some((target, address)) = conn.relays_to {
            cx.effects.push(Effect::RelayEnded { target, address });
        }
        if let Some(line) = conn.access_log.take() {
            cx.end_line(*line);
        }
    }

    /// Ends our side after what is queued, and waits for the peer to end its own for as long as it
    /// sends something: to close over unread bytes would be a reset, which takes from a peer that
    /// is still sending the last response that it has not read yet.
    pub(crate) fn linger(&mut self, cx: &mut Cx, key: ConnKey) {
        self.leave_pool(cx, key, false);
        let Some(conn) = self.slab.get_mut(key) else { return };
        cx.forget_called_off(conn);
        conn.role = Role::Lingering(cx.now);
        conn.since = cx.now;
        conn.write_queue.clear();
        conn.io.finish();
        self.mark_dirty(key);
        self.schedule(cx, key);
        self.resume(key);
    }

    /// Takes an upstream out of its pool, if it is in one. `refill` says that the pool is to have
    /// another connection in its place, also where no request waits for one.
    pub(crate) fn leave_pool(&self, cx: &mut Cx, key: ConnKey, refill: bool) {
        if let Some(destination) = self.get(key).and_then(Connection::destination) {
            let destination = destination.clone();
            cx.effects.push(Effect::LeftPool { conn: key, destination, refill });
        }
    }

    /// Puts a connection in line for reading if a read may find something.
    pub(crate) fn queue_read(&mut self, key: ConnKey) {
        let Some(conn) = self.slab.get_mut(key) else { return };
        if conn.io.may_read() && !conn.paused && !conn.listed.to_read {
            conn.listed.to_read = true;
            self.to_read.push_back(key);
        }
    }

    /// Reads a connection again after a pause, what is left unparsed first.
    pub(crate) fn resume(&mut self, key: ConnKey) {
        let Some(conn) = self.slab.get_mut(key) else { return };
        conn.paused = false;
        let has_work = conn.io.may_read() || conn.has_unparsed();
        if has_work && !conn.listed.to_read {
            conn.listed.to_read = true;
            self.to_read.push_back(key);
        }
    }

    /// Whether a caller must read its responses before it is read again; the flush that ends them
    /// goes on with it.
    pub(crate) fn holds_back(&mut self, cx: &Cx, key: ConnKey) -> bool {
        let Some(conn) = self.slab.get_mut(key) else { return false };
        let was_waiting = conn.listed.waits_for_unread;
        conn.listed.waits_for_unread = conn.owes_reading(cx.config.limits.unread_bytes);
        cx.metrics.backpressure_pauses.add(u64::from(conn.listed.waits_for_unread && !was_waiting));
        conn.listed.waits_for_unread
    }

    /// Everything that was written to a connection has gone out: a caller that was held back until then
    /// is read on, and a connection of which both sides have ended closes. The peer's time to end its
    /// side begins now.
    pub(crate) fn on_flushed(&mut self, cx: &mut Cx, key: ConnKey) {
        let Some(conn) = self.slab.get_mut(key) else { return };
        if std::mem::take(&mut conn.listed.waits_for_unread) && !conn.listed.to_read {
            conn.listed.to_read = true;
            self.to_read.push_back(key);
        }
        if !conn.io.is_finished() || matches!(conn.role, Role::Relay(_)) {
            return;
        }
        if conn.io.read_ended() {
            self.close(cx, key);
        } else if let Role::Lingering(began) = &mut conn.role {
            (*began, conn.since) = (cx.now, cx.now);
        }
    }

    /// Connections in line for reading.
    pub(crate) fn reads(&self) -> usize {
        self.to_read.len()
    }

    /// The next connection to read; `None` too where it has closed meanwhile.
    pub(crate) fn next_read(&mut self) -> Option<ConnKey> {
        let key = self.to_read.pop_front()?;
        self.slab.get_mut(key)?.listed.to_read = false;
        Some(key)
    }

    /// Has a connection flushed at the end of the pass.
    pub(crate) fn mark_dirty(&mut self, key: ConnKey) {
        if let Some(conn) = self.slab.get_mut(key)
            && !conn.listed.to_flush
        {
            conn.listed.to_flush = true;
            self.dirty.push(key);
        }
    }

    /// The next connection to flush.
    pub(crate) fn next_flush(&mut self) -> Option<ConnKey> {
        loop {
            let key = self.dirty.pop()?;
            if let Some(conn) = self.slab.get_mut(key) {
                conn.listed.to_flush = false;
                return Some(key);
            }
        }
    }
}
