//! What every part of the data plane may use: the time of the pass, the settings, the counters and
//! the log; and the effects by which one part asks for work of another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tollway_model::{Instance, ServiceName};
use tollway_net::{Conn, ConnError};
use tollway_routing::Failure;
use tollway_telemetry::{DataPlaneMetrics, LogLimiter};

use crate::cause::Cause;
use crate::conn::{ConnKey, Connection, RelayedTo};
use crate::event_loop::LoopConfig;
use crate::exchange::{Destination, ExchangeKey};
use crate::observe::{Finished, Observer};
use crate::request_error::RequestError;
use crate::served_ports::ServedPorts;
use crate::upstream::NotedOutcome;

/// What one pass of the event loop works with.
pub(crate) struct Cx {
    /// Read from the clock once a pass.
    pub(crate) now: Instant,
    pub(crate) clocks: Clocks,
    epoch: Instant,
    pub(crate) config: Arc<LoopConfig>,
    pub(crate) metrics: Arc<DataPlaneMetrics>,
    /// Which repeated events the log had lately.
    pub(crate) log: LogLimiter,
    /// Records traces and access-log lines; `None` where nothing is recorded.
    pub(crate) observer: Option<Box<Observer>>,
    /// Since when the process is ending.
    pub(crate) draining: Option<Instant>,
    /// Ports of the app beside its own that Services of a cluster lead to.
    pub(crate) ports: Arc<ServedPorts>,
    /// This process is a front.
    pub(crate) is_front: bool,
    /// The SPIFFE ID of this process; empty without one.
    pub(crate) identity: String,
    pub(crate) effects: Effects,
    pub(crate) dialler: Dialler,
    random: u64,
}

/// The clocks that are read when it matters, and not once a pass.
#[derive(Clone, Copy)]
pub(crate) struct Clocks {
    /// By which certificates are judged.
    pub(crate) wall: fn() -> SystemTime,
    /// The time since the machine began, by which leases are judged.
    pub(crate) boot: fn() -> Duration,
}

/// Starts to connect to an address.
///
/// # Errors
/// When it fails at once.
pub(crate) type Dialler = Box<dyn Fn(SocketAddr) -> Result<Conn, ConnError> + Send>;

/// Dials addresses in this process's network namespace, and those of an app that has one of its own in
/// that one.
fn dialler(config: &LoopConfig) -> Dialler {
    let network = config.interception.as_ref().and_then(|of| of.network.clone());
    let app = config.app.as_ref().map(|app| app.addresses.clone());
    let Some((network, app)) = network.zip(app) else {
        return Box::new(|address| Conn::connect(address, None));
    };
    Box::new(move |address| {
        if address.ip().is_loopback() && app.all().any(|one| one == address) {
            let socket = network.socket(address).map_err(ConnError::Connect)?;
            return Conn::connect_from(socket, address);
        }
        Conn::connect(address, None)
    })
}

impl Cx {
    pub(crate) fn new(
        config: Arc<LoopConfig>,
        metrics: Arc<DataPlaneMetrics>,
        now: Instant,
        seed: u64,
    ) -> Self {
        let dialler = dialler(&config);
        Self {
            now,
            clocks: Clocks { wall: SystemTime::now, boot: tollway_net::boot_time },
            epoch: now,
            config,
            metrics,
            log: LogLimiter::default(),
            observer: None,
            draining: None,
            ports: Arc::default(),
            is_front: false,
            identity: String::new(),
            effects: Effects::default(),
            dialler,
            random: seed,
        }
    }

    /// Time since the loop began, for the codecs.
    pub(crate) fn since_start(&self) -> Duration {
        self.now.saturating_duration_since(self.epoch)
    }

    /// The next number of a sequence that is good enough to choose with (xorshift).
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Writes the access-log line of a connection that is over.
    pub(crate) fn end_line(&mut self, mut finished: Finished) {
        finished.ended = self.now;
        if let Some(observer) = &mut self.observer {
            observer.write_line(finished, &self.metrics);
        }
    }

    /// Hands recorded requests over to the thread that writes them.
    pub(crate) fn flush_observer(&mut self) {
        if let Some(observer) = &mut self.observer {
            observer.flush(&self.metrics);
        }
    }

    /// A connection to the runtime ends: requests that were called off on it wait there no longer.
    pub(crate) fn forget_called_off(&mut self, conn: &mut Connection) {
        let count = conn.take_called_off();
        if count > 0 {
            self.effects.push(Effect::RuntimeRead(count));
        }
    }
}

