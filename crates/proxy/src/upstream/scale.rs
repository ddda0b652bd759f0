//! How many upstream connections a destination has: what is missing is dialled, what is too much
//! retired.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::iter::repeat_n;
use std::net::SocketAddr;
use std::time::Duration;

use foldhash::fast::FixedState;
use tollway_http::h2;
use tollway_model::{AppProtocol, Instance};
use tollway_net::{Conn, local_pair};
use tollway_routing::{Dialled, SpreadLimits, plan_spread};

use crate::cause::Cause;
use crate::conn::{ConnKey, Connection, Connections, Http2Link, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::event_loop::{ApiKind, ApiStream, NotServed};
use crate::exchange::Destination;
use crate::request_error::RequestError;
use crate::tls::{MeshTls, alpn};
use crate::upstream::links::Links;
use crate::upstream::{Candidates, Pool, Upstreams, dial, pick, pools, runtime_backlog};

/// Endpoints of a service in the own network to which one thread keeps connections. It is also the most
/// dials to a service at once, and the number of connections to a service that are never surplus.
const LOCAL_ENDPOINTS: usize = 16;
/// After this time without a request, a service has none under way that must be counted.
const LATELY: Duration = Duration::from_secs(1);

/// Dials what the destination is short of.
pub(crate) fn scale(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: Option<&mut MeshTls>,
    destination: &Destination,
) {
    if cx.draining.is_some() && pools::pool(cx, upstreams, destination).waiting.is_empty() {
        return;
    }
    match destination {
        Destination::Service(_) | Destination::Workload(_) => {
            scale_service(cx, conns, upstreams, mesh, destination);
        }
        Destination::App => {
            let Some(app) = &cx.config.app else { return };
            let (h1, addresses) = (app.protocol == AppProtocol::Http, app.addresses.clone());
            scale_app(cx, conns, upstreams, destination, h1, &|| addresses.best());
        }
        Destination::AppPort(port) => {
            scale_app(cx, conns, upstreams, destination, !port.is_h2, &|| port.address);
        }
        Destination::Api => open_runtime_link(cx, conns, upstreams, destination, ApiKind::Own),
        Destination::Callback => {
            open_runtime_link(cx, conns, upstreams, destination, ApiKind::Callback)
        }
        Destination::Actors => {
            open_runtime_link(cx, conns, upstreams, destination, ApiKind::Actors)
        }
    }
}

/// Dials what a service, or one workload of it, is short of, and retires what is too much.
fn scale_service(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: Option<&mut MeshTls>,
    destination: &Destination,
) {
    let Some(pool) = upstreams.pools.get(destination) else { return };
    let Some(state) = &pool.state else { return };
    // Connections that end for want of use, here or at their peer, are not made again.
    let idle = cx.now.saturating_duration_since(pool.used);
    let timeouts = &cx.config.timeouts;
    if pool.waiting.is_empty() && idle > timeouts.mesh_idle.min(timeouts.downstream_idle) {
        return;
    }
    let candidates = Candidates::of(state);
    if pick::speaks_http1(cx, pool) {
        let count = plan_http1(cx, conns, upstreams, pool, &candidates);
        let purpose = Purpose::PoolH1(destination.clone());
        return dial_missing(cx, conns, upstreams, mesh, &purpose, alpn::HTTP1, count);
    }
    let Plan { dial: count, retire } = plan(cx, conns, upstreams, pool, &candidates);
    // All leave before what is missing is counted again, or the last would be made up for.
    for key in &retire {
        pools::remove(conns, upstreams, *key);
    }
    for key in retire {
        pools::retire(cx, conns, key);
    }
    let purpose = Purpose::PoolH2(destination.clone());
    dial_missing(cx, conns, upstreams, mesh, &purpose, alpn::H2, count);
}

/// Dials `count` connections of a pool, or as many as can be. Requests that wait fail if none can.
fn dial_missing(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mut mesh: Option<&mut MeshTls>,
    purpose: &Purpose,
    protocol: &'static [u8],
    count: usize,
) {
    let (Purpose::PoolH2(destination) | Purpose::PoolH1(destination)) = purpose else { return };
    for _ in 0..count {
        let mesh = mesh.as_deref_mut();
        let dialled =
            dial::dial(cx, conns, upstreams, mesh, destination, purpose.clone(), protocol);
        if let Err(error) = dialled {
            if upstreams.pools.get(destination).is_some_and(|pool| pool.dialling.is_empty()) {
                cx.effects.push(Effect::FailWaiting {
                    destination: destination.clone(),
                    first: 0,
                    error: Box::new(error),
                });
            }
            return;
        }
    }
}

/// What a pool of multiplexed connections is short of, and what it has too much of.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) dial: usize,
    pub(super) retire: Vec<ConnKey>,
}

