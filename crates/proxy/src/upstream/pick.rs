//! Which upstream connection takes a request: an idle one of HTTP/1.1, the less loaded of two of
//! HTTP/2. Never dials.

use tollway_model::{AppProtocol, Instance, Level, ServiceState};
use tollway_routing::{
    Candidate, NearBy, NearReplica, ReplicaId, Share, choose, choose_near, pick_of_two,
};

use crate::conn::ConnKey;
use crate::cx::{Cx, Effect};
use crate::event_loop::MeshProtocol;
use crate::exchange::{Destination, FailedReplica};
use crate::upstream::links::{LinkProtocol, Links};
use crate::upstream::near::Near;
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

/// Picks a connection for a request, of an endpoint that has one; of a replica that is not `avoided`, if
/// there are others. `None` if none has room: the request waits, and `scale` dials.
pub(crate) fn pick(
    cx: &mut Cx,
    links: &impl Links,
    upstreams: &mut Upstreams,
    pool: PoolKey,
    avoided: &[FailedReplica],
) -> Option<ConnKey> {
    let random = cx.next_random();
    let of = upstreams.pools.at(pool)?;
    let avoided = if avoided.is_empty() || !has_several(of) { &[] } else { avoided };
    if speaks_http1(cx, of) {
        return pick_idle(cx, links, upstreams.pools.at_mut(pool)?, random, avoided);
    }
    let chosen = pick_link(cx, links, upstreams, of, random, Unhealthy::Avoid, avoided);
    // One that is being dialled is worth waiting for.
    if chosen.is_some() || !of.dialling.is_empty() {
        return chosen;
    }
    let chosen = if avoided.is_empty() {
        None
    } else {
        pick_link(cx, links, upstreams, of, random, Unhealthy::Avoid, &[])
    };
    chosen.or_else(|| pick_link(cx, links, upstreams, of, random, Unhealthy::Allow, &[]))
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
    pick_link(cx, links, upstreams, pool, random, Unhealthy::Allow, &[])
}

/// Whether a service has other replicas than one that has failed.
fn has_several(pool: &Pool) -> bool {
    match &pool.state {
        Some(ServiceState::Local { endpoints, .. }) => endpoints.len() > 1,
        Some(ServiceState::Remote { remote, .. }) => remote.ready_replicas > 1,
        Some(
            ServiceState::Failover { .. }
            | ServiceState::AddressOf(_)
            | ServiceState::Unavailable(_),
        )
        | None => false,
    }
}

fn pick_link(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    random: u64,
    unhealthy: Unhealthy,
    avoided: &[FailedReplica],
) -> Option<ConnKey> {
    let is_remote = matches!(pool.state, Some(ServiceState::Remote { .. }));
    if is_remote || pool.replicas().is_some() {
        pick_replica(cx, links, upstreams, pool, random, unhealthy, avoided)
    } else {
        pick_two(cx, links, upstreams, pool, random, unhealthy, avoided)
    }
}

/// The one that was used last; of a service one by chance, since they lead to several replicas.
fn pick_idle(
    cx: &mut Cx,
    links: &impl Links,
    pool: &mut Pool,
    random: u64,
    avoided: &[FailedReplica],
) -> Option<ConnKey> {
    if pool.replicas().is_some() {
        let chosen = pick_idle_replica(cx, links, pool, random, avoided);
        let chosen = chosen.or_else(|| {
            let others = !avoided.is_empty();
            others.then(|| pick_idle_replica(cx, links, pool, random, &[])).flatten()
        });
        return Some(pool.idle.remove(chosen?));
    }
    if let (Destination::Service(_), Some(last)) =
        (&pool.destination, pool.idle.len().checked_sub(1))
    {
        let chosen = usize::try_from(random >> 40).unwrap_or(0) % pool.idle.len();
        pool.idle.swap(chosen, last);
    }
    let last = |avoided: &[FailedReplica]| {
        let is_meant = |key: &ConnKey| is_fresh(links, *key) && !is_avoided(links, *key, avoided);
        pool.idle.iter().rposition(is_meant)
    };
    let chosen = last(avoided).or_else(|| if avoided.is_empty() { None } else { last(&[]) });
    // Those behind it have unread bytes or were closed. A read decides whether they stay: the bytes
    // may be a ticket of TLS.
    for unread in &pool.idle[chosen.map_or(0, |at| at + 1)..] {
        cx.effects.push(Effect::QueueRead(*unread));
    }
    Some(pool.idle.remove(chosen?))
}

