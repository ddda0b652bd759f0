//! Raw bytes between two connections: plain TCP, upgraded HTTP, CONNECT, gateways.

use std::net::SocketAddr;

use rustls::server::Acceptor;
use tollway_http::{RequestHead, ResponseHead, h1};
use tollway_identity::{UNRECOGNIZED_NAME_RECORD, control_dns_san};
use tollway_model::{AppProtocol, Endpoint, NetworkName, ServiceName, ServiceState};
use tollway_net::{Conn, Key};
use tollway_wire::{NetworkState, NetworkUpdate};

use super::Worker;
use super::pool::Candidates;
use crate::connection::{Connection, Dial, Door, Purpose, Relay, Role};
use crate::exchange::Destination;
use crate::fault::Fault;
use crate::respond;
use crate::tls::alpn;

impl Worker {
    pub(super) fn on_relay_bytes(&mut self, key: Key, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let Some(other) = self.touch_relay(key) else {
            let Some(relay) = self.relay(key) else { return };
            relay.early.extend_from_slice(data);
            if relay.early.len() >= self.config.limits.pipe_bytes {
                self.pause(key);
            }
            return;
        };
        self.metrics.relayed_bytes.add(data.len() as u64);
        let Some(conn) = self.conns.get_mut(other) else { return };
        conn.io.out().extend_from_slice(data);
        let full = conn.io.pending() >= self.config.limits.out_bytes;
        self.mark_dirty(other);
        if full {
            self.pause(key);
        }
    }

    /// Bytes in either direction keep both sides alive. Gives the other side, if there is one.
    fn touch_relay(&mut self, key: Key) -> Option<Key> {
        let now = self.now;
        let relay = self.relay(key)?;
        relay.active = now;
        let other = relay.other?;
        if let Some(relay) = self.relay(other) {
            relay.active = now;
        }
        Some(other)
    }

    fn relay(&mut self, key: Key) -> Option<&mut Relay> {
        match &mut self.conns.get_mut(key)?.role {
            Role::Relay(relay) => Some(relay),
            _ => None,
        }
    }

