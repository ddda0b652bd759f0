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
mod call_trace;
mod concurrency;
mod deadlines;
mod dial;
mod dispatch;
mod eviction;
mod fairness;
mod front;
mod gateway;
mod interface;
mod keepalive;
mod listeners;
mod pick;
mod policy;
mod pool;
mod relay;
mod remote_gateways;
mod request;
mod roles;
mod runtime_backlog;
mod scale;
mod sweep;
mod tunnel;
mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use tollway_http::h2;
use tollway_identity::Credentials;
use tollway_model::NetworkName;
use tollway_net::{Flush, Key, Listener, Read, Readiness, Scratch};
use tollway_telemetry::DataPlaneMetrics;

use crate::conn::{Connections, ListenerKind, SWEEP};
use crate::cx::{Cx, Effect};
use crate::exchange::{Destination, Exchanges};
use crate::exchange::{access_log, body, fail};
use crate::loop_guard::LoopGuard;
use crate::observe::Observer;
use crate::protocol::{actor_turns, relay as relays, trust};
use crate::runtime_fields::TurnLease;
use crate::tls::PlaneTls;
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

/// Reads of one connection in one turn, of 64 KiB each: a busy peer does not starve others.
const READS_PER_TURN: usize = 4;
/// Connections accepted from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

/// A thread's whole state.
pub(crate) struct EventLoop {
    cx: Cx,
    conns: Connections,
    listeners: Listeners,
    /// Accepting pauses until then: no descriptors.
    accept_again: Option<Instant>,
    /// No connection is evicted until then: there was hardly one that could be.
    full_until: Option<Instant>,
    exchanges: Exchanges,
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
    commands: Receiver<Command>,
    outside: Box<dyn HostServices>,
    next_sweep: Instant,
    /// Rounds made.
    round: u64,
    /// Connections that were asked for a sign of life and have not given it yet.
    asked: Vec<Key>,
    peak: sweep::Peak,
    h2_events: Vec<h2::Event>,
}

impl EventLoop {
    /// A loop on bound listeners; the commands reach it from other threads.
    pub(crate) fn new(
        config: Arc<LoopConfig>,
        listeners: Vec<(Listener, ListenerKind)>,
        tls: PlaneTls,
        outside: Box<dyn HostServices>,
        metrics: Arc<DataPlaneMetrics>,
        seed: u64,
    ) -> std::io::Result<(Self, Commands)> {
        let now = Instant::now();
        let conns = Connections::new(now)?;
        let mut open = Listeners::default();
        open.open(conns.poller(), listeners)?;
        let (sender, commands) = channel();
        let waker = conns.waker();
        let policy = PolicyGate::new(config.access.clone(), config.dapr_metrics.clone());
        let mut cx = Cx::new(config, metrics, now, seed);
        cx.identity = identity_of(&tls);
        let event_loop = Self {
            cx,
            conns,
            listeners: open,
            accept_again: None,
            full_until: None,
            exchanges: Exchanges::default(),
            pools: HashMap::default(),
            late: FairQueue::default(),
            slots: ConcurrencyLimit::default(),
            backlog: 0,
            networks: HashMap::new(),
            lease: TurnLease::default(),
            passed: LoopGuard::default(),
            tls,
            policy,
            commands,
            outside,
            next_sweep: now + SWEEP,
            round: 0,
            asked: Vec::new(),
            peak: sweep::Peak::default(),
            h2_events: Vec::new(),
        };
        Ok((event_loop, Commands { sender, waker }))
    }

    /// Records traces and access-log lines.
    pub(crate) fn observed_by(mut self, observer: Option<Box<Observer>>) -> Self {
        self.cx.observer = observer;
        self
    }

