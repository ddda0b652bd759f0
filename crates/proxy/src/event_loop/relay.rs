//! Relays that must be dialled: where a relayed connection leads, and what follows when it cannot.

use std::net::SocketAddr;

use tollway_model::{AppProtocol, ErrorCode};
use tollway_net::Key;

use super::EventLoop;
use crate::cause::Cause;
use crate::conn::{ListenerKind, Purpose, Relay, Role};
use crate::exchange::access_log;
use crate::observe::Kind;
use crate::protocol::relay;
use crate::protocol::relay::RELAY_DIALS;

impl EventLoop {
    /// Dials, without TLS, where `down` leads. False when that failed at once and `down` is gone.
    pub(super) fn dial_relayed(&mut self, down: Key, address: SocketAddr) -> bool {
        match self.dial_plain(address, Purpose::Relay(down)) {
            Ok(up) => {
                relay::attach(&mut self.conns, down, up);
                true
            }
            Err(cause) => {
                if cause.code.is_none() {
                    let until = self.cx.now + self.cx.config.timeouts.dial_backoff;
                    self.rest_relay(down, address, until);
                }
                let early = relay::relay(&mut self.conns, down)
                    .map(|relay| std::mem::take(&mut relay.early));
                self.on_relay_dial_failed(down, early.unwrap_or_default(), &cause);
                relay::relay(&mut self.conns, down).is_some_and(|relay| relay.other.is_some())
            }
        }
    }

    /// A dial for a relay failed, and nothing was delivered: another address is tried as long as
    /// there are tries left; then the caller's connection ends too.
    pub(super) fn on_relay_dial_failed(&mut self, down: Key, unsent: Vec<u8>, cause: &Cause) {
        let Some(conn) = self.conns.get_mut(down) else { return };
        let Role::Relay(relay) = &mut conn.role else { return };
        relay.other = None;
        relay.early = unsent;
        relay.failed_dials += 1;
        let again = relay.failed_dials < RELAY_DIALS;
        match (&conn.via, conn.raw_target.clone()) {
            (Some(ListenerKind::Gateway), _) if again => self.relay_elsewhere(down),
            (Some(ListenerKind::Tcp(_) | ListenerKind::Outbound), Some(service)) if again => {
                self.dispatch_tcp(down, service);
            }
            _ => {
                tracing::info!(reason = cause.reason, "TCP call failed");
                relay::refuse_undialled(&mut self.cx, &mut self.conns, down, cause);
            }
        }
    }

    /// A mesh peer wants the app's bytes: only if that is what the app speaks.
    pub(super) fn open_app_tcp(&mut self, key: Key) -> bool {
        access_log::begin_line(&mut self.cx, &mut self.conns, key, Kind::Tcp, None);
        let Some(app) = self.cx.config.app.filter(|app| app.protocol == AppProtocol::Tcp) else {
            self.cx.metrics.faults.add(1);
            access_log::fail_line(&mut self.conns, key, ErrorCode::NotTcp);
            self.conns.close(&mut self.cx, key);
            return false;
        };
        if !self.admit_tcp(key) {
            return false;
        }
        let now = self.cx.now;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
        self.dial_relayed(key, app.address)
    }
}
