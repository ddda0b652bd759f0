//! Relays that must be dialled: where a relayed connection leads, and what follows when it cannot.

use std::net::SocketAddr;

use tollway_net::Tls;

use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, ListenerKind, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::protocol::relay;
use crate::upstream::dial;

/// Dials, without TLS, where `down` leads. False when that failed at once and `down` is gone.
pub(crate) fn dial_relayed(
    cx: &mut Cx,
    conns: &mut Connections,
    down: ConnKey,
    address: SocketAddr,
) -> bool {
    dial_relayed_with(cx, conns, down, address, None)
}

/// The same, over TLS if it is given.
pub(crate) fn dial_relayed_with(
    cx: &mut Cx,
    conns: &mut Connections,
    down: ConnKey,
    address: SocketAddr,
    tls: Option<Tls>,
) -> bool {
    let dialled = match tls {
        Some(tls) => dial::dial_external(cx, conns, address, tls, Purpose::Relay(down)),
        None => dial::dial_plain(cx, conns, address, Purpose::Relay(down)),
    };
    match dialled {
        Ok(up) => {
            relay::attach(conns, down, up);
            let may_choose = conns.get(down).is_some_and(|conn| conn.relays_to.is_some());
            if let Some(Role::Dialling(dial)) = conns.get_mut(up).map(|conn| &mut conn.role) {
                dial.has_other_way = may_choose;
            }
            true
        }
        Err(cause) => {
            // Without descriptors no other address can be dialled either.
            let address = cause.code.is_none().then_some(address);
            let early = relay::relay(conns, down).map(|relay| std::mem::take(&mut relay.early));
            on_relay_dial_failed(cx, conns, down, address, early.unwrap_or_default(), &cause);
            relay::relay(conns, down).is_some_and(|relay| relay.other.is_some())
        }
    }
}

/// A dial for a relay failed, and nothing was delivered: `address` is passed over for a while, and
/// another one is tried as long as there are tries left; then the caller's connection ends too.
pub(crate) fn on_relay_dial_failed(
    cx: &mut Cx,
    conns: &mut Connections,
    down: ConnKey,
    address: Option<SocketAddr>,
    unsent: Vec<u8>,
    cause: &Cause,
) {
    if let Some(address) = address {
        let until = cx.now + cx.config.timeouts.dial_backoff;
        cx.effects.push(Effect::BackOffDialled { down, address, until });
    }
    let Some(conn) = conns.get_mut(down) else { return };
    let Role::Relay(relay) = &mut conn.role else { return };
    relay.other = None;
    // What is held has not gone out.
    let held = std::mem::replace(&mut relay.early, unsent);
    relay.early.extend_from_slice(&held);
    let again = relay.note_failed_dial();
    match (&conn.via, conn.raw_target.clone()) {
        (Some(via), _) if again && via.is_gateway() => {
            cx.effects.push(Effect::RelayElsewhere(down))
        }
        (
            Some(ListenerKind::Tcp(_) | ListenerKind::Outbound | ListenerKind::Intercepted),
            Some(service),
        ) if again => {
            cx.effects.push(Effect::DispatchTcp { down, service });
        }
        _ if conn.external.as_ref().is_some_and(|call| call.has_more()) => {
            cx.effects.push(Effect::DialExternal(down));
        }
        _ => {
            tracing::info!(reason = cause.reason, "TCP call failed");
            relay::refuse_undialled(cx, conns, down, cause);
        }
    }
}
