//! What a sidecar and a front have in common: requests over HTTP/1.1 and HTTP/2, their upstreams,
//! and the queue to the app.

use std::time::Duration;

use tollway_http::{RequestHead, h2};
use tollway_identity::TlsError;
use tollway_net::{Closed, ConnError, Tls};

use super::{Command, Composition, Load, ProcessServices};
use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, Expired, ListenerKind, Role, accepted};
use crate::cx::{Cx, Effect};
use crate::exchange::{Exchanges, body, fail, memory_pressure, timeouts};
use crate::inbound::{AppQueue, concurrency, fairness};
use crate::outbound::{dispatch, failover, mirror, retry};
use crate::protocol::http1::{self, Next};
use crate::protocol::{Arrival, actor_turns, http1_client, http1_server, http2, relay};
use crate::tls::MeshTls;
use crate::upstream::dial::{self, DialFailure};
use crate::upstream::{Keepalive, Upstreams, keepalive, pools, replicas, runtime_backlog, scale};

/// The parts that serve requests, and what a sidecar and a front do apart.
pub(crate) struct Http<V> {
    pub(super) exchanges: Exchanges,
    pub(super) upstreams: Upstreams,
    pub(super) app_queue: AppQueue,
    keepalive: Keepalive,
    pub(super) variant: V,
    /// Reused by each read of an HTTP/2 connection.
    http2_events: Vec<h2::Event>,
}

/// What a sidecar and a front do in ways of their own.
pub(crate) trait Variant: Sized {
    /// The loop is about to begin.
    fn start(&mut self, cx: &mut Cx);

    /// The TLS of an accepted connection.
    ///
    /// # Errors
    /// The TLS library refuses.
    fn server_tls(&mut self, cx: &Cx) -> Result<Tls, TlsError>;

    /// Why an accepted connection broke in its handshake.
    fn why_refused(&self, error: &ConnError) -> Cause;

    /// The handshake of an accepted connection is over. Returns whether the connection lives on.
    fn on_established(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool;

    /// The TLS by which services are dialled; `None` where there are none.
    fn mesh(&mut self) -> Option<&mut MeshTls>;

    /// Begins a request and routes it.
    fn begin(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        exchanges: &mut Exchanges,
        arrival: Arrival,
    );

    /// An accepted connection is registered.
    fn on_accepted(_: &mut Http<Self>, _: &mut Cx, conns: &mut Connections, key: ConnKey) {
        conns.queue_read(key);
    }

    /// A client asks for a tunnel.
    fn on_connect(
        http: &mut Http<Self>,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        head: &RequestHead,
    );

    /// Carries out an effect of this side alone.
    fn carry_out(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, effect: Effect);

    /// Takes a command.
    fn on_command(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, command: Command);
}

impl<V: Variant> Http<V> {
    pub(super) fn with(variant: V, services: Box<dyn ProcessServices>) -> Self {
        Self {
            exchanges: Exchanges::default(),
            upstreams: Upstreams::new(services),
            app_queue: AppQueue::default(),
            keepalive: Keepalive::default(),
            variant,
            http2_events: Vec::new(),
        }
    }

    /// A plain downstream: its first bytes show the protocol.
    fn on_detect_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
        let Some(conn) = conns.get_mut(key) else { return };
        let Role::Detect { input } = &mut conn.role else { return };
        input.extend_from_slice(data);
        if input.is_empty() {
            return;
        }
        let Some(is_h2) = tollway_http::h1::looks_like_http2(input) else { return };
        let input = std::mem::take(input);
        accepted::begin_server(cx, conns, key, is_h2);
        self.on_bytes(cx, conns, key, &input);
    }

