//! What a dial comes to: the connection takes its role, or its address rests and those that wait try
//! another.

use super::EventLoop;
use crate::conn::accepted::proven_identity;
use crate::gateway::route as gateways;
use crate::upstream::dial::{DialFailure, h1_client};
use crate::upstream::trace_wait;
use std::sync::Arc;
use tollway_routing::Failure;

use crate::conn::{ConnKey, Http1Client, Opened, Purpose, Role};
use crate::exchange::{Destination, ExchangeKey, UpstreamState};
use crate::outbound::{dispatch, retry, send};
use crate::protocol::relay;
use crate::upstream::{dial, pools, relay_dial};

impl EventLoop {
    /// A dial stands: the connection takes its role.
    pub(super) fn on_dialled(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let is_app = matches!(&conn.role, Role::Dialling(dial) if dial.is_app);
        if let Some(peer) = conn.io.peer().filter(|_| !is_app) {
            match proven_identity(&peer) {
                Ok(identity) => conn.peer = Some(Arc::new(identity)),
                Err(error) => {
                    self.on_dial_failed(key, &DialFailure::Untrusted(&error));
                    return false;
                }
            }
        }
        let Role::Dialling(dial) = &conn.role else { return false };
        let (purpose, address) = (dial.purpose.clone(), dial.address);
        let opened = dial.opened(conn.since, self.cx.now);
        conn.since = self.cx.now;
        match purpose {
            Purpose::PoolH2(destination) => dial::join_pool_h2(
                &mut self.cx,
                &mut self.conns,
                &mut self.upstreams,
                key,
                destination,
                address,
                opened,
            ),
            Purpose::PoolH1(destination) => {
                let opened = destination.is_of_mesh().then_some(opened);
                let client = Http1Client { opened, ..h1_client(destination.clone(), false) };
                conn.role = Role::Http1Client(Box::new(client));
                self.conns.schedule(&self.cx, key);
                dial::join_pool(&mut self.cx, &mut self.upstreams, key, &destination, address)
                    .idle
                    .push(key);
                dispatch::serve_waiting(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    &mut self.upstreams,
                    &mut self.inbound,
                    &destination,
                );
            }
            Purpose::Upgrade(exchange) => self.start_upgrade(key, exchange, opened),
            Purpose::Relay(down) => relay::on_dialled(&mut self.cx, &mut self.conns, key, down),
        }
        true
    }

    fn start_upgrade(&mut self, key: ConnKey, exchange: ExchangeKey, opened: Opened) {
        let waits = self.exchanges.get(exchange).filter(|e| e.up == UpstreamState::Waiting);
        let Some(state) = waits else { return self.conns.close(&mut self.cx, key) };
        let destination = state.destination.clone();
        if let Some(conn) = self.conns.get_mut(key) {
            let client = Http1Client { opened: Some(opened), ..h1_client(destination, true) };
            conn.role = Role::Http1Client(Box::new(client));
        }
        send::send(
            &mut self.cx,
            &mut self.conns,
            &mut self.exchanges,
            &self.inbound,
            exchange,
            key,
        );
    }

    /// A dial failed: its address rests, and requests that wait try another or fail.
    pub(super) fn on_dial_failed(&mut self, key: ConnKey, failure: &DialFailure<'_>) {
        let Some(mut conn) = self.conns.take(&self.cx, key) else { return };
        let unsent = std::mem::take(conn.io.out());
        let Role::Dialling(dial) = conn.role else { return };
        self.cx.metrics.dial_failures.add(1);
        let until = self.cx.now + self.cx.config.timeouts.dial_backoff;
        match dial.purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                let cause = failure.cause(dial::is_behind_gateway(&self.upstreams, &destination));
                let reason = &cause.reason;
                tracing::debug!(?destination, address = ?dial.address, reason, "dial failed");
                pools::pool(&mut self.cx, &mut self.upstreams, &destination)
                    .dialling
                    .retain(|dialling| *dialling != key);
                pools::back_off(
                    &mut self.cx,
                    &mut self.upstreams,
                    &destination,
                    dial.address,
                    until,
                );
                if destination == Destination::App {
                    self.upstreams.report_app_unreachable();
                }
                trace_wait::note_failed_dial(
                    &self.cx,
                    &mut self.exchanges,
                    &self.upstreams,
                    &destination,
                    dial.address,
                    &cause,
                );
                let may_wait = failure.may_pass().then_some(conn.since);
                dial::after_failed_dial(
                    &mut self.cx,
                    &mut self.upstreams,
                    &destination,
                    dial.address,
                    cause,
                    may_wait,
                );
            }
            Purpose::Upgrade(exchange) => {
                let Some(state) = self.exchanges.get_mut(exchange) else { return };
                state.attempts += 1;
                let destination = state.destination.clone();
                pools::back_off(
                    &mut self.cx,
                    &mut self.upstreams,
                    &destination,
                    dial.address,
                    until,
                );
                let cause = failure.cause(dial::is_behind_gateway(&self.upstreams, &destination));
                retry::on_attempt_failed(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    &self.upstreams,
                    exchange,
                    Failure::NotConnected,
                    cause,
                );
            }
            Purpose::Relay(down) => {
                if let Some(address) = dial.address {
                    gateways::back_off_relay(
                        &mut self.cx,
                        &self.conns,
                        &mut self.upstreams,
                        &mut self.gateway,
                        down,
                        address,
                        until,
                    );
                }
                relay_dial::on_relay_dial_failed(
                    &mut self.cx,
                    &mut self.conns,
                    down,
                    unsent,
                    &failure.cause(false),
                );
            }
        }
    }
}
