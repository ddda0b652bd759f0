//! A gateway's connections: the server name of the ClientHello decides, nothing is decrypted.

use std::net::SocketAddr;
use std::time::Instant;

use tollway_identity::{
    GATEWAY_HERE_RECORD, ServerNameRead, UNRECOGNIZED_NAME_RECORD, control_dns_san, gateway_dns_san,
};
use tollway_model::{Endpoint, ErrorCode, NetworkName, ServiceName, ServiceState};
use tollway_net::Key;
use tollway_wire::{NetworkState, NetworkUpdate};

use super::EventLoop;
use super::pool::Candidates;
use crate::conn::{Relay, RelayedTo, Role};
use crate::exchange::Destination;
use crate::loop_guard::HelloRandom;
use crate::protocol::relay;

/// What a gateway knows of server names beyond services.
#[derive(Clone, Debug)]
pub(crate) struct GatewayRoutes {
    pub(crate) network: NetworkName,
    /// The control plane's address inside this network.
    pub(crate) control: SocketAddr,
}

impl EventLoop {
    /// A gateway's connection: the server name decides, nothing is decrypted.
    pub(super) fn on_hello_bytes(&mut self, key: Key, data: &[u8]) {
        let limit = self.cx.config.limits.client_hello_bytes;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Hello(hello) = &mut conn.role else { return };
        if data.is_empty() || hello.name.is_some() {
            hello.input.extend_from_slice(data);
            conn.paused = hello.name.is_some();
            return;
        }
        hello.input.extend_from_slice(data);
        match hello.reader.take(data) {
            ServerNameRead::Partial if hello.input.len() < limit => {}
            ServerNameRead::Named(name) => {
                hello.name = Some(name);
                self.route_gateway(key);
            }
            ServerNameRead::Partial | ServerNameRead::Unnamed | ServerNameRead::NotTls => {
                self.refuse_hello(key)
            }
        }
    }

    /// Tells the client, in TLS, that its server name is not served here.
    pub(super) fn refuse_hello(&mut self, key: Key) {
        self.cx.metrics.gateway_refused.add(1);
        self.answer_hello(key, &UNRECOGNIZED_NAME_RECORD);
    }