    fn on_http1_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
        let Some(mut input) = http1::take_input(conns, key) else { return };
        let bytes = http1::with_input(&mut input, data);
        let mut at = 0;
        loop {
            match http1::step(cx, conns, &mut self.exchanges, key, &bytes[at..]) {
                Next::Again(consumed) => at += consumed,
                Next::Wait => break,
                Next::Stop => return,
                Next::Request { arrival, consumed, may_leave_http } => {
                    self.variant.begin(cx, conns, &mut self.exchanges, arrival);
                    if may_leave_http {
                        return;
                    }
                    at += consumed;
                }
                Next::Http2 { arrival, consumed } => {
                    self.variant.begin(cx, conns, &mut self.exchanges, arrival);
                    self.settle(cx, conns);
                    return self.on_http2_bytes(cx, conns, key, &bytes[at + consumed..]);
                }
                Next::Connect(head) => return V::on_connect(self, cx, conns, key, &head),
            }
            self.settle(cx, conns);
        }
        http1::keep_input(conns, key, &bytes[at..]);
    }

    fn on_http2_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.http2_events);
        let received = http2::receive(cx, conns, key, data, &mut events);
        for event in events.drain(..) {
            let exchanges = &mut self.exchanges;
            if let Some(arrival) = http2::on_event(cx, conns, exchanges, key, event, data) {
                self.variant.begin(cx, conns, exchanges, arrival);
            }
            self.settle(cx, conns);
        }
        self.http2_events = events;
        http2::after_bytes(cx, conns, &mut self.exchanges, key, received);
    }

    /// A handshake is over, or a dial stands. Returns whether the connection lives on.
    fn on_handshake_over(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool {
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Accepting) => self.variant.on_established(cx, conns, key),
            Some(_) => self.on_dialled(cx, conns, key),
            None => false,
        }
    }

    fn on_broken(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        how: Closed,
        cause: Cause,
    ) {
        let exchanges = &mut self.exchanges;
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Http1Server(_)) => http1_server::on_closed(cx, conns, exchanges, key, how),
            Some(Role::Http1Client(_)) => http1_client::on_closed(cx, conns, exchanges, key, how),
            Some(Role::Http2Server(_) | Role::Http2Client(_)) => {
                http2::on_over(cx, conns, exchanges, key, cause);
            }
            _ => conns.close(cx, key),
        }
    }

    /// Bulk has ended: the connection is one like others, and one of them may be too many.
    fn end_bulk_pause(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
        let Some(conn) = conns.get_mut(key) else { return };
        let Role::Http2Client(link) = &mut conn.role else { return };
        link.end_bulk_pause();
        if let Some(destination) = link.destination.clone() {
            cx.effects.push(Effect::Scale(destination));
        }
    }
}

impl<V: Variant> Composition for Http<V> {
    fn start(&mut self, cx: &mut Cx) {
        self.variant.start(cx);
    }

    fn first_role(&mut self, cx: &Cx, via: &ListenerKind) -> Result<(Option<Tls>, Role), TlsError> {
        Ok(match via {
            ListenerKind::Inbound | ListenerKind::Front => {
                (Some(self.variant.server_tls(cx)?), Role::Accepting)
            }
            _ => (None, Role::Detect { input: Vec::new() }),
        })
    }

    fn on_accepted(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
        V::on_accepted(self, cx, conns, key);
    }

