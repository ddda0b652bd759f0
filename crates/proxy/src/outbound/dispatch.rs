//! Where an exchange or a raw connection goes next: to a connection, or in line until its service
//! is known or a connection has room.

use std::collections::VecDeque;
use std::time::Instant;
use tollway_model::ServiceName;

use crate::conn::ConnKey;
use crate::conn::{Connection, Connections, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::{
    Destination, Exchange, ExchangeKey, Exchanges, UpstreamState, describe, fail, fault,
};
use crate::inbound::{AppQueue, concurrency, fairness};
use crate::outbound::failover::{self, Next, STAYS_UNDIALLED};
use crate::outbound::{send, steer};
use crate::protocol::{http1_server, relay};
use crate::request_error::RequestError;
use crate::tls::{MeshTls, alpn};
use crate::upstream::discover::{self, Callee};
use crate::upstream::{Upstreams, dial, pick, pools, trace_wait};

/// A raw connection waits until its service is known.
pub(crate) fn wait_raw(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    service: ServiceName,
) {
    let destination = Destination::Service(service.clone());
    wait_raw_for(cx, conns, upstreams, key, service, destination);
}

/// A raw connection to `service` waits until the state of `destination` has come.
pub(crate) fn wait_raw_for(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    service: ServiceName,
    destination: Destination,
) {
    if let Some(conn) = conns.get_mut(key) {
        conn.since = cx.now;
        conn.raw_target = Some(service);
        conns.schedule(cx, key);
    }
    let limit = cx.config.limits.waiting_per_service;
    let mut waiting = std::mem::take(&mut pools::pool(cx, upstreams, &destination).waiting_raw);
    if waiting.len() >= limit {
        waiting.retain(|key| conns.get(*key).is_some());
    }
    let is_full = waiting.len() >= limit;
    if !is_full {
        waiting.push(key);
    }
    pools::pool(cx, upstreams, &destination).waiting_raw = waiting;
    if is_full {
        let error = RequestError::Overloaded { what: "the queue for an unknown service", limit };
        fail_raw(cx, conns, key, &error);
    }
}

/// Sends an exchange to its destination, or has it wait for a connection.
pub(crate) fn dispatch(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
) {
    let buffered = exchanges.buffered_bytes();
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if exchange.turn.is_some() && exchange.is_to_gather(&cx.config.limits, buffered) {
        exchange.up = UpstreamState::Gathering;
        return;
    }
    if matches!(exchange.up, UpstreamState::Open(_) | UpstreamState::Gone) {
        return;
    }
    exchange.up = UpstreamState::Waiting;
    let mut pool = None;
    if exchange.destination.is_of_mesh() {
        match discover::find_callee(cx, exchange, upstreams) {
            Ok(Callee::Found(key)) => pool = Some(key),
            Ok(Callee::Unknown) => {
                let destination = exchange.destination.clone();
                return wait(cx, conns, exchanges, upstreams, key, &destination);
            }
            Ok(Callee::Routed(routes)) => {
                if steer::steer(cx, conns, exchanges, key, &routes) {
                    // At once: an effect comes after the body that was read with the head.
                    dispatch(cx, conns, exchanges, upstreams, app_queue, key);
                }
                return;
            }
            Ok(Callee::InAnyNetwork) => {
                return match failover::choose(cx, conns, exchanges, upstreams, key) {
                    Ok(Next::Chosen(())) => cx.effects.push(Effect::Dispatch(key)),
                    Ok(Next::Wait(of)) => wait(cx, conns, exchanges, upstreams, key, &of),
                    Err(error) => fail::fail(cx, conns, exchanges, key, &error),
                };
            }
            Ok(Callee::Faulty(mishap)) => {
                return fault::inject(cx, conns, exchanges, key, mishap);
            }
            Err(error) => {
                let error = steer::unknown_backend(exchange, error);
                // Its network can serve no more since it was chosen.
                if failover::move_on(cx, conns, exchanges, upstreams, key, 0) {
                    return cx.effects.push(Effect::Dispatch(key));
                }
                return fail::fail(cx, conns, exchanges, key, &error);
            }
        }
    } else if !concurrency::take_permit(cx, conns, exchanges, upstreams, app_queue, key) {
        return;
    }
    let Some(exchange) = exchanges.get(key) else { return };
    if exchange.is_upgrade && !exchange.destination.is_served_here() {
        return cx.effects.push(Effect::DialUpgrade(key));
    }
    if exchange.destination.is_app()
        && fairness::is_over_share(cx, conns, exchanges, upstreams, key)
    {
        return fairness::wait(cx, conns, exchanges, upstreams, app_queue, key);
    }
    let pool = pool.or_else(|| upstreams.pool_of(&exchange.destination));
    let avoided = &exchange.avoided;
    match pool.and_then(|pool| pick::pick(cx, conns, upstreams, pool, avoided)) {
        Some(conn) => send::send(cx, conns, exchanges, app_queue, key, conn),
        None => {
            let destination = exchange.destination.clone();
            wait(cx, conns, exchanges, upstreams, key, &destination);
            cx.effects.push(Effect::Scale(destination));
        }
    }
}

/// Dials the connection of a request that may leave HTTP.
pub(crate) fn dial_upgrade(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    mesh: Option<&mut MeshTls>,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    let (destination, purpose) = (exchange.destination.clone(), Purpose::Upgrade(key));
    trace_wait::note_wait(exchanges, upstreams, key, &destination);
    let dialled = dial::dial(cx, conns, upstreams, mesh, &destination, purpose, alpn::HTTP1);
    if let Err(error) = dialled {
        fail::fail(cx, conns, exchanges, key, &error);
    }
}

fn wait(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ExchangeKey,
    destination: &Destination,
) {
    trace_wait::note_wait(exchanges, upstreams, key, destination);
    let limit = cx.config.limits.waiting_per_service;
    let mut waiting = std::mem::take(&mut pools::pool(cx, upstreams, destination).waiting);
    if waiting.len() >= limit {
        // Those that were called off meanwhile take no place.
        waiting.retain(|key| exchanges.is_waiting(*key));
    }
    let is_full = waiting.len() >= limit;
    let pool = pools::pool(cx, upstreams, destination);
    pool.waiting = waiting;
    if is_full {
        let error = RequestError::Overloaded { what: "the queue for connections", limit };
        return fail::fail(cx, conns, exchanges, key, &error);
    }
    pool.waiting.push_back(key);
}

/// Fails the requests that wait for a destination, except the first `first`.
pub(crate) fn fail_waiting(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    destination: &Destination,
    first: usize,
    error: &RequestError,
) {
    let waiting = &mut pools::pool(cx, upstreams, destination).waiting;
    let late = waiting.split_off(first.min(waiting.len()));
    for key in late {
        if !exchanges.is_waiting(key) {
            continue;
        }
        let has_left = exchanges.get_mut(key).is_some_and(Exchange::leave_replica);
        if has_left {
            pools::pass_over_workload(cx, upstreams, destination);
        }
        let stays = STAYS_UNDIALLED;
        if failover::move_on(cx, conns, exchanges, upstreams, key, stays) || has_left {
            cx.effects.push(Effect::Dispatch(key));
        } else {
            fail::fail(cx, conns, exchanges, key, error);
        }
    }
}

/// Fails the requests that have waited too long for a service to be discovered.
pub(crate) fn fail_undiscovered(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    destination: &Destination,
) {
    let Some(service) = destination.service().cloned() else { return };
    let (now, patience) = (cx.now, cx.config.timeouts.discovery);
    let is_late = |since: Instant| now.saturating_duration_since(since) > patience;
    let error = RequestError::DiscoveryTimedOut { service };
    let pool = pools::pool(cx, upstreams, destination);
    let waiting = std::mem::take(&mut pool.waiting);
    let raw = std::mem::take(&mut pool.waiting_raw);
    let (late, early): (VecDeque<ExchangeKey>, VecDeque<ExchangeKey>) = waiting
        .into_iter()
        .filter(|key| exchanges.is_waiting(*key))
        .partition(|key| exchanges.get(*key).is_some_and(|e| is_late(e.started)));
    let (late_raw, early_raw): (Vec<ConnKey>, Vec<ConnKey>) = raw
        .into_iter()
        .filter(|key| conns.get(*key).is_some())
        .partition(|key| conns.get(*key).is_some_and(|conn| is_late(conn.since)));
    let pool = pools::pool(cx, upstreams, destination);
    pool.waiting = early;
    pool.waiting_raw = early_raw;
    for key in late {
        fail::fail(cx, conns, exchanges, key, &error);
    }
    if destination.service().is_some_and(ServiceName::is_address) {
        let left = late_raw.into_iter().map(Effect::LeaveUnanswered);
        return left.for_each(|effect| cx.effects.push(effect));
    }
    for key in late_raw {
        fail_raw(cx, conns, key, &error);
    }
}

/// Fails one raw connection: over HTTP if it is a CONNECT, by a reset otherwise.
pub(crate) fn fail_raw(cx: &mut Cx, conns: &mut Connections, key: ConnKey, error: &RequestError) {
    match conns.get(key).map(|conn| &conn.role) {
        Some(Role::Relay(_)) => {
            tracing::info!(%error, "TCP call failed");
            relay::refuse_tcp(cx, conns, key, error.code());
        }
        Some(Role::Http1Server(_)) => {
            cx.metrics.request_failures.add(1);
            http1_server::answer_error(cx, conns, key, error);
        }
        _ => {}
    }
}

/// Sends requests that wait for a destination, as long as a connection has room.
pub(crate) fn serve_waiting(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    app_queue: &mut AppQueue,
    destination: &Destination,
) {
    let Some(pool) = upstreams.pool_of(destination) else { return };
    while let Some(key) = upstreams.next_waiting(pool) {
        if !exchanges.is_waiting(key) {
            continue;
        }
        let avoided = exchanges.get(key).map_or(&[][..], |exchange| &exchange.avoided);
        let mut picked = pick::pick(cx, conns, upstreams, pool, avoided);
        if picked.is_none() && !avoided.is_empty() {
            // It must not hold up those behind it.
            picked = pick::pick(cx, conns, upstreams, pool, &[]);
        }
        match picked {
            Some(conn) => send::send(cx, conns, exchanges, app_queue, key, conn),
            None => {
                upstreams.wait_first(pool, key);
                // Its connections are full, of which it may have stated the limit just now.
                if destination.is_app() {
                    cx.effects.push(Effect::Scale(destination.clone()));
                }
                return;
            }
        }
    }
}

/// A connection has room for another stream, or its pool has one less.
pub(crate) fn on_capacity(cx: &mut Cx, conns: &Connections, upstreams: &Upstreams, key: ConnKey) {
    let pool = conns.get(key).and_then(Connection::pool);
    if let Some(destination) = pool.and_then(|pool| upstreams.waited_for(pool)) {
        cx.effects.push(Effect::ServeWaiting(destination.clone()));
    }
}

pub(crate) fn give_up_waiting(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get(key) else { return };
    if exchange.up == UpstreamState::FairQueue {
        let limit = cx.config.limits.app_connections;
        let what = "the list of connections to the app";
        return fail::fail(cx, conns, exchanges, key, &RequestError::Overloaded { what, limit });
    }
    let destination = exchange.destination.clone();
    let pool = upstreams.pool_of(&destination);
    if let Some(silent) = pool.and_then(|pool| pick::pick_last_resort(cx, conns, upstreams, pool)) {
        return send::send(cx, conns, exchanges, app_queue, key, silent);
    }
    let peer = describe(&destination);
    let reason = "no connection could be made in time".to_owned();
    let code = tollway_model::ErrorCode::Unreachable;
    fail::fail(cx, conns, exchanges, key, &RequestError::Unreachable { code, peer, reason });
}
