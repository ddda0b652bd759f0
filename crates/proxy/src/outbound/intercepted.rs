//! Connections that the kernel has led here from the app: to a service of the mesh, as HTTP or as
//! bytes, or on to where they were meant for.

use std::net::SocketAddr;

use tollway_model::{Called, ErrorCode, ServiceName, ServiceState, UnavailableReason};
use tollway_routing::intercept::{Evidence, Learned, Recognition, recognise};

use crate::conn::{ConnKey, Connections, ListenerKind, Relay, Role, access_log};
use crate::cx::{Cx, Effect};
use crate::exchange::Destination;
use crate::interception::Meant;
use crate::observe::Kind;
use crate::outbound::failover::{self, Next};
use crate::outbound::{ExternalQueue, dispatch, external, tunnel};
use crate::protocol::relay;
use crate::request_error::RequestError;
use crate::tls::MeshTls;
use crate::upstream::{Upstreams, discover, pools};

/// An accepted connection goes where it was meant to go.
pub(crate) fn open(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    (learned, external): (&mut Learned, &mut ExternalQueue),
    key: ConnKey,
) {
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return };
    let source = conn.remote;
    conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
    let interception = cx.config.interception.as_ref();
    let meant = interception.zip(source);
    let meant = meant.map(|(of, source)| of.meant(source, &conn.io, &cx.config.home));
    match meant.unwrap_or(Meant::Nowhere) {
        Meant::Service(service) => {
            conns.queue_read(key);
            access_log::begin_line(cx, conns, key, Kind::Tcp, Some(service.clone()));
            serve(cx, conns, upstreams, mesh, (learned, external), key, service);
        }
        Meant::InCluster(name) => {
            conns.queue_read(key);
            serve(cx, conns, upstreams, mesh, (learned, external), key, name);
        }
        Meant::Outside(address) => {
            conns.queue_read(key);
            leave(cx, conns, external, key, address);
        }
        Meant::LeftAlone(address) => {
            conns.queue_read(key);
            external::pass_on(cx, conns, key, address);
        }
        Meant::Nowhere => refuse(cx, conns, key, ErrorCode::NotIntercepted, &"it"),
        Meant::NoName(address) => {
            refuse(cx, conns, key, ErrorCode::UnknownAddress, &address);
        }
        Meant::BadName(error) => refuse(cx, conns, key, ErrorCode::BadName, &error),
    }
}

fn refuse(
    cx: &mut Cx,
    conns: &mut Connections,
    key: ConnKey,
    code: ErrorCode,
    what: &dyn std::fmt::Display,
) {
    cx.metrics.intercepted.refused.add(1);
    if let Some(left_out) = cx.log.admit("intercepted", code.word(), cx.now) {
        let hint = code.entry().remedy;
        tracing::info!(%code, %what, left_out, hint, "an intercepted connection is refused");
    }
    access_log::begin_line(cx, conns, key, Kind::Tcp, None);
    relay::refuse_tcp(cx, conns, key, code);
}

/// Sends a connection on to an address out of the mesh.
fn leave(
    cx: &mut Cx,
    conns: &mut Connections,
    external: &mut ExternalQueue,
    key: ConnKey,
    address: SocketAddr,
) {
    cx.metrics.intercepted.outside.add(1);
    external::open_intercepted(cx, conns, external, key, address);
}

/// The control plane does not say in time what an address is: it is as out of the mesh.
pub(crate) fn leave_unanswered(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    external: &mut ExternalQueue,
    key: ConnKey,
) {
    let Some(called) = conns.get_mut(key).and_then(|conn| conn.raw_target.take()) else { return };
    let Called::Address(address) = called.called() else { return };
    // Others that wait for it, and further ones, do not wait any more.
    let pool = pools::pool(cx, upstreams, &Destination::Service(called));
    pool.state.get_or_insert(ServiceState::Unavailable(UnavailableReason::UnknownService));
    for waiting in std::mem::take(&mut pool.waiting_raw) {
        if waiting != key {
            cx.effects.push(Effect::DispatchRaw(waiting));
        }
    }
    if let Some(left_out) = cx.log.admit("unanswered", "address", cx.now) {
        tracing::warn!(
            %address,
            left_out,
            "the control plane does not say whether a Service has this address; \
             the connection leaves the mesh"
        );
    }
    leave(cx, conns, external, key, address);
}