    /// Answers a ClientHello from here, and closes.
    fn answer_hello(&mut self, key: Key, record: &[u8]) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.io.out().extend_from_slice(record);
        }
        self.conns.linger(&mut self.cx, key);
    }

    /// Sends a connection on whose server name is known; waits if its service is not known yet.
    pub(super) fn route_gateway(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Hello(hello) = &conn.role else { return };
        let Some(name) = hello.name.clone() else { return };
        if self.is_own_name(&name) {
            return self.answer_hello(key, &GATEWAY_HERE_RECORD);
        }
        let chosen = self.gateway_target(&name);
        let Some((address, target)) = chosen else {
            if self.cx.log.should_log(format!("name {name}"), self.cx.now) {
                let code = ErrorCode::GatewayRefused;
                tracing::info!(%code, name, "a server name was refused: no ready workload here");
            }
            return self.refuse_hello(key);
        };
        if !self.passes_first(key) {
            return self.refuse_circle(key, &name, address);
        }
        let now = self.cx.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let early = match &mut conn.role {
            Role::Hello(hello) => std::mem::take(&mut hello.input),
            _ => return,
        };
        conn.role = Role::Relay(Relay::to_be_dialled(early, now));
        conn.leads_to_control = network_of_control(&name).is_some();
        self.cx.metrics.gateway_connections.add(1);
        self.relay_to(key, target, address);
    }

    /// Whether a connection has not come through here before: networks can state each other's
    /// gateways, or this one, for the way into a third, whatever the addresses look like from here.
    fn passes_first(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get(key) else { return false };
        let Role::Hello(hello) = &conn.role else { return false };
        HelloRandom::of(&hello.input).is_none_or(|random| self.passed.pass(random, self.cx.now))
    }

    /// Ends a connection that would go round for as long as there are descriptors. `address` is
    /// where those of this name are passed on to.
    fn refuse_circle(&mut self, key: Key, name: &str, address: SocketAddr) {
        self.cx.metrics.gateway_loops.add(1);
        if self.cx.log.should_log(format!("circle {name}"), self.cx.now) {
            let code = ErrorCode::Loop;
            let hint = code.entry().remedy;
            tracing::warn!(%code, name, %address, hint, "a connection came back that was passed on");
        }
        self.answer_hello(key, &UNRECOGNIZED_NAME_RECORD);
    }

    fn relay_to(&mut self, key: Key, target: Option<RelayedTo>, address: SocketAddr) {
        if let Some(target) = &target {
            self.count_relay(target, address);
        }
        if let Some(conn) = self.conns.get_mut(key) {
            conn.relays_to = target.map(|target| (target, address));
        }
        self.dial_relayed(key, address);
    }

    /// The address chosen could not be dialled: another one of the same kind, if there is one.
    pub(super) fn relay_elsewhere(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some((target, address)) = conn.relays_to.take() else {
            return relay::refuse(&mut self.cx, &mut self.conns, key, ErrorCode::GatewayUpstream);
        };
        self.uncount_relay(&target, address);
        match self.pick_relayed(&target) {
            Some(next) => self.relay_to(key, Some(target), next),
            None => relay::refuse(&mut self.cx, &mut self.conns, key, ErrorCode::GatewayUpstream),
        }
    }

    /// Whether somebody asks for this gateway itself: a joined network whether it is reachable.
    fn is_own_name(&self, name: &str) -> bool {
        let routes = self.cx.config.gateway.as_ref();
        routes.is_some_and(|own| name.eq_ignore_ascii_case(&gateway_dns_san(&own.network)))
    }

    /// Where a server name leads: the own control plane, the endpoint with the fewest relays of
    /// a service here, one instance, or (for those who may not dial out) another network's
    /// gateway, for its services and its control plane. A gateway knows every service, so what
    /// it does not know is not there.
    fn gateway_target(&mut self, name: &str) -> Option<(SocketAddr, Option<RelayedTo>)> {
        let routes = self.cx.config.gateway.as_ref()?;
        if name.eq_ignore_ascii_case(&control_dns_san(&routes.network)) {
            return Some((routes.control, None));
        }
        let network = ServiceName::network_of_server_name(name)?;
        let target = if network != routes.network {
            RelayedTo::Network(network)
        } else if let Ok(service) = ServiceName::parse_dns_san(name) {
            RelayedTo::Service(service)
        } else {
            return self.gateway_instance(name).map(|address| (address, None));
        };
        let address = self.pick_relayed(&target)?;
        Some((address, Some(target)))
    }

    fn pick_relayed(&mut self, target: &RelayedTo) -> Option<SocketAddr> {
        match target {
            RelayedTo::Service(service) => {
                let candidates = Candidates::of(self.known_state(service)?);
                self.pick_least_relayed(service, &candidates)
            }
            RelayedTo::Network(network) => self.networks.get_mut(network)?.pick(self.cx.now),
        }
    }

    /// The endpoint of `<instance>.<app>.<namespace>.<network>.mesh`.
    fn gateway_instance(&self, name: &str) -> Option<SocketAddr> {
        let (instance, rest) = name.split_once('.')?;
        let service = ServiceName::parse_dns_san(rest).ok()?;
        let ServiceState::Local { endpoints, .. } = self.known_state(&service)? else {
            return None;
        };
        let of = |endpoint: &&Endpoint| endpoint.instance.as_str().eq_ignore_ascii_case(instance);
        endpoints.iter().find(of).map(|endpoint| endpoint.address)
    }

    /// The control plane tells a gateway of a joined network.
    pub(super) fn on_network(&mut self, update: NetworkUpdate) {
        match update.state {
            NetworkState::Joined { gateways, .. } => {
                self.networks.entry(update.network).or_default().replace(gateways.to_vec());
            }
            NetworkState::Removed => {
                self.networks.remove(&update.network);
            }
        }
    }

    /// The address with the fewest relays, the next one in turn among equals.
    pub(super) fn pick_least_relayed(
        &mut self,
        service: &ServiceName,
        candidates: &Candidates,
    ) -> Option<SocketAddr> {
        let now = self.cx.now;
        let pool = self.pool(&Destination::Service(service.clone()));
        pool.used = now;
        pool.turn = pool.turn.wrapping_add(1);
        let (turn, count) = (pool.turn, candidates.addresses.len());
        let in_turn = (0..count).map(|step| candidates.addresses[(turn + step) % count]);
        let resting =
            |address: &SocketAddr| pool.backoff.get(address).is_some_and(|until| *until > now);
        in_turn.min_by_key(|address| {
            (resting(address), pool.relays.get(address).copied().unwrap_or(0))
        })
    }

    /// One relay more to an address; those to gateways are not counted.
    fn count_relay(&mut self, target: &RelayedTo, address: SocketAddr) {
        let RelayedTo::Service(service) = target else { return };
        let pool = self.pool(&Destination::Service(service.clone()));
        *pool.relays.entry(address).or_default() += 1;
    }

    /// A relay has ended.
    pub(super) fn uncount_relay(&mut self, target: &RelayedTo, address: SocketAddr) {
        let RelayedTo::Service(service) = target else { return };
        let Some(pool) = self.pools.get_mut(&Destination::Service(service.clone())) else { return };
        let Some(count) = pool.relays.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            pool.relays.remove(&address);
        }
    }

    /// Leaves an address alone for a while, if another one can be chosen.
    pub(super) fn rest_relayed(&mut self, target: &RelayedTo, address: SocketAddr, until: Instant) {
        match target {
            RelayedTo::Service(service) => {
                self.rest(&Destination::Service(service.clone()), Some(address), until);
            }
            RelayedTo::Network(network) => {
                if let Some(way) = self.networks.get_mut(network) {
                    way.rest(address, until);
                }
            }
        }
    }
}

/// The network whose control plane is dialled as `name`.
fn network_of_control(name: &str) -> Option<NetworkName> {
    let network = ServiceName::network_of_server_name(name)?;
    name.eq_ignore_ascii_case(&control_dns_san(&network)).then_some(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_planes_are_known_by_their_server_name() {
        let check = |name, network: Option<&str>| {
            let found = network_of_control(name);
            assert_eq!(found.as_ref().map(|label| label.as_str()), network, "{name}");
        };
        check("control.east.mesh", Some("east"));
        check("CONTROL.East.mesh", Some("East"));
        for other in ["control.default.east.mesh", "control.mesh", "stock.east.mesh", "control", ""]
        {
            check(other, None);
        }
    }
}