pub(super) fn plan(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
) -> Plan {
    let (dial, retire) = match candidates.remote_replicas {
        // One at a time is enough to see whether an address answers again.
        _ if pool.outage.is_some() => (usize::from(pool.dialling.is_empty()), Vec::new()),
        Some(replicas) => plan_remote(cx, links, upstreams, pool, candidates, replicas),
        None => {
            let missing = missing(cx, links, upstreams, pool, candidates).len();
            (missing, surplus(cx, links, upstreams, pool, candidates))
        }
    };
    // Twice as many each time, so that a new callee is not shaken hands with by all at once.
    let room = LOCAL_ENDPOINTS.max(pool.conns.len()).saturating_sub(pool.dialling.len());
    Plan { dial: dial.min(room), retire }
}

/// How many connections of one request at a time a service is short of: one for each request
/// that waits and, where its endpoints are known, one to each of them.
fn plan_http1(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
) -> usize {
    if pool.outage.is_some() {
        return usize::from(pool.dialling.is_empty());
    }
    let standing = pool.made();
    let room = cx.config.limits.app_connections.saturating_sub(standing);
    let wanted = pool.waiting.len().saturating_sub(pool.dialling.len());
    let missing = match candidates.remote_replicas {
        Some(_) => usize::from(standing == 0),
        None => missing(cx, links, upstreams, pool, candidates).len(),
    };
    wanted.max(missing).min(room)
}

fn plan_remote(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
    replicas: u32,
) -> (usize, Vec<ConnKey>) {
    let (unfit, standing): (Vec<ConnKey>, Vec<ConnKey>) =
        usable(links, pool).partition(|key| is_unfit_for_small(cx, links, upstreams, *key));
    let shared = unfit.into_iter().skip(cx.config.limits.bulk_connections);
    let dialled: Vec<Dialled<ConnKey, Instance>> = standing
        .into_iter()
        .chain(shared)
        .map(|key| Dialled {
            key,
            instance: pick::instance(links, key).cloned(),
            // The only way through a gateway is the last to be given up.
            outstanding: match connections_via(links, pool, address_of(links, key)) {
                0 | 1 => u32::MAX,
                _ => pick::outstanding(cx, links, upstreams, key).unwrap_or(u32::MAX),
            },
        })
        .chain(pool.dialling.iter().map(|key| Dialled {
            key: *key,
            instance: None,
            outstanding: 0,
        }))
        .collect();
    let most = cx.config.limits.mesh_connections;
    let SpreadLimits { least: few, most: many } = SpreadLimits::default();
    let wanted = wanted_by_flight(cx, pool, dialled.len());
    let limits =
        SpreadLimits { least: few.max(wanted).min(most), most: many.max(wanted).min(most) };
    let plan = plan_spread(replicas as usize, &dialled, limits);
    let is_crowded = |address: &SocketAddr| connections_via(links, pool, Some(*address)) > 1;
    let uneven = candidates.addresses.iter().any(is_crowded)
        && !unused_gateways(cx, links, pool, candidates).is_empty();
    (plan.dial.max(usize::from(uneven && pool.dialling.is_empty())), plan.retire)
}

/// Counts what is under way to services far away; they get as many connections as that asks
/// for, and lose those that it does not ask for any more.
pub(crate) fn note_flights(cx: &mut Cx, links: &impl Links, upstreams: &mut Upstreams) {
    let mut counted: Vec<(Destination, usize)> = Vec::new();
    for pool in upstreams.pools.iter() {
        let is_used = cx.now.saturating_duration_since(pool.used) < LATELY;
        let is_far = is_used && is_far(cx, links, pool);
        if is_far || (is_used && pool.flight.needs_many()) {
            let under_way = if is_far { under_way(links, pool) } else { 0 };
            counted.push((pool.destination.clone(), under_way));
        }
    }
    for (destination, under_way) in counted {
        pools::pool(cx, upstreams, &destination).flight.observe(under_way);
        let Some(pool) = upstreams.pools.get(&destination) else { continue };
        let made = pool.made();
        let wanted = wanted_by_flight(cx, pool, made);
        if wanted > made || made > wanted.max(LOCAL_ENDPOINTS) {
            cx.effects.push(Effect::Scale(destination));
        }
    }
}

