//! Why a request was admitted or refused, for its call trace. Callers of the callee's own namespace see
//! the policy by name; those of others have no business with it.

use tollway_identity::PeerIdentity;
use tollway_model::ServiceName;
use tollway_model::call_trace::{Admission, LimitWord, OverLimit};

use crate::call_trace::{CalleeTrace, TracePart};
use crate::conn::Connections;
use crate::cx::Cx;
use crate::exchange::{Exchange, ExchangeKey, Exchanges};
use crate::headers;
use crate::inbound::{PolicyDenial, PolicyGate};

/// A caller's sidecar asks for the way of a request that was let in. `over_shadow` is the limit in shadow
/// mode that it is over.
pub(crate) fn begin_callee_trace(
    cx: &mut Cx,
    conns: &mut Connections,
    exchanges: &mut Exchanges,
    policy: &mut PolicyGate,
    key: ExchangeKey,
    over_shadow: Option<LimitWord>,
) {
    let Some(exchange) = exchanges.get_mut(key) else { return };
    let conn = conns.get_mut(exchange.down.conn);
    let home = &cx.config.home;
    let sees = conn.as_ref().is_some_and(|conn| sees_policies(conn.peer.as_deref(), home));
    let admission = match policy.admission(conn, &exchange.head, home) {
        Admission::Allowed(_) | Admission::WouldBeRefused(_) if !sees => Admission::NotRefused,
        admission => admission,
    };
    let limit = over_shadow.filter(|_| sees).map(|limit| OverLimit { limit, is_shadow: true });
    let part = TracePart::Callee(Box::new(CalleeTrace { admission, limit, sent: None }));
    exchange.observed.get_or_insert_default().explained = Some(part);
}

/// The same of one that the policies refuse, where the caller may see why.
pub(crate) fn begin_refused_trace(
    exchange: &mut Exchange,
    peer: Option<&PeerIdentity>,
    home: &ServiceName,
    denial: &PolicyDenial,
) {
    if !headers::asks_for_call_trace(&exchange.head.fields) || !sees_policies(peer, home) {
        return;
    }
    let admission = Admission::Refused(denial.policy().clone());
    let part = TracePart::Callee(Box::new(CalleeTrace { admission, limit: None, sent: None }));
    exchange.observed.get_or_insert_default().explained = Some(part);
}

/// The same of one that a limit refuses.
pub(crate) fn begin_limited_trace(
    exchange: &mut Exchange,
    peer: Option<&PeerIdentity>,
    home: &ServiceName,
    limit: LimitWord,
) {
    if !headers::asks_for_call_trace(&exchange.head.fields) || !sees_policies(peer, home) {
        return;
    }
    let limit = Some(OverLimit { limit, is_shadow: false });
    let part = CalleeTrace { admission: Admission::NotRefused, limit, sent: None };
    let part = TracePart::Callee(Box::new(part));
    exchange.observed.get_or_insert_default().explained = Some(part);
}

/// Whether a caller is of the namespace whose policies these are.
fn sees_policies(peer: Option<&PeerIdentity>, home: &ServiceName) -> bool {
    peer.is_some_and(|peer| {
        peer.service.namespace == home.namespace && peer.service.network == home.network
    })
}