    fn pause(&mut self, key: Key) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.paused = true;
        }
    }

    /// A flushed connection has room: its source may be read again.
    pub(super) fn relay_room(&mut self, key: Key) {
        let Some(Relay { other: Some(other), .. }) = self.relay(key) else { return };
        let other = *other;
        if self.conns.get(other).is_some_and(|conn| conn.paused) {
            self.resume(other);
        }
        self.end_relay_if_over(key);
    }

    pub(super) fn on_relay_closed(&mut self, key: Key) {
        let Some(relay) = self.relay(key) else { return };
        relay.ended = true;
        let Some(other) = relay.other else { return };
        if let Some(conn) = self.conns.get_mut(other) {
            conn.io.finish();
        }
        self.mark_dirty(other);
        self.end_relay_if_over(key);
    }

    /// Both directions have ended and been sent.
    fn end_relay_if_over(&mut self, key: Key) {
        let Some(Relay { other: Some(other), .. }) = self.relay(key) else { return };
        let other = *other;
        let over = |conn: Option<&Connection>| {
            conn.is_none_or(|conn| conn.io.is_finished() && conn.io.read_ended())
        };
        if over(self.conns.get(key)) && over(self.conns.get(other)) {
            self.remove(key);
            self.remove(other);
        }
    }

    /// One side broke: so does the other.
    pub(super) fn on_relay_failed(&mut self, key: Key) {
        let other = self.relay(key).and_then(|relay| relay.other);
        self.remove(key);
        if let Some(other) = other {
            if let Some(conn) = self.conns.get_mut(other) {
                conn.io.abort_on_close();
            }
            self.remove(other);
        }
    }

    /// Makes two connections relay to each other; `early` goes to `b` first.
    fn join(&mut self, a: Key, b: Key, early: &[u8]) {
        let now = self.now;
        for (key, other) in [(a, b), (b, a)] {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let ended = conn.io.read_ended();
            if !matches!(conn.role, Role::Dialling(_)) {
                conn.role = Role::Relay(Relay {
                    other: Some(other),
                    early: Vec::new(),
                    ended,
                    active: now,
                });
            }
            self.resume(key);
            self.mark_dirty(key);
        }
        if let Some(conn) = self.conns.get_mut(b) {
            conn.io.out().extend_from_slice(early);
        }
        if self.relay(a).is_some_and(|relay| relay.ended)
            && let Some(conn) = self.conns.get_mut(b)
        {
            conn.io.finish();
        }
    }

    /// A dialled connection stands that is to relay for `down`.
    pub(super) fn on_relay_dialled(&mut self, key: Key, down: Key) {
        if self.conns.get(down).is_none() {
            return self.remove(key);
        }
        let ended = self.relay(down).is_some_and(|relay| relay.ended);
        let now = self.now;
        if let Some(conn) = self.conns.get_mut(key) {
            conn.role = Role::Relay(Relay {
                other: Some(down),
                early: Vec::new(),
                ended: false,
                active: now,
            });
            if ended {
                conn.io.finish();
            }
        }
        self.mark_dirty(key);
        self.resume(down);
    }

    /// Opens a stream of bytes to a TCP service for an accepted connection.
    pub(super) fn open_tcp(&mut self, down: Key, service: ServiceName) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(down) else { return };
        conn.role =
            Role::Relay(Relay { other: None, early: Vec::new(), ended: false, active: now });
        self.queue_read(down);
        self.dispatch_tcp(down, service);
    }

    /// Sends an accepted connection on once its service is known.
    pub(super) fn dispatch_tcp(&mut self, down: Key, service: ServiceName) {
        if self.conns.get(down).is_none() {
            return;
        }
        let destination = Destination::Service(service.clone());
        let Some(state) = self.service_state(&service) else {
            return self.wait_for_service_raw(down, service);
        };
        match state {
            ServiceState::Unavailable(reason) => {
                tracing::info!(fault = %Fault::unavailable(reason, &service), "TCP call refused");
                self.refuse_tcp(down);
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. }
                if protocol != AppProtocol::Tcp =>
            {
                tracing::info!(%service, %protocol, "TCP call refused: the service is not TCP");
                self.refuse_tcp(down);
            }
            ServiceState::Local { .. } | ServiceState::Remote { .. } => {
                match self.dial_for(&destination, Purpose::Relay(down), alpn::TCP) {
                    Ok(up) => self.attach_relay(down, up),
                    Err(fault) => {
                        tracing::info!(%fault, "TCP call failed");
                        self.refuse_tcp(down);
                    }
                }
            }
        }
    }

    fn refuse_tcp(&mut self, down: Key) {
        self.metrics.faults.add(1);
        if let Some(conn) = self.conns.get_mut(down) {
            conn.io.abort_on_close();
        }
        self.remove(down);
    }

    /// Bytes of `down` go to the dial already: they wait in its buffer.
    fn attach_relay(&mut self, down: Key, up: Key) {
        let Some(relay) = self.relay(down) else { return };
        relay.other = Some(up);
        let early = std::mem::take(&mut relay.early);
        let ended = relay.ended;
        if let Some(conn) = self.conns.get_mut(up) {
            conn.io.out().extend_from_slice(&early);
            if ended {
                conn.io.finish();
            }
        }
        self.mark_dirty(up);
    }

    /// A dial for a relay failed: the caller's connection ends with it.
    pub(super) fn on_relay_dial_failed(&mut self, down: Key, reason: &str) {
        tracing::info!(reason, "TCP call failed");
        self.refuse_tcp(down);
    }

    /// A mesh peer wants the app's bytes: only if that is what the app speaks.
    pub(super) fn open_app_tcp(&mut self, key: Key) -> bool {
        let Some(app) = self.config.app.filter(|app| app.protocol == AppProtocol::Tcp) else {
            self.metrics.faults.add(1);
            self.remove(key);
            return false;
        };
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        conn.role =
            Role::Relay(Relay { other: None, early: Vec::new(), ended: false, active: now });
        match self.dial_plain(app.address, Purpose::Relay(key)) {
            Ok(up) => {
                self.attach_relay(key, up);
                true
            }
            Err(reason) => {
                self.on_relay_dial_failed(key, &reason);
                false
            }
        }
    }

    /// A 101: passes it on, and from here on bytes.
    pub(super) fn leave_http(&mut self, up: Key, exchange: Key, head: &ResponseHead, rest: &[u8]) {
        let Some(state) = self.exchanges.get(exchange) else { return self.remove(up) };
        let (down, protocol) = (
            state.down.conn,
            state.head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or_default(),
        );
        let protocol = head.fields.value(b"upgrade").map(<[u8]>::to_vec).unwrap_or(protocol);
        let Some(conn) = self.conns.get_mut(down) else { return self.remove(up) };
        let Role::H1Server(server) = &mut conn.role else { return self.remove(up) };
        let early = std::mem::take(&mut server.input);
        let mut head = head.clone();
        h1::strip_hop_by_hop(&mut head.fields);
        let options = h1::ResponseOptions {
            connection: h1::Connection::Upgrade(&protocol),
            ..h1::ResponseOptions::default()
        };
        h1::write_response(conn.io.out(), &head, h1::BodyLength::None, &options);
        conn.io.out().extend_from_slice(rest);
        self.exchange_left_http(exchange);
        self.join(down, up, &early);
    }

    /// CONNECT on the outbound port: a tunnel to one service of the mesh.
    pub(super) fn on_connect(&mut self, key: Key, head: &RequestHead) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.door != Some(Door::Outbound) {
            let fault =
                Fault::Unsupported { method: "CONNECT", reason: "only the outbound port takes it" };
            let (head, body) = respond::http_fault(&fault);
            return self.answer_h1_and_close(key, &head, &body);
        }
        let host = String::from_utf8_lossy(&head.authority).into_owned();
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
        match ServiceName::parse_host(host, &self.config.home) {
            Ok(service) => self.open_tunnel(key, service),
            Err(error) => {
                let fault = Fault::Target(error.into());
                let (head, body) = respond::http_fault(&fault);
                self.answer_h1_and_close(key, &head, &body);
            }
        }
    }

    /// Answers CONNECT when the service is known: bytes for a TCP service, HTTP for others.
    pub(super) fn open_tunnel(&mut self, key: Key, service: ServiceName) {
        let Some(state) = self.service_state(&service) else {
            return self.wait_for_service_raw(key, service);
        };
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::H1Server(server) = &mut conn.role else { return };
        let is_tcp = match state {
            ServiceState::Unavailable(reason) => {
                let fault = Fault::unavailable(reason, &service);
                let (head, body) = respond::http_fault(&fault);
                return self.answer_h1_and_close(key, &head, &body);
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
                protocol == AppProtocol::Tcp
            }
        };
        let early = std::mem::take(&mut server.input);
        conn.io.out().extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        self.mark_dirty(key);
        if is_tcp {
            self.open_tcp(key, service);
            return self.on_relay_bytes(key, &early);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.door = Some(Door::Tunnel(service));
        conn.role = Role::Detect { input: early };
        self.resume(key);
    }

    /// A gateway's connection: the server name decides, nothing is decrypted.
    pub(super) fn on_hello_bytes(&mut self, key: Key, data: &[u8]) {
        let limit = self.config.limits.client_hello_bytes;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Hello(hello) = &mut conn.role else { return };
        if data.is_empty() || hello.name.is_some() {
            hello.input.extend_from_slice(data);
            conn.paused = hello.name.is_some();
            return;
        }
        hello.input.extend_from_slice(data);
        match peek_server_name(&mut hello.acceptor, data) {
            Peek::Partial if hello.input.len() < limit => {}
            Peek::Named(name) => {
                hello.name = Some(name);
                self.route_gateway(key);
            }
            Peek::Partial | Peek::Unnamed | Peek::NotTls => self.refuse_hello(key),
        }
    }

    /// Tells the client, in TLS, that its server name is not served here.
    pub(super) fn refuse_hello(&mut self, key: Key) {
        self.metrics.gateway_refused.add(1);
        if let Some(conn) = self.conns.get_mut(key) {
            conn.io.out().extend_from_slice(&UNRECOGNIZED_NAME_RECORD);
        }
        self.linger(key);
    }

    /// Sends a connection on whose server name is known; waits if its service is not known yet.
    pub(super) fn route_gateway(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Hello(hello) = &conn.role else { return };
        let Some(name) = hello.name.clone() else { return };
        let chosen = self.gateway_target(&name);
        let Some((address, service)) = chosen else {
            tracing::debug!(name, "server name refused");
            return self.refuse_hello(key);
        };
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        let early = match &mut conn.role {
            Role::Hello(hello) => std::mem::take(&mut hello.input),
            _ => return,
        };
        conn.role = Role::Relay(Relay { other: None, early, ended: false, active: now });
        conn.leads_to_control = network_of_control(&name).is_some();
        conn.relays_to = service.clone().map(|service| (service, address));
        if let Some(service) = service {
            self.count_relay(service, address);
        }
        self.metrics.gateway_connections.add(1);
        match self.dial_plain(address, Purpose::Relay(key)) {
            Ok(up) => self.attach_relay(key, up),
            Err(reason) => self.on_relay_dial_failed(key, &reason),
        }
    }

    /// Where a server name leads: the own control plane, the endpoint with the fewest relays of
    /// a service here, one instance, or (for those who may not dial out) another network's
    /// gateway, for its services and its control plane. A gateway knows every service, so what
    /// it does not know is not there.
    fn gateway_target(&mut self, name: &str) -> Option<(SocketAddr, Option<ServiceName>)> {
        let routes = self.config.gateway.as_ref()?;
        if name.eq_ignore_ascii_case(&control_dns_san(&routes.network)) {
            return Some((routes.control, None));
        }
        let network = ServiceName::network_of_server_name(name)?;
        if network != routes.network {
            return self.other_gateway(&network).map(|address| (address, None));
        }
        let Ok(service) = ServiceName::parse_dns_san(name) else {
            return self.gateway_instance(name).map(|address| (address, None));
        };
        let candidates = Candidates::of(self.known_state(&service)?);
        let address = self.pick_least_relayed(&service, &candidates)?;
        Some((address, Some(service)))
    }

    /// Any gateway of a joined network.
    fn other_gateway(&mut self, network: &NetworkName) -> Option<SocketAddr> {
        let gateways = self.networks.get(network)?;
        let random = usize::try_from(self.random >> 33).unwrap_or(0);
        let address = *gateways.get(random.checked_rem(gateways.len())?)?;
        self.next_random();
        Some(address)
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
                self.networks.insert(update.network, gateways.to_vec());
            }
            NetworkState::Removed => {
                self.networks.remove(&update.network);
            }
        }
    }

    /// Dials without TLS.
    pub(super) fn dial_plain(
        &mut self,
        address: SocketAddr,
        purpose: Purpose,
    ) -> Result<Key, String> {
        let io = Conn::connect(address, None).map_err(|error| error.to_string())?;
        let dial = Dial { address: Some(address), purpose };
        let conn = Connection::new(io, Role::Dialling(dial), self.now);
        self.insert(conn).ok_or_else(|| "no descriptors are left".to_owned())
    }
}

/// What a gateway knows of server names beyond services.
#[derive(Clone, Debug)]
pub(crate) struct GatewayRoutes {
    pub(crate) network: NetworkName,
    /// The control plane's address inside this network.
    pub(crate) control: SocketAddr,
}

/// The network whose control plane is dialled as `name`.
fn network_of_control(name: &str) -> Option<NetworkName> {
    let network = ServiceName::network_of_server_name(name)?;
    name.eq_ignore_ascii_case(&control_dns_san(&network)).then_some(network)
}

/// What a ClientHello told.
enum Peek {
    Partial,
    Named(String),
    Unnamed,
    NotTls,
}

/// Looks at more bytes of a ClientHello, fragmented or not, without answering it.
fn peek_server_name(acceptor: &mut Acceptor, mut data: &[u8]) -> Peek {
    while !data.is_empty() {
        match acceptor.read_tls(&mut data) {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => return Peek::NotTls,
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                return match accepted.client_hello().server_name() {
                    Some(name) => Peek::Named(name.to_owned()),
                    None => Peek::Unnamed,
                };
            }
            Ok(None) => {}
            Err(_) => return Peek::NotTls,
        }
    }
    Peek::Partial
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
