//! What follows a dial: the connection takes its role, or its address is passed over for a while and
//! requests that wait try another.

use std::sync::Arc;

use tollway_identity::Distrust;
use tollway_model::ErrorCode;
use tollway_routing::Failure;

use super::Http;
use super::http::Variant;
use crate::conn::accepted::proven_identity;
use crate::conn::{ConnKey, Connections, Dial, Http1Client, Opened, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::exchange::{Destination, ExchangeKey, UpstreamState};
use crate::outbound::send;
use crate::protocol::relay;
use crate::upstream::dial::{DialFailure, h1_client};
use crate::upstream::{dial, pools, relay_dial, replicas, trace_wait};

impl<V: Variant> Http<V> {
    /// A dial stands: the connection takes its role. Returns whether it lives on.
    pub(super) fn on_dialled(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
    ) -> bool {
        let Some(conn) = conns.get_mut(key) else { return false };
        let is_app = matches!(&conn.role, Role::Dialling(dial) if dial.is_app);
        if let Some(peer) = conn.io.peer().filter(|_| !is_app) {
            let proven = proven_identity(&peer, (cx.clocks.wall)())
                .map_err(|error| (ErrorCode::CertificateExpired, error));
            // The handshake may have begun under an older trust.
            let mesh = self.variant.mesh();
            let trusted = proven.and_then(|identity| {
                let judged =
                    mesh.map_or(Ok(()), |tls| tls.credentials().bundles().judge(&identity));
                let refuse = |why: Distrust| (why.code(), format!("{}: {why}", identity.spiffe));
                judged.map_err(refuse).map(|()| identity)
            });
            match trusted {
                Ok(identity) => conn.peer = Some(Arc::new(identity)),
                Err((code, reason)) => {
                    self.on_dial_failed(cx, conns, key, &DialFailure::Untrusted(code, &reason));
                    return false;
                }
            }
        }
        let Role::Dialling(dial) = &conn.role else { return false };
        let (purpose, address) = (dial.purpose.clone(), dial.address);
        let opened = dial.opened(conn.since, cx.now);
        conn.since = cx.now;
        let upstreams = &mut self.upstreams;
        match purpose {
            Purpose::PoolH2(destination) => {
                replicas::attach(conns, upstreams, key, &destination);
                dial::join_pool_h2(cx, conns, upstreams, key, destination, address, opened);
            }
            Purpose::PoolH1(destination) => {
                let opened = destination.is_of_mesh().then_some(opened);
                let pool = upstreams.pool_of(&destination);
                let client = Http1Client { opened, ..h1_client(destination.clone(), pool) };
                conn.role = Role::Http1Client(Box::new(client));
                conns.schedule(cx, key);
                replicas::attach(conns, upstreams, key, &destination);
                dial::join_pool(cx, upstreams, key, &destination, address).idle.push(key);
                cx.effects.push(Effect::ServeWaiting(destination));
            }
            Purpose::Upgrade(exchange) => self.start_upgrade(cx, conns, key, exchange, opened),
            Purpose::Relay(down) => {
                let service = conns.get(down).and_then(|conn| conn.raw_target.clone());
                if let Some(service) = service {
                    replicas::note_dialled(cx, conns, upstreams, key, &service);
                }
                relay::on_dialled(cx, conns, key, down);
            }
            // Only gateways open reverse connections.
            Purpose::Reverse(_) => conns.close(cx, key),
        }
        true
    }

    fn start_upgrade(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        exchange: ExchangeKey,
        opened: Opened,
    ) {
        let waits = self.exchanges.get(exchange).filter(|e| e.up == UpstreamState::Waiting);
        let Some(state) = waits else { return conns.close(cx, key) };
        let destination = state.destination.clone();
        replicas::attach(conns, &self.upstreams, key, &destination);
        if let Some(conn) = conns.get_mut(key) {
            let client = Http1Client { opened: Some(opened), ..h1_client(destination, None) };
            conn.role = Role::Http1Client(Box::new(client));
        }
        send::send(cx, conns, &mut self.exchanges, &mut self.app_queue, exchange, key);
    }

    /// A dial failed: its address is passed over, and requests that wait try another or fail.
    pub(super) fn on_dial_failed(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        failure: &DialFailure<'_>,
    ) {
        let Some(mut conn) = conns.take(cx, key) else { return };
        let unsent = std::mem::take(conn.io.out());
        let Role::Dialling(Dial { purpose, address, .. }) = conn.role else { return };
        cx.metrics.dial_failures.add(1);
        let until = cx.now + cx.config.timeouts.dial_backoff;
        let upstreams = &mut self.upstreams;
        match purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                let cause = failure.cause(dial::is_behind_gateway(upstreams, &destination));
                let reason = &cause.reason;
                tracing::debug!(?destination, ?address, reason, "dial failed");
                let dialling = &mut pools::pool(cx, upstreams, &destination).dialling;
                dialling.retain(|dialling| *dialling != key);
                dial::note_failed(cx, upstreams, &destination, address, failure);
                pools::back_off(cx, upstreams, &destination, address, until);
                if destination == Destination::App {
                    if let (Some(app), Some(address)) = (&cx.config.app, address) {
                        app.addresses.note_failed(address);
                    }
                    upstreams.report_app_unreachable();
                }
                let exchanges = &mut self.exchanges;
                trace_wait::note_failed_dial(
                    cx,
                    exchanges,
                    upstreams,
                    &destination,
                    address,
                    &cause,
                );
                let may_wait = failure.may_pass().then_some(conn.since);
                dial::after_failed_dial(cx, upstreams, &destination, address, cause, may_wait);
            }
            Purpose::Upgrade(exchange) => {
                let Some(state) = self.exchanges.get_mut(exchange) else { return };
                state.attempts += 1;
                let destination = state.destination.clone();
                dial::note_failed(cx, upstreams, &destination, address, failure);
                pools::back_off(cx, upstreams, &destination, address, until);
                let cause = failure.cause(dial::is_behind_gateway(upstreams, &destination));
                let failure = Failure::NotConnected;
                cx.effects.push(Effect::AttemptFailed { exchange, failure, cause });
            }
            Purpose::Relay(down) => {
                let cause = failure.cause(false);
                relay_dial::on_relay_dial_failed(cx, conns, down, address, unsent, &cause);
            }
            Purpose::Reverse(_) => {}
        }
    }
}