/// Requests on the multiplexed connections of a pool.
fn under_way(links: &impl Links, pool: &Pool) -> usize {
    let streams = |key: &ConnKey| Some(links.link(*key)?.http2()?.streams);
    pool.conns.iter().filter_map(streams).sum()
}

/// Whether the nearest of those who answered is far; of a service behind gateways, those.
fn is_far(cx: &Cx, links: &impl Links, pool: &Pool) -> bool {
    let round_trips = usable(links, pool).filter_map(|key| links.link(key)?.http2()?.round_trip);
    let nearest = round_trips.min();
    nearest.is_some_and(|round_trip| round_trip >= cx.config.timeouts.far)
}

/// Connections that the requests to a service ask for: one if it is near. `standing` ones are
/// there for small requests, or are being made. While an address is passed over, no more than
/// those.
fn wanted_by_flight(cx: &Cx, pool: &Pool, standing: usize) -> usize {
    let wanted = pool.flight.connections(standing, cx.config.limits.mesh_connections);
    if pool.backoff.is_empty() { wanted } else { wanted.min(standing.max(1)) }
}

/// Connections that the requests to a service ask for at each endpoint: one at least.
fn wanted_each(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
) -> usize {
    let endpoints = candidates.addresses.len().clamp(1, LOCAL_ENDPOINTS);
    let small =
        usable(links, pool).filter(|key| !is_unfit_for_small(cx, links, upstreams, *key)).count();
    let wanted = wanted_by_flight(cx, pool, small + pool.dialling.len());
    let most = cx.config.limits.mesh_connections / endpoints;
    wanted.div_ceil(endpoints).min(most.max(1))
}

/// Gateways that may be dialled and that no connection leads through.
pub(crate) fn unused_gateways(
    cx: &Cx,
    links: &impl Links,
    pool: &Pool,
    candidates: &Candidates,
) -> Vec<SocketAddr> {
    let is_unused = |address: &&SocketAddr| {
        !pool.is_passed_over(**address, cx.now)
            && connections_via(links, pool, Some(**address)) == 0
    };
    candidates.addresses.iter().filter(is_unused).copied().collect()
}

/// Connections through an address, those that are being made included.
fn connections_via(links: &impl Links, pool: &Pool, address: Option<SocketAddr>) -> usize {
    let all = usable(links, pool).chain(pool.dialling.iter().copied());
    all.filter(|key| address_of(links, *key) == address).count()
}

fn address_of(links: &impl Links, key: ConnKey) -> Option<SocketAddr> {
    links.link(key)?.remote
}

/// The connections of a pool that neither drain nor are silent.
fn usable<'a>(links: &'a impl Links, pool: &'a Pool) -> impl Iterator<Item = ConnKey> + 'a {
    let stands = |key: &ConnKey| links.link(*key).is_some_and(|link| link.is_usable());
    pool.conns.iter().copied().filter(stands)
}

/// Whether a connection stands that neither drains nor is silent.
pub(crate) fn has_usable(links: &impl Links, pool: &Pool) -> bool {
    usable(links, pool).next().is_some()
}

/// Whether something answers at a destination, as far as is known: a connection does, or no dial and no
/// keepalive has shown that nothing does.
pub(crate) fn answers(links: &impl Links, pool: &Pool) -> bool {
    if has_usable(links, pool) {
        return true;
    }
    let is_silent =
        |key: &ConnKey| links.link(*key).is_some_and(|link| !link.is_draining && !link.is_usable());
    pool.outage.is_none() && !pool.conns.iter().any(is_silent)
}

/// Whether small requests need another connection: this one carries bulk, or has as many streams as it
/// may.
fn is_unfit_for_small(cx: &Cx, links: &impl Links, upstreams: &Upstreams, key: ConnKey) -> bool {
    let state = links.link(key).and_then(|link| link.http2());
    state.is_some_and(|state| state.carries_bulk) || is_full(cx, links, upstreams, key)
}

