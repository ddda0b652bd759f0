//! Requests and connections for a service in any network: each goes to one of the networks that may serve
//! it, and on to another one where that does not answer.

use std::collections::VecDeque;

use tollway_model::{AppProtocol, ServiceName, ServiceState};
use tollway_routing::ChosenBy;

use crate::conn::{ConnKey, Connections, access_log};
use crate::cx::{Cx, Effect};
use crate::exchange::{ChosenNetwork, Destination, ExchangeKey, Exchanges};
use crate::protocol::relay;
use crate::request_error::RequestError;
use crate::upstream::networks::{self, Choice};
use crate::upstream::{Chosen, Upstreams, pools};

/// How often a request may stay in the own network, where other replicas are healthy, after dials failed.
pub(crate) const STAYS_UNDIALLED: u8 = 8;
/// How often it may after an attempt failed.
pub(crate) const STAYS_TRIED: u8 = 1;

/// What follows for a request or a connection.
pub(crate) enum Next<T> {
    Chosen(T),
    /// It waits until the state of this service has come.
    Wait(Destination),
}

/// Chooses the network of a request for a service in any network.
///
/// # Errors
/// No network may serve, or none can.
pub(crate) fn choose(
    cx: &mut Cx,
    conns: &Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ExchangeKey,
) -> Result<Next<()>, RequestError> {
    let Some(exchange) = exchanges.get_mut(key) else { return Ok(Next::Chosen(())) };
    let Some(called) = exchange.destination.service().cloned() else {
        return Ok(Next::Chosen(()));
    };
    match networks::choose(cx, conns, upstreams, &called, None)? {
        Choice::Network(chosen) => {
            count(cx, &chosen);
            // A route may have led from one such service to another: its changes stay.
            exchange.network = None;
            exchange.enter_network(ChosenNetwork::new(called, chosen));
            Ok(Next::Chosen(()))
        }
        Choice::Unknown(destination) => Ok(Next::Wait(destination)),
        Choice::None(error) => Err(error),
    }
}

/// The network of a request does not answer, and has carried out nothing of it. Returns whether a network
/// is chosen once more: another one, or the own one if other replicas are healthy there and the request
/// has stayed less often than `most_stays`.
pub(crate) fn move_on(
    cx: &mut Cx,
    conns: &Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    key: ExchangeKey,
    most_stays: u8,
) -> bool {
    let Some(network) = exchanges.get(key).and_then(|exchange| exchange.network.as_ref()) else {
        return false;
    };
    let (called, stays) = (network.called().clone(), network.stays());
    let before = network.before(stays < most_stays);
    let chosen = networks::choose(cx, conns, upstreams, &called, Some(before));
    let (Ok(Choice::Network(chosen)), Some(exchange)) = (chosen, exchanges.get_mut(key)) else {
        return false;
    };
    count(cx, &chosen);
    let is_same = exchange.destination.service() == Some(&chosen.service);
    let stays = stays.saturating_add(u8::from(is_same));
    exchange.enter_network(ChosenNetwork::new(called, chosen).with_stays(stays));
    true
}

/// No address of a service can be dialled: the requests that may go to another network do, and the others
/// wait on.
pub(crate) fn leave_network(
    cx: &mut Cx,
    conns: &Connections,
    exchanges: &mut Exchanges,
    upstreams: &mut Upstreams,
    destination: &Destination,
) {
    if upstreams.pool_of(destination).is_none() {
        return;
    }
    let waiting = std::mem::take(&mut pools::pool(cx, upstreams, destination).waiting);
    let mut staying = VecDeque::with_capacity(waiting.len());
    for key in waiting {
        if exchanges.is_waiting(key) && move_on(cx, conns, exchanges, upstreams, key, 0) {
            cx.effects.push(Effect::Dispatch(key));
        } else {
            staying.push_back(key);
        }
    }
    let pool = pools::pool(cx, upstreams, destination);
    staying.append(&mut pool.waiting);
    pool.waiting = staying;
}

/// Chooses the network of a connection that carries bytes, and so again after each dial that failed: an
/// address that failed is passed over by then.
///
/// # Errors
/// No network may serve, or none can.
pub(crate) fn choose_for_bytes(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    down: ConnKey,
    called: &ServiceName,
) -> Result<Next<(ServiceName, ServiceState)>, RequestError> {
    match networks::choose(cx, conns, upstreams, called, None)? {
        Choice::Network(chosen) => {
            let service = chosen.service.clone();
            let destination = Destination::Service(service.clone());
            let Some(state) = pools::pool(cx, upstreams, &destination).state.clone() else {
                return Ok(Next::Wait(destination));
            };
            count(cx, &chosen);
            if let Some(relay) = relay::relay(conns, down) {
                relay.network = Some(Box::new(ChosenNetwork::new(called.clone(), chosen)));
            }
            access_log::mark_line(conns, down, |line| line.service = Some(service.clone()));
            Ok(Next::Chosen((service, state)))
        }
        Choice::Unknown(destination) => Ok(Next::Wait(destination)),
        Choice::None(error) => Err(error),
    }
}

/// What a service in any network speaks: as that of the network which would be chosen now.
///
/// # Errors
/// No network may serve, or none can.
pub(crate) fn protocol(
    cx: &mut Cx,
    conns: &Connections,
    upstreams: &mut Upstreams,
    called: &ServiceName,
) -> Result<Next<AppProtocol>, RequestError> {
    match networks::choose(cx, conns, upstreams, called, None)? {
        Choice::Network(chosen) => {
            let destination = Destination::Service(chosen.service);
            let state = &pools::pool(cx, upstreams, &destination).state;
            Ok(match state {
                Some(
                    ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. },
                ) => Next::Chosen(*protocol),
                Some(
                    ServiceState::Failover { .. }
                    | ServiceState::AddressOf(_)
                    | ServiceState::Unavailable(_),
                )
                | None => Next::Wait(destination),
            })
        }
        Choice::Unknown(destination) => Ok(Next::Wait(destination)),
        Choice::None(error) => Err(error),
    }
}

fn count(cx: &Cx, chosen: &Chosen) {
    let counts = &cx.metrics.failover;
    let counter = match chosen.by {
        _ if chosen.is_again => &counts.retry,
        ChosenBy::Priority => &counts.priority,
        ChosenBy::Health => &counts.health,
        ChosenBy::Load => &counts.load,
        ChosenBy::LastResort => &counts.last_resort,
    };
    counter.add(1);
}
