//! Ways to a TCP service: a port that stands for it, and CONNECT on the outbound port.

use std::net::SocketAddr;
use std::time::Instant;

use tollway_http::{Method, RequestHead};
use tollway_model::{AppProtocol, ErrorCode, NameError, ServiceName, ServiceState};
use tollway_routing::intercept::Learned;

use crate::conn::{ConnKey, Connections, ListenerKind, Purpose, Relay, Role, access_log};
use crate::cx::Cx;
use crate::exchange::Destination;
use crate::observe::Kind;
use crate::outbound::failover::{self, Next};
use crate::outbound::{ExternalQueue, dispatch, external, intercepted};
use crate::protocol::{http1_server, relay};
use crate::request_error::RequestError;
use crate::tls::{MeshTls, alpn};
use crate::upstream::{Upstreams, dial, discover, pools, replicas};

/// Opens a stream of bytes to a TCP service for an accepted connection.
pub(crate) fn open_tcp(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    down: ConnKey,
    service: ServiceName,
) {
    let now = cx.now;
    let Some(conn) = conns.get_mut(down) else { return };
    conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
    conns.queue_read(down);
    access_log::begin_line(cx, conns, down, Kind::Tcp, Some(service.clone()));
    dispatch_tcp(cx, conns, upstreams, mesh, down, service);
}

/// Sends an accepted connection on once its service is known.
pub(crate) fn dispatch_tcp(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    down: ConnKey,
    service: ServiceName,
) {
    // After a dial that failed its network is chosen once more.
    let called = relay::relay(conns, down).and_then(|relay| relay.network.take());
    let service = called.map_or(service, |network| network.called().clone());
    let state = match discover::service_state(cx, upstreams, &service) {
        Ok(Some(state)) => state,
        Ok(None) => return dispatch::wait_raw(cx, conns, upstreams, down, service),
        Err(error) => return dispatch::fail_raw(cx, conns, down, &error),
    };
    let (service, state) = match state {
        ServiceState::Failover { .. } => {
            match failover::choose_for_bytes(cx, conns, upstreams, down, &service) {
                Ok(Next::Chosen(chosen)) => chosen,
                Ok(Next::Wait(of)) => {
                    return dispatch::wait_raw_for(cx, conns, upstreams, down, service, of);
                }
                Err(error) => return dispatch::fail_raw(cx, conns, down, &error),
            }
        }
        ServiceState::Local { .. }
        | ServiceState::Remote { .. }
        | ServiceState::AddressOf(_)
        | ServiceState::Unavailable(_) => (service, state),
    };
    let Some(conn) = conns.get_mut(down) else { return };
    conn.raw_target = Some(service.clone());
    let destination = Destination::Service(service.clone());
    match state {
        ServiceState::Unavailable(reason) => {
            let error = RequestError::unavailable(reason, &service);
            tracing::info!(%error, "TCP call refused");
            relay::refuse_tcp(cx, conns, down, error.code());
        }
        ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. }
            if protocol != AppProtocol::Tcp =>
        {
            let code = ErrorCode::NotTcp;
            tracing::info!(%code, %service, %protocol, "TCP call refused");
            relay::refuse_tcp(cx, conns, down, code);
        }
        // One of them would have been chosen, and what it is the address of would be called.
        ServiceState::Failover { .. } | ServiceState::AddressOf(_) => {
            relay::refuse_tcp(cx, conns, down, ErrorCode::NoNetwork);
        }
        ServiceState::Local { .. } | ServiceState::Remote { .. } => {
            match dial::dial(
                cx,
                conns,
                upstreams,
                Some(&mut *mesh),
                &destination,
                Purpose::Relay(down),
                alpn::TCP,
            ) {
                Ok(up) => relay::attach(conns, down, up),
                Err(RequestError::Unreachable { .. }) if relay::may_dial_again(conns, down) => {
                    dispatch_tcp(cx, conns, upstreams, mesh, down, service);
                }
                Err(error) => {
                    tracing::info!(%error, "TCP call failed");
                    relay::refuse_tcp(cx, conns, down, error.code());
                }
            }
        }
    }
}

