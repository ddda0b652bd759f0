//! One data-plane thread: a complete proxy with its own listeners, pools and snapshot.
//!
//! A turn: wait, take commands, read what is readable (events are parsed and queued on their
//! targets), then flush every connection that was written to, once. Nothing sleeps with a dirty
//! connection and nothing flushes on a timer.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

mod accept;
mod actor_turns;
mod body;
mod call_trace;
mod concurrency;
mod dapr;
mod deadlines;
mod dial;
mod dispatch;
mod eviction;
mod fairness;
mod finish;
mod front;
mod gateway;
mod http1_client;
mod http1_server;
mod http2;
mod interface;
mod keepalive;
mod listeners;
mod memory_pressure;
mod observe;
mod pick;
mod policy;
mod pool;
mod relay;
mod remote_gateways;
mod request;
mod response;
mod roles;
mod runtime_backlog;
mod scale;
mod sweep;
mod trust;
mod tunnel;
mod workload;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tollway_http::h2;
use tollway_identity::Credentials;
use tollway_model::NetworkName;
use tollway_net::{Flush, Key, Listener, Poller, Read, Readiness, Scratch, Slab, Token, Wheel};
use tollway_telemetry::DataPlaneMetrics;

use crate::connection::{Connection, ListenerKind, Role};
use crate::exchange::{Destination, Exchange};
use crate::log_limiter::LogLimiter;
use crate::loop_guard::LoopGuard;
use crate::observe::Observer;
use crate::runtime_fields::TurnLease;
use crate::tls::PlaneTls;
use body::SpareBodies;
use concurrency::ConcurrencyLimit;
use fairness::FairQueue;
pub(crate) use gateway::GatewayRoutes;
pub use interface::{ApiKind, ApiStream, MeshProtocol};
pub(crate) use interface::{
    AppTarget, AppTls, Command, Commands, HostServices, LoopConfig, NotServed,
};
use listeners::{Listeners, slot_of};
use policy::PolicyGate;
pub(crate) use policy::{PolicyDenial, Rights, Upgraded};
use pool::Pool;
use remote_gateways::RemoteGateways;
pub(crate) use runtime_backlog::CalledOff;

/// How often what only time can tell is looked at.
const SWEEP: Duration = Duration::from_millis(100);
/// Reads of one connection in one turn, of 64 KiB each: a busy peer does not starve others.
const READS_PER_TURN: usize = 4;
/// Connections accepted from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

/// A thread's whole state.
pub(crate) struct EventLoop {
    config: Arc<LoopConfig>,
    poller: Poller,
    listeners: Listeners,
    /// Accepting pauses until then: no descriptors.
    accept_again: Option<Instant>,
    /// Nobody is asked to give way until then: there was hardly anybody who could.
    full_until: Option<Instant>,
    conns: Slab<Connection>,
    exchanges: Slab<Exchange>,
    pools: HashMap<Destination, Pool, RandomState>,
    /// Requests to the app that wait for their caller's share of its connections.
    late: FairQueue,
    /// Requests that the app has, where that is bounded.
    slots: ConcurrencyLimit,
    /// Gateways of joined networks (in a gateway).
    networks: HashMap<NetworkName, RemoteGateways>,
    /// Requests that were called off and that the runtime has not looked at.
    backlog: usize,
    /// Under which turns of actors are sent to the app.
    lease: TurnLease,
    /// What was passed on lately (in a gateway).
    passed: LoopGuard,
    tls: PlaneTls,
    policy: PolicyGate,
    to_read: VecDeque<Key>,
    dirty: Vec<Key>,
    commands: Receiver<Command>,
    outside: Box<dyn HostServices>,
    metrics: Arc<DataPlaneMetrics>,
    /// What is told of single requests; `None` when nothing is.
    observer: Option<Box<Observer>>,
    epoch: Instant,
    /// What the log had lately of what comes again and again.
    log: LogLimiter,
    now: Instant,
    next_sweep: Instant,
    /// When each connection is looked at next.
    looks: Wheel<Key>,
    /// Where the next part of the exchanges to be looked at begins.
    exchanges_swept: usize,
    /// Rounds made.
    round: u64,
    /// Connections that were asked for a sign of life and have not given it yet.
    asked: Vec<Key>,
    /// Some connection's credit is held back because pipes hold too much.
    holds_credit: bool,
    /// Bytes waiting in pipes.
    buffered_bytes: usize,
    /// Since when that is too much.
    over_since: Option<Instant>,
    peak: sweep::Peak,
    random: u64,
    draining: Option<Instant>,
    h2_events: Vec<h2::Event>,
    spare_bodies: SpareBodies,
}