/// What one part asks of another. The event loop carries effects out in order, until none is left.
///
/// A key may be stale by then: what it named has ended, and nothing is left to do.
pub(crate) enum Effect {
    /// An exchange has a destination and needs a connection, or waits for one.
    Dispatch(ExchangeKey),
    /// An attempt failed before any response: another one, or the answer to the caller.
    AttemptFailed { exchange: ExchangeKey, failure: Failure, cause: Cause },
    /// A request has gone out whole that a route has mirrored.
    Mirror(ExchangeKey),
    /// An exchange cannot go on.
    Fail { exchange: ExchangeKey, error: Box<RequestError> },
    /// The requests that wait for a destination, behind the first so many, cannot be served.
    FailWaiting { destination: Destination, first: usize, error: Box<RequestError> },
    /// No address of a destination can be dialled: requests that may go to another network do.
    LeaveNetwork(Destination),
    /// A service has not become known in time.
    Undiscovered(Destination),
    /// Requests that wait for a destination may find a connection.
    ServeWaiting(Destination),
    /// A connection that carries bytes waited for its service, which is known now.
    DispatchRaw(ConnKey),
    /// The control plane does not say in time what the address of a connection is.
    LeaveUnanswered(ConnKey),
    /// A port of a Service has left the mesh: the connections of the app to it take no further requests.
    RetireCallers(ServiceName),
    /// Bytes have come, or the end, of a connection out of the mesh on which is not decided yet.
    HeldBytes(ConnKey),
    /// A connection out of the mesh needs another address of its host.
    DialExternal(ConnKey),
    /// A connection that carries bytes needs another address of its service.
    DispatchTcp { down: ConnKey, service: ServiceName },
    /// A request that may leave HTTP needs a connection of its own.
    DialUpgrade(ExchangeKey),
    /// An exchange has waited long enough for a better connection.
    GiveUpWaiting(ExchangeKey),
    /// An exchange no longer waits for its caller's share of the connections to the app.
    LeaveFairQueue { exchange: ExchangeKey, conn: ConnKey },
    /// The app has one request less.
    PermitFreed,
    /// A destination may have too few connections, or too many.
    Scale(Destination),
    /// An HTTP/2 upstream has room for another stream, or its pool has one connection less.
    Capacity(ConnKey),
    /// An HTTP/1.1 upstream has no exchange any more.
    Http1Idle(ConnKey),
    /// An upstream takes no new requests and closes when it has none.
    Retire(ConnKey),
    /// A connection is no member of its pool any more; `refill` asks for another one in its place.
    LeftPool { conn: ConnKey, destination: Destination, refill: bool },
    /// How a request ended at a replica of a service that has traffic policies.
    NoteReplica(NotedOutcome),
    /// The replica behind an HTTP/1.1 upstream cannot reach its app.
    EjectReplica(Box<EjectedReplica>),
    /// An idle connection may have something to read.
    QueueRead(ConnKey),
    /// An exchange has waited on an upstream for `quiet`.
    Probe { conn: ConnKey, quiet: Duration },
    /// A PING was answered with this payload.
    PingAnswered(ConnKey, [u8; 8]),
    /// An upstream that was taken for dead has sent something.
    Revived(ConnKey),
    /// A request to the runtime was called off on an open stream of this connection.
    CalledOff(ConnKey),
    /// The runtime has read so many requests that were called off, or will never read them.
    RuntimeRead(usize),
    /// A connection left HTTP; policies may have changed since its request was admitted.
    JudgeRelay(ConnKey),
    /// A gateway's connection needs another address of what it leads to.
    RelayElsewhere(ConnKey),
    /// An address could not be dialled for a connection that carries bytes.
    BackOffDialled { down: ConnKey, address: SocketAddr, until: Instant },
    /// A relay through this gateway has ended.
    RelayEnded { target: RelayedTo, address: SocketAddr },
    /// An address did not answer a relayed connection.
    BackOffRelay { target: RelayedTo, address: SocketAddr, until: Instant },
}

/// A replica that cannot reach its app.
pub(crate) struct EjectedReplica {
    pub(crate) destination: Destination,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) instance: Option<Instance>,
}

/// Effects that are not carried out yet.
#[derive(Default)]
pub(crate) struct Effects(std::collections::VecDeque<Effect>);

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push_back(effect);
    }

    pub(crate) fn pop(&mut self) -> Option<Effect> {
        self.0.pop_front()
    }
}
