//! The beginning of a gateway's relay: until the callee has answered the ClientHello as TLS does,
//! nothing else of the caller reaches it. An address that a gateway was sent may belong to a service
//! that reads lines, and the caller may be any stranger.

use std::net::SocketAddr;

use tollway_identity::{FirstRecord, first_record};
use tollway_model::ErrorCode;

use crate::conn::{ConnKey, Connections, Unproven};
use crate::cx::{Cx, Effect};
use crate::protocol::relay;

/// The connection to a callee stands; its first record is still to come.
pub(crate) fn begin(conns: &mut Connections, callee: ConnKey, address: Option<SocketAddr>) {
    if let Some(relay) = relay::relay(conns, callee) {
        relay.unproven = Some(Box::new(Unproven { bytes: Vec::new(), address }));
    }
}

/// Bytes of either side, before the callee is proven to speak TLS.
pub(crate) fn on_bytes(cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let (now, limit) = (cx.now, cx.config.limits.pipe_bytes);
    let Some(conn) = conns.get_mut(key) else { return };
    let is_caller = conn.via.is_some();
    let Some(relay) = relay::relay(conns, key) else { return };
    relay.active = now;
    relay.has_spoken = true;
    let Some(unproven) = &mut relay.unproven else { return };
    unproven.bytes.extend_from_slice(data);
    if is_caller {
        let is_full = unproven.bytes.len() >= limit;
        return relay::pause_if(is_full, conns, key);
    }
    match first_record(&unproven.bytes) {
        FirstRecord::Partial => {}
        FirstRecord::ServerHello => pass(cx, conns, key),
        FirstRecord::Alert(length) => pass_alert(cx, conns, key, length),
        FirstRecord::NotTls => refuse(cx, conns, key),
    }
}

/// One side ends before the callee has answered.
pub(crate) fn on_closed(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    let is_caller = conns.get(key).is_some_and(|conn| conn.via.is_some());
    let other = relay::relay(conns, key).and_then(|relay| relay.other);
    match other {
        // Not passed over: a stranger could bring each callee to close by what it sends.
        Some(caller) if !is_caller => {
            conns.close(cx, key);
            relay::refuse(cx, conns, caller, ErrorCode::GatewayUpstream);
        }
        _ => relay::on_failed(cx, conns, key),
    }
}

/// The callee speaks TLS: from here on bytes go both ways.
fn pass(cx: &mut Cx, conns: &mut Connections, callee: ConnKey) {
    let Some(relay) = relay::relay(conns, callee) else { return };
    let answer = relay.unproven.take().unwrap_or_default().bytes;
    let Some(caller) = relay.other else { return };
    let held = relay::relay(conns, caller).and_then(|relay| relay.unproven.take());
    let held = held.unwrap_or_default().bytes;
    cx.metrics.relayed_bytes.add(held.len() as u64);
    if let Some(conn) = conns.get_mut(callee) {
        conn.io.out().extend_from_slice(&held);
    }
    conns.mark_dirty(callee);
    conns.resume(caller);
    relay::on_bytes(cx, conns, callee, &answer);
}

/// The callee refuses the ClientHello: its alert goes to the caller, and both end.
fn pass_alert(cx: &mut Cx, conns: &mut Connections, callee: ConnKey, length: usize) {
    let Some(relay) = relay::relay(conns, callee) else { return };
    let Some(caller) = relay.other else { return };
    let bytes = relay.unproven.take().unwrap_or_default().bytes;
    if let Some(conn) = conns.get_mut(caller) {
        conn.io.out().extend_from_slice(bytes.get(..length).unwrap_or_default());
    }
    conns.close(cx, callee);
    conns.linger(cx, caller);
}

/// The callee does not speak TLS.
fn refuse(cx: &mut Cx, conns: &mut Connections, callee: ConnKey) {
    let Some(relay) = relay::relay(conns, callee) else { return };
    let Some(caller) = relay.other else { return };
    let address = relay.unproven.as_ref().and_then(|unproven| unproven.address);
    cx.metrics.gateway_answers_refused.add(1);
    let chosen = conns.get(caller).and_then(|conn| conn.relays_to.clone());
    let subject = address.map(|address| address.to_string()).unwrap_or_default();
    if let Some(left_out) = cx.log.admit("answer", subject.as_str(), cx.now) {
        let code = ErrorCode::GatewayNoTls;
        let hint = code.entry().remedy;
        tracing::warn!(%code, address = subject, left_out, hint, "what answers a ClientHello does not speak TLS");
    }
    if let Some((target, address)) = chosen {
        let until = cx.now + cx.config.timeouts.dial_backoff;
        cx.effects.push(Effect::BackOffRelay { target, address, until });
    }
    conns.close(cx, callee);
    relay::refuse(cx, conns, caller, ErrorCode::GatewayUpstream);
}