impl EventLoop {
    /// A worker on bound listeners; the commands reach it from other threads.
    pub(crate) fn new(
        config: Arc<LoopConfig>,
        listeners: Vec<(Listener, ListenerKind)>,
        tls: PlaneTls,
        outside: Box<dyn HostServices>,
        metrics: Arc<DataPlaneMetrics>,
        seed: u64,
    ) -> std::io::Result<(Self, Commands)> {
        let poller = Poller::new()?;
        let mut open = Listeners::default();
        open.open(&poller, listeners)?;
        let (sender, commands) = channel();
        let waker = poller.waker();
        let now = Instant::now();
        let policy = PolicyGate::new(config.access.clone(), config.dapr_metrics.clone());
        let worker = Self {
            config,
            poller,
            listeners: open,
            accept_again: None,
            full_until: None,
            conns: Slab::new(),
            exchanges: Slab::new(),
            pools: HashMap::default(),
            late: FairQueue::default(),
            slots: ConcurrencyLimit::default(),
            backlog: 0,
            networks: HashMap::new(),
            lease: TurnLease::default(),
            passed: LoopGuard::default(),
            tls,
            policy,
            to_read: VecDeque::new(),
            dirty: Vec::new(),
            commands,
            outside,
            metrics,
            observer: None,
            epoch: now,
            log: LogLimiter::default(),
            now,
            next_sweep: now + SWEEP,
            looks: Wheel::new(now, SWEEP),
            exchanges_swept: 0,
            round: 0,
            asked: Vec::new(),
            holds_credit: false,
            buffered_bytes: 0,
            over_since: None,
            peak: sweep::Peak::default(),
            random: seed,
            draining: None,
            h2_events: Vec::new(),
            spare_bodies: SpareBodies::default(),
        };
        Ok((worker, Commands { sender, waker }))
    }

    /// Tells of single requests.
    pub(crate) fn observed_by(mut self, observer: Option<Box<Observer>>) -> Self {
        self.observer = observer;
        self
    }

