//! How many upstream connections a destination has: what is missing is dialled, what is too much
//! retired.

use std::collections::HashMap;
use std::iter::repeat_n;
use std::net::SocketAddr;
use std::time::Duration;

use tollway_http::h2;
use tollway_model::{AppProtocol, Instance};
use tollway_net::{Conn, Key, local_pair};
use tollway_routing::{Dialled, SpreadLimits, plan_spread};

use super::EventLoop;
use super::interface::{ApiKind, ApiStream, NotServed};
use super::pool::{Candidates, Pool};
use crate::cause::Cause;
use crate::conn::{Connection, Http2Link, Purpose, Role};
use crate::exchange::Destination;
use crate::request_error::RequestError;
use crate::tls::alpn;

/// Endpoints of one service in its own network that a thread keeps connections to. So many
/// connections to any service are made at once, and are not too many to keep.
const LOCAL_ENDPOINTS: usize = 16;
/// What nobody has called for so long has nothing under way that would have to be counted.
const LATELY: Duration = Duration::from_secs(1);

impl EventLoop {
    /// Dials what the destination is short of.
    pub(super) fn keep_dialled(&mut self, destination: &Destination) {
        if self.cx.draining.is_some() && self.pool(destination).waiting.is_empty() {
            return;
        }
        match destination {
            Destination::Service(_) | Destination::Workload(_) => {
                self.keep_service_dialled(destination);
            }
            Destination::App => self.keep_app_dialled(),
            Destination::Api => self.open_api(destination, ApiKind::Own),
            Destination::Callback => self.open_api(destination, ApiKind::Callback),
            Destination::Actors => self.open_api(destination, ApiKind::Actors),
        }
    }

    /// The same for a service, or for one workload of it.
    fn keep_service_dialled(&mut self, destination: &Destination) {
        let Some(pool) = self.pools.get(destination) else { return };
        let Some(state) = &pool.state else { return };
        // Connections that end for want of use are not made again.
        let idle = self.cx.now.saturating_duration_since(pool.used);
        if pool.waiting.is_empty() && idle > self.cx.config.timeouts.mesh_idle {
            return;
        }
        let candidates = Candidates::of(state);
        if self.speaks_h1(destination) {
            let count = self.plan_pooled(pool, &candidates);
            return self.dial_pooled(destination, count);
        }
        let (count, retire) = match candidates.remote_replicas {
            // One at a time is enough to see whether somebody answers again.
            _ if pool.outage.is_some() => (usize::from(pool.dialling.is_empty()), Vec::new()),
            Some(replicas) => self.plan_remote(pool, &candidates, replicas),
            None => {
                let missing = self.missing_endpoints(pool, &candidates).len();
                (missing, self.surplus_connections(pool, &candidates))
            }
        };
        // Twice as many each time, so that whoever begins is not shaken hands with all at once.
        let room = LOCAL_ENDPOINTS.max(pool.conns.len()).saturating_sub(pool.dialling.len());
        // All leave before what is missing is counted again, or the last would be made up for.
        for key in &retire {
            self.leave_pool(*key);
        }
        for key in retire {
            self.retire(key);
        }
        for _ in 0..count.min(room) {
            let purpose = Purpose::PoolH2(destination.clone());
            if let Err(error) = self.dial_for(destination, purpose, alpn::H2) {
                if self.pools.get(destination).is_some_and(|p| p.dialling.is_empty()) {
                    self.fail_waiting(destination, &error);
                }
                return;
            }
        }
    }

    /// How many connections of one request at a time a service is short of: one for each request
    /// that waits and, where its endpoints are known, one to each of them.
    fn plan_pooled(&self, pool: &Pool, candidates: &Candidates) -> usize {
        if pool.outage.is_some() {
            return usize::from(pool.dialling.is_empty());
        }
        let standing = pool.made();
        let room = self.cx.config.limits.app_connections.saturating_sub(standing);
        let wanted = pool.waiting.len().saturating_sub(pool.dialling.len());
        let missing = match candidates.remote_replicas {
            Some(_) => usize::from(standing == 0),
            None => self.missing_endpoints(pool, candidates).len(),
        };
        wanted.max(missing).min(room)
    }

