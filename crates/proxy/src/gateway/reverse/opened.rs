//! The side of a gateway that only dials out: it keeps reverse connections open to every gateway of
//! joined networks, and has what comes by them routed as what comes at a listener.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_identity::PeerIdentity;
use tollway_model::{ErrorCode, NetworkName, ServiceName};
use tollway_net::Backoff;

use super::demand::Demand;
use super::message::{KEEP, Message, TAKE};
use super::{Carrying, ReverseConnections};
use crate::conn::accepted::proven_identity;
use crate::conn::{ConnKey, Connections, ListenerKind, Purpose, Reverse, ReverseSide, Role};
use crate::cx::Cx;
use crate::gateway::{Gateway, route};
use crate::tls::{Carried, alpn};
use crate::upstream::dial::{self, DialFailure};

/// Before a gateway is dialled again.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
/// One that has not answered for this long, or whose dial takes as long, is doubtful: others are opened
/// in addition. What a link has lost is sent again later and later, and a new connection is sooner there.
const DOUBTFUL_AFTER: Duration = Duration::from_secs(1);
/// Those to one gateway at most, as a multiple of those that shall wait.
const WITH_DOUBTFUL: usize = 2;
/// A keepalive is sent where nothing has come for this long: sooner than NATs forget connections.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// From one keepalive to a gateway to the next, by any connection there: the other end finds out by them
/// that this network lives.
pub(super) const PULSE: Duration = Duration::from_millis(200);
/// Time for the answer to a keepalive; then the connection is given up.
const REVERSE_KEEPALIVE_WITHIN: Duration = Duration::from_secs(5);

/// The reverse connections that this gateway has opened.
#[derive(Default)]
pub(super) struct Opened(HashMap<(NetworkName, SocketAddr), Pool>);

/// Those to one gateway.
#[derive(Default)]
struct Pool {
    /// They are dialled, or wait.
    conns: Vec<ConnKey>,
    demand: Demand,
    /// Keepalives that any of them has sent, which go by each in turn.
    pulses: usize,
    /// Dials that failed since one was taken there.
    failures: u32,
    retry_at: Option<Instant>,
}

impl Pool {
    /// How many there are that answer, or may answer soon.
    fn fresh(&self, conns: &Connections, now: Instant) -> usize {
        let is_fresh = |key: &&ConnKey| {
            let Some(conn) = conns.get(**key) else { return false };
            let asked = match &conn.role {
                Role::Reverse(reverse) => match reverse.side {
                    ReverseSide::Opened { asked, .. } => asked,
                    ReverseSide::Held | ReverseSide::Offered { .. } => None,
                },
                _ => Some(conn.since),
            };
            asked.is_none_or(|at| now.saturating_duration_since(at) < DOUBTFUL_AFTER)
        };
        self.conns.iter().filter(is_fresh).count()
    }

    fn on_failed(&mut self, now: Instant) {
        self.retry_at = Some(now + BACKOFF.pause(self.failures));
        self.failures = self.failures.saturating_add(1);
    }
}

impl Opened {
    /// How many wait.
    pub(super) fn count(&self, conns: &Connections) -> usize {
        let waits = |key: &&ConnKey| {
            conns.get(**key).is_some_and(|conn| matches!(conn.role, Role::Reverse(_)))
        };
        self.0.values().map(|pool| pool.conns.iter().filter(waits).count()).sum()
    }

    fn pool(&mut self, network: &NetworkName, address: SocketAddr) -> Option<&mut Pool> {
        self.0.get_mut(&(network.clone(), address))
    }
}

/// Opens what is missing, and closes what leads to gateways that have gone.
pub(super) fn fill(cx: &mut Cx, conns: &mut Connections, reverse: &mut ReverseConnections) {
    if !reverse.dials_out || cx.draining.is_some() {
        return;
    }
    let networks = &reverse.networks;
    reverse.opened.0.retain(|(network, address), pool| {
        let is_there =
            networks.get(network).is_some_and(|known| known.reverse_to.contains(address));
        if !is_there {
            pool.conns.drain(..).for_each(|key| conns.close(cx, key));
        }
        is_there
    });
    let wanted: Vec<(NetworkName, SocketAddr)> = networks
        .iter()
        .flat_map(|(network, known)| known.reverse_to.iter().map(|at| (network.clone(), *at)))
        .collect();
    for (network, address) in wanted {
        fill_pool(cx, conns, reverse, &network, address);
    }
}