/// Connections beyond those that each endpoint has for small requests, left over from bulk or
/// from more requests.
fn surplus(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
) -> Vec<ConnKey> {
    let each = wanted_each(cx, links, upstreams, pool, candidates);
    let mut served: HashMap<Option<SocketAddr>, usize> = HashMap::new();
    let beyond = beyond_wanted(cx, links, pool);
    let is_surplus = |key: &ConnKey| {
        let address = address_of(links, *key);
        let count = served.entry(address).or_default();
        *count += 1;
        *count > each || address.is_some_and(|address| beyond.contains(&address))
    };
    usable(links, pool)
        .filter(|key| !is_unfit_for_small(cx, links, upstreams, *key))
        .filter(is_surplus)
        .collect()
}

/// Where near replicas are preferred: those of the others to which no connection is wanted, once each
/// wanted replica has one.
fn beyond_wanted(cx: &Cx, links: &impl Links, pool: &Pool) -> Vec<SocketAddr> {
    let Some(near) = pool.near() else { return Vec::new() };
    let is_usable = |address: SocketAddr| !pool.is_passed_over(address, cx.now);
    let wanted = near.wanted(LOCAL_ENDPOINTS, is_usable);
    let connected: HashSet<SocketAddr> =
        usable(links, pool).filter_map(|key| address_of(links, key)).collect();
    if !wanted.iter().all(|address| connected.contains(address)) {
        return Vec::new();
    }
    let is_beyond = |address: &SocketAddr| is_usable(*address) && !wanted.contains(address);
    connected.into_iter().filter(is_beyond).collect()
}

/// Whether a connection has as many streams as it takes: what comes needs another one.
fn is_full(cx: &Cx, links: &impl Links, upstreams: &Upstreams, key: ConnKey) -> bool {
    let is_http2 = links.link(key).is_some_and(|link| link.http2().is_some());
    is_http2 && pick::outstanding(cx, links, upstreams, key).is_none()
}

/// Endpoints that are short of connections for small requests, as often as one is missing and
/// as far as this thread connects to that many.
pub(crate) fn missing(
    cx: &Cx,
    links: &impl Links,
    upstreams: &Upstreams,
    pool: &Pool,
    candidates: &Candidates,
) -> Vec<SocketAddr> {
    let (each, most) =
        (wanted_each(cx, links, upstreams, pool, candidates), cx.config.limits.bulk_connections);
    let mut connected: HashMap<SocketAddr, usize> = HashMap::new();
    let mut unfit: HashMap<SocketAddr, usize> = HashMap::new();
    for key in usable(links, pool).chain(pool.dialling.iter().copied()) {
        let Some(address) = address_of(links, key) else { continue };
        let counted =
            if is_unfit_for_small(cx, links, upstreams, key) { &mut unfit } else { &mut connected };
        *counted.entry(address).or_default() += 1;
    }
    // Others take the places of those that are ejected.
    connected.retain(|address, _| !pool.is_ejected(*address));
    for (address, count) in unfit {
        if count > most {
            *connected.entry(address).or_default() += count - most;
        }
    }
    let is_usable = |address: SocketAddr| !pool.is_passed_over(address, cx.now);
    let wanted = match pool.near() {
        // Those that are not among them leave when these are there.
        Some(near) => near.wanted(LOCAL_ENDPOINTS, is_usable),
        None => {
            let usable = candidates.addresses.iter().copied().filter(|of| is_usable(*of));
            let others = connected.keys().filter(|address| !is_usable(**address)).count();
            let most = LOCAL_ENDPOINTS.saturating_sub(others);
            some_of(usable.collect(), most, pool.seed, |address| connected.contains_key(&address))
        }
    };
    let short = |address: &SocketAddr| {
        each.saturating_sub(connected.get(address).copied().unwrap_or_default())
    };
    wanted.iter().flat_map(|address| repeat_n(*address, short(address))).collect()
}

/// The replicas to which this thread connects, of those that are usable: all, or the connected ones and
/// others, `most` at most. Which ones depends on the seed, so that the threads of all callers together use
/// every replica.
fn some_of(
    mut usable: Vec<SocketAddr>,
    most: usize,
    seed: u64,
    is_connected: impl Fn(SocketAddr) -> bool,
) -> Vec<SocketAddr> {
    if usable.len() > most {
        let order = FixedState::with_seed(seed);
        let rank = |address: &SocketAddr| (!is_connected(*address), order.hash_one(address));
        usable.select_nth_unstable_by_key(most, rank);
        usable.truncate(most);
    }
    usable
}

