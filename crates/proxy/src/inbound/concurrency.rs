//! How many requests the app has at a time, where that is bounded (`--app-max-concurrency`). A
//! request has its permit from when it may be sent to the app until its answer has wholly gone to the
//! caller; others wait, first come first served, as many as may wait for a service.

use std::collections::VecDeque;

use crate::conn::Connections;
use crate::cx::Cx;
use crate::exchange::{Destination, ExchangeKey, Exchanges, UpstreamState, fail};
use crate::inbound::AppQueue;
use crate::request_error::RequestError;
use crate::upstream::{Upstreams, trace_wait};

/// The permits that are taken, and the requests that wait for one.
#[derive(Default)]
pub(crate) struct ConcurrencyLimit {
    taken: usize,
    waiting: VecDeque<ExchangeKey>,
    /// A permit was freed, and the queue was not served since.
    has_come_free: bool,
}

impl ConcurrencyLimit {
    /// A request may be dispatched at once.
    pub(crate) fn is_due(&self) -> bool {
        self.has_come_free && !self.waiting.is_empty()
    }
}

/// Whether a request may go to its destination now; it waits otherwise, or is refused where too
/// many wait. A request that is sent once more, or that has waited, has its permit already.
pub(crate) fn take_permit(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &Upstreams,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
) -> bool {
    let Some(limit) = cx.config.app_concurrency else { return true };
    let Some(exchange) = exchanges.get_mut(key) else { return false };
    let is_for_app = exchange.destination.is_app() || exchange.destination == Destination::Callback;
    if !is_for_app || exchange.holds_permit || !exchange.needs_permit {
        return true;
    }
    let is_free = app_queue.concurrency.taken < limit;
    if is_free && app_queue.concurrency.waiting.is_empty() {
        app_queue.concurrency.taken += 1;
        exchange.holds_permit = true;
        return true;
    }
    // Those that wait come first; they are served later in this pass.
    app_queue.concurrency.has_come_free |= is_free;
    let destination = exchange.destination.clone();
    wait(cx, conns, exchanges, upstreams, app_queue, key, &destination);
    false
}

fn wait(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    upstreams: &Upstreams,
    app_queue: &mut AppQueue,
    key: ExchangeKey,
    destination: &Destination,
) {
    trace_wait::note_wait(exchanges, upstreams, key, destination);
    let limit = cx.config.limits.waiting_per_service;
    let mut waiting = std::mem::take(&mut app_queue.concurrency.waiting);
    if waiting.len() >= limit {
        // Those that were called off meanwhile take no place.
        waiting.retain(|key| is_waiting(exchanges, *key));
    }
    let is_full = waiting.len() >= limit;
    if let Some(exchange) = exchanges.get_mut(key)
        && !is_full
    {
        exchange.up = UpstreamState::Permit;
        waiting.push_back(key);
    }
    app_queue.concurrency.waiting = waiting;
    if is_full {
        fail::fail(
            cx,
            conns,
            exchanges,
            key,
            &RequestError::Overloaded { what: "the queue for the app", limit },
        );
    }
}

fn is_waiting(exchanges: &Exchanges, key: ExchangeKey) -> bool {
    exchanges.get(key).is_some_and(|exchange| exchange.up == UpstreamState::Permit)
}

/// The request that had a permit is over.
pub(crate) fn free(app_queue: &mut AppQueue) {
    app_queue.concurrency.taken = app_queue.concurrency.taken.saturating_sub(1);
    app_queue.concurrency.has_come_free = true;
}

