//! One data-plane thread: a complete proxy with its own listeners, pools and snapshot.
//!
//! A pass: wait, take commands, read what is readable (events are parsed and queued on their
//! targets), then flush every connection that was written to, once. Nothing sleeps with a dirty
//! connection and nothing flushes on a timer.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

mod accept;
mod composition;
mod dialled;
mod front;
mod gateway;
mod http;
mod interface;
mod listeners;
mod sidecar;
mod sweep;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tollway_net::{Flush, Listener, Read, Readiness, Scratch};
use tollway_telemetry::DataPlaneMetrics;

use crate::conn::{ConnKey, Connections, ListenerKind, SWEEP, access_log};
use crate::cx::Cx;
use crate::observe::Observer;
pub(crate) use composition::{Composition, Load};
pub(crate) use http::Http;
#[cfg(test)]
pub(crate) use interface::NoServices;
pub use interface::{ApiKind, ApiStream, MeshProtocol};
pub(crate) use interface::{
    AppTarget, AppTls, Caller, Command, Commands, LOOPBACK, LoopConfig, NotServed, ProcessServices,
};
use listeners::{Listeners, slot_of};

/// Reads of one connection in one pass, of 64 KiB each: a busy peer does not starve others.
const READS_PER_PASS: usize = 4;
/// Connections accepted from one listener in one pass.
const ACCEPTS_PER_PASS: usize = 64;

/// One data-plane thread. It reads, flushes and closes connections; what is done with them is in
/// `plane`, the composition of a sidecar, a front (both [`Http`]) or a [`Gateway`](crate::gateway::Gateway).
pub(crate) struct EventLoop<C> {
    cx: Cx,
    listeners: Listeners,
    conns: Connections,
    plane: C,
    commands: Receiver<Command>,
    next_sweep: Instant,
    sweeps: u64,
    peak: sweep::Peak,
    /// Requests that were cut off at the end of a drain.
    cut_off: usize,
}

impl<C: Composition> EventLoop<C> {
    /// A loop on bound listeners, that begins at `now`; the commands reach it from other threads.
    pub(crate) fn new(
        config: Arc<LoopConfig>,
        listeners: Vec<(Listener, ListenerKind)>,
        metrics: Arc<DataPlaneMetrics>,
        now: Instant,
        seed: u64,
        mut plane: C,
    ) -> std::io::Result<(Self, Commands)> {
        let conns = Connections::new(now)?;
        let mut open = Listeners::default();
        open.open(conns.poller(), listeners)?;
        let (sender, commands) = channel();
        let waker = conns.poller().waker();
        let mut cx = Cx::new(config, metrics, now, seed);
        plane.start(&mut cx);
        let event_loop = Self {
            cx,
            listeners: open,
            conns,
            plane,
            commands,
            next_sweep: now + SWEEP,
            sweeps: 0,
            peak: sweep::Peak::default(),
            cut_off: 0,
        };
        Ok((event_loop, Commands { sender, waker }))
    }

    /// Records traces and access-log lines.
    pub(crate) fn observed_by(mut self, observer: Option<Box<Observer>>) -> Self {
        self.cx.observer = observer;
        self
    }

    /// Runs until drained. Returns how many requests were cut off since the time for them was over.
    ///
    /// # Errors
    /// The kernel's readiness fails: nothing can be served then.
    pub(crate) fn run(mut self) -> std::io::Result<usize> {
        let mut ready = Vec::new();
        let mut scratch = Scratch::new();
        loop {
            ready.clear();
            let timeout = if self.plane.is_due() {
                Duration::ZERO
            } else {
                let sweep = self.next_sweep.saturating_duration_since(self.cx.now);
                self.plane.timer_wait().map_or(sweep, |timer| timer.min(sweep))
            };
            let woken = self.conns.wait(timeout, &mut ready)?;
            self.cx.now = Instant::now();
            if self.pass(woken, &ready, &mut scratch).is_break() {
                return Ok(self.cut_off);
            }
        }
    }

    /// One pass, after the wait, at the time of `cx.now`: takes commands if it was `woken`, and does
    /// what is `ready` or due. Breaks once the loop is drained.
    #[inline(always)]
    fn pass(&mut self, woken: bool, ready: &[Readiness], scratch: &mut Scratch) -> ControlFlow<()> {
        if woken {
            self.take_commands();
        }
        for readiness in ready {
            self.on_ready(*readiness);
        }
        self.read_pass(scratch);
        self.plane.serve_queues(&mut self.cx, &mut self.conns);
        self.plane.serve_timers(&mut self.cx, &mut self.conns);
        if self.cx.now >= self.next_sweep {
            self.next_sweep = self.cx.now + SWEEP;
            self.sweep();
            self.settle();
            self.flush_pass();
            self.cx.flush_observer();
            if self.is_drained() {
                access_log::end_lines(&mut self.cx, &mut self.conns);
                self.cx.flush_observer();
                return ControlFlow::Break(());
            }
        }
        self.flush_pass();
        ControlFlow::Continue(())
    }