/// CONNECT on the outbound port: a tunnel to one service of the mesh, or to a host out of it.
pub(crate) fn on_connect(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    external: &mut ExternalQueue,
    key: ConnKey,
    head: &RequestHead,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    if conn.via != Some(ListenerKind::Outbound) {
        let reason = "only the outbound port takes it";
        let error = RequestError::Unsupported { method: "CONNECT", reason };
        return http1_server::answer_error(cx, conns, key, &error);
    }
    access_log::begin_line(cx, conns, key, Kind::Connect, None);
    access_log::mark_line(conns, key, |entry| entry.method = Method::Connect);
    let authority = String::from_utf8_lossy(&head.authority).into_owned();
    let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
    match ServiceName::parse_host(host, &cx.config.home) {
        Ok(service) => {
            access_log::mark_line(conns, key, |entry| entry.service = Some(service.clone()));
            open_tunnel(cx, conns, upstreams, mesh, key, service);
        }
        Err(NameError::NotMesh(_)) => {
            external::on_connect(cx, conns, upstreams, external, key, &authority);
        }
        Err(error) => {
            http1_server::answer_error(cx, conns, key, &RequestError::Target(error.into()))
        }
    }
}

/// Answers CONNECT when the service is known: bytes for a TCP service, HTTP for others.
pub(crate) fn open_tunnel(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    key: ConnKey,
    service: ServiceName,
) {
    let state = match discover::service_state(cx, upstreams, &service) {
        Ok(Some(state)) => state,
        Ok(None) => return dispatch::wait_raw(cx, conns, upstreams, key, service),
        Err(error) => return dispatch::fail_raw(cx, conns, key, &error),
    };
    let is_tcp = match state {
        ServiceState::Unavailable(reason) => {
            let error = RequestError::unavailable(reason, &service);
            return http1_server::answer_error(cx, conns, key, &error);
        }
        ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
            protocol == AppProtocol::Tcp
        }
        ServiceState::Failover { .. } => match failover::protocol(cx, conns, upstreams, &service) {
            Ok(Next::Chosen(protocol)) => protocol == AppProtocol::Tcp,
            Ok(Next::Wait(of)) => {
                return dispatch::wait_raw_for(cx, conns, upstreams, key, service, of);
            }
            Err(error) => return http1_server::answer_error(cx, conns, key, &error),
        },
        // No name that a CONNECT can have.
        ServiceState::AddressOf(_) => false,
    };
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Http1Server(server) = &mut conn.role else { return };
    let early = std::mem::take(&mut server.input);
    conn.io.out().extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
    conns.mark_dirty(key);
    if is_tcp {
        access_log::mark_line(conns, key, |entry| entry.status = 200);
        open_tcp(cx, conns, upstreams, mesh, key, service);
        return relay::on_bytes(cx, conns, key, &early);
    }
    let Some(conn) = conns.get_mut(key) else { return };
    conn.via = Some(ListenerKind::Tunnel(service));
    // Each request inside has a line.
    conn.access_log = None;
    conn.role = Role::Detect { input: early };
    conns.schedule(cx, key);
    conns.resume(key);
}

/// A raw connection's service is known now.
pub(crate) fn dispatch_raw(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    (learned, external): (&mut Learned, &mut ExternalQueue),
    key: ConnKey,
) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Some(service) = conn.raw_target.take() else { return };
    match (&conn.role, &conn.via) {
        (Role::Relay(_), Some(ListenerKind::Intercepted)) => {
            intercepted::serve(cx, conns, upstreams, mesh, (learned, external), key, service);
        }
        (Role::Relay(_), _) => dispatch_tcp(cx, conns, upstreams, mesh, key, service),
        (_, Some(ListenerKind::Outbound)) => open_tunnel(cx, conns, upstreams, mesh, key, service),
        _ => {}
    }
}

/// An address could not be dialled for a connection to a TCP service: it is passed over for a while.
pub(crate) fn back_off_dialled(
    cx: &mut Cx,
    conns: &Connections,
    upstreams: &mut Upstreams,
    down: ConnKey,
    address: SocketAddr,
    until: Instant,
) {
    if let Some(service) = conns.get(down).and_then(|conn| conn.raw_target.clone()) {
        let destination = Destination::Service(service);
        replicas::note_dial_failed(cx, upstreams, &destination, address);
        pools::back_off(cx, upstreams, &destination, Some(address), until);
    }
}
