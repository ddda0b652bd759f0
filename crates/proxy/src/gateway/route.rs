//! A gateway's connections: the server name of the ClientHello decides, nothing is decrypted.

use std::net::SocketAddr;
use std::time::Instant;

use tollway_identity::{
    GatewayState, HelloRandom, ServerNameRead, UNRECOGNIZED_NAME_RECORD, client_hello_bytes,
    control_dns_san, gateway_dns_san,
};
use tollway_model::{ErrorCode, NetworkName, ServiceName};

use super::reverse::held;
use super::{Gateway, Insiders};
use crate::conn::{ConnKey, Connections, ListenerKind, Relay, RelayedTo, Role, Unproven};
use crate::cx::Cx;
use crate::protocol::relay;
use crate::upstream::relay_dial;

/// What a gateway knows of server names beyond services.
#[derive(Clone, Debug)]
pub(crate) struct GatewayRoutes {
    pub(crate) network: NetworkName,
    /// The control plane's addresses inside this network.
    pub(crate) control: Vec<SocketAddr>,
    /// The connections that it leads to other networks.
    pub(crate) insiders: Insiders,
}

/// A gateway's connection: the server name decides, nothing is decrypted.
pub(crate) fn on_bytes(
    cx: &mut Cx,
    conns: &mut Connections,
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
            route(cx, conns, gateway, key);
        }
        ServerNameRead::Partial | ServerNameRead::Unnamed | ServerNameRead::NotTls => {
            refuse(cx, conns, key)
        }
    }
}

/// Refuses a client by a TLS alert: its server name is not served here.
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
pub(crate) fn route(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Hello(hello) = &conn.role else { return };
    let Some(name) = hello.name.clone() else { return };
    // A joined network probes whether it is reachable.
    if name.eq_ignore_ascii_case(&gateway_dns_san(&gateway.routes.network)) {
        let state = match cx.draining {
            Some(_) => GatewayState::Draining,
            None => GatewayState::Serving,
        };
        return match gateway.answer_probe(&hello.input, state) {
            Some(record) => answer(cx, conns, key, &record),
            None => refuse(cx, conns, key),
        };
    }
    let is_inside = conn.via == Some(ListenerKind::GatewayInside);
    if !is_inside && gateway.reverse.is_meant(&name) {
        return held::accept(cx, conns, gateway, key);
    }
    let source = conn.remote;
    let may_leave = is_inside && gateway.routes.insiders.have(source);
    let way = match way(gateway, &name, may_leave, cx.now) {
        Ok(way) => way,
        Err(refusal) => {
            log_refusal(cx, refusal, &name, source);
            return refuse(cx, conns, key);
        }
    };
    if !passes_first(cx, conns, gateway, key) {
        return refuse_loop(cx, conns, key, &name, &way);
    }
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let mut hello = match &mut conn.role {
        Role::Hello(hello) => std::mem::take(&mut hello.input),
        _ => return,
    };
    let Some(length) = client_hello_bytes(&hello) else { return refuse(cx, conns, key) };
    let unproven = Some(Box::new(Unproven { bytes: hello.split_off(length), address: None }));
    conn.role = Role::Relay(Relay { unproven, ..Relay::to_be_dialled(hello, now) });
    conn.leads_to_control = network_of_control(&name).is_some();
    cx.metrics.gateway_connections.add(1);
    match way {
        Onward::Address(address, target) => relay_to(cx, conns, gateway, key, target, address),
        Onward::Reverse(network) => held::offer(cx, conns, gateway, key, &network),
    }
}

/// Whether a connection has not come through here before: networks can state each other's
/// gateways, or this one, for the way into a third, whatever the addresses look like from here.
fn passes_first(cx: &Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) -> bool {
    let Some(conn) = conns.get(key) else { return false };
    let Role::Hello(hello) = &conn.role else { return false };
    HelloRandom::of(&hello.input).is_none_or(|random| gateway.passed.pass(random, cx.now))
}