    fn settle(&mut self) {
        self.plane.settle(&mut self.cx, &mut self.conns);
    }

    fn take_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Configure(config) => self.on_config(config),
                Command::Observe(observer) => {
                    self.cx.flush_observer();
                    self.cx.observer = observer;
                }
                Command::OpenListeners(listeners) => self.open_listeners(listeners),
                Command::RedirectListener(address, via) => self.listeners.redirect(address, via),
                Command::CloseListener(address) => self.close_listener(address),
                Command::Drain => {
                    self.cx.draining.get_or_insert(self.cx.now);
                }
                other => self.plane.on_command(&mut self.cx, &mut self.conns, other),
            }
            self.settle();
        }
    }

    fn on_config(&mut self, config: Arc<LoopConfig>) {
        // A front's app may have moved since it began.
        let app = self.cx.config.app.clone();
        let is_present = config.app == app;
        self.cx.config =
            if is_present { config } else { Arc::new(LoopConfig { app, ..(*config).clone() }) };
        for key in self.conns.keys() {
            self.conns.schedule(&self.cx, key);
        }
    }

    fn on_ready(&mut self, readiness: Readiness) {
        if let Some(slot) = slot_of(readiness.token) {
            self.accept_pass(slot);
            self.settle();
            return;
        }
        let key = ConnKey::from_u64(readiness.token.0);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.io.ready(readiness);
        if readiness.writable && (conn.io.wants_flush() || conn.io.is_connecting()) {
            self.conns.mark_dirty(key);
        }
        self.conns.queue_read(key);
    }

    /// Reads each connection that was in line when it began; those that come in line meanwhile are
    /// left for the next pass.
    fn read_pass(&mut self, scratch: &mut Scratch) {
        for _ in 0..self.conns.reads() {
            let Some(key) = self.conns.next_read() else { continue };
            self.read_connection(key, scratch);
            self.settle();
            if self.conns.get(key).is_some_and(|conn| conn.io.wants_flush()) {
                self.conns.mark_dirty(key);
            }
        }
    }

    fn read_connection(&mut self, key: ConnKey, scratch: &mut Scratch) {
        let Self { cx, conns, plane, .. } = self;
        if conns.holds_back(cx, key) {
            return;
        }
        if conns.get(key).is_some_and(|conn| conn.is_new() || conn.has_unparsed()) {
            plane.on_bytes(cx, conns, key, &[]);
        }
        for _ in 0..READS_PER_PASS {
            if conns.holds_back(cx, key) {
                return;
            }
            let Some(conn) = conns.get_mut(key) else { return };
            if conn.paused {
                return;
            }
            match conn.io.read(scratch) {
                Read::Data(data) => plane.on_bytes(cx, conns, key, data),
                Read::Blocked => return,
                Read::Closed(how) => return plane.on_closed(cx, conns, key, how),
                Read::Failed(error) => return plane.on_failed(cx, conns, key, &error),
            }
        }
        conns.queue_read(key);
    }

    /// Flushes every connection that was written to. What that makes room for may write to
    /// others, so it repeats this until nothing is left to flush.
    fn flush_pass(&mut self) {
        let Self { cx, conns, plane, .. } = self;
        let limit = cx.config.limits.unread_bytes;
        while let Some(key) = conns.next_flush() {
            let Some(conn) = conns.get_mut(key) else { continue };
            if !conn.turns.is_empty() && !plane.may_send_turns(cx, conns, key) {
                plane.settle(cx, conns);
                continue;
            }
            let Some(conn) = conns.get_mut(key) else { continue };
            let was_connecting = conn.io.is_connecting();
            let was_unread = conn.is_unread(limit);
            let flushed = conn.io.flush();
            let is_unread = conn.is_unread(limit);
            cx.metrics.backpressure_pauses.add(u64::from(is_unread && !conn.unread));
            conn.unread = is_unread;
            if !conn.turns.is_empty() {
                plane.on_turns_sent(conns, key, matches!(flushed, Flush::Done));
            }
            match flushed {
                Flush::Done => {
                    if was_connecting {
                        if let Some(conn) = conns.get_mut(key) {
                            conn.note_connected(cx.now);
                        }
                        plane.on_bytes(cx, conns, key, &[]);
                        conns.queue_read(key);
                    }
                    plane.on_room(cx, conns, key);
                    conns.on_flushed(cx, key);
                }
                Flush::Blocked => {}
                Flush::Failed(error) => plane.on_unsendable(cx, conns, key, &error),
            }
            if was_unread && !is_unread {
                plane.on_peer_has_read(cx, conns, key);
            }
            plane.settle(cx, conns);
        }
    }
}

#[cfg(test)]
mod tests;
