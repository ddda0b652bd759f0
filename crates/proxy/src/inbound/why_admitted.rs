//! Why a request was admitted, for its call trace.

use crate::call_trace::{CalleeTrace, TracePart};
use crate::conn::Connections;
use crate::cx::Cx;
use crate::exchange::{ExchangeKey, Exchanges};
use crate::inbound::PolicyGate;

/// A caller's sidecar asks for the way of a request that was let in.
pub(crate) fn begin_callee_trace(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    policy: &mut PolicyGate,
    key: ExchangeKey,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let conn = conns.get_mut(exchange.down.conn);
    let admission = policy.admission(conn, &exchange.head, &cx.config.home);
    let part = TracePart::Callee(Box::new(CalleeTrace { admission, sent: None }));
    exchange.observed.get_or_insert_default().explained = Some(part);
}