    fn dial_pooled(&mut self, destination: &Destination, count: usize) {
        for _ in 0..count {
            let purpose = Purpose::PoolH1(destination.clone());
            if let Err(error) = self.dial_for(destination, purpose, alpn::HTTP1) {
                if self.pools.get(destination).is_some_and(|pool| pool.dialling.is_empty()) {
                    self.fail_waiting(destination, &error);
                }
                return;
            }
        }
    }

    fn plan_remote(
        &self,
        pool: &Pool,
        candidates: &Candidates,
        replicas: u32,
    ) -> (usize, Vec<Key>) {
        let (apart, standing): (Vec<Key>, Vec<Key>) =
            self.standing(pool).partition(|key| self.is_engaged(*key));
        let shared = apart.into_iter().skip(self.cx.config.limits.bulk_connections);
        let dialled: Vec<Dialled<Key, Instance>> = standing
            .into_iter()
            .chain(shared)
            .map(|key| Dialled {
                key,
                instance: self.instance(key).cloned(),
                // The only way through a gateway is the last to be given up.
                outstanding: match self.ways(pool, self.address(key)) {
                    0 | 1 => u32::MAX,
                    _ => self.outstanding(key).unwrap_or(u32::MAX),
                },
            })
            .chain(pool.dialling.iter().map(|key| Dialled {
                key: *key,
                instance: None,
                outstanding: 0,
            }))
            .collect();
        let most = self.cx.config.limits.mesh_connections;
        let SpreadLimits { least: few, most: many } = SpreadLimits::default();
        let wanted = self.wanted_by_flight(pool, dialled.len());
        let limits =
            SpreadLimits { least: few.max(wanted).min(most), most: many.max(wanted).min(most) };
        let plan = plan_spread(replicas as usize, &dialled, limits);
        let is_crowded = |address: &SocketAddr| self.ways(pool, Some(*address)) > 1;
        let uneven = candidates.addresses.iter().any(is_crowded)
            && !self.unused_gateways(pool, candidates).is_empty();
        (plan.dial.max(usize::from(uneven && pool.dialling.is_empty())), plan.retire)
    }

    /// Counts what is under way to services far away; they get as many connections as that asks
    /// for, and lose those that it does not ask for any more.
    pub(super) fn note_flights(&mut self) {
        let mut counted: Vec<(Destination, usize)> = Vec::new();
        for (destination, pool) in &self.pools {
            let is_used = self.cx.now.saturating_duration_since(pool.used) < LATELY;
            let is_far = is_used && self.is_far(pool);
            if is_far || (is_used && pool.flight.asks_for_many()) {
                let under_way = if is_far { self.under_way(pool) } else { 0 };
                counted.push((destination.clone(), under_way));
            }
        }
        for (destination, under_way) in counted {
            self.pool(&destination).flight.observe(under_way);
            let Some(pool) = self.pools.get(&destination) else { continue };
            let made = pool.made();
            let wanted = self.wanted_by_flight(pool, made);
            if wanted > made || made > wanted.max(LOCAL_ENDPOINTS) {
                self.keep_dialled(&destination);
            }
        }
    }

    /// Requests on the multiplexed connections of a pool.
    fn under_way(&self, pool: &Pool) -> usize {
        let streams = |key: &Key| match self.conns.get(*key).map(|conn| &conn.role) {
            Some(Role::Http2Client(link)) => link.codec.active_streams(),
            _ => 0,
        };
        pool.conns.iter().map(streams).sum()
    }

    /// Whether the nearest of those who answered is far; of a service behind gateways, those.
    fn is_far(&self, pool: &Pool) -> bool {
        let opened = self.standing(pool).filter_map(|key| self.conns.get(key)?.opened());
        let nearest = opened.filter_map(|opened| opened.round_trip).min();
        nearest.is_some_and(|round_trip| round_trip >= self.cx.config.timeouts.far)
    }