/// Dials what the app, or a port of it, is short of; `address` is where.
fn scale_app(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    destination: &Destination,
    h1: bool,
    address: &dyn Fn() -> SocketAddr,
) {
    let limit = cx.config.limits.app_connections;
    let Some(pool) = upstreams.pools.get(destination) else { return };
    let standing = pool.made();
    let wanted = if h1 { pool.waiting.len().min(limit) } else { 1 };
    if !h1 && standing >= cx.config.limits.app_http2_connections {
        return;
    }
    let missing = if h1 {
        wanted.saturating_sub(pool.dialling.len()).min(limit.saturating_sub(standing))
    } else {
        wanted.saturating_sub(standing - full_app_connections(cx, conns, upstreams, pool))
    };
    for _ in 0..missing {
        let purpose = if h1 { Purpose::PoolH1 } else { Purpose::PoolH2 };
        let purpose = purpose(destination.clone());
        match dial::dial_app(cx, conns, destination, address(), purpose) {
            Ok(key) => pools::pool(cx, upstreams, destination).dialling.push(key),
            Err(cause) => {
                let error = dial::unreachable(cx, upstreams, destination, None, cause);
                // Those who came first have the dials that are under way.
                let first = pools::pool(cx, upstreams, destination).dialling.len();
                return cx.effects.push(Effect::FailWaiting {
                    destination: destination.clone(),
                    first,
                    error: Box::new(error),
                });
            }
        }
    }
}

/// Connections to the app that take no further request: those with as many as the app states, and a
/// few of those whose bytes it does not read.
fn full_app_connections(cx: &Cx, links: &impl Links, upstreams: &Upstreams, pool: &Pool) -> usize {
    let (mut at_limit, mut unread) = (0, 0);
    for key in pool.conns.iter().filter(|key| is_full(cx, links, upstreams, **key)) {
        match links.link(*key).and_then(|link| link.http2()) {
            Some(state) if !state.is_settled => {}
            Some(state) if !state.can_open => at_limit += 1,
            _ => unread += 1,
        }
    }
    at_limit + unread.min(cx.config.limits.bulk_connections)
}

/// Opens a connection to what this process serves itself, if a request waits for one: a socket pair,
/// served on the other side.
fn open_runtime_link(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    destination: &Destination,
    kind: ApiKind,
) {
    if pools::pool(cx, upstreams, destination).waiting.is_empty()
        || runtime_backlog::is_full(cx, upstreams)
    {
        return;
    }
    // One that has not read what it was sent reads on; only streams are a reason for another.
    let has_streams = |key: ConnKey| match conns.get(key).map(|conn| &conn.role) {
        Some(Role::Http2Client(link)) => link.codec.can_open(),
        _ => false,
    };
    let pool = upstreams.pools.get(destination);
    if pool.is_some_and(|pool| usable(conns, pool).any(has_streams)) {
        return;
    }
    let (ours, stream) = match local_pair() {
        Ok(pair) => pair,
        Err(error) => {
            let error = dial::unreachable(cx, upstreams, destination, None, Cause::from(&error));
            return cx.effects.push(Effect::FailWaiting {
                destination: destination.clone(),
                first: 0,
                error: Box::new(error),
            });
        }
    };
    if let Err(cause) = upstreams.services.serve_api(ApiStream { kind, stream }) {
        let error = match cause {
            NotServed::Nobody => RequestError::NoRuntime,
            NotServed::Full(limit) => {
                RequestError::Overloaded { what: "the line of connections to the runtime", limit }
            }
        };
        return cx.effects.push(Effect::FailWaiting {
            destination: destination.clone(),
            first: 0,
            error: Box::new(error),
        });
    }
    let mut io = Conn::local(ours);
    let codec = h2::Connection::client(cx.config.limits.h2.clone(), io.out());
    let mut link = Http2Link::new(codec, cx.now);
    link.destination = Some(destination.clone());
    link.pool = upstreams.pools.key(destination);
    let conn = Connection::new(io, Role::Http2Client(Box::new(link)), cx.now);
    if let Some(key) = conns.insert(cx, conn) {
        conns.schedule(cx, key);
        conns.mark_dirty(key);
        pools::pool(cx, upstreams, destination).conns.push(key);
        cx.effects.push(Effect::ServeWaiting(destination.clone()));
    }
}