fn fill_pool(
    cx: &mut Cx,
    conns: &mut Connections,
    reverse: &mut ReverseConnections,
    network: &NetworkName,
    address: SocketAddr,
) {
    let Some(known) = reverse.networks.get(network) else { return };
    let pool = reverse.opened.0.entry((network.clone(), address)).or_default();
    pool.conns.retain(|key| {
        let role = conns.get(*key).map(|conn| &conn.role);
        matches!(role, Some(Role::Dialling(_) | Role::Reverse(_)))
    });
    if pool.retry_at.is_some_and(|at| cx.now < at) {
        return;
    }
    pool.retry_at = None;
    let theirs = ServiceName { network: network.clone(), ..reverse.own.clone() };
    // Where dials fail, one at a time shows when they do no more.
    let wanted = if pool.failures > 0 { 1 } else { pool.demand.wanted() };
    let mut fresh = pool.fresh(conns, cx.now);
    while fresh < wanted && pool.conns.len() < WITH_DOUBTFUL * pool.demand.wanted() {
        let tls =
            reverse.tls.client(&theirs, None, &known.trust_domain, Carried::of(alpn::REVERSE));
        let purpose = Purpose::Reverse(network.clone());
        let dialled = tls.map_err(|error| error.to_string()).and_then(|tls| {
            let dialled = dial::dial_with(cx, conns, address, purpose, Some(tls));
            dialled.map_err(|cause| cause.reason)
        });
        match dialled {
            Ok(key) => {
                pool.conns.push(key);
                fresh += 1;
            }
            Err(reason) => {
                pool.on_failed(cx.now);
                return tracing::debug!(%network, %address, reason, "no reverse connection");
            }
        }
    }
}

/// A dial stands: it waits for the other end to take it.
pub(crate) fn on_dialled(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
) {
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Dialling(dial) = &conn.role else { return };
    let (Purpose::Reverse(network), Some(address)) = (&dial.purpose, dial.address) else { return };
    let network = network.clone();
    let Some(peer) = conn.io.peer() else { return };
    let is_reverse = peer.alpn == Some(alpn::REVERSE);
    let proven = proven_identity(&peer, (cx.clocks.wall)());
    let judged = proven.and_then(|identity| {
        let bundles = gateway.reverse.tls.credentials().bundles();
        bundles.judge(&identity).map_err(|why| format!("{}: {why}", identity.spiffe))?;
        Ok::<PeerIdentity, String>(identity)
    });
    let failure = match judged {
        Ok(identity) if is_reverse => {
            conn.peer = Some(Arc::new(identity));
            conn.since = now;
            conn.io.out().push(KEEP);
            let side = ReverseSide::Opened { address, asked: Some(now), is_taken: false };
            conn.role =
                Role::Reverse(Box::new(Reverse { network, heard: now, lives_from: now, side }));
            conns.mark_dirty(key);
            return conns.schedule(cx, key);
        }
        Ok(_) => "what answers speaks another protocol".to_owned(),
        Err(reason) => reason,
    };
    let failure = DialFailure::Untrusted(ErrorCode::ReverseRefused, &failure);
    on_dial_failed(cx, gateway, &network, address, &failure);
    conns.close(cx, key);
}

/// A reverse connection to a gateway could not be opened.
pub(crate) fn on_dial_failed(
    cx: &mut Cx,
    gateway: &mut Gateway,
    network: &NetworkName,
    address: SocketAddr,
    failure: &DialFailure<'_>,
) {
    let cause = failure.cause(true);
    on_refused(cx, gateway, network, address, &cause.reason);
}

fn on_refused(
    cx: &mut Cx,
    gateway: &mut Gateway,
    network: &NetworkName,
    address: SocketAddr,
    reason: &str,
) {
    if let Some(pool) = gateway.reverse.opened.pool(network, address) {
        pool.on_failed(cx.now);
    }
    if let Some(left_out) = cx.log.admit("reverse", format!("{address}"), cx.now) {
        tracing::info!(%network, %address, reason, left_out, "a gateway took no reverse connection");
    }
}

/// Bytes of the other end of a reverse connection that this gateway has opened.
pub(super) fn on_message(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    message: Message<'_>,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Reverse(reverse) = &mut conn.role else { return };
    let ReverseSide::Opened { address, asked, is_taken } = &mut reverse.side else { return };
    let (address, network) = (*address, reverse.network.clone());
    match message {
        Message::Keep => {
            (*asked, *is_taken) = (None, true);
            if let Some(pool) = gateway.reverse.opened.pool(&network, address) {
                pool.failures = 0;
            }
        }
        Message::Take(carried) => {
            begin(cx, conns, gateway, key, carried);
            if let Some(pool) = gateway.reverse.opened.pool(&network, address) {
                pool.demand.take();
            }
            if cx.draining.is_none() {
                fill_pool(cx, conns, &mut gateway.reverse, &network, address);
            }
        }
        Message::Refuse | Message::Unknown => {
            let code = ErrorCode::ReverseRefused;
            let hint = code.entry().remedy;
            if let Some(left_out) = cx.log.admit("refused-reverse", format!("{address}"), cx.now) {
                tracing::warn!(%code, %network, %address, left_out, hint, "a gateway refuses reverse connections");
            }
            cx.metrics.gateway_reverse_refused.add(1);
            on_refused(cx, gateway, &network, address, "it refuses them");
            conns.close(cx, key);
        }
    }
}