    /// Connections that the requests to a service ask for: one if it is near. `standing` ones are
    /// there for small requests, or are being made. While an address rests that did not answer, no
    /// more than those.
    fn wanted_by_flight(&self, pool: &Pool, standing: usize) -> usize {
        let wanted = pool.flight.connections(standing, self.cx.config.limits.mesh_connections);
        if pool.backoff.is_empty() { wanted } else { wanted.min(standing.max(1)) }
    }

    /// The same for each endpoint, where they are known: one at least.
    fn wanted_each(&self, pool: &Pool, candidates: &Candidates) -> usize {
        let endpoints = candidates.addresses.len().clamp(1, LOCAL_ENDPOINTS);
        let small = self.standing(pool).filter(|key| !self.is_engaged(*key)).count();
        let wanted = self.wanted_by_flight(pool, small + pool.dialling.len());
        let most = self.cx.config.limits.mesh_connections / endpoints;
        wanted.div_ceil(endpoints).min(most.max(1))
    }

    /// Gateways that may be dialled and that no connection leads through.
    pub(super) fn unused_gateways(&self, pool: &Pool, candidates: &Candidates) -> Vec<SocketAddr> {
        let is_unused = |address: &&SocketAddr| {
            let rested = pool.backoff.get(*address).is_none_or(|until| *until <= self.cx.now);
            rested && self.ways(pool, Some(**address)) == 0
        };
        candidates.addresses.iter().filter(is_unused).copied().collect()
    }

    /// Connections through an address, those that are being made included.
    fn ways(&self, pool: &Pool, address: Option<SocketAddr>) -> usize {
        let all = self.standing(pool).chain(pool.dialling.iter().copied());
        all.filter(|key| self.address(*key) == address).count()
    }

    fn address(&self, key: Key) -> Option<SocketAddr> {
        self.conns.get(key)?.remote
    }

    /// The connections of a pool that neither drain nor are silent.
    fn standing<'a>(&'a self, pool: &'a Pool) -> impl Iterator<Item = Key> + 'a {
        let stands = |key: &Key| {
            self.conns.get(*key).is_some_and(|conn| {
                let is_silent = matches!(&conn.role, Role::Http2Client(link) if link.is_silent);
                !conn.draining && !is_silent
            })
        };
        pool.conns.iter().copied().filter(stands)
    }

    /// Whether small requests should have another connection: it carries bulk, or has as many
    /// streams as it takes.
    fn is_engaged(&self, key: Key) -> bool {
        let role = self.conns.get(key).map(|conn| &conn.role);
        matches!(role, Some(Role::Http2Client(link)) if link.is_apart()) || self.is_full(key)
    }

    /// Connections beyond those that each endpoint has for small requests, left over from bulk or
    /// from more requests.
    fn surplus_connections(&self, pool: &Pool, candidates: &Candidates) -> Vec<Key> {
        let each = self.wanted_each(pool, candidates);
        let mut served: HashMap<Option<SocketAddr>, usize> = HashMap::new();
        let is_surplus = |key: &Key| {
            let count = served.entry(self.address(*key)).or_default();
            *count += 1;
            *count > each
        };
        self.standing(pool).filter(|key| !self.is_engaged(*key)).filter(is_surplus).collect()
    }

    /// Whether a connection has as many streams as it takes: what comes needs another one.
    fn is_full(&self, key: Key) -> bool {
        self.conns.get(key).is_some_and(|conn| {
            matches!(conn.role, Role::Http2Client(_)) && self.outstanding(key).is_none()
        })
    }

