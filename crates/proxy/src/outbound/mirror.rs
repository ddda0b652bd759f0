//! Copies of requests that a rule mirrors: each is an exchange of its own without a caller, whose
//! response is dropped.

use std::sync::Arc;

use crate::conn::ConnKey;
use crate::cx::{Cx, Effect};
use crate::exchange::{BodySize, Destination, Exchange, ExchangeKey, Exchanges, StreamRef};
use crate::headers;
use crate::protocol::Arrival;
use tollway_http::h2::StreamId;

/// A request has gone out whole: begins its copies. One whose body is larger than what is kept for
/// another attempt is not copied.
pub(crate) fn mirror(cx: &mut Cx, exchanges: &mut Exchanges, key: ExchangeKey) {
    let Some(exchange) = exchanges.get(key) else { return };
    let Some(steering) = &exchange.steering else { return };
    let rule = Arc::clone(steering.rule());
    let services: Vec<_> = rule.mirrored(|| cx.next_random()).cloned().collect();
    for service in services {
        let Some(exchange) = exchanges.get(key) else { return };
        let Some(steering) = &exchange.steering else { return };
        let is_full = exchanges.len() >= cx.config.limits.exchanges / MIRRORED_PART;
        let Some(body) = exchange.whole_request().filter(|_| !is_full) else {
            cx.metrics.mirrors_skipped.add(1);
            continue;
        };
        let mut head = exchange.head.clone();
        headers::send_to(&mut head, &service);
        let size = match body.len() {
            0 => BodySize::None,
            length => BodySize::Fixed(length as u64),
        };
        // It has no caller: what would be written there is dropped.
        let down = StreamRef { conn: ConnKey::dangling(), stream: StreamId(0) };
        let body = body.to_vec();
        let arrival = Arrival { down, head, size, ended: true, is_upgrade: false };
        let mut copy = Exchange::new(exchange.via.clone(), arrival, cx.now, None);
        copy.request.push(&body);
        copy.is_mirrored = true;
        copy.destination = Destination::Service(service);
        copy.steering = Some(Box::new(steering.mirrored()));
        exchanges.add_buffered(body.len());
        let copy = exchanges.insert(copy);
        cx.metrics.mirrored_requests.add(1);
        cx.effects.push(Effect::Dispatch(copy));
    }
}

/// Copies are made while fewer than this part of the requests that may be under way are.
const MIRRORED_PART: usize = 2;
