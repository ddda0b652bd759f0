//! Which upstream connection takes a request: an idle one of HTTP/1.1, the less loaded of two of
//! HTTP/2. Never dials.

use tollway_model::{AppProtocol, Instance, ServiceState};
use tollway_net::Key;
use tollway_routing::pick_of_two;

use super::EventLoop;
use super::interface::MeshProtocol;
use super::pool::Pool;
use crate::conn::Role;
use crate::exchange::Destination;

/// Whether connections are taken that give no sign of life, or lead to replicas of which the app
/// could not be reached a moment ago.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resting {
    Spared,
    Taken,
}

/// Streams that bulk counts for when a connection is chosen.
const BULK_LOAD: u32 = 1000;

/// How busy a connection is.
#[derive(Clone, Copy)]
struct Load {
    streams: u32,
    /// A request on it would wait behind bulk.
    is_bulk: bool,
}

impl Load {
    fn weight(self) -> u32 {
        self.streams.saturating_add(if self.is_bulk { BULK_LOAD } else { 0 })
    }
}

impl EventLoop {
    /// A connection that takes a request now.
    pub(super) fn choose(&mut self, destination: &Destination) -> Option<Key> {
        if self.speaks_h1(destination) {
            return self.choose_idle(destination);
        }
        let random = self.cx.next_random();
        let pool = self.pools.get(destination)?;
        let chosen = self.choose_link(pool, random, Resting::Spared);
        // One that is being dialled is worth waiting for.
        if chosen.is_some() || !pool.dialling.is_empty() {
            return chosen;
        }
        self.choose_link(pool, random, Resting::Taken)
    }

    /// A connection for a request that has waited for a better one long enough.
    pub(super) fn choose_last_resort(&mut self, destination: &Destination) -> Option<Key> {
        if self.speaks_h1(destination) {
            return None;
        }
        let random = self.cx.next_random();
        self.choose_link(self.pools.get(destination)?, random, Resting::Taken)
    }

    fn choose_link(&self, pool: &Pool, random: u64, resting: Resting) -> Option<Key> {
        let is_remote = matches!(pool.state, Some(ServiceState::Remote { .. }));
        if is_remote {
            self.choose_by_instance(pool, random, resting)
        } else {
            self.choose_of_two(pool, random, resting)
        }
    }

    /// The one that was used last; of a service one by chance, since they lead to several replicas.
    fn choose_idle(&mut self, destination: &Destination) -> Option<Key> {
        if let Destination::Service(_) = destination {
            self.shuffle_idle(destination);
        }
        let idle = &self.pools.get(destination)?.idle;
        let chosen = idle.iter().rposition(|key| self.is_fresh(*key));
        // Of the others something came or they closed. A read tells whether they may stay: what
        // came may be a ticket of TLS.
        let unread = idle[chosen.map_or(0, |at| at + 1)..].to_vec();
        for key in unread {
            self.conns.queue_read(key);
        }
        Some(self.pools.get_mut(destination)?.idle.remove(chosen?))
    }

    fn is_fresh(&self, key: Key) -> bool {
        self.conns.get(key).is_some_and(|conn| {
            !conn.draining && !conn.io.may_read() && matches!(conn.role, Role::Http1Client(_))
        })
    }

    /// Puts one of the idle connections where the next is taken from.
    fn shuffle_idle(&mut self, destination: &Destination) {
        let random = self.cx.next_random();
        let Some(pool) = self.pools.get_mut(destination) else { return };
        if let Some(last) = pool.idle.len().checked_sub(1) {
            let chosen = usize::try_from(random >> 40).unwrap_or(0) % pool.idle.len();
            pool.idle.swap(chosen, last);
        }
    }

    /// Requests under way on a connection; `None` if it takes no more.
    pub(super) fn outstanding(&self, key: Key) -> Option<u32> {
        self.load(key).map(|load| load.streams)
    }

    fn load(&self, key: Key) -> Option<Load> {
        let conn = self.conns.get(key)?;
        let Role::Http2Client(link) = &conn.role else { return None };
        let is_unread = conn.is_unread(self.cx.config.limits.unread_bytes);
        if conn.draining || is_unread || !link.codec.can_open() {
            return None;
        }
        let active = link.codec.active_streams();
        let takes_more = if link.leads_to_runtime() {
            !self.is_backlogged()
        } else {
            // Should they all be called off, whoever else is on it must not pay for that.
            active < link.codec.resets_left()
        };
        if !takes_more {
            return None;
        }
        let streams = u32::try_from(active).unwrap_or(u32::MAX);
        let is_bulk = link.is_apart() || conn.io.pending() > self.cx.config.limits.out_bytes / 2;
        Some(Load { streams, is_bulk })
    }

    fn choose_of_two(&self, pool: &Pool, random: u64, resting: Resting) -> Option<Key> {
        let load = |at: usize| {
            let load = self.load(pool.conns[at]).filter(|_| self.is_in(pool.conns[at], resting));
            load.map(Load::weight)
        };
        let index = pick_of_two(pool.conns.len(), random, load)?;
        Some(pool.conns[index])
    }

    /// Two choices over the replicas that answered, then the least loaded of the connections to
    /// the chosen one: a replica with two connections gets no more than one with one.
    fn choose_by_instance(&self, pool: &Pool, random: u64, resting: Resting) -> Option<Key> {
        let mut replicas: Vec<(Option<&Instance>, u32, Key, Load)> = Vec::with_capacity(8);
        // Begins anywhere, so that of equals not always the same is taken, nor the same gateway.
        let start = usize::try_from(random >> 40).unwrap_or(0) % pool.conns.len().max(1);
        let (before, from) = pool.conns.split_at(start);
        for key in from.iter().chain(before) {
            let Some(load) = self.load(*key).filter(|_| self.is_in(*key, resting)) else {
                continue;
            };
            let instance = self.instance(*key);
            match replicas.iter_mut().find(|(known, ..)| *known == instance) {
                Some((_, total, best, best_load)) => {
                    *total += load.streams;
                    if load.weight() < best_load.weight() {
                        (*best, *best_load) = (*key, load);
                    }
                }
                None => replicas.push((instance, load.streams, *key, load)),
            }
        }
        // A replica is as busy as its streams say, and out of the way only if all that leads to
        // it carries bulk.
        let weight = |at: usize| {
            let (_, streams, _, best) = replicas[at];
            Some(Load { streams, is_bulk: best.is_bulk }.weight())
        };
        let index = pick_of_two(replicas.len(), random, weight)?;
        Some(replicas[index].2)
    }

    fn is_in(&self, key: Key, resting: Resting) -> bool {
        resting == Resting::Taken
            || !matches!(self.conns.get(key).map(|conn| &conn.role), Some(Role::Http2Client(link))
                if link.is_silent || link.rests_until.is_some_and(|until| self.cx.now < until))
    }

    /// The instance that a connection proved to lead to.
    pub(super) fn instance(&self, key: Key) -> Option<&Instance> {
        self.conns.get(key)?.peer.as_ref()?.instance.as_ref()
    }

    pub(super) fn speaks_h1(&self, destination: &Destination) -> bool {
        match destination {
            Destination::Service(_) => {
                self.cx.config.mesh_protocol == MeshProtocol::Http1
                    && self.pools.get(destination).is_some_and(Pool::is_of_h1)
            }
            Destination::Workload(_)
            | Destination::Api
            | Destination::Callback
            | Destination::Actors => false,
            Destination::App => {
                self.cx.config.app.is_none_or(|app| app.protocol == AppProtocol::Http)
            }
        }
    }
}