    /// Endpoints that are short of connections for small requests, as often as one is missing and
    /// as far as this thread connects to that many.
    pub(super) fn missing_endpoints(
        &self,
        pool: &Pool,
        candidates: &Candidates,
    ) -> Vec<SocketAddr> {
        let (each, most) =
            (self.wanted_each(pool, candidates), self.cx.config.limits.bulk_connections);
        let mut connected: HashMap<SocketAddr, usize> = HashMap::new();
        let mut apart: HashMap<SocketAddr, usize> = HashMap::new();
        for key in self.standing(pool).chain(pool.dialling.iter().copied()) {
            let Some(address) = self.address(key) else { continue };
            let counted = if self.is_engaged(key) { &mut apart } else { &mut connected };
            *counted.entry(address).or_default() += 1;
        }
        for (address, count) in apart {
            if count > most {
                *connected.entry(address).or_default() += count - most;
            }
        }
        let mut room = LOCAL_ENDPOINTS.saturating_sub(connected.len());
        let mut missing = Vec::new();
        for address in &candidates.addresses {
            let has = connected.get(address).copied();
            let rested = pool.backoff.get(address).is_none_or(|until| *until <= self.cx.now);
            if !rested || (has.is_none() && room == 0) {
                continue;
            }
            room -= usize::from(has.is_none());
            missing.extend(repeat_n(*address, each.saturating_sub(has.unwrap_or(0))));
        }
        missing
    }

    fn keep_app_dialled(&mut self) {
        let Some(app) = self.cx.config.app else { return };
        let limit = self.cx.config.limits.app_connections;
        let h1 = app.protocol == AppProtocol::Http;
        let Some(pool) = self.pools.get(&Destination::App) else { return };
        let standing = pool.made();
        let wanted = if h1 { pool.waiting.len().min(limit) } else { 1 };
        let missing = if h1 {
            wanted.saturating_sub(pool.dialling.len()).min(limit.saturating_sub(standing))
        } else {
            let full = pool.conns.iter().filter(|key| self.is_full(**key)).count();
            let full = full.min(self.cx.config.limits.bulk_connections);
            wanted.saturating_sub(standing - full)
        };
        for _ in 0..missing {
            let purpose = if h1 {
                Purpose::PoolH1(Destination::App)
            } else {
                Purpose::PoolH2(Destination::App)
            };
            match self.dial_app(app.address, purpose) {
                Ok(key) => self.pool(&Destination::App).dialling.push(key),
                Err(cause) => {
                    let error = self.unreachable(&Destination::App, None, cause);
                    // Those who came first have the dials that are under way.
                    let first = self.pool(&Destination::App).dialling.len();
                    return self.fail_waiting_behind(&Destination::App, first, &error);
                }
            }
        }
    }

    /// A connection to what this process serves itself, if somebody waits for one: a socket pair,
    /// served on the other side.
    fn open_api(&mut self, destination: &Destination, kind: ApiKind) {
        if self.pool(destination).waiting.is_empty() || self.is_backlogged() {
            return;
        }
        // One that has not read what it was sent reads on; only streams are a reason for another.
        let has_streams = |key: Key| match self.conns.get(key).map(|conn| &conn.role) {
            Some(Role::Http2Client(link)) => link.codec.can_open(),
            _ => false,
        };
        let pool = self.pools.get(destination);
        if pool.is_some_and(|pool| self.standing(pool).any(has_streams)) {
            return;
        }
        let (ours, stream) = match local_pair() {
            Ok(pair) => pair,
            Err(error) => {
                let error = self.unreachable(destination, None, Cause::from(&error));
                return self.fail_waiting(destination, &error);
            }
        };
        if let Err(cause) = self.outside.serve_api(ApiStream { kind, stream }) {
            let error = match cause {
                NotServed::Nobody => RequestError::NoRuntime,
                NotServed::Full(limit) => RequestError::Overloaded {
                    what: "the line of connections to the runtime",
                    limit,
                },
            };
            return self.fail_waiting(destination, &error);
        }
        let mut io = Conn::local(ours);
        let codec = h2::Connection::client(self.cx.config.limits.h2.clone(), io.out());
        let mut link = Http2Link::new(codec, self.cx.now);
        link.destination = Some(destination.clone());
        let conn = Connection::new(io, Role::Http2Client(Box::new(link)), self.cx.now);
        if let Some(key) = self.conns.insert(&self.cx, conn) {
            self.conns.schedule(&self.cx, key);
            self.conns.mark_dirty(key);
            self.pool(destination).conns.push(key);
            self.serve_waiting(destination);
        }
    }
}
