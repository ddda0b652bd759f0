//! A gateway's connections: the server name of the ClientHello decides, nothing is decrypted.

use std::net::SocketAddr;
use std::time::Instant;
use tollway_identity::{
    GATEWAY_HERE_RECORD, ServerNameRead, UNRECOGNIZED_NAME_RECORD, control_dns_san, gateway_dns_san,
};
use tollway_model::{Endpoint, ErrorCode, NetworkName, ServiceName, ServiceState};
use tollway_wire::{NetworkState, NetworkUpdate};

use super::Gateway;
use super::loop_guard::HelloRandom;
use crate::conn::{ConnKey, Connections, Relay, RelayedTo, Role};
use crate::cx::Cx;
use crate::exchange::Destination;
use crate::protocol::relay;
use crate::upstream::{Candidates, Upstreams, pools, relay_dial};

/// What a gateway knows of server names beyond services.
#[derive(Clone, Debug)]
pub(crate) struct GatewayRoutes {
    pub(crate) network: NetworkName,
    /// The control plane's address inside this network.
    pub(crate) control: SocketAddr,
}

/// A gateway's connection: the server name decides, nothing is decrypted.
pub(crate) fn on_bytes(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    key: ConnKey,
    data: &[u8],
) {
    let limit = cx.config.limits.client_hello_bytes;
    let Some(conn) = conns.get_mut(key) else { return };
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
            route(cx, conns, upstreams, gateway, key);
        }
        ServerNameRead::Partial | ServerNameRead::Unnamed | ServerNameRead::NotTls => {
            refuse(cx, conns, key)
        }
    }
}

/// Tells the client, in TLS, that its server name is not served here.
pub(crate) fn refuse(cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
    cx.metrics.gateway_connections_refused.add(1);
    answer(cx, conns, key, &UNRECOGNIZED_NAME_RECORD);
}

/// Answers a ClientHello from here, and closes.
fn answer(cx: &mut Cx, conns: &mut Connections, key: ConnKey, record: &[u8]) {
    if let Some(conn) = conns.get_mut(key) {
        conn.io.out().extend_from_slice(record);
    }
    conns.linger(cx, key);
}

/// Sends a connection on whose server name is known; waits if its service is not known yet.
pub(crate) fn route(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Hello(hello) = &conn.role else { return };
    let Some(name) = hello.name.clone() else { return };
    if is_own_name(cx, &name) {
        return answer(cx, conns, key, &GATEWAY_HERE_RECORD);
    }
    let chosen = target(cx, upstreams, gateway, &name);
    let Some((address, target)) = chosen else {
        if cx.log.should_log(format!("name {name}"), cx.now) {
            let code = ErrorCode::GatewayRefused;
            tracing::info!(%code, name, "a server name was refused: no ready workload here");
        }
        return refuse(cx, conns, key);
    };
    if !passes_first(cx, conns, gateway, key) {
        return refuse_loop(cx, conns, key, &name, address);
    }
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let early = match &mut conn.role {
        Role::Hello(hello) => std::mem::take(&mut hello.input),
        _ => return,
    };
    conn.role = Role::Relay(Relay::to_be_dialled(early, now));
    conn.leads_to_control = network_of_control(&name).is_some();
    cx.metrics.gateway_connections.add(1);
    relay_to(cx, conns, upstreams, key, target, address);
}

/// Whether a connection has not come through here before: networks can state each other's
/// gateways, or this one, for the way into a third, whatever the addresses look like from here.
fn passes_first(cx: &Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) -> bool {
    let Some(conn) = conns.get(key) else { return false };
    let Role::Hello(hello) = &conn.role else { return false };
    HelloRandom::of(&hello.input).is_none_or(|random| gateway.passed.pass(random, cx.now))
}

/// Ends a connection that would go round for as long as there are descriptors. `address` is
/// where those of this name are passed on to.
fn refuse_loop(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    name: &str,
    address: SocketAddr,
) {
    cx.metrics.gateway_loops.add(1);
    if cx.log.should_log(format!("circle {name}"), cx.now) {
        let code = ErrorCode::Loop;
        let hint = code.entry().remedy;
        tracing::warn!(%code, name, %address, hint, "a connection came back that was passed on");
    }
    answer(cx, conns, key, &UNRECOGNIZED_NAME_RECORD);
}

fn relay_to(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    target: Option<RelayedTo>,
    address: SocketAddr,
) {
    if let Some(target) = &target {
        count_relay(cx, upstreams, target, address);
    }
    if let Some(conn) = conns.get_mut(key) {
        conn.relays_to = target.map(|target| (target, address));
    }
    relay_dial::dial_relayed(cx, conns, key, address);
}

/// The address chosen could not be dialled: another one of the same kind, if there is one.
pub(crate) fn relay_elsewhere(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some((target, address)) = conn.relays_to.take() else {
        return relay::refuse(cx, conns, key, ErrorCode::GatewayUpstream);
    };
    end_relay(upstreams, &target, address);
    match pick_relayed(cx, upstreams, gateway, &target) {
        Some(next) => relay_to(cx, conns, upstreams, key, Some(target), next),
        None => relay::refuse(cx, conns, key, ErrorCode::GatewayUpstream),
    }
}