/// The other end sends a connection by `key`: it is routed as if it had come in at the listener.
fn begin(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    carried: &[u8],
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Reverse(reverse) = &conn.role else { return };
    let network = reverse.network.clone();
    conn.io.out().push(TAKE);
    conn.role = Role::Hello(Box::default());
    conn.via = Some(ListenerKind::Gateway);
    conn.since = cx.now;
    let peer = conn.peer.take();
    let since = cx.now;
    let carrying = peer.map(|peer| Carrying { conn: key, network, peer, since });
    gateway.reverse.carrying.extend(carrying);
    cx.metrics.gateway_reverse_carried.add(1);
    conns.mark_dirty(key);
    conns.schedule(cx, key);
    if !carried.is_empty() {
        route::on_bytes(cx, conns, gateway, key, carried);
    }
}

/// A reverse connection ends without having carried anything.
pub(super) fn on_over(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) {
    if let Some(Role::Reverse(reverse)) = conns.get(key).map(|conn| &conn.role)
        && let ReverseSide::Opened { address, is_taken: false, .. } = reverse.side
    {
        let network = reverse.network.clone();
        on_refused(cx, gateway, &network, address, "it closes them");
    }
    conns.close(cx, key);
}

/// Sends a keepalive to each gateway. They go in turn by the connections there that have answered their
/// last one, and by the others where there is none: one that has lost a packet is late.
pub(super) fn pulse(cx: &Cx, conns: &mut Connections, gateway: &mut Gateway) {
    for pool in gateway.reverse.opened.0.values_mut() {
        pool.pulses = pool.pulses.wrapping_add(1);
        let count = pool.conns.len();
        let from = pool.pulses.checked_rem(count).unwrap_or_default();
        let in_turn = || (from..count).chain(0..from).map(|at| pool.conns[at]);
        let waits = |key: ConnKey, has_answered: bool| {
            let Some(Role::Reverse(reverse)) = conns.get(key).map(|conn| &conn.role) else {
                return false;
            };
            match reverse.side {
                ReverseSide::Opened { asked, .. } => asked.is_none() || !has_answered,
                ReverseSide::Held | ReverseSide::Offered { .. } => false,
            }
        };
        let next = in_turn().find(|key| waits(*key, true));
        let Some(key) = next.or_else(|| in_turn().find(|key| waits(*key, false))) else { continue };
        let Some(conn) = conns.get_mut(key) else { continue };
        let Role::Reverse(reverse) = &mut conn.role else { continue };
        let ReverseSide::Opened { asked, .. } = &mut reverse.side else { continue };
        asked.get_or_insert(cx.now);
        conn.io.out().push(KEEP);
        conns.mark_dirty(key);
    }
}

/// Sends keepalives by connections that have sent none for long, gives up what does not answer, and closes
/// what is not needed any more.
pub(super) fn round(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway) {
    let now = cx.now;
    let mut over = Vec::new();
    for pool in gateway.reverse.opened.0.values_mut() {
        pool.demand.round();
        let fresh = pool.fresh(conns, now);
        let mut surplus = fresh.saturating_sub(pool.demand.wanted()).min(1);
        for key in &pool.conns {
            let Some(conn) = conns.get_mut(*key) else { continue };
            let Role::Reverse(reverse) = &mut conn.role else { continue };
            let quiet = now.saturating_duration_since(reverse.heard);
            let ReverseSide::Opened { asked, .. } = &mut reverse.side else { continue };
            match asked {
                Some(since) if now.saturating_duration_since(*since) > REVERSE_KEEPALIVE_WITHIN => {
                    over.push(*key);
                }
                Some(_) => {}
                None if surplus > 0 => {
                    surplus -= 1;
                    over.push(*key);
                }
                None if quiet >= KEEPALIVE_AFTER => {
                    *asked = Some(now);
                    conn.io.out().push(KEEP);
                    conns.mark_dirty(*key);
                }
                None => {}
            }
        }
    }
    for key in over {
        on_over(cx, conns, gateway, key);
    }
}