/// Ends a connection that would go round for as long as there are descriptors. `way` is how those of
/// this name are passed on.
fn refuse_loop(cx: &mut Cx, conns: &mut Connections, key: ConnKey, name: &str, way: &Onward) {
    cx.metrics.gateway_loops.add(1);
    if let Some(left_out) = cx.log.admit("loop", name, cx.now) {
        let code = ErrorCode::Loop;
        let hint = code.entry().remedy;
        let address = match way {
            Onward::Address(address, _) => address.to_string(),
            Onward::Reverse(network) => format!("a reverse connection of {network}"),
        };
        tracing::warn!(%code, name, address, left_out, hint, "a connection came back that was passed on");
    }
    answer(cx, conns, key, &UNRECOGNIZED_NAME_RECORD);
}

fn relay_to(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    target: Option<RelayedTo>,
    address: SocketAddr,
) {
    if let Some(target) = &target {
        gateway.begin_relay(target, address);
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
    gateway: &mut Gateway,
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some((target, address)) = conn.relays_to.take() else {
        return relay::refuse(cx, conns, key, ErrorCode::GatewayUpstream);
    };
    gateway.end_relay(&target, address);
    if let RelayedTo::Network(network) = &target
        && gateway.reverse.lead_to(network)
    {
        return held::offer(cx, conns, gateway, key, network);
    }
    match gateway.pick(&target, cx.now) {
        Some(next) => relay_to(cx, conns, gateway, key, Some(target), next),
        None => relay::refuse(cx, conns, key, ErrorCode::GatewayUpstream),
    }
}

/// How a connection is passed on.
enum Onward {
    /// To this address, chosen among those of a target.
    Address(SocketAddr, Option<RelayedTo>),
    /// By a reverse connection of a network that only dials out.
    Reverse(NetworkName),
}

/// Why a server name leads nowhere.
#[derive(Clone, Copy)]
enum Refusal {
    /// There is no ready workload of that name.
    NotHere,
    /// It is of another network, and the connection is not from within this one.
    OtherNetwork,
}

fn log_refusal(cx: &mut Cx, refusal: Refusal, name: &str, source: Option<SocketAddr>) {
    let Some(left_out) = cx.log.admit("name", name, cx.now) else { return };
    match refusal {
        Refusal::NotHere => {
            let code = ErrorCode::GatewayRefused;
            tracing::info!(%code, name, left_out, "a server name was refused: no ready workload here");
        }
        Refusal::OtherNetwork => {
            let code = ErrorCode::GatewayOtherNetwork;
            let hint = code.entry().remedy;
            let from = source.map(tracing::field::display);
            tracing::info!(%code, name, from, left_out, hint, "a server name was refused: it is of another network");
        }
    }
}

/// Where a server name leads: the own control plane, the endpoint with the fewest relays of
/// a service here, one instance, or (for those inside, who may not dial out, if `may_leave`) another
/// network's gateway, for its services and its control plane. A gateway knows every service, so what
/// it does not know is not there.
fn way(
    gateway: &mut Gateway,
    name: &str,
    may_leave: bool,
    now: Instant,
) -> Result<Onward, Refusal> {
    let routes = &gateway.routes;
    if name.eq_ignore_ascii_case(&control_dns_san(&routes.network)) {
        let address = gateway.pick(&RelayedTo::Control, now).ok_or(Refusal::NotHere)?;
        return Ok(Onward::Address(address, Some(RelayedTo::Control)));
    }
    let network = ServiceName::network_of_server_name(name).ok_or(Refusal::NotHere)?;
    let target = if network != routes.network {
        if !may_leave {
            return Err(Refusal::OtherNetwork);
        }
        if gateway.reverse.lead_to(&network) {
            return Ok(Onward::Reverse(network));
        }
        RelayedTo::Network(network)
    } else if let Ok(service) = ServiceName::parse_dns_san(name) {
        RelayedTo::Service(service)
    } else {
        let (instance, service) = name.split_once('.').ok_or(Refusal::NotHere)?;
        let service = ServiceName::parse_dns_san(service).map_err(|_| Refusal::NotHere)?;
        let address = gateway.services.instance(&service, instance);
        return address.map(|address| Onward::Address(address, None)).ok_or(Refusal::NotHere);
    };
    let address = gateway.pick(&target, now).ok_or(Refusal::NotHere)?;
    Ok(Onward::Address(address, Some(target)))
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
