//! Exchanges: requests with their responses while they are under way, the bytes that wait between
//! two connections, and how exchanges fail or end.
//!
//! [`Exchanges`] owns the state. The modules beside it move bytes between connections
//! ([`body`]), write responses ([`respond`]), end what fails ([`fail`]) or is complete
//! ([`finish`]), and find what took too long ([`timeouts`]) or holds too much memory
//! ([`memory_pressure`]). None of them finds a connection for a request: that is an
//! [`Effect`](crate::cx::Effect).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod access_log;
mod actor_turns;
pub(crate) mod again;
pub(crate) mod body;
pub(crate) mod fail;
pub(crate) mod fault;
pub(crate) mod finish;
pub(crate) mod memory_pressure;
mod network;
pub(crate) mod outcome;
mod pipe;
pub(crate) mod respond;
mod state;
mod steering;
pub(crate) mod timeouts;
pub(crate) mod trace;

use std::time::{Duration, Instant};

use tollway_http::RequestHead;
use tollway_net::{Key, Slab, Wheel};

use body::BufferPool;
pub(crate) use network::ChosenNetwork;
pub(crate) use outcome::FailedReplica;
pub(crate) use pipe::Pipe;
pub(crate) use state::{
    AppPort, BodySize, Destination, Exchange, Side, StreamRef, UpstreamState, WorkloadName,
    describe,
};
pub(crate) use steering::{Steering, ThreadRoutes};

/// The key of an exchange. It is stale once the exchange is over.
pub(crate) type ExchangeKey = Key<Exchange>;

/// How exactly the times of routes are kept.
const TIMER_TICK: Duration = Duration::from_millis(10);

/// Heads of requests over HTTP/1.1 that are over, for the next ones.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "a head is passed on in its box, and not moved")]
struct HeadPool(Vec<Box<RequestHead>>);

impl HeadPool {
    const COUNT: usize = 64;
    const BYTES: usize = 4096;

    fn keep(&mut self, head: Box<RequestHead>) {
        if self.0.len() < Self::COUNT && head.room() <= Self::BYTES {
            self.0.push(head);
        }
    }
}

/// The exchanges of one event loop.
#[derive(Default)]
pub(crate) struct Exchanges {
    slab: Slab<Exchange>,
    /// Bytes that wait in pipes, over all exchanges.
    buffered_bytes: usize,
    /// Since when that is more than its limit.
    over_since: Option<Instant>,
    /// Some connection's credit is held back because too many bytes wait.
    holds_credit: bool,
    spare_bodies: BufferPool,
    spare_heads: HeadPool,
    /// Where the next pass over a part of the exchanges begins.
    swept: usize,
    /// How many are over.
    ended: u64,
    /// Times that routes set, and that a sweep would notice too late; `None` before the first.
    timers: Option<Wheel<ExchangeKey>>,
}

impl Exchanges {
    pub(crate) fn insert(&mut self, exchange: Exchange) -> ExchangeKey {
        self.slab.insert(exchange)
    }

    /// `None` for a key whose exchange is over.
    pub(crate) fn get(&self, key: ExchangeKey) -> Option<&Exchange> {
        self.slab.get(key)
    }

    /// `None` for a key whose exchange is over.
    pub(crate) fn get_mut(&mut self, key: ExchangeKey) -> Option<&mut Exchange> {
        self.slab.get_mut(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many exchanges are over since the loop began.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExchangeKey, &Exchange)> {
        self.slab.iter()
    }

    /// Gives memory back after a peak. Says whether it did.
    pub(crate) fn shrink(&mut self) -> bool {
        self.slab.shrink()
    }

    /// Bytes that wait in pipes, over all exchanges.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    /// Counts bytes that wait in an exchange which is about to be inserted.
    pub(crate) fn add_buffered(&mut self, bytes: usize) {
        self.buffered_bytes += bytes;
    }

    /// Takes an exchange out that is over, with the bytes that still wait in it.
    fn remove(&mut self, key: ExchangeKey) -> Option<Exchange> {
        self.forget_bytes(key);
        self.slab.remove(key)
    }

    /// Drops an exchange that is over, with the bytes that still wait in it. Gives its head.
    fn discard(&mut self, key: ExchangeKey) -> Option<Box<RequestHead>> {
        self.forget_bytes(key);
        self.slab.remove(key).map(|exchange| exchange.head)
    }

    /// What waits in an exchange counts no longer.
    #[inline]
    fn forget_bytes(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.slab.get_mut(key) else { return };
        self.ended += 1;
        self.buffered_bytes -= exchange.request.len() + exchange.response.len();
        self.spare_bodies.keep(exchange.replay.take());
    }

    /// A head for a request of HTTP/1.1, of one that is over if there is one.
    pub(crate) fn spare_head(&mut self) -> Box<RequestHead> {
        self.spare_heads.0.pop().unwrap_or_default()
    }

    /// Has an exchange examined when the next time that a route sets for it is over, if that is soon. The
    /// sweep asks for it again: so what is over leaves no timers behind for long.
    pub(crate) fn set_timer(&mut self, now: Instant, key: ExchangeKey) {
        if let Some(at) = self.get_mut(key).and_then(|exchange| exchange.next_timer(now)) {
            self.timers.get_or_insert_with(|| Wheel::new(now, TIMER_TICK)).set(at, key);
        }
    }

    /// How long the loop may wait for the next timer; `None` if there is none.
    pub(crate) fn timer_wait(&self) -> Option<Duration> {
        self.timers.as_ref().filter(|timers| !timers.is_empty()).map(|_| TIMER_TICK)
    }

    /// The exchanges that are to be examined now. Some may be over.
    fn due(&mut self, now: Instant) -> Vec<ExchangeKey> {
        let mut due = Vec::new();
        if let Some(timers) = &mut self.timers {
            timers.expire(now, &mut due);
        }
        due
    }

    /// Whether an exchange waits for a connection.
    pub(crate) fn is_waiting(&self, key: ExchangeKey) -> bool {
        self.get(key).is_some_and(|exchange| exchange.up == UpstreamState::Waiting)
    }

    /// Has a request sent from its beginning again: what was sent of its body goes first.
    pub(crate) fn rewind(&mut self, key: ExchangeKey) {
        let Some(exchange) = self.slab.get_mut(key) else { return };
        exchange.request.passed = 0;
        if let Some(steering) = &mut exchange.steering {
            steering.attempt_ends = None;
        }
        let sent = exchange.replay.replace(Vec::new()).unwrap_or_default();
        self.buffered_bytes += sent.len();
        exchange.request.push_front(sent);
        exchange.request.finished = false;
    }
}