    fn on_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
        let Some(conn) = conns.get_mut(key) else { return };
        if conn.is_new() && (conn.io.is_handshaking() || !self.on_handshake_over(cx, conns, key)) {
            return;
        }
        let Some(conn) = conns.get_mut(key) else { return };
        match &conn.role {
            Role::Detect { .. } => self.on_detect_bytes(cx, conns, key, data),
            Role::Http1Server(_) | Role::Http1Client(_) => {
                self.on_http1_bytes(cx, conns, key, data);
            }
            Role::Http2Server(_) | Role::Http2Client(_) => {
                self.on_http2_bytes(cx, conns, key, data);
            }
            Role::Relay(_) => relay::on_bytes(cx, conns, key, data),
            Role::Lingering(_) => {
                if !data.is_empty() {
                    conn.since = cx.now;
                }
            }
            Role::Accepting | Role::Dialling(_) | Role::Hello(_) | Role::Reverse(_) => {}
        }
        self.settle(cx, conns);
    }

    fn on_closed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, how: Closed) {
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(_)) => relay::on_closed(cx, conns, key),
            Some(Role::Dialling(_)) => self.on_dial_failed(cx, conns, key, &DialFailure::Closed),
            Some(Role::Accepting) => {
                cx.metrics.tls_handshake_failures.add(1);
                conns.close(cx, key);
            }
            _ => self.on_broken(cx, conns, key, how, "the peer closed the connection".into()),
        }
    }

    fn on_failed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, error: &ConnError) {
        let failure = DialFailure::Broken(error);
        let role = conns.get(key).map(|conn| &conn.role);
        // Any stranger that connects here may claim it; a peer that was dialled has proven who it is.
        if failure.refuses_certificate() && !matches!(role, Some(Role::Accepting)) {
            self.upstreams.report_certificate_refused();
        }
        match role {
            Some(Role::Relay(_)) => relay::on_failed(cx, conns, key),
            Some(Role::Dialling(_)) => self.on_dial_failed(cx, conns, key, &failure),
            Some(Role::Accepting) => {
                accepted::refuse_peer(cx, conns, key, &self.variant.why_refused(error));
            }
            _ => {
                dial::note_refused(cx, conns, &mut self.upstreams, key);
                self.on_broken(cx, conns, key, Closed::Truncated, Cause::from(error));
            }
        }
    }

    /// An upstream may answer and close before it has read the whole request. Its answer is read first.
    fn on_unsendable(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        error: &ConnError,
    ) {
        let Some(conn) = conns.get(key) else { return };
        let may_have_answered = matches!(conn.role, Role::Http1Client(_) | Role::Http2Client(_));
        if !may_have_answered || conn.io.read_ended() {
            return self.on_failed(cx, conns, key, error);
        }
        tracing::debug!(%error, "nothing more can be sent");
        pools::remove(conns, &mut self.upstreams, key);
        conns.queue_read(key);
    }

    fn on_expired(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, expired: Expired) {
        match expired {
            Expired::Handshake => accepted::refuse_slow_handshake(cx, conns, key),
            Expired::Head => http1_server::refuse_slow_head(cx, conns, key),
            Expired::Dial => self.on_dial_failed(cx, conns, key, &DialFailure::TimedOut),
            Expired::BulkPause => self.end_bulk_pause(cx, conns, key),
            Expired::Codec(reason) => {
                http2::refuse_connection(cx, conns, &mut self.exchanges, key, &reason);
            }
            _ => {}
        }
    }

    fn may_send_turns(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool {
        let is_late = conns
            .get(key)
            .is_some_and(|conn| conn.has_late_turn(self.app_queue.lease(), cx.clocks));
        if is_late {
            actor_turns::on_lease_over(cx, conns, &mut self.exchanges, key);
        }
        !is_late
    }

    fn on_turns_sent(&mut self, conns: &mut Connections, key: ConnKey, is_done: bool) {
        if let Some(conn) = conns.get_mut(key) {
            conn.note_flushed(is_done, &mut self.exchanges);
        }
    }

    fn on_room(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
        body::serve_queue(cx, conns, &mut self.exchanges, key);
        relay::on_room(cx, conns, key);
    }

    fn on_peer_has_read(&mut self, cx: &mut Cx, conns: &Connections, key: ConnKey) {
        dispatch::on_capacity(cx, conns, &self.upstreams, key);
    }

    fn carry_out(&mut self, cx: &mut Cx, conns: &mut Connections, effect: Effect) {
        let Self { exchanges, upstreams, app_queue, keepalive, variant, .. } = self;
        match effect {
            Effect::Dispatch(exchange) => {
                dispatch::dispatch(cx, conns, exchanges, upstreams, app_queue, exchange);
            }
            Effect::DialUpgrade(exchange) => {
                dispatch::dial_upgrade(cx, conns, exchanges, upstreams, variant.mesh(), exchange);
            }
            Effect::AttemptFailed { exchange, failure, cause } => {
                retry::on_attempt_failed(cx, conns, exchanges, upstreams, exchange, failure, cause);
            }
            Effect::Mirror(exchange) => mirror::mirror(cx, exchanges, exchange),
            Effect::Fail { exchange, error } => {
                fail::fail(cx, conns, exchanges, exchange, &error);
            }
            Effect::FailWaiting { destination, first, error } => {
                dispatch::fail_waiting(cx, conns, exchanges, upstreams, &destination, first, &error)
            }
            Effect::LeaveNetwork(destination) => {
                failover::leave_network(cx, conns, exchanges, upstreams, &destination);
            }
            Effect::Undiscovered(destination) => {
                dispatch::fail_undiscovered(cx, conns, exchanges, upstreams, &destination);
            }
            Effect::GiveUpWaiting(exchange) => {
                dispatch::give_up_waiting(cx, conns, exchanges, upstreams, app_queue, exchange);
            }
            Effect::ServeWaiting(destination) => {
                dispatch::serve_waiting(cx, conns, exchanges, upstreams, app_queue, &destination);
            }
            Effect::Capacity(conn) => dispatch::on_capacity(cx, conns, upstreams, conn),
            Effect::LeaveFairQueue { exchange, conn } => {
                fairness::leave(conns, app_queue, exchange, conn);
            }
            Effect::PermitFreed => concurrency::free(app_queue),
            Effect::Scale(destination) => {
                scale::scale(cx, conns, upstreams, variant.mesh(), &destination);
            }
            Effect::Http1Idle(conn) => pools::on_http1_idle(cx, conns, upstreams, conn),
            Effect::Retire(conn) => pools::retire(cx, conns, conn),
            Effect::LeftPool { conn, destination, refill } => {
                pools::on_left_pool(cx, upstreams, conn, &destination, refill);
            }
            Effect::NoteReplica(noted) => replicas::note(cx, upstreams, &noted),
            Effect::EjectReplica(replica) => pools::eject_replica(cx, conns, upstreams, &replica),
            Effect::QueueRead(conn) => conns.queue_read(conn),
            Effect::Probe { conn, quiet } => keepalive::probe(cx, conns, keepalive, conn, quiet),
            Effect::PingAnswered(conn, payload) => {
                runtime_backlog::on_ping_answered(cx, conns, upstreams, conn, payload);
            }
            Effect::Revived(conn) => keepalive::on_revived(cx, conns, conn),
            Effect::CalledOff(conn) => runtime_backlog::add(cx, conns, upstreams, conn),
            Effect::RuntimeRead(count) => runtime_backlog::lessen(cx, upstreams, count),
            effect => V::carry_out(self, cx, conns, effect),
        }
    }

    fn on_command(&mut self, cx: &mut Cx, conns: &mut Connections, command: Command) {
        V::on_command(self, cx, conns, command);
    }

    fn is_due(&self) -> bool {
        self.app_queue.is_due(self.exchanges.ended())
    }

    fn timer_wait(&self) -> Option<Duration> {
        self.exchanges.timer_wait()
    }

    fn serve_timers(&mut self, cx: &mut Cx, conns: &mut Connections) {
        if self.exchanges.timer_wait().is_some() {
            timeouts::serve_timers(cx, conns, &mut self.exchanges);
            self.settle(cx, conns);
        }
    }

    /// Dispatches requests to the app that wait for their share of its connections, or for the app to
    /// have fewer requests.
    fn serve_queues(&mut self, cx: &mut Cx, conns: &mut Connections) {
        let next = |http: &mut Self, cx: &mut Cx, conns: &mut Connections| {
            let Self { exchanges, upstreams, app_queue, .. } = http;
            fairness::next(cx, conns, exchanges, upstreams, app_queue)
                .or_else(|| concurrency::next(cx, exchanges, app_queue))
        };
        while let Some(key) = next(self, cx, conns) {
            cx.effects.push(Effect::Dispatch(key));
            self.settle(cx, conns);
        }
    }

    fn sweep(&mut self, cx: &mut Cx, conns: &mut Connections) {
        timeouts::sweep(cx, conns, &mut self.exchanges);
        self.settle(cx, conns);
        let Self { exchanges, upstreams, keepalive, .. } = self;
        keepalive::sweep(cx, conns, exchanges, upstreams, keepalive);
        self.settle(cx, conns);
        pools::sweep_pools(cx, conns, &mut self.upstreams, self.variant.mesh());
        self.settle(cx, conns);
        cx.metrics.buffered_body_bytes.set(self.exchanges.buffered_bytes() as u64);
        memory_pressure::relieve(cx, conns, &mut self.exchanges);
        timeouts::release_held_credit(cx, conns, &mut self.exchanges);
    }

    fn load(&self) -> Load {
        Load { requests: self.exchanges.len(), buffered_bytes: self.exchanges.buffered_bytes() }
    }

    fn shrink(&mut self) -> bool {
        self.exchanges.shrink()
    }
}
