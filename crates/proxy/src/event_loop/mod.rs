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
mod deadlines;
mod dialled;
mod front;
mod interface;
mod listeners;
mod roles;
mod sweep;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tollway_http::h2;
use tollway_identity::Credentials;
use tollway_net::{Flush, Listener, Read, Readiness, Scratch};
use tollway_telemetry::DataPlaneMetrics;

use crate::conn::{ConnKey, Connections, ListenerKind, SWEEP, access_log, retire};
use crate::cx::{Cx, Effect};
use crate::exchange::{Exchanges, body, fail};
use crate::gateway::{Gateway, route as gateways};
use crate::inbound::{Inbound, concurrency, fairness, policy};
use crate::observe::Observer;
use crate::outbound::{dispatch, retry, tunnel};
use crate::protocol::{actor_turns, relay as relays, trust};
use crate::tls::PlaneTls;
use crate::upstream::{Keepalive, Upstreams, keepalive, pools, runtime_backlog, scale};
pub use interface::{ApiKind, ApiStream, MeshProtocol};
pub(crate) use interface::{
    AppTarget, AppTls, Command, Commands, LoopConfig, NotServed, ProcessServices,
};
use listeners::{Listeners, slot_of};

/// Reads of one connection in one turn, of 64 KiB each: a busy peer does not starve others.
const READS_PER_TURN: usize = 4;
/// Connections accepted from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

/// One data-plane thread: its parts, and the order in which they have their turns. What is done is in
/// the parts; this type reads, carries out effects and flushes.
pub(crate) struct EventLoop {
    cx: Cx,
    listeners: Listeners,
    conns: Connections,
    exchanges: Exchanges,
    upstreams: Upstreams,
    inbound: Inbound,
    gateway: Gateway,
    keepalive: Keepalive,
    tls: PlaneTls,
    commands: Receiver<Command>,
    next_sweep: Instant,
    peak: sweep::Peak,
    /// Reused by each read of an HTTP/2 connection.
    http2_events: Vec<h2::Event>,
}

