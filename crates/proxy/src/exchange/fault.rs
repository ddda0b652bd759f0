//! Requests that go wrong on purpose, as a traffic policy has it: held back for a time, then sent or
//! answered with an error.

use std::time::Instant;

use tollway_model::traffic_policy::AbortFault;
use tollway_routing::Mishap;

use super::{Exchange, ExchangeKey, Exchanges, UpstreamState, fail};
use crate::conn::Connections;
use crate::cx::{Cx, Effect};
use crate::request_error::RequestError;

/// A request that is held back.
pub(crate) struct Held {
    pub(super) until: Instant,
    /// What it is answered with then; `None` if it is sent.
    abort: Option<AbortFault>,
    /// The time for which a timer is set.
    pub(super) listed: Option<Instant>,
}

impl Exchange {
    /// Whether what goes wrong with it is still to be drawn. Copies and calls of actors are spared.
    pub(crate) fn is_fault_due(&self) -> bool {
        !self.is_fault_drawn && !self.is_mirrored && !self.is_of_actors
    }
}

/// Has a request go wrong. The time that it is held back counts for all limits of its time.
pub(crate) fn inject(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    mishap: Mishap,
) {
    let Mishap { delay, abort } = mishap;
    let Some(exchange) = exchanges.get_mut(key) else { return };
    if let Some(part) = exchange.caller_part() {
        part.note_fault(mishap);
    }
    let Some(delay) = delay else {
        return if let Some(abort) = abort {
            refuse(cx, conns, exchanges, key, abort)
        };
    };
    cx.metrics.faults.delays.add(1);
    exchange.held = Some(Box::new(Held { until: cx.now + delay, abort, listed: None }));
    exchange.up = UpstreamState::Pausing;
    exchanges.set_timer(cx.now, key);
}

/// A request has been held back for long enough.
pub(super) fn release(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let Some(held) = exchange.held.take() else { return };
    exchange.active = cx.now;
    if let Some(abort) = held.abort {
        return refuse(cx, conns, exchanges, key, abort);
    }
    exchange.up = UpstreamState::Waiting;
    cx.effects.push(Effect::Dispatch(key));
}

fn refuse(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    key: ExchangeKey,
    abort: AbortFault,
) {
    let service = exchanges.get(key).and_then(|exchange| exchange.destination.service().cloned());
    let Some(service) = service else { return };
    cx.metrics.faults.aborts.add(1);
    let AbortFault { status, grpc_status, .. } = abort;
    let error = RequestError::FaultInjected { service, status, grpc_status };
    fail::fail(cx, conns, exchanges, key, &error);
}
