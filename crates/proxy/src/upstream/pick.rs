//! Which upstream connection takes a request: an idle one of HTTP/1.1, the less loaded of two of
//! HTTP/2. Never dials.

use tollway_model::{AppProtocol, Instance, ServiceState};
use tollway_routing::pick_of_two;

use crate::conn::ConnKey;
use crate::cx::{Cx, Effect};
use crate::event_loop::MeshProtocol;
use crate::exchange::Destination;
use crate::upstream::links::{LinkProtocol, Links};
use crate::upstream::{Pool, PoolKey, Upstreams, runtime_backlog};

/// Whether to pick connections that did not answer a PING in time, or whose replica could not reach its
/// app a moment ago.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unhealthy {
    Avoid,
    Allow,
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

/// Picks a connection for a request, of an endpoint that has one. `None` if none has room: the request
/// waits, and `scale` dials.
pub(crate) fn pick(
    cx: &mut Cx,
    links: &impl Links,
    upstreams: &mut Upstreams,
    pool: PoolKey,
) -> Option<ConnKey> {
    let random = cx.next_random();
    if speaks_http1(cx, upstreams.pools.at(pool)?) {
        return pick_idle(cx, links, upstreams.pools.at_mut(pool)?, random);
    }
    let pool = upstreams.pools.at(pool)?;
    let chosen = pick_link(cx, links, upstreams, pool, random, Unhealthy::Avoid);
    // One that is being dialled is worth waiting for.
    if chosen.is_some() || !pool.dialling.is_empty() {
        return chosen;
    }
    pick_link(cx, links, upstreams, pool, random, Unhealthy::Allow)
}

/// A connection for a request that has waited for a better one long enough.
pub(crate) fn pick_last_resort(
    cx: &mut Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: PoolKey,
) -> Option<ConnKey> {
    let pool = upstreams.pools.at(pool)?;
    if speaks_http1(cx, pool) {
        return None;
    }
    let random = cx.next_random();
    pick_link(cx, links, upstreams, pool, random, Unhealthy::Allow)
}

fn pick_link(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    random: u64,
    unhealthy: Unhealthy,
) -> Option<ConnKey> {
    let is_remote = matches!(pool.state, Some(ServiceState::Remote { .. }));
    if is_remote {
        pick_by_instance(cx, links, upstreams, pool, random, unhealthy)
    } else {
        pick_two(cx, links, upstreams, pool, random, unhealthy)
    }
}

/// The one that was used last; of a service one by chance, since they lead to several replicas.
fn pick_idle(cx: &mut Cx, links: &impl Links, pool: &mut Pool, random: u64) -> Option<ConnKey> {
    if let (Destination::Service(_), Some(last)) =
        (&pool.destination, pool.idle.len().checked_sub(1))
    {
        let chosen = usize::try_from(random >> 40).unwrap_or(0) % pool.idle.len();
        pool.idle.swap(chosen, last);
    }
    let chosen = pool.idle.iter().rposition(|key| is_fresh(links, *key));
    // Those behind it have unread bytes or were closed. A read decides whether they stay: the bytes
    // may be a ticket of TLS.
    for unread in &pool.idle[chosen.map_or(0, |at| at + 1)..] {
        cx.effects.push(Effect::QueueRead(*unread));
    }
    Some(pool.idle.remove(chosen?))
}

fn is_fresh(links: &impl Links, key: ConnKey) -> bool {
    links.link(key).is_some_and(|link| {
        !link.is_draining && matches!(link.protocol, LinkProtocol::Http1 { is_fresh: true })
    })
}

/// Requests under way on a connection; `None` if it takes no more.
pub(crate) fn outstanding(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    key: ConnKey,
) -> Option<u32> {
    load(cx, links, upstreams, key).map(|load| load.streams)
}

fn load(cx: &Cx, links: &impl Links, upstreams: &Upstreams, key: ConnKey) -> Option<Load> {
    let link = links.link(key)?;
    let state = link.http2()?;
    let is_unread = link.pending >= cx.config.limits.unread_bytes;
    if link.is_draining || is_unread || !state.can_open {
        return None;
    }
    let takes_more = if state.leads_to_runtime {
        !runtime_backlog::is_full(cx, upstreams)
    } else {
        // Should they all be called off, no other request on it must pay for that.
        state.streams < state.resets_left
    };
    if !takes_more {
        return None;
    }
    let streams = u32::try_from(state.streams).unwrap_or(u32::MAX);
    let is_bulk = state.carries_bulk || link.pending > cx.config.limits.out_bytes / 2;
    Some(Load { streams, is_bulk })
}

fn pick_two(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    random: u64,
    unhealthy: Unhealthy,
) -> Option<ConnKey> {
    let load = |at: usize| {
        let load = load(cx, links, upstreams, pool.conns[at])
            .filter(|_| is_preferred(cx, links, pool.conns[at], unhealthy));
        load.map(Load::weight)
    };
    let index = pick_of_two(pool.conns.len(), random, load)?;
    Some(pool.conns[index])
}

/// Two choices over the replicas that answered, then the least loaded of the connections to
/// the chosen one: a replica with two connections gets no more than one with one.
fn pick_by_instance(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    random: u64,
    unhealthy: Unhealthy,
) -> Option<ConnKey> {
    let mut replicas: Vec<(Option<&Instance>, u32, ConnKey, Load)> = Vec::with_capacity(8);
    // Begins anywhere, so that of equals not always the same is taken, nor the same gateway.
    let start = usize::try_from(random >> 40).unwrap_or(0) % pool.conns.len().max(1);
    let (before, from) = pool.conns.split_at(start);
    for key in from.iter().chain(before) {
        let Some(load) =
            load(cx, links, upstreams, *key).filter(|_| is_preferred(cx, links, *key, unhealthy))
        else {
            continue;
        };
        let instance = instance(links, *key);
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

fn is_preferred(cx: &Cx, links: &impl Links, key: ConnKey, unhealthy: Unhealthy) -> bool {
    let is_unhealthy = || {
        let state = links.link(key).and_then(|link| link.http2());
        state.is_some_and(|s| s.is_silent || s.ejected_until.is_some_and(|until| cx.now < until))
    };
    unhealthy == Unhealthy::Allow || !is_unhealthy()
}

/// The instance that a connection proved to lead to.
pub(crate) fn instance(links: &impl Links, key: ConnKey) -> Option<&Instance> {
    links.link(key)?.instance
}

/// Whether the connections of a pool have one request at a time.
pub(crate) fn speaks_http1(cx: &Cx, pool: &Pool) -> bool {
    match pool.destination {
        Destination::Service(_) => {
            cx.config.mesh_protocol == MeshProtocol::Http1 && pool.is_of_h1()
        }
        Destination::Workload(_)
        | Destination::Api
        | Destination::Callback
        | Destination::Actors => false,
        Destination::App => app_speaks_http1(cx),
    }
}

/// Whether the connections to the app have one request at a time.
pub(crate) fn app_speaks_http1(cx: &Cx) -> bool {
    cx.config.app.as_ref().is_none_or(|app| app.protocol == AppProtocol::Http)
}
