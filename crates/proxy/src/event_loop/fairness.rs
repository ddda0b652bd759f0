//! What each caller's connection may have of the connections to an app over HTTP/1.1: as many as it
//! leaves to others. Its requests beyond that wait until others' are served, so that a caller whose
//! requests hang takes half of them and not all. Nothing is counted while half of them are free.

use std::collections::VecDeque;

use tollway_net::Key;

use super::EventLoop;
use crate::conn::Role;
use crate::exchange::fail;
use crate::exchange::{Destination, Upstream};
use crate::request_error::RequestError;

/// Requests whose caller's connection has its share.
#[derive(Default)]
pub(super) struct FairQueue {
    /// The callers' connections that have some, in the order of their turns.
    conns: VecDeque<Key>,
    /// How many there are.
    count: usize,
}

impl EventLoop {
    /// Whether a request to the app must wait, since its caller's connection has its share.
    pub(super) fn has_its_share(&self, key: Key) -> bool {
        // Nobody can have more than is left before they have half of all together.
        if self.exchanges.len() <= self.cx.config.limits.app_connections / 2 {
            return false;
        }
        let down = self.exchanges.get(key).map(|exchange| exchange.down.conn);
        down.is_some_and(|down| self.held_by(down) > self.free_app_connections())
    }

    /// Requests of a caller's connection that have a connection to the app or are about to.
    fn held_by(&self, down: Key) -> usize {
        match self.conns.get(down).map(|conn| &conn.role) {
            Some(Role::Http2Server(link)) => link.streams.len().saturating_sub(link.late.len()),
            Some(Role::Http1Server(server)) => usize::from(!self.is_late(server.exchange)),
            _ => 0,
        }
    }

    fn is_late(&self, exchange: Option<Key>) -> bool {
        let exchange = exchange.and_then(|key| self.exchanges.get(key));
        exchange.is_some_and(|exchange| exchange.up == Upstream::FairQueue)
    }

    /// Connections to the app that no request has or waits for.
    fn free_app_connections(&self) -> usize {
        if !self.speaks_h1(&Destination::App) {
            return usize::MAX;
        }
        let limit = self.cx.config.limits.app_connections;
        self.pools.get(&Destination::App).map_or(limit, |pool| {
            let busy = pool.conns.len().saturating_sub(pool.idle.len());
            limit.saturating_sub(busy + pool.waiting.len())
        })
    }

    /// A request waits until its caller's connection may have more. Of the places to wait in, too,
    /// one connection has at most as many as it leaves to others.
    pub(super) fn wait_for_share(&mut self, key: Key) {
        self.note_wait(key, &Destination::App);
        let limit = self.cx.config.limits.waiting_per_service;
        let taken = self.late.count + self.pool(&Destination::App).waiting.len();
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        let down = exchange.down.conn;
        let Some(conn) = self.conns.get_mut(down) else { return };
        let own = if let Role::Http2Server(link) = &conn.role { link.late.len() } else { 0 };
        if own >= limit.saturating_sub(taken) {
            return fail::fail(
                &mut self.cx,
                &mut self.conns,
                &mut self.exchanges,
                key,
                &RequestError::Overloaded { what: "the queue for connections", limit },
            );
        }
        exchange.up = Upstream::FairQueue;
        if let Role::Http2Server(link) = &mut conn.role {
            link.late.push_back(key);
        }
        self.late.count += 1;
        if own == 0 {
            self.late.conns.push_back(down);
        }
    }

    /// A request that waited for its share is called off.
    pub(super) fn leave_late(&mut self, key: Key, down: Key) {
        self.late.count -= 1;
        if let Some(Role::Http2Server(link)) = self.conns.get_mut(down).map(|conn| &mut conn.role) {
            if let Some(at) = link.late.iter().position(|late| *late == key) {
                link.late.remove(at);
            }
            if !link.late.is_empty() {
                return;
            }
        }
        self.late.conns.retain(|conn| *conn != down);
    }

    /// What has come free is for those who wait for their share, connection by connection.
    pub(super) fn serve_late(&mut self) {
        let mut passed_over = 0;
        while passed_over < self.late.conns.len() {
            let free = self.free_app_connections();
            if free == 0 {
                return;
            }
            let Some(down) = self.late.conns.pop_front() else { return };
            if self.held_by(down) >= free {
                self.late.conns.push_back(down);
                passed_over += 1;
                continue;
            }
            if let Some(key) = self.next_late(down) {
                passed_over = 0;
                self.dispatch(key);
            }
        }
    }

    /// Takes the first request of a connection out; one that has more is in line for another turn.
    fn next_late(&mut self, down: Key) -> Option<Key> {
        let key = match &mut self.conns.get_mut(down)?.role {
            Role::Http2Server(link) => {
                let key = link.late.pop_front()?;
                if !link.late.is_empty() {
                    self.late.conns.push_back(down);
                }
                key
            }
            Role::Http1Server(server) => server.exchange?,
            _ => return None,
        };
        self.late.count -= 1;
        Some(key)
    }
}
