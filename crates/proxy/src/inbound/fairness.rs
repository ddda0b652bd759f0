//! What each caller's connection may have of the connections to an app over HTTP/1.1: as many as it
//! leaves to others. Its requests beyond that wait until others' are served, so that a caller whose
//! requests hang takes half of them and not all. Nothing is counted while half of them are free.

use std::collections::VecDeque;

use crate::conn::{ConnKey, Connections, Role};
use crate::cx::Cx;
use crate::exchange::{Destination, ExchangeKey, Exchanges, UpstreamState, fail};
use crate::inbound::AppQueue;
use crate::request_error::RequestError;
use crate::upstream::{Upstreams, pick, pools, trace_wait};

/// Requests whose caller's connection has its share.
#[derive(Default)]
pub(crate) struct FairQueue {
    /// The callers' connections that have some, in the order in which they are served.
    conns: VecDeque<ConnKey>,
    /// How many there are.
    count: usize,
    /// How many exchanges were over when it was served last.
    served: u64,
}

impl FairQueue {
    /// Whether a request may have got its share since the queue was served: `ended` exchanges are over.
    pub(crate) fn is_due(&self, ended: u64) -> bool {
        self.count > 0 && self.served != ended
    }
}

/// Whether a request to the app must wait, since its caller's connection has its share.
pub(crate) fn is_over_share(
    cx: &Cx,
    conns: &Connections,
    exchanges: &Exchanges,
    upstreams: &Upstreams,
    key: ExchangeKey,
) -> bool {
    // While all together hold at most half of the connections, none can hold more than are free.
    if exchanges.len() <= cx.config.limits.app_connections / 2 {
        return false;
    }
    let Some(exchange) = exchanges.get(key) else { return false };
    let free = free_connections(cx, upstreams, &exchange.destination);
    held_by(conns, exchanges, exchange.down.conn) > free
}

/// Requests of a caller's connection that have a connection to the app or are about to.
fn held_by(conns: &Connections, exchanges: &Exchanges, down: ConnKey) -> usize {
    match conns.get(down).map(|conn| &conn.role) {
        Some(Role::Http2Server(link)) => link.streams.len().saturating_sub(link.over_share.len()),
        Some(Role::Http1Server(server)) => usize::from(!is_queued(exchanges, server.exchange)),
        _ => 0,
    }
}

fn is_queued(exchanges: &Exchanges, exchange: Option<ExchangeKey>) -> bool {
    let exchange = exchange.and_then(|key| exchanges.get(key));
    exchange.is_some_and(|exchange| exchange.up == UpstreamState::FairQueue)
}

/// Connections to the app, or to a port of it, that no request has or waits for.
fn free_connections(cx: &Cx, upstreams: &Upstreams, of: &Destination) -> usize {
    let is_h1 = match of {
        Destination::AppPort(port) => !port.is_h2,
        _ => pick::app_speaks_http1(cx),
    };
    if !is_h1 {
        return usize::MAX;
    }
    upstreams.free_app_connections(of, cx.config.limits.app_connections)
}

/// Where the first request goes that waits at a caller's connection.
fn awaited(conns: &Connections, exchanges: &Exchanges, down: ConnKey) -> Option<Destination> {
    let key = match &conns.get(down)?.role {
        Role::Http2Server(link) => link.over_share.front().copied(),
        Role::Http1Server(server) => server.exchange,
        _ => None,
    };
    Some(exchanges.get(key?)?.destination.clone())
}

/// A request waits until its caller's connection may have more. Of the places to wait in, too,
/// one connection has at most as many as it leaves to others.
pub(crate) fn wait(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
) {
    let Some(destination) = exchanges.get(key).map(|exchange| exchange.destination.clone()) else {
        return;
    };
    trace_wait::note_wait(exchanges, upstreams, key, &destination);
    let limit = cx.config.limits.waiting_per_service;
    let taken = app_queue.fair_queue.count + pools::pool(cx, upstreams, &destination).waiting.len();
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let down = exchange.down.conn;
    let Some(conn) = conns.get_mut(down) else { return };
    let own = if let Role::Http2Server(link) = &conn.role { link.over_share.len() } else { 0 };
    if own >= limit.saturating_sub(taken) {
        return fail::fail(
            cx,
            conns,
            exchanges,
            key,
            &RequestError::Overloaded { what: "the queue for connections", limit },
        );
    }
    exchange.up = UpstreamState::FairQueue;
    if let Role::Http2Server(link) = &mut conn.role {
        link.over_share.push_back(key);
    }
    app_queue.fair_queue.count += 1;
    if own == 0 {
        app_queue.fair_queue.conns.push_back(down);
    }
}

/// A request that waited for its share is called off.
pub(crate) fn leave(
    conns: &mut Connections,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
    down: ConnKey,
) {
    app_queue.fair_queue.count -= 1;
    if let Some(Role::Http2Server(link)) = conns.get_mut(down).map(|conn| &mut conn.role) {
        if let Some(at) = link.over_share.iter().position(|late| *late == key) {
            link.over_share.remove(at);
        }
        if !link.over_share.is_empty() {
            return;
        }
    }
    app_queue.fair_queue.conns.retain(|conn| *conn != down);
}

/// The next request whose caller's connection may have another connection to the app, connection by
/// connection; to be dispatched before the next is asked for.
pub(crate) fn next(
    cx: &Cx,
    conns: &mut Connections,
    exchanges: &Exchanges,
    upstreams: &Upstreams,
    app_queue: &mut AppQueue,
) -> Option<ExchangeKey> {
    app_queue.fair_queue.served = exchanges.ended();
    for _ in 0..app_queue.fair_queue.conns.len() {
        let down = app_queue.fair_queue.conns.pop_front()?;
        let destination = awaited(conns, exchanges, down).unwrap_or(Destination::App);
        let free = free_connections(cx, upstreams, &destination);
        if held_by(conns, exchanges, down) >= free {
            app_queue.fair_queue.conns.push_back(down);
            continue;
        }
        if let Some(key) = take(conns, app_queue, down) {
            return Some(key);
        }
    }
    None
}

/// Takes the first request of a connection out; one that has more is last in line then.
fn take(conns: &mut Connections, app_queue: &mut AppQueue, down: ConnKey) -> Option<ExchangeKey> {
    let key = match &mut conns.get_mut(down)?.role {
        Role::Http2Server(link) => {
            let key = link.over_share.pop_front()?;
            if !link.over_share.is_empty() {
                app_queue.fair_queue.conns.push_back(down);
            }
            key
        }
        Role::Http1Server(server) => server.exchange?,
        _ => return None,
    };
    app_queue.fair_queue.count -= 1;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_due_once_for_each_end_of_an_exchange() {
        let mut queue = FairQueue::default();
        assert!(!queue.is_due(1), "nothing waits");
        queue.count = 1;
        assert!(!queue.is_due(0));
        assert!(queue.is_due(1));
        queue.served = 1;
        assert!(!queue.is_due(1), "the loop would spin");
    }
}