/// Whether a name is that of this gateway: a joined network probes whether it is reachable.
fn is_own_name(cx: &Cx, name: &str) -> bool {
    let routes = cx.config.gateway.as_ref();
    routes.is_some_and(|own| name.eq_ignore_ascii_case(&gateway_dns_san(&own.network)))
}

/// Where a server name leads: the own control plane, the endpoint with the fewest relays of
/// a service here, one instance, or (for those who may not dial out) another network's
/// gateway, for its services and its control plane. A gateway knows every service, so what
/// it does not know is not there.
fn target(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    name: &str,
) -> Option<(SocketAddr, Option<RelayedTo>)> {
    let routes = cx.config.gateway.as_ref()?;
    if name.eq_ignore_ascii_case(&control_dns_san(&routes.network)) {
        return Some((routes.control, None));
    }
    let network = ServiceName::network_of_server_name(name)?;
    let target = if network != routes.network {
        RelayedTo::Network(network)
    } else if let Ok(service) = ServiceName::parse_dns_san(name) {
        RelayedTo::Service(service)
    } else {
        return instance_address(upstreams, name).map(|address| (address, None));
    };
    let address = pick_relayed(cx, upstreams, gateway, &target)?;
    Some((address, Some(target)))
}

fn pick_relayed(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    target: &RelayedTo,
) -> Option<SocketAddr> {
    match target {
        RelayedTo::Service(service) => {
            let candidates = Candidates::of(pools::known_state(upstreams, service)?);
            pick_least_relayed(cx, upstreams, service, &candidates)
        }
        RelayedTo::Network(network) => gateway.networks.get_mut(network)?.pick(cx.now),
    }
}

/// The endpoint of `<instance>.<app>.<namespace>.<network>.mesh`.
fn instance_address(upstreams: &Upstreams, name: &str) -> Option<SocketAddr> {
    let (instance, rest) = name.split_once('.')?;
    let service = ServiceName::parse_dns_san(rest).ok()?;
    let ServiceState::Local { endpoints, .. } = pools::known_state(upstreams, &service)? else {
        return None;
    };
    let of = |endpoint: &&Endpoint| endpoint.instance.as_str().eq_ignore_ascii_case(instance);
    endpoints.iter().find(of).map(|endpoint| endpoint.address)
}

/// The control plane has sent the state of a joined network.
pub(crate) fn on_network(gateway: &mut Gateway, update: NetworkUpdate) {
    match update.state {
        NetworkState::Joined { gateways, .. } => {
            gateway.networks.entry(update.network).or_default().replace(gateways.to_vec());
        }
        NetworkState::Removed => {
            gateway.networks.remove(&update.network);
        }
    }
}

/// The address with the fewest relays, the next one in turn among equals.
pub(crate) fn pick_least_relayed(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    service: &ServiceName,
    candidates: &Candidates,
) -> Option<SocketAddr> {
    let now = cx.now;
    let pool = pools::pool(cx, upstreams, &Destination::Service(service.clone()));
    pool.used = now;
    pool.next_address = pool.next_address.wrapping_add(1);
    let (first, count) = (pool.next_address, candidates.addresses.len());
    let in_turn = (0..count).map(|step| candidates.addresses[(first + step) % count]);
    let resting =
        |address: &SocketAddr| pool.backoff.get(address).is_some_and(|until| *until > now);
    in_turn.min_by_key(|address| (resting(address), pool.relays.get(address).copied().unwrap_or(0)))
}

/// A relay has ended; those to gateways are not counted.
pub(crate) fn end_relay(upstreams: &mut Upstreams, target: &RelayedTo, address: SocketAddr) {
    if let RelayedTo::Service(service) = target {
        upstreams.uncount_relay(service, address);
    }
}

/// One relay more to an address; those to gateways are not counted.
fn count_relay(cx: &mut Cx, upstreams: &mut Upstreams, target: &RelayedTo, address: SocketAddr) {
    let RelayedTo::Service(service) = target else { return };
    let pool = pools::pool(cx, upstreams, &Destination::Service(service.clone()));
    *pool.relays.entry(address).or_default() += 1;
}

/// Leaves an address alone for a while, if another one can be chosen.
pub(crate) fn back_off_relayed(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    target: &RelayedTo,
    address: SocketAddr,
    until: Instant,
) {
    match target {
        RelayedTo::Service(service) => {
            pools::back_off(
                cx,
                upstreams,
                &Destination::Service(service.clone()),
                Some(address),
                until,
            );
        }
        RelayedTo::Network(network) => {
            if let Some(way) = gateway.networks.get_mut(network) {
                way.rest(address, until);
            }
        }
    }
}

/// Leaves an address alone that was dialled for a relay.
pub(crate) fn back_off_relay(
    cx: &mut Cx,
    conns: &Connections,
    upstreams: &mut Upstreams,
    gateway: &mut Gateway,
    down: ConnKey,
    address: SocketAddr,
    until: Instant,
) {
    let Some(conn) = conns.get(down) else { return };
    if let Some((target, _)) = conn.relays_to.clone() {
        back_off_relayed(cx, upstreams, gateway, &target, address, until);
    } else if let Some(service) = conn.raw_target.clone() {
        pools::back_off(cx, upstreams, &Destination::Service(service), Some(address), until);
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
