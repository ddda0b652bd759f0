//! A gateway: each connection is relayed to what the server name of its ClientHello says.

use std::time::Duration;

use tollway_identity::TlsError;
use tollway_model::ErrorCode;
use tollway_net::{Closed, ConnError, Tls};

use super::composition::unexpected;
use super::{Command, Composition};
use crate::cause::Cause;
use crate::conn::accepted;
use crate::conn::{ConnKey, Connections, Expired, ListenerKind, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::gateway::{Gateway, greeting, reverse, route};
use crate::protocol::relay;
use crate::upstream::dial::DialFailure;
use crate::upstream::relay_dial;

/// From the beginning of a gateway's end to the moment at which it takes no more connections: by then the
/// control planes of joined networks have probed it, and their callers use other gateways.
const LEAVES_IN: Duration = Duration::from_secs(1);

impl Composition for Gateway {
    const LEAVES_IN: Duration = LEAVES_IN;

    fn first_role(&mut self, _: &Cx, _: &ListenerKind) -> Result<(Option<Tls>, Role), TlsError> {
        Ok((None, Role::Hello(Box::default())))
    }

    fn on_bytes(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, data: &[u8]) {
        let Some(conn) = conns.get_mut(key) else { return };
        match &conn.role {
            Role::Hello(_) => route::on_bytes(cx, conns, self, key, data),
            Role::Relay(relay) if relay.unproven.is_some() => {
                greeting::on_bytes(cx, conns, key, data)
            }
            Role::Relay(_) => relay::on_bytes(cx, conns, key, data),
            Role::Dialling(dial) if !conn.io.is_handshaking() => match dial.purpose {
                Purpose::Relay(down) => {
                    let address = dial.address;
                    conn.since = cx.now;
                    relay::on_dialled(cx, conns, key, down);
                    greeting::begin(conns, key, address);
                    greeting::on_bytes(cx, conns, key, data);
                }
                Purpose::Reverse(_) => {
                    reverse::opened::on_dialled(cx, conns, self, key);
                    reverse::on_bytes(cx, conns, self, key, data);
                }
                Purpose::PoolH2(_) | Purpose::PoolH1(_) | Purpose::Upgrade(_) => {}
            },
            Role::Accepting if !conn.io.is_handshaking() => {
                reverse::held::on_accepted(cx, conns, self, key);
                reverse::on_bytes(cx, conns, self, key, data);
            }
            Role::Reverse(_) => reverse::on_bytes(cx, conns, self, key, data),
            Role::Lingering(_) if !data.is_empty() => conn.since = cx.now,
            _ => {}
        }
        self.settle(cx, conns);
    }

    fn on_closed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, _: Closed) {
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(relay)) if relay.unproven.is_some() => {
                greeting::on_closed(cx, conns, key);
            }
            Some(Role::Relay(_)) => relay::on_closed(cx, conns, key),
            Some(Role::Reverse(_)) => reverse::on_over(cx, conns, self, key),
            Some(Role::Accepting) => {
                let reason = "the connection was closed in the TLS handshake";
                let cause = Cause::coded(ErrorCode::TlsFailed, reason);
                reverse::held::on_handshake_failed(cx, conns, key, &cause);
            }
            Some(Role::Dialling(_)) => self.on_dial_failed(cx, conns, key, &DialFailure::Closed),
            Some(Role::Hello(_)) => close_unnamed(cx, conns, key),
            _ => conns.close(cx, key),
        }
    }

    fn on_failed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, error: &ConnError) {
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(_)) => relay::on_failed(cx, conns, key),
            Some(Role::Reverse(_)) => reverse::on_over(cx, conns, self, key),
            Some(Role::Accepting) => {
                reverse::held::on_handshake_failed(cx, conns, key, &Cause::from(error));
            }
            Some(Role::Dialling(_)) => {
                self.on_dial_failed(cx, conns, key, &DialFailure::Broken(error));
            }
            _ => conns.close(cx, key),
        }
    }

    fn on_expired(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, expired: Expired) {
        match expired {
            Expired::Hello => close_unnamed(cx, conns, key),
            Expired::Dial => self.on_dial_failed(cx, conns, key, &DialFailure::TimedOut),
            Expired::Handshake => {
                cx.metrics.gateway_reverse_refused.add(1);
                accepted::refuse_slow_handshake(cx, conns, key);
            }
            _ => {}
        }
    }

    fn on_room(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
        relay::on_room(cx, conns, key);
    }

    fn carry_out(&mut self, cx: &mut Cx, conns: &mut Connections, effect: Effect) {
        match effect {
            Effect::QueueRead(conn) => conns.queue_read(conn),
            Effect::RelayElsewhere(conn) => route::relay_elsewhere(cx, conns, self, conn),
            Effect::RelayEnded { target, address } => self.end_relay(&target, address),
            Effect::BackOffRelay { target, address, until } => {
                self.back_off(&target, address, until);
            }
            Effect::BackOffDialled { down, address, until } => {
                let relayed = conns.get(down).and_then(|conn| conn.relays_to.as_ref());
                if let Some((target, _)) = relayed {
                    self.back_off(target, address, until);
                }
            }
            effect => unexpected(&effect),
        }
    }

    fn sweep(&mut self, cx: &mut Cx, conns: &mut Connections) {
        reverse::sweep(cx, conns, self);
    }

    fn on_command(&mut self, cx: &mut Cx, conns: &mut Connections, command: Command) {
        match command {
            Command::Services(updates) => {
                for update in updates {
                    self.on_service(update);
                }
            }
            Command::ControlAt(addresses) => self.on_control(addresses),
            Command::Networks(updates) => {
                for update in updates {
                    self.on_network(update);
                }
            }
            Command::Credentials(credentials) => {
                reverse::on_credentials(cx, conns, self, credentials);
            }
            Command::Carry(caller) => reverse::held::take_over(cx, conns, self, *caller),
            _ => {}
        }
    }
}

/// A client has said no server name, and will say none.
fn close_unnamed(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    cx.metrics.gateway_connections_refused.add(1);
    conns.close(cx, key);
}

impl Gateway {
    /// A dial failed: its address is passed over for a while, and another one is tried.
    fn on_dial_failed(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        failure: &DialFailure<'_>,
    ) {
        let Some(mut conn) = conns.take(cx, key) else { return };
        let unsent = std::mem::take(conn.io.out());
        let Role::Dialling(dial) = conn.role else { return };
        cx.metrics.dial_failures.add(1);
        match (dial.purpose, dial.address) {
            (Purpose::Relay(down), address) => {
                let cause = failure.cause(false);
                relay_dial::on_relay_dial_failed(cx, conns, down, address, unsent, &cause);
            }
            (Purpose::Reverse(network), Some(address)) => {
                reverse::opened::on_dial_failed(cx, self, &network, address, failure);
            }
            _ => {}
        }
    }
}