/// The request that has waited longest and may go to the app now, with its permit; to be dispatched
/// before the next is asked for.
pub(crate) fn next(
    cx: &Cx,
    exchanges: &mut Exchanges,
    app_queue: &mut AppQueue,
) -> Option<ExchangeKey> {
    let limit = cx.config.app_concurrency.unwrap_or(usize::MAX);
    let concurrency = &mut app_queue.concurrency;
    if concurrency.taken >= limit {
        // The loop must not poll for a permit that another request has taken meanwhile.
        concurrency.has_come_free = false;
        return None;
    }
    if !std::mem::take(&mut concurrency.has_come_free) {
        return None;
    }
    while let Some(key) = concurrency.waiting.pop_front() {
        if let Some(exchange) = exchanges.get_mut(key)
            && exchange.up == UpstreamState::Permit
        {
            exchange.holds_permit = true;
            concurrency.taken += 1;
            concurrency.has_come_free = true;
            return Some(key);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use tollway_http::h2::StreamId;
    use tollway_model::{Label, ServiceName};

    use super::*;
    use crate::conn::{ConnKey, ListenerKind};
    use crate::event_loop::{LoopConfig, NoServices};
    use crate::exchange::{BodySize, Exchange, StreamRef};
    use crate::protocol::Arrival;

    /// A request that waits for a permit.
    fn waiting(now: Instant) -> Exchange {
        let down = StreamRef { conn: ConnKey::from_u64(0), stream: StreamId(0) };
        let arrival = Arrival {
            down,
            head: Box::default(),
            size: BodySize::None,
            ended: true,
            is_upgrade: false,
        };
        let mut exchange = Exchange::new(ListenerKind::Inbound, arrival, now, None);
        exchange.up = UpstreamState::Permit;
        exchange
    }

    /// A request for the app that is to be dispatched.
    fn for_app(now: Instant) -> Exchange {
        let mut exchange = waiting(now);
        exchange.destination = Destination::App;
        exchange.up = UpstreamState::Waiting;
        exchange
    }

    fn limited_to_one() -> Cx {
        let [namespace, network] = ["default", "west"].map(|name| Label::new(name).unwrap());
        let home = ServiceName::parse_in("web", &namespace, &network).unwrap();
        let mut config = LoopConfig::of_test(home);
        config.app_concurrency = Some(1);
        Cx::new(Arc::new(config), Arc::default(), Instant::now(), 1)
    }

    #[test]
    fn the_loop_sleeps_while_requests_wait_and_no_permit_is_free() {
        let cx = limited_to_one();
        let (mut exchanges, mut app_queue) = (Exchanges::default(), AppQueue::default());
        let keys: Vec<_> = (0..2).map(|_| exchanges.insert(waiting(cx.now))).collect();
        app_queue.concurrency.taken = 1;
        app_queue.concurrency.waiting.extend(&keys);
        assert!(!app_queue.is_due(0), "no permit was freed");
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), None);

        free(&mut app_queue);
        assert!(app_queue.is_due(0));
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), Some(keys[0]));
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), None, "it has the permit");
        assert!(!app_queue.is_due(0), "the loop would spin until that request is over");

        free(&mut app_queue);
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), Some(keys[1]));
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), None);
        assert!(!app_queue.is_due(0));
    }

    #[test]
    fn a_new_request_waits_behind_those_in_line_although_a_permit_is_free() {
        let mut cx = limited_to_one();
        let mut conns = Connections::new(cx.now).unwrap();
        let upstreams = Upstreams::new(Box::new(NoServices));
        let (mut exchanges, mut app_queue) = (Exchanges::default(), AppQueue::default());
        let mut ask = |exchanges: &mut Exchanges, app_queue: &mut AppQueue| {
            let key = exchanges.insert(for_app(cx.now));
            (key, take_permit(&mut cx, &mut conns, exchanges, &upstreams, app_queue, key))
        };
        assert!(ask(&mut exchanges, &mut app_queue).1, "it has the permit");
        let (first, has_permit) = ask(&mut exchanges, &mut app_queue);
        assert!(!has_permit);
        free(&mut app_queue);
        let (second, has_permit) = ask(&mut exchanges, &mut app_queue);
        assert!(!has_permit, "another has waited longer");
        let cx = limited_to_one();
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), Some(first));
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), None);
        free(&mut app_queue);
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), Some(second));
    }

    /// None of those in line waits any more: nothing will come free that a new request could wait for.
    #[test]
    fn requests_that_were_called_off_hold_up_no_new_one() {
        let mut cx = limited_to_one();
        let mut conns = Connections::new(cx.now).unwrap();
        let upstreams = Upstreams::new(Box::new(NoServices));
        let (mut exchanges, mut app_queue) = (Exchanges::default(), AppQueue::default());
        let mut gone = waiting(cx.now);
        gone.up = UpstreamState::Gone;
        app_queue.concurrency.waiting.push_back(exchanges.insert(gone));
        let key = exchanges.insert(for_app(cx.now));
        assert!(!take_permit(&mut cx, &mut conns, &mut exchanges, &upstreams, &mut app_queue, key));
        assert!(app_queue.is_due(0));
        assert_eq!(next(&cx, &mut exchanges, &mut app_queue), Some(key));
    }
}