    /// Runs until drained.
    ///
    /// # Errors
    /// The kernel's readiness fails: nothing can be served then.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        let mut ready = Vec::new();
        let mut scratch = Scratch::new();
        loop {
            ready.clear();
            let timeout = if self.slots.are_due() {
                Duration::ZERO
            } else {
                self.next_sweep.saturating_duration_since(self.cx.now)
            };
            let woken = self.conns.wait(timeout, &mut ready)?;
            self.cx.now = Instant::now();
            if woken {
                self.take_commands();
            }
            for readiness in &ready {
                self.on_ready(*readiness);
            }
            self.read_turn(&mut scratch);
            self.serve_late();
            self.serve_slots();
            self.settle();
            if self.cx.now >= self.next_sweep {
                self.next_sweep = self.cx.now + SWEEP;
                self.sweep();
                self.settle();
                self.flush_turn();
                self.cx.flush_observer();
                if self.is_drained() {
                    access_log::end_lines(&mut self.cx, &mut self.conns);
                    self.cx.flush_observer();
                    return Ok(());
                }
            }
            self.flush_turn();
        }
    }

    /// Carries effects out until none is left.
    fn settle(&mut self) {
        while let Some(effect) = self.cx.effects.pop() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Dispatch(exchange) => self.dispatch(exchange),
            Effect::AttemptFailed { exchange, failure, cause } => {
                self.on_attempt_failed(exchange, failure, cause);
            }
            Effect::Fail { exchange, error } => {
                fail::fail(&mut self.cx, &mut self.conns, &mut self.exchanges, exchange, &error);
            }
            Effect::GiveUpWaiting(exchange) => self.give_up_waiting(exchange),
            Effect::LeaveFairQueue { exchange, conn } => self.leave_late(exchange, conn),
            Effect::PermitFreed => self.free_slot(),
            Effect::Scale(destination) => self.keep_dialled(&destination),
            Effect::Capacity(conn) => self.on_capacity(conn),
            Effect::Http1Idle(conn) => self.on_h1_client_idle(conn),
            Effect::Retire(conn) => self.retire(conn),
            Effect::LeftPool { conn, destination, refill } => {
                self.on_left_pool(conn, &destination, refill);
            }
            Effect::LeaveReplica { destination, address, instance } => {
                self.leave_replica(&destination, address, instance.as_ref());
            }
            Effect::Probe { conn, quiet } => self.ask_for_life(conn, quiet),
            Effect::PingAnswered(conn, payload) => self.on_ping_answered(conn, payload),
            Effect::Revived(conn) => self.on_link_revived(conn),
            Effect::CalledOff(conn) => self.add_to_backlog(conn),
            Effect::RuntimeRead(count) => self.lessen_backlog(count),
            Effect::JudgeRelay(conn) => self.judge_relay_again(conn),
            Effect::RelayEnded { target, address } => self.uncount_relay(&target, address),
            Effect::BackOffRelay { target, address, until } => {
                self.rest_relayed(&target, address, until);
            }
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
                Command::CallOff(number) => actor_turns::call_off(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    number,
                ),
                Command::AppUnready => self.retire_inbound(),
                Command::Configure(config) => self.on_config(config),
                Command::Observe(observer) => {
                    self.cx.flush_observer();
                    self.cx.observer = observer;
                }
                Command::OpenListeners(listeners) => self.open_listeners(listeners),
                Command::Adopt(stream) => self.adopt(stream),
                Command::RedirectListener(address, via) => self.redirect_listener(address, via),
                Command::CloseListener(address) => self.close_listener(address),
                Command::Drain => {
                    self.cx.draining.get_or_insert(self.cx.now);
                }
            }
            self.settle();
        }
    }

    fn on_ready(&mut self, readiness: Readiness) {
        if let Some(slot) = slot_of(readiness.token) {
            self.accept_turn(slot);
            self.settle();
            return;
        }
        let key = Key::from_u64(readiness.token.0);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.io.ready(readiness);
        if readiness.writable && (conn.io.wants_flush() || conn.io.is_connecting()) {
            self.conns.mark_dirty(key);
        }
        self.conns.queue_read(key);
    }

    /// One pass over the connections that were readable when it began; more is left for the
    /// next turn.
    fn read_turn(&mut self, scratch: &mut Scratch) {
        for _ in 0..self.conns.reads() {
            let Some(key) = self.conns.next_read() else { continue };
            self.read_connection(key, scratch);
            self.settle();
            if self.conns.get(key).is_some_and(|conn| conn.io.wants_flush()) {
                self.conns.mark_dirty(key);
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
        self.conns.queue_read(key);
    }

    /// Whether a caller must read its answers before it is read again; the flush that ends them
    /// goes on with it.
    fn holds_back(&mut self, key: Key) -> bool {
        let limit = self.cx.config.limits.unread_bytes;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let was_owed = conn.owed;
        conn.owed = conn.owes_reading(limit);
        self.cx.metrics.sources_paused.add(u64::from(conn.owed && !was_owed));
        conn.owed
    }

    /// Flushes every connection that was written to. What that makes room for may write to
    /// others, so it goes on until nothing is left to flush.
    fn flush_turn(&mut self) {
        let limit = self.cx.config.limits.unread_bytes;
        while let Some(key) = self.conns.next_flush() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let was_connecting = conn.io.is_connecting();
            if conn.has_late_turn(self.lease) {
                actor_turns::on_lease_over(&mut self.cx, &mut self.conns, &mut self.exchanges, key);
                self.settle();
                continue;
            }
            let was_unread = conn.is_unread(limit);
            let flushed = conn.io.flush();
            let is_unread = conn.is_unread(limit);
            self.cx.metrics.sources_paused.add(u64::from(is_unread && !conn.unread));
            conn.unread = is_unread;
            if !conn.turns.is_empty() {
                conn.note_flushed(matches!(flushed, Flush::Done), &mut self.exchanges);
            }
            match flushed {
                Flush::Done => {
                    if was_connecting {
                        conn.note_connected(self.cx.now);
                        self.on_bytes(key, &[]);
                        self.conns.queue_read(key);
                    }
                    body::serve_queue(&mut self.cx, &mut self.conns, &mut self.exchanges, key);
                    relays::on_room(&mut self.cx, &mut self.conns, key);
                    self.conns.read_on(key);
                    self.conns.close_if_over(&mut self.cx, key);
                }
                Flush::Blocked => {}
                Flush::Failed(error) => self.on_unsendable(key, &error),
            }
            if was_unread && !is_unread {
                self.on_capacity(key);
            }
            self.settle();
        }
    }

    fn on_credentials(&mut self, credentials: Arc<Credentials>) {
        trust::cut_untrusted(
            &mut self.cx,
            &mut self.conns,
            &mut self.exchanges,
            credentials.bundles(),
        );
        self.tls = PlaneTls::mesh(credentials);
        self.cx.identity = identity_of(&self.tls);
        self.retire_mesh_connections();
    }

    fn on_config(&mut self, config: Arc<LoopConfig>) {
        // A front's app may have moved since it began (`on_app`).
        let app = self.cx.config.app;
        let is_present = config.app == app;
        self.cx.config =
            if is_present { config } else { Arc::new(LoopConfig { app, ..(*config).clone() }) };
        self.conns.schedule_all(&self.cx);
    }
}

fn identity_of(tls: &PlaneTls) -> String {
    tls.credentials().map(|own| own.spiffe_id().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