    /// Runs until drained.
    ///
    /// # Errors
    /// When the kernel's readiness fails: nothing can be served then.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        let mut scratch = Scratch::new();
        loop {
            ready.clear();
            let timeout = if self.to_read.is_empty() && !self.slots.are_due() {
                self.next_sweep.saturating_duration_since(self.now)
            } else {
                Duration::ZERO
            };
            let woken = self.poller.wait(Some(timeout), &mut ready)?;
            self.now = Instant::now();
            if woken {
                self.take_commands();
            }
            for readiness in &ready {
                self.on_ready(*readiness);
            }
            self.read_turn(&mut scratch);
            self.serve_late();
            self.serve_slots();
            if self.now >= self.next_sweep {
                self.next_sweep = self.now + SWEEP;
                self.sweep();
                self.flush_turn();
                self.hand_over();
                if self.is_drained() {
                    self.end_lines();
                    self.hand_over();
                    return Ok(());
                }
            }
            self.flush_turn();
        }
    }

    fn take_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Services(updates) => {
                    for update in updates {
                        self.on_service(update);
                    }
                }
                Command::Networks(updates) => {
                    for update in updates {
                        self.on_network(update);
                    }
                }
                Command::Credentials(credentials) => self.on_credentials(credentials),
                Command::Certificates(served) => self.on_certificates(served),
                Command::App(app) => self.on_app(app),
                Command::Policies(update) => self.on_policies(&update),
                Command::Renewed(lease) => self.lease = lease,
                Command::CallOff(number) => self.call_off(number),
                Command::AppUnready => self.retire_inbound(),
                Command::Configure(config) => self.on_config(config),
                Command::Observe(observer) => {
                    self.hand_over();
                    self.observer = observer;
                }
                Command::OpenListeners(listeners) => self.open_listeners(listeners),
                Command::Adopt(stream) => self.adopt(stream),
                Command::RedirectListener(address, via) => self.redirect_listener(address, via),
                Command::CloseListener(address) => self.close_listener(address),
                Command::Drain => {
                    self.draining.get_or_insert(self.now);
                }
            }
        }
    }

    /// Hands over what is to be told of requests.
    fn hand_over(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.flush(&self.metrics);
        }
    }

    fn on_ready(&mut self, readiness: Readiness) {
        if let Some(slot) = slot_of(readiness.token) {
            self.accept_turn(slot);
            return;
        }
        let key = Key::from_u64(readiness.token.0);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.io.ready(readiness);
        if readiness.writable && (conn.io.wants_flush() || conn.io.is_connecting()) {
            mark(&mut self.dirty, &mut conn.dirty, key);
        }
        self.queue_read(key);
    }

    /// Puts a connection in line for reading if a read may find something.
    fn queue_read(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.io.may_read() && !conn.paused && !conn.queued {
            conn.queued = true;
            self.to_read.push_back(key);
        }
    }

    /// Reads a connection again after a pause, what is left unparsed first.
    fn resume(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.paused = false;
        let has_work = conn.io.may_read() || conn.has_unparsed();
        if has_work && !conn.queued {
            conn.queued = true;
            self.to_read.push_back(key);
        }
    }

    fn mark_dirty(&mut self, key: Key) {
        if let Some(conn) = self.conns.get_mut(key) {
            mark(&mut self.dirty, &mut conn.dirty, key);
        }
    }

    /// One pass over the connections that were readable when it began; more is left for the
    /// next turn.
    fn read_turn(&mut self, scratch: &mut Scratch) {
        for _ in 0..self.to_read.len() {
            let Some(key) = self.to_read.pop_front() else { return };
            let Some(conn) = self.conns.get_mut(key) else { continue };
            conn.queued = false;
            self.read_connection(key, scratch);
            if let Some(conn) = self.conns.get_mut(key)
                && conn.io.wants_flush()
            {
                mark(&mut self.dirty, &mut conn.dirty, key);
            }
        }
    }

    fn read_connection(&mut self, key: Key, scratch: &mut Scratch) {
        if self.holds_back(key) {
            return;
        }
        self.on_bytes(key, &[]);
        for _ in 0..READS_PER_TURN {
            if self.holds_back(key) {
                return;
            }
            let Some(conn) = self.conns.get_mut(key) else { return };
            if conn.paused {
                return;
            }
            match conn.io.read(scratch) {
                Read::Data(data) => self.on_bytes(key, data),
                Read::Blocked => return,
                Read::Closed(how) => return self.on_closed(key, how),
                Read::Failed(error) => return self.on_failed(key, &error),
            }
        }
        self.queue_read(key);
    }

    /// Whether a caller must read its answers before it is read again; the flush that ends them
    /// goes on with it.
    fn holds_back(&mut self, key: Key) -> bool {
        let limit = self.config.limits.unread_bytes;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let was_owed = conn.owed;
        conn.owed = conn.owes_reading(limit);
        self.metrics.sources_paused.add(u64::from(conn.owed && !was_owed));
        conn.owed
    }

    /// Flushes every connection that was written to. What that makes room for may write to
    /// others, so it goes on until nothing is left to flush.
    fn flush_turn(&mut self) {
        let limit = self.config.limits.unread_bytes;
        while let Some(key) = self.dirty.pop() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            conn.dirty = false;
            let was_connecting = conn.io.is_connecting();
            if conn.has_late_turn(self.lease) {
                self.on_turn_too_late(key);
                continue;
            }
            let was_unread = conn.is_unread(limit);
            let flushed = conn.io.flush();
            let is_unread = conn.is_unread(limit);
            self.metrics.sources_paused.add(u64::from(is_unread && !conn.unread));
            conn.unread = is_unread;
            if !conn.turns.is_empty() {
                conn.note_flushed(matches!(flushed, Flush::Done), &mut self.exchanges);
            }
            match flushed {
                Flush::Done => {
                    if was_connecting {
                        conn.note_connected(self.now);
                        self.on_bytes(key, &[]);
                        self.queue_read(key);
                    }
                    self.serve_line(key);
                    self.relay_room(key);
                    self.read_on(key);
                    self.remove_if_over(key);
                }
                Flush::Blocked => {}
                Flush::Failed(error) => self.on_unsendable(key, &error),
            }
            if was_unread && !is_unread {
                self.on_capacity(key);
            }
        }
    }

    /// A caller that was held back has read its answers.
    fn read_on(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if std::mem::take(&mut conn.owed) && !conn.queued {
            conn.queued = true;
            self.to_read.push_back(key);
        }
    }

    /// A connection of which both sides have ended is of no more use. The peer's time to end its
    /// side begins when it has been sent everything.
    fn remove_if_over(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if !conn.io.is_finished() || matches!(conn.role, Role::Relay(_)) {
            return;
        }
        if conn.io.read_ended() {
            self.remove(key);
        } else if let Role::Lingering(began) = &mut conn.role {
            (*began, conn.since) = (self.now, self.now);
        }
    }

    /// Registers a connection with the poller.
    fn insert(&mut self, conn: Connection) -> Option<Key> {
        let key = self.conns.insert(conn);
        let registered =
            self.conns.get(key).map(|conn| self.poller.add(&conn.io, Token(key.to_u64())));
        if let Some(Err(error)) = registered {
            tracing::warn!(%error, "a connection could not be registered");
            self.conns.remove(key);
            return None;
        }
        self.metrics.connections.set(self.conns.len() as u64);
        self.look_in_time(key);
        Some(key)
    }

    /// Closes and forgets a connection; who used it has been told.
    fn remove(&mut self, key: Key) {
        self.forget_backlog(key);
        if let Some(mut conn) = self.conns.remove(key) {
            // What is queued may be an alert or a last response; the kernel takes what it can.
            // But no turn of an actor that was called off meanwhile.
            if conn.turns.is_empty() {
                let _ = conn.io.flush();
            }
            if let Some((target, address)) = conn.relays_to {
                self.uncount_relay(&target, address);
            }
            if let Some(told) = conn.told.take() {
                self.end_line(*told);
            }
            self.metrics.connections.set(self.conns.len() as u64);
        }
    }

    /// Ends our side after what is queued, and waits for the peer to end its own for as long as it
    /// sends something: to close over unread bytes would be a reset, which takes from a peer that
    /// is still sending the last response that it has not read yet.
    fn linger(&mut self, key: Key) {
        self.forget_backlog(key);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.role = Role::Lingering(self.now);
        conn.since = self.now;
        conn.line.clear();
        conn.io.finish();
        mark(&mut self.dirty, &mut conn.dirty, key);
        self.look_in_time(key);
        self.resume(key);
    }

    fn on_credentials(&mut self, credentials: Arc<Credentials>) {
        self.cut_untrusted(credentials.bundles());
        self.tls = PlaneTls::mesh(credentials);
        self.retire_mesh_connections();
    }

    fn on_config(&mut self, config: Arc<LoopConfig>) {
        // A front's app may have moved since it began (`on_app`).
        let app = self.config.app;
        let is_present = config.app == app;
        self.config =
            if is_present { config } else { Arc::new(LoopConfig { app, ..(*config).clone() }) };
        self.look_at_all_in_time();
    }

    /// Time since the worker began, for the codecs.
    fn clock(&self) -> Duration {
        self.now.saturating_duration_since(self.epoch)
    }

    /// The next number of a sequence that is good enough to choose with (xorshift).
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn mark(dirty: &mut Vec<Key>, flag: &mut bool, key: Key) {
    if !*flag {
        *flag = true;
        dirty.push(key);
    }
}

#[cfg(test)]
mod tests;
