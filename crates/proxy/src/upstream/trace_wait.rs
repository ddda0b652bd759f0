//! Records for a traced request which dials failed while it waited for a connection.

use std::net::SocketAddr;

use crate::call_trace::WaitsFor;
use crate::cause::Cause;
use crate::cx::Cx;
use crate::exchange::{Destination, Exchange, ExchangeKey, Exchanges, trace};
use crate::upstream::{Upstreams, dial};

/// A connection could not be made that requests wait for.
pub(crate) fn note_failed_dial(
    cx: &Cx,
    exchanges: &mut Exchanges,
    upstreams: &Upstreams,
    destination: &Destination,
    address: Option<SocketAddr>,
    cause: &Cause,
) {
    let Some(pool) = upstreams.pools.get(destination) else { return };
    let is_explained = |key: &ExchangeKey| {
        let observed = exchanges.get(*key).and_then(|e| e.observed.as_ref());
        observed.is_some_and(|observed| observed.explained.is_some())
    };
    let waiting: Vec<ExchangeKey> = pool.waiting.iter().copied().filter(is_explained).collect();
    if waiting.is_empty() {
        return;
    }
    let code = dial::unreachable(cx, upstreams, destination, address, cause.clone()).code();
    for key in waiting {
        if let Some(part) = exchanges.get_mut(key).and_then(Exchange::caller_part) {
            part.fail_dial(code, address);
        }
    }
}

/// Notes in a call trace what a request waits for.
pub(crate) fn note_wait(
    exchanges: &mut Exchanges,
    upstreams: &Upstreams,
    key: ExchangeKey,
    destination: &Destination,
) {
    let is_known = upstreams.pools.get(destination).is_some_and(|pool| pool.state.is_some());
    let what = if is_known { WaitsFor::Connection } else { WaitsFor::Discovery };
    trace::note_wait(exchanges, key, what);
}
