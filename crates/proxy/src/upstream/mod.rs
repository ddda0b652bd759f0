//! Upstreams: the destinations of requests, the connections to each of them, and the requests that
//! wait for one.
//!
//! [`Upstreams`] owns the pools. The modules beside it find a connection for a request ([`pick`]),
//! decide how many there are ([`scale`]), dial ([`dial`]), ask silent peers for an answer
//! ([`keepalive`]) bound what waits at the runtime
//! ([`runtime_backlog`]), and keep what traffic policies have a caller do ([`replicas`]), and which replicas
//! are near ([`near`]). What follows for
//! requests is an [`Effect`](crate::cx::Effect).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod dial;
pub(crate) mod discover;
pub(crate) mod keepalive;
mod links;
mod near;
pub(crate) mod networks;
pub(crate) mod pick;
pub(crate) mod pools;
pub(crate) mod relay_dial;
pub(crate) mod replicas;
pub(crate) mod runtime_backlog;
pub(crate) mod scale;
pub(crate) mod trace_wait;
mod workload;

use tollway_model::HostName;

use crate::event_loop::ProcessServices;
use crate::exchange::{Destination, ExchangeKey};
pub(crate) use keepalive::Keepalive;
pub(crate) use networks::{Before, Chosen, CountedCall};
use pools::Pools;
pub(crate) use pools::{Candidates, Pool, PoolKey};
pub(crate) use replicas::{NotedOutcome, ReplicaRef};

/// The pools of one event loop.
pub(crate) struct Upstreams {
    pools: Pools,
    /// What the process does for this loop: discovery, the runtime.
    services: Box<dyn ProcessServices>,
    /// Requests to the runtime that were called off and that it has not read.
    backlog: usize,
}

impl Upstreams {
    pub(crate) fn new(services: Box<dyn ProcessServices>) -> Self {
        Self { pools: Pools::default(), services, backlog: 0 }
    }

    /// The app beside this sidecar could not be connected to.
    pub(crate) fn report_app_unreachable(&self) {
        self.services.app_unreachable();
    }

    /// The addresses of a host out of the mesh are wanted.
    pub(crate) fn find_addresses(&self, name: &HostName) {
        self.services.find_addresses(name);
    }

    /// A peer has refused the own certificate as one that has ended.
    pub(crate) fn report_certificate_refused(&self) {
        self.services.certificate_refused();
    }

    /// The pool of a destination, if it has one.
    pub(crate) fn pool_of(&self, destination: &Destination) -> Option<PoolKey> {
        self.pools.key(destination)
    }

    /// The destination of a pool that requests wait for a connection of; `None` if none waits.
    pub(crate) fn waited_for(&self, pool: PoolKey) -> Option<&Destination> {
        let pool = self.pools.at(pool)?;
        (!pool.waiting.is_empty()).then_some(&pool.destination)
    }

    /// Takes the request out that has waited longest for a connection of a pool.
    pub(crate) fn next_waiting(&mut self, pool: PoolKey) -> Option<ExchangeKey> {
        self.pools.at_mut(pool)?.waiting.pop_front()
    }

    /// A request goes on waiting for a connection of a pool, before all others.
    pub(crate) fn wait_first(&mut self, pool: PoolKey, exchange: ExchangeKey) {
        if let Some(pool) = self.pools.at_mut(pool) {
            pool.waiting.push_front(exchange);
        }
    }

    /// Connections to the app, or to a port of it, that no request has or waits for, of at most `limit`.
    pub(crate) fn free_app_connections(&self, of: &Destination, limit: usize) -> usize {
        self.pools.get(of).map_or(limit, |pool| {
            let busy = pool.conns.len().saturating_sub(pool.idle.len());
            limit.saturating_sub(busy + pool.waiting.len())
        })
    }
}

#[cfg(test)]
mod tests;