/// Sends a connection for a service on once it is known what that speaks.
pub(crate) fn serve(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: &mut MeshTls,
    (learned, external): (&mut Learned, &mut ExternalQueue),
    key: ConnKey,
    mut service: ServiceName,
) {
    let address = match service.called() {
        Called::Address(address) => Some(address),
        Called::App | Called::Port { .. } => None,
    };
    let destination = Destination::Service(service.clone());
    if let Some(address) = address
        && !pools::may_be_asked(upstreams, &destination)
    {
        return leave(cx, conns, external, key, address);
    }
    let mut state = match discover::service_state(cx, upstreams, &service) {
        Ok(Some(state)) => state,
        Ok(None) => return dispatch::wait_raw(cx, conns, upstreams, key, service),
        Err(error) => {
            return match address {
                Some(address) => leave(cx, conns, external, key, address),
                None => dispatch::fail_raw(cx, conns, key, &error),
            };
        }
    };
    if let ServiceState::AddressOf(port) = state {
        state = match discover::service_state(cx, upstreams, &port) {
            Ok(Some(state)) => state,
            // It is asked again what the address is.
            Ok(None) => {
                let port = Destination::Service(port);
                return dispatch::wait_raw_for(cx, conns, upstreams, key, service, port);
            }
            Err(error) => return dispatch::fail_raw(cx, conns, key, &error),
        };
        service = port;
    }
    if let (Some(address), ServiceState::Unavailable(UnavailableReason::UnknownService)) =
        (address, &state)
    {
        return leave(cx, conns, external, key, address);
    }
    if service.called() != Called::App {
        access_log::begin_line(cx, conns, key, Kind::Tcp, Some(service.clone()));
    }
    let (declared, refusal) = match state {
        ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
            learned.learn(&service, protocol);
            (Some(protocol), None)
        }
        ServiceState::Failover { .. } => match failover::protocol(cx, conns, upstreams, &service) {
            Ok(Next::Chosen(protocol)) => {
                learned.learn(&service, protocol);
                (Some(protocol), None)
            }
            Ok(Next::Wait(of)) => {
                return dispatch::wait_raw_for(cx, conns, upstreams, key, service, of);
            }
            Err(error) => (None, Some(error.code())),
        },
        ServiceState::Unavailable(reason) => {
            (None, Some(RequestError::unavailable(reason, &service).code()))
        }
        // What it is the address of would be called.
        ServiceState::AddressOf(_) => (None, Some(ErrorCode::UnknownAddress)),
    };
    let Some(relay) = relay::relay(conns, key) else { return };
    match recognise(declared, learned.of(&service), &relay.early) {
        Recognition::Bytes(evidence) => {
            count(cx, evidence);
            tunnel::dispatch_tcp(cx, conns, upstreams, mesh, key, service);
        }
        Recognition::Http(evidence) => {
            count(cx, evidence);
            begin_http(cx, conns, key, service);
        }
        Recognition::Unknown => {
            relay.refusal = refusal;
            let Some(conn) = conns.get_mut(key) else { return };
            conn.since = cx.now;
            conn.raw_target = Some(service);
            conns.schedule(cx, key);
        }
    }
}

fn count(cx: &Cx, evidence: Evidence) {
    let counts = &cx.metrics.intercepted;
    match evidence {
        Evidence::Declared => counts.declared.add(1),
        Evidence::Learned => counts.learned.add(1),
        Evidence::FirstBytes => counts.first_bytes.add(1),
    }
}

/// Reads requests for a service, whichever host they name.
fn begin_http(cx: &mut Cx, conns: &mut Connections, key: ConnKey, service: ServiceName) {
    let Some(conn) = conns.get_mut(key) else { return };
    let Role::Relay(relay) = &mut conn.role else { return };
    let (input, ended) = (std::mem::take(&mut relay.early), relay.ended);
    if ended && input.is_empty() {
        return conns.close(cx, key);
    }
    conn.via = Some(ListenerKind::Tunnel(service));
    conn.role = Role::Detect { input };
    conn.since = cx.now;
    conn.raw_target = None;
    // Each request inside has a line.
    conn.access_log = None;
    conns.schedule(cx, key);
    conns.resume(key);
}
