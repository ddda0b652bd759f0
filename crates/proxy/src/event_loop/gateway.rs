//! A gateway: each connection is relayed to what the server name of its ClientHello says.

use tollway_identity::TlsError;
use tollway_net::{Closed, ConnError, Tls};

use super::composition::unexpected;
use super::{Command, Composition};
use crate::conn::{ConnKey, Connections, Expired, ListenerKind, Purpose, Role};
use crate::cx::{Cx, Effect};
use crate::gateway::{Gateway, greeting, route};
use crate::protocol::relay;
use crate::upstream::dial::DialFailure;
use crate::upstream::relay_dial;

impl Composition for Gateway {
    fn first_role(&mut self, _: &ListenerKind) -> Result<(Option<Tls>, Role), TlsError> {
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
            Role::Dialling(dial) if !conn.io.is_handshaking() => {
                if let Purpose::Relay(down) = dial.purpose {
                    let address = dial.address;
                    conn.since = cx.now;
                    relay::on_dialled(cx, conns, key, down);
                    greeting::begin(conns, key, address);
                    greeting::on_bytes(cx, conns, key, data);
                }
            }
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
            Some(Role::Dialling(_)) => on_dial_failed(cx, conns, key, &DialFailure::Closed),
            Some(Role::Hello(_)) => close_unnamed(cx, conns, key),
            _ => conns.close(cx, key),
        }
    }

    fn on_failed(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, error: &ConnError) {
        match conns.get(key).map(|conn| &conn.role) {
            Some(Role::Relay(_)) => relay::on_failed(cx, conns, key),
            Some(Role::Dialling(_)) => on_dial_failed(cx, conns, key, &DialFailure::Broken(error)),
            _ => conns.close(cx, key),
        }
    }

    fn on_expired(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey, expired: Expired) {
        match expired {
            Expired::Hello => close_unnamed(cx, conns, key),
            Expired::Dial => on_dial_failed(cx, conns, key, &DialFailure::TimedOut),
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

    fn on_command(&mut self, _: &mut Cx, _: &mut Connections, command: Command) {
        match command {
            Command::Services(updates) => {
                for update in updates {
                    self.on_service(update);
                }
            }
            Command::Networks(updates) => {
                for update in updates {
                    self.on_network(update);
                }
            }
            _ => {}
        }
    }
}

/// A client has said no server name, and will say none.
fn close_unnamed(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    cx.metrics.gateway_connections_refused.add(1);
    conns.close(cx, key);
}

/// A dial failed: its address is passed over for a while, and another one is tried.
fn on_dial_failed(cx: &mut Cx, conns: &mut Connections, key: ConnKey, failure: &DialFailure<'_>) {
    let Some(mut conn) = conns.take(cx, key) else { return };
    let unsent = std::mem::take(conn.io.out());
    let Role::Dialling(dial) = conn.role else { return };
    cx.metrics.dial_failures.add(1);
    if let Purpose::Relay(down) = dial.purpose {
        let cause = failure.cause(false);
        relay_dial::on_relay_dial_failed(cx, conns, down, dial.address, unsent, &cause);
    }
}