impl EventLoop {
    /// A loop on bound listeners; the commands reach it from other threads.
    pub(crate) fn new(
        config: Arc<LoopConfig>,
        listeners: Vec<(Listener, ListenerKind)>,
        tls: PlaneTls,
        services: Box<dyn ProcessServices>,
        metrics: Arc<DataPlaneMetrics>,
        seed: u64,
    ) -> std::io::Result<(Self, Commands)> {
        let now = Instant::now();
        let conns = Connections::new(now)?;
        let mut open = Listeners::default();
        open.open(conns.poller(), listeners)?;
        let (sender, commands) = channel();
        let waker = conns.waker();
        let inbound = Inbound::new(config.access.clone(), config.dapr_metrics.clone());
        let mut cx = Cx::new(config, metrics, now, seed);
        cx.identity = identity_of(&tls);
        cx.is_front = tls.is_front();
        let event_loop = Self {
            cx,
            listeners: open,
            conns,
            exchanges: Exchanges::default(),
            upstreams: Upstreams::new(services),
            inbound,
            gateway: Gateway::default(),
            keepalive: Keepalive::default(),
            tls,
            commands,
            next_sweep: now + SWEEP,
            peak: sweep::Peak::default(),
            http2_events: Vec::new(),
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
            let timeout = if self.inbound.is_due() {
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
            self.serve_queues();
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

    /// Dispatches requests to the app that wait for their share of its connections, or for the app to
    /// have fewer requests.
    fn serve_queues(&mut self) {
        while let Some(key) = fairness::next(
            &self.cx,
            &mut self.conns,
            &self.exchanges,
            &self.upstreams,
            &mut self.inbound,
        ) {
            self.cx.effects.push(Effect::Dispatch(key));
            self.settle();
        }
        while let Some(key) = concurrency::next(&self.cx, &self.exchanges, &mut self.inbound) {
            self.cx.effects.push(Effect::Dispatch(key));
            self.settle();
        }
    }

    /// Carries effects out until none is left.
    fn settle(&mut self) {
        while let Some(effect) = self.cx.effects.pop() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let Self { cx, conns, exchanges, upstreams, inbound, gateway, keepalive, tls, .. } = self;
        match effect {
            Effect::Dispatch(exchange) => {
                dispatch::dispatch(cx, conns, exchanges, upstreams, inbound, tls, exchange);
            }
            Effect::AttemptFailed { exchange, failure, cause } => {
                retry::on_attempt_failed(cx, conns, exchanges, upstreams, exchange, failure, cause);
            }
            Effect::Fail { exchange, error } => {
                fail::fail(cx, conns, exchanges, exchange, &error);
            }
            Effect::FailWaiting { destination, first, error } => {
                dispatch::fail_waiting(cx, conns, exchanges, upstreams, &destination, first, &error)
            }
            Effect::Undiscovered(destination) => {
                dispatch::fail_undiscovered(cx, conns, exchanges, upstreams, &destination);
            }
            Effect::GiveUpWaiting(exchange) => {
                dispatch::give_up_waiting(cx, conns, exchanges, upstreams, inbound, exchange);
            }
            Effect::ServeWaiting(destination) => {
                dispatch::serve_waiting(cx, conns, exchanges, upstreams, inbound, &destination);
            }
            Effect::Capacity(conn) => dispatch::on_capacity(cx, conns, upstreams, conn),
            Effect::DispatchRaw(conn) => tunnel::dispatch_raw(cx, conns, upstreams, tls, conn),
            Effect::DispatchTcp { down, service } => {
                tunnel::dispatch_tcp(cx, conns, upstreams, tls, down, service);
            }
            Effect::LeaveFairQueue { exchange, conn } => {
                fairness::leave(conns, inbound, exchange, conn);
            }
            Effect::PermitFreed => concurrency::free(inbound),
            Effect::JudgeRelay(conn) => policy::judge_relay(cx, conns, inbound, conn),
            Effect::Scale(destination) => {
                scale::scale(cx, conns, upstreams, tls, &destination);
            }
            Effect::Http1Idle(conn) => pools::on_http1_idle(cx, conns, upstreams, conn),
            Effect::Retire(conn) => pools::retire(cx, conns, conn),
            Effect::LeftPool { conn, destination, refill } => {
                pools::on_left_pool(cx, upstreams, conn, &destination, refill);
            }
            Effect::EjectReplica { destination, address, instance } => {
                pools::eject_replica(
                    cx,
                    conns,
                    upstreams,
                    &destination,
                    address,
                    instance.as_ref(),
                );
            }
            Effect::QueueRead(conn) => conns.queue_read(conn),
            Effect::Probe { conn, quiet } => keepalive::probe(cx, conns, keepalive, conn, quiet),
            Effect::PingAnswered(conn, payload) => {
                runtime_backlog::on_ping_answered(cx, conns, upstreams, conn, payload);
            }
            Effect::Revived(conn) => keepalive::on_revived(cx, conns, conn),
            Effect::CalledOff(conn) => runtime_backlog::add(cx, conns, upstreams, conn),
            Effect::RuntimeRead(count) => runtime_backlog::lessen(cx, upstreams, count),
            Effect::RelayElsewhere(conn) => {
                gateways::relay_elsewhere(cx, conns, upstreams, gateway, conn);
            }
            Effect::RelayEnded { target, address } => {
                gateways::end_relay(upstreams, &target, address);
            }
            Effect::BackOffRelay { target, address, until } => {
                gateways::back_off_relayed(cx, upstreams, gateway, &target, address, until);
            }
            Effect::BackOffDialled { down, address, until } => {
                gateways::back_off_relay(cx, conns, upstreams, gateway, down, address, until);
            }
        }
    }

    fn take_commands(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Services(updates) => {
                    for update in updates {
                        pools::on_service(
                            &mut self.cx,
                            &mut self.conns,
                            &mut self.upstreams,
                            update,
                        );
                    }
                }
                Command::Networks(updates) => {
                    for update in updates {
                        gateways::on_network(&mut self.gateway, update);
                    }
                }
                Command::Credentials(credentials) => self.on_credentials(credentials),
                Command::Certificates(served) => self.on_certificates(served),
                Command::App(app) => self.on_app(app),
                Command::Policies(update) => {
                    policy::on_policies(&mut self.cx, &mut self.conns, &mut self.inbound, &update)
                }
                Command::Renewed(lease) => self.inbound.renew(lease),
                Command::CallOff(number) => actor_turns::call_off(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    number,
                ),
                Command::AppUnready => retire::retire_inbound(&mut self.cx, &mut self.conns),
                Command::Configure(config) => self.on_config(config),
                Command::Observe(observer) => {
                    self.cx.flush_observer();
                    self.cx.observer = observer;
                }
                Command::OpenListeners(listeners) => self.open_listeners(listeners),
                Command::Adopt(stream) => self.adopt(stream),
                Command::RedirectListener(address, via) => self.listeners.redirect(address, via),
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
        let key = ConnKey::from_u64(readiness.token.0);
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

    fn read_connection(&mut self, key: ConnKey, scratch: &mut Scratch) {
        if self.conns.holds_back(&self.cx, key) {
            return;
        }
        self.on_bytes(key, &[]);
        for _ in 0..READS_PER_TURN {
            if self.conns.holds_back(&self.cx, key) {
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

    /// Flushes every connection that was written to. What that makes room for may write to
    /// others, so it goes on until nothing is left to flush.
    fn flush_turn(&mut self) {
        let limit = self.cx.config.limits.unread_bytes;
        while let Some(key) = self.conns.next_flush() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let was_connecting = conn.io.is_connecting();
            if conn.has_late_turn(self.inbound.lease()) {
                actor_turns::on_lease_over(&mut self.cx, &mut self.conns, &mut self.exchanges, key);
                self.settle();
                continue;
            }
            let was_unread = conn.is_unread(limit);
            let flushed = conn.io.flush();
            let is_unread = conn.is_unread(limit);
            self.cx.metrics.backpressure_pauses.add(u64::from(is_unread && !conn.unread));
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
                dispatch::on_capacity(&mut self.cx, &self.conns, &self.upstreams, key);
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
        pools::renew_all(&mut self.cx, &mut self.conns, &mut self.upstreams);
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