/// The place of an idle connection to the replica that is chosen among those that have one.
fn pick_idle_replica(
    cx: &mut Cx,
    links: &impl Links,
    pool: &Pool,
    random: u64,
    avoided: &[FailedReplica],
) -> Option<usize> {
    let replicas = pool.replicas()?;
    let mut found: Vec<Idle<'_>> = Vec::with_capacity(8);
    for key in &pool.conns {
        let Some(link) = links.link(*key) else { continue };
        match found.iter_mut().find(|idle| idle.instance == link.instance) {
            Some(idle) => idle.under_way += 1,
            None => {
                let (instance, replica, level) = (link.instance, link.replica, link.level);
                found.push(Idle { instance, replica, level, under_way: 1, place: None });
            }
        }
    }
    for (place, key) in pool.idle.iter().enumerate() {
        let of = instance(links, *key);
        let Some(idle) = found.iter_mut().find(|idle| idle.instance == of) else { continue };
        idle.under_way -= 1;
        if !is_fresh(links, *key) {
            cx.effects.push(Effect::QueueRead(*key));
        } else if !is_avoided(links, *key, avoided) {
            idle.place = Some(place);
        }
    }
    let (now, near) = (cx.now, pool.near());
    if near.is_some() {
        found.sort_by_key(|idle| idle.level);
    }
    let candidate = |at: usize| {
        let Idle { replica, under_way, place, .. } = &found[at];
        place.is_some().then(|| replicas.candidate(*replica, *under_way, now))
    };
    let index = match near {
        Some(near) => {
            let levels = Found { count: found.len(), level: |at: usize| found[at].level };
            pick_near(cx, near, random, levels, |at| Some((candidate(at)?, found[at].under_way)))?
        }
        None => choose(found.len(), random, candidate)?,
    };
    found[index].place
}

/// A replica with connections of one request at a time.
struct Idle<'l> {
    instance: Option<&'l Instance>,
    replica: Option<ReplicaId>,
    level: Level,
    under_way: u32,
    /// Of one of its idle connections.
    place: Option<usize>,
}

fn is_avoided(links: &impl Links, key: ConnKey, avoided: &[FailedReplica]) -> bool {
    !avoided.is_empty()
        && links.link(key).is_some_and(|link| {
            avoided.iter().any(|replica| replica.is_at(link.instance, link.remote))
        })
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
    avoided: &[FailedReplica],
) -> Option<ConnKey> {
    let load = |at: usize| {
        let load = load(cx, links, upstreams, pool.conns[at])
            .filter(|_| is_preferred(cx, links, pool.conns[at], unhealthy, avoided));
        load.map(Load::weight)
    };
    let index = pick_of_two(pool.conns.len(), random, load)?;
    Some(pool.conns[index])
}

/// Two choices over the replicas that answered, then the least loaded of the connections to
/// the chosen one: a replica with two connections gets no more than one with one. Traffic policies
/// that distinguish replicas decide what a request costs each, and its share of them.
fn pick_replica(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    random: u64,
    unhealthy: Unhealthy,
    avoided: &[FailedReplica],
) -> Option<ConnKey> {
    let mut found: Vec<Connected<'_>> = Vec::with_capacity(8);
    // Begins anywhere, so that of equals not always the same is taken, nor the same gateway.
    let start = usize::try_from(random >> 40).unwrap_or(0) % pool.conns.len().max(1);
    let (before, from) = pool.conns.split_at(start);
    for key in from.iter().chain(before) {
        let Some(load) = load(cx, links, upstreams, *key)
            .filter(|_| is_preferred(cx, links, *key, unhealthy, avoided))
        else {
            continue;
        };
        let Some(link) = links.link(*key) else { continue };
        match found.iter_mut().find(|known| known.instance == link.instance) {
            Some(known) => {
                known.under_way += load.streams;
                if load.weight() < known.load.weight() {
                    (known.conn, known.load) = (*key, load);
                }
            }
            None => {
                let (instance, replica, level) = (link.instance, link.replica, link.level);
                let under_way = load.streams;
                found.push(Connected { instance, replica, level, under_way, conn: *key, load });
            }
        }
    }
    let (replicas, near) = (pool.replicas(), pool.near());
    if near.is_some() {
        found.sort_by_key(|connected| connected.level);
    }
    // A replica is as busy as its streams say, and out of the way only if all that leads to
    // it carries bulk.
    let weight = |at: usize| {
        let Connected { under_way, load, .. } = &found[at];
        Load { streams: *under_way, is_bulk: load.is_bulk }.weight()
    };
    let candidate = |at: usize| {
        let cost = weight(at);
        Some(match replicas {
            Some(replicas) => replicas.candidate(found[at].replica, cost, cx.now),
            None => Candidate { cost, share: Share::WHOLE },
        })
    };
    let index = match near {
        Some(near) => {
            let levels = Found { count: found.len(), level: |at: usize| found[at].level };
            pick_near(cx, near, random, levels, |at| Some((candidate(at)?, weight(at))))?
        }
        None => choose(found.len(), random, candidate)?,
    };
    Some(found[index].conn)
}

/// Replicas that were found, the nearest first.
struct Found<L> {
    count: usize,
    level: L,
}

/// The place of the replica that takes a request where near ones are preferred. It is counted by its level.
/// `replica` gives what one more request costs and how many are under way there.
fn pick_near(
    cx: &Cx,
    near: &Near,
    random: u64,
    found: Found<impl Fn(usize) -> Level>,
    replica: impl Fn(usize) -> Option<(Candidate, u32)>,
) -> Option<usize> {
    let replica =
        |at: usize| replica(at).map(|(candidate, under_way)| NearReplica { candidate, under_way });
    let chosen = choose_near(near.levels(), found.count, random, found.level, replica)?;
    let by_reason = match chosen.by {
        NearBy::Nearest => &cx.metrics.locality.nearest,
        NearBy::Health => &cx.metrics.locality.health,
        NearBy::Load => &cx.metrics.locality.load,
    };
    by_reason[chosen.level.index()].add(1);
    Some(chosen.index)
}

/// A replica to which multiplexed connections lead.
struct Connected<'l> {
    instance: Option<&'l Instance>,
    replica: Option<ReplicaId>,
    level: Level,
    under_way: u32,
    /// The least loaded of them.
    conn: ConnKey,
    load: Load,
}

fn is_preferred(
    cx: &Cx,
    links: &impl Links,
    key: ConnKey,
    unhealthy: Unhealthy,
    avoided: &[FailedReplica],
) -> bool {
    let is_unhealthy = || {
        let state = links.link(key).and_then(|link| link.http2());
        state.is_some_and(|s| s.is_silent || s.ejected_until.is_some_and(|until| cx.now < until))
    };
    (unhealthy == Unhealthy::Allow || !is_unhealthy()) && !is_avoided(links, key, avoided)
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
        Destination::AppPort(port) => !port.is_h2,
    }
}

/// Whether the connections to the app have one request at a time.
pub(crate) fn app_speaks_http1(cx: &Cx) -> bool {
    cx.config.app.as_ref().is_none_or(|app| app.protocol == AppProtocol::Http)
}
