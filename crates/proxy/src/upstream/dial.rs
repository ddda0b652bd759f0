//! Dialling: one address of a destination, the role a connection takes when it stands, and what
//! follows when it cannot be made.

use rustls::{AlertDescription, Error as TlsError};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tollway_http::{h1, h2};
use tollway_model::{ErrorCode, NetworkName, ServiceName, ServiceState};
use tollway_net::{Conn, ConnError, Tls};

use crate::bind::UNSENT_BYTES_LIMIT;
use crate::cause::Cause;
use crate::conn::{
    ConnKey, Connection, Connections, Dial, Http1Client, Http2Link, Opened, Purpose, Role, eviction,
};
use crate::cx::{Cx, Effect};
use crate::exchange::{Destination, describe};
use crate::protocol::relay;
use crate::request_error::RequestError;
use crate::tls::{Carried, MeshTls};
use crate::upstream::{Candidates, Pool, PoolKey, Upstreams, pools, replicas, scale};

/// Connections to one service that may each have as many bytes under way as is set. Further ones
/// are for small requests over distance, and have this window together with many others.
const AMPLE: usize = 8;
const SHORT_WINDOW: u32 = 1024 * 1024;

/// How a dial failed.
#[derive(Debug)]
pub(crate) enum DialFailure<'a> {
    /// The socket or TLS did.
    Broken(&'a ConnError),
    /// The peer closed in the handshake.
    Closed,
    /// It took longer than the connect timeout.
    TimedOut,
    /// Who answered cannot be trusted now.
    Untrusted(ErrorCode, &'a str),
}

impl DialFailure<'_> {
    /// Whether the peer holds the own certificate for one that has ended.
    pub(crate) fn refuses_certificate(&self) -> bool {
        let Self::Broken(ConnError::Tls(TlsError::AlertReceived(alert))) = self else {
            return false;
        };
        *alert == AlertDescription::CertificateExpired
    }

    /// Whether it shows nothing of the peer: this process has no descriptor or port left, or a
    /// certificate that has ended.
    fn is_own(&self) -> bool {
        let lacks = |error: &std::io::Error| {
            ErrorCode::of_io(error) == Some(ErrorCode::OutOfDescriptors)
                || error.kind() == std::io::ErrorKind::AddrNotAvailable
        };
        let Self::Broken(ConnError::Connect(error) | ConnError::Socket(error)) = self else {
            return self.refuses_certificate();
        };
        lacks(error)
    }

    /// In words. What a gateway says in the handshake is of itself; what else fails there is of
    /// the workload behind it.
    pub(crate) fn cause(&self, by_gateway: bool) -> Cause {
        match self {
            Self::Broken(ConnError::Tls(TlsError::AlertReceived(alert))) if by_gateway => {
                match *alert {
                    AlertDescription::UnrecognisedName => Cause::coded(
                        ErrorCode::GatewayRefused,
                        "it does not serve this name: no workload of the service is ready there",
                    ),
                    AlertDescription::InternalError => Cause::coded(
                        ErrorCode::GatewayUpstream,
                        "it cannot connect to a workload of the service",
                    ),
                    _ => Cause::from(&ConnError::Tls(TlsError::AlertReceived(*alert))),
                }
            }
            Self::Broken(error) => Cause::from(*error),
            Self::Closed => {
                Cause::coded(ErrorCode::TlsFailed, "the connection was closed in the TLS handshake")
            }
            Self::TimedOut => Cause::from("it did not answer in time"),
            Self::Untrusted(code, reason) => Cause::coded(*code, *reason),
        }
    }

    /// Whether it may pass by itself: a peer that is away may come back, and a gateway that has just
    /// begun may not know every service yet. A peer with another identity keeps it.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Broken(ConnError::Tls(error)) => matches!(
                error,
                TlsError::AlertReceived(
                    AlertDescription::UnrecognisedName | AlertDescription::InternalError
                )
            ),
            Self::Broken(ConnError::Connect(_) | ConnError::Socket(_))
            | Self::Closed
            | Self::TimedOut => true,
            Self::Untrusted(..) => false,
        }
    }
}

/// A replica could not be connected to.
pub(crate) fn note_failed(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    destination: &Destination,
    address: Option<SocketAddr>,
    failure: &DialFailure<'_>,
) {
    if let Some(address) = address.filter(|_| !failure.is_own()) {
        replicas::note_dial_failed(cx, upstreams, destination, address);
    }
}

/// A connection of a pool failed. Where its peer has not spoken, its address is passed over as after a
/// failed dial: with TLS 1.3 a peer looks at the certificate of this side after this side's part of the
/// handshake.
pub(crate) fn note_refused(
    cx: &mut Cx,
    conns: &Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
) {
    let Some(Role::Http2Client(link)) = conns.get(key).map(|conn| &conn.role) else { return };
    if link.codec.is_settled() {
        return;
    }
    cx.metrics.dial_failures.add(1);
    if let Some(destination) = &link.destination {
        let until = cx.now + cx.config.timeouts.dial_backoff;
        pools::back_off(cx, upstreams, destination, link.address, until);
    }
}

/// Dials one of the destination's addresses, those that failed lately last, and none whose replica is
/// ejected.
pub(crate) fn dial(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    mesh: Option<&mut MeshTls>,
    destination: &Destination,
    purpose: Purpose,
    protocol: &'static [u8],
) -> Result<ConnKey, RequestError> {
    let Some(service) = destination.service() else {
        let address = match destination {
            Destination::AppPort(port) => Some(port.address),
            _ => cx.config.app.as_ref().map(|app| app.addresses.best()),
        };
        return match address {
            Some(address) => dial_app(cx, conns, destination, address, purpose)
                .map_err(|cause| unreachable(cx, upstreams, destination, None, cause)),
            None => Err(RequestError::NoReadyEndpoint { service: cx.config.home.clone() }),
        };
    };
    let instance = match destination {
        Destination::Workload(workload) => Some(&workload.instance),
        _ => None,
    };
    let unready = || RequestError::unready(service, instance);
    let pool = pools::pool(cx, upstreams, destination);
    if pool.are_all_ejected() {
        return Err(RequestError::AllEjected { service: service.clone() });
    }
    let state = pool.state.clone().ok_or_else(unready)?;
    let candidates = Candidates::of(&state);
    let trust_domain = candidates.trust_domain.clone().ok_or_else(unready)?;
    let pooled = matches!(purpose, Purpose::PoolH2(_) | Purpose::PoolH1(_));
    let address = next_address(cx, conns, upstreams, destination, &candidates, pooled);
    let address = address.ok_or_else(unready)?;
    let mesh = mesh.ok_or_else(unready)?;
    let (callee, port) = holder(service, &state, address);
    let tls = match mesh.client(&callee, instance, &trust_domain, Carried { protocol, port }) {
        Ok(tls) => tls,
        Err(error) => {
            let cause = Cause::coded(ErrorCode::TlsFailed, error.to_string());
            return Err(unreachable(cx, upstreams, destination, Some(address), cause));
        }
    };
    let io = match connect(cx, conns, address, Some(tls)) {
        Ok(io) => io,
        Err(cause) => {
            let until = cx.now + cx.config.timeouts.dial_backoff;
            // Without descriptors no other address can be dialled either.
            if cause.code.is_none() {
                replicas::note_dial_failed(cx, upstreams, destination, address);
                pools::back_off(cx, upstreams, destination, Some(address), until);
            }
            return Err(unreachable(cx, upstreams, destination, Some(address), cause));
        }
    };
    let has_other_way = match &purpose {
        Purpose::Relay(down) => {
            candidates.addresses.len() > 1 || relay::is_of_any_network(conns, *down)
        }
        // Connections for requests are dialled to several addresses at once, and those that wait are led
        // elsewhere by themselves.
        Purpose::PoolH2(_) | Purpose::PoolH1(_) | Purpose::Upgrade(_) | Purpose::Reverse(_) => {
            false
        }
    };
    let mut dial = Dial::to(address, purpose);
    dial.has_other_way = has_other_way;
    let mut conn = Connection::new(io, Role::Dialling(dial), cx.now);
    conn.remote = Some(address);
    let Some(key) = conns.insert(cx, conn) else {
        let cause = Cause::out_of_descriptors();
        return Err(unreachable(cx, upstreams, destination, Some(address), cause));
    };
    if pooled {
        pools::pool(cx, upstreams, destination).dialling.push(key);
    }
    cx.metrics.dials.add(1);
    Ok(key)
}

/// The app whose identity a replica of a service has, and which port of it is called.
fn holder<'s>(
    service: &'s ServiceName,
    state: &ServiceState,
    address: SocketAddr,
) -> (Cow<'s, ServiceName>, Option<u16>) {
    let ServiceState::Local { endpoints, .. } = state else {
        return (Cow::Borrowed(service), None);
    };
    // A service's replicas have its name, or each has one of its own.
    if endpoints.first().is_none_or(|endpoint| endpoint.app.is_none()) {
        return (Cow::Borrowed(service), None);
    }
    let found = endpoints.iter().find(|endpoint| endpoint.address == address);
    let port = found.and_then(|endpoint| endpoint.port);
    match found.and_then(|endpoint| endpoint.app.clone()) {
        Some(app) => (Cow::Owned(ServiceName { app, ..service.clone() }), port),
        None => (Cow::Borrowed(service), port),
    }
}

fn next_address(
    cx: &mut Cx,
    conns: &Connections,
    upstreams: &mut Upstreams,
    destination: &Destination,
    candidates: &Candidates,
    pooled: bool,
) -> Option<SocketAddr> {
    let now = cx.now;
    // No number is drawn where it decides nothing.
    let is_near = |pool: &Pool| !pooled && pool.near().is_some();
    let random = match upstreams.pools.get(destination)? {
        pool if is_near(pool) => cx.next_random(),
        _ => 0,
    };
    let pool = upstreams.pools.get(destination)?;
    let missing = match candidates.remote_replicas {
        Some(_) => scale::unused_gateways(cx, conns, pool, candidates),
        None => scale::missing(cx, conns, upstreams, pool, candidates),
    };
    let pool = pools::pool(cx, upstreams, destination);
    pool.next_address = pool.next_address.wrapping_add(1);
    let first = pool.next_address;
    if let Some(near) = pool.near().filter(|_| !pooled) {
        let is_usable = |address: SocketAddr| !pool.is_passed_over(address, now);
        let drawn = near.draw(random, first, is_usable);
        if drawn.is_some() {
            return drawn;
        }
    }
    let pick = |addresses: &[SocketAddr]| {
        let allowed: Vec<_> =
            addresses.iter().filter(|address| !pool.is_ejected(**address)).copied().collect();
        let may_dial = |address: &&SocketAddr| !pool.is_passed_over(**address, now);
        let usable: Vec<_> = allowed.iter().filter(may_dial).copied().collect();
        let from = if usable.is_empty() { &allowed } else { &usable };
        (!from.is_empty()).then(|| from[first % from.len()])
    };
    pick(&missing).or_else(|| pick(&candidates.addresses))
}

/// Dials the app, or a port of it, as it speaks.
pub(crate) fn dial_app(
    cx: &mut Cx,
    conns: &mut Connections,
    destination: &Destination,
    address: SocketAddr,
    purpose: Purpose,
) -> Result<ConnKey, Cause> {
    cx.metrics.app_dials.add(1);
    let tls = cx.config.app_tls.as_ref().filter(|_| *destination == Destination::App);
    let Some(tls) = tls else { return dial_plain(cx, conns, address, purpose) };
    let tls = tls.client(address, &purpose);
    let tls = tls.map_err(|error| Cause::coded(ErrorCode::TlsFailed, error.to_string()))?;
    let io = connect(cx, conns, address, Some(tls))?;
    let mut dial = Dial::to(address, purpose);
    dial.is_app = true;
    let conn = Connection::new(io, Role::Dialling(dial), cx.now);
    conns.insert(cx, conn).ok_or_else(Cause::out_of_descriptors)
}

/// Dials a host out of the mesh over TLS, which verifies the host's name.
pub(crate) fn dial_external(
    cx: &mut Cx,
    conns: &mut Connections,
    address: SocketAddr,
    tls: Tls,
    purpose: Purpose,
) -> Result<ConnKey, Cause> {
    let io = connect(cx, conns, address, Some(tls))?;
    let mut dial = Dial::to(address, purpose);
    dial.is_app = true;
    let conn = Connection::new(io, Role::Dialling(dial), cx.now);
    conns.insert(cx, conn).ok_or_else(Cause::out_of_descriptors)
}

/// Dials without TLS.
pub(crate) fn dial_plain(
    cx: &mut Cx,
    conns: &mut Connections,
    address: SocketAddr,
    purpose: Purpose,
) -> Result<ConnKey, Cause> {
    dial_with(cx, conns, address, purpose, None)
}

/// Dials an address that is none of a destination's, with or without TLS.
pub(crate) fn dial_with(
    cx: &mut Cx,
    conns: &mut Connections,
    address: SocketAddr,
    purpose: Purpose,
    tls: Option<Tls>,
) -> Result<ConnKey, Cause> {
    let io = connect(cx, conns, address, tls)?;
    let dial = Dial::to(address, purpose);
    let conn = Connection::new(io, Role::Dialling(dial), cx.now);
    conns.insert(cx, conn).ok_or_else(Cause::out_of_descriptors)
}

/// Starts to connect. The kernel may refuse at once: no port, no descriptor or no route is
/// there. Where no descriptor is left, an idle connection is evicted.
fn connect(
    cx: &mut Cx,
    conns: &mut Connections,
    address: SocketAddr,
    tls: Option<Tls>,
) -> Result<Conn, Cause> {
    let dial = |cx: &Cx| (cx.dialler)(address).map_err(|error| Cause::from(&error));
    let mut dialled = dial(cx);
    if let Err(Cause { code: Some(code @ ErrorCode::OutOfDescriptors), .. }) = dialled
        && eviction::make_room(cx, conns, code)
    {
        dialled = dial(cx);
    }
    let mut io = dialled.inspect_err(|_| cx.metrics.dial_failures.add(1))?;
    // The kernel knows this option of every TCP socket.
    let _ = io.limit_unsent(UNSENT_BYTES_LIMIT);
    if let Some(tls) = tls {
        io.start_tls(tls);
    }
    Ok(io)
}

pub(crate) fn join_pool_h2(
    cx: &mut Cx,
    conns: &mut Connections,
    upstreams: &mut Upstreams,
    key: ConnKey,
    destination: Destination,
    address: Option<SocketAddr>,
    opened: Opened,
) {
    let mut config = cx.config.limits.h2.clone();
    let pool = upstreams.pools.key(&destination);
    if pool.and_then(|pool| upstreams.pools.at(pool)).is_some_and(|pool| pool.conns.len() >= AMPLE)
    {
        config.connection_window = config.connection_window.min(SHORT_WINDOW);
    }
    if destination.is_app() {
        // Many apps state a limit, and some answer what is above it with another reset than a refusal.
        config.streams_before_settings = 1;
    }
    let Some(conn) = conns.get_mut(key) else { return };
    let codec = h2::Connection::client(config, conn.io.out());
    let mut link = Http2Link::new(codec, cx.now);
    link.destination = Some(destination.clone());
    link.pool = pool;
    link.address = address;
    link.opened = Some(opened);
    conn.role = Role::Http2Client(Box::new(link));
    conns.schedule(cx, key);
    conns.mark_dirty(key);
    join_pool(cx, upstreams, key, &destination, address);
    cx.effects.push(Effect::ServeWaiting(destination.clone()));
    cx.effects.push(Effect::Scale(destination.clone()));
}

/// A dial is a connection of its pool from now on, and its address answers.
pub(crate) fn join_pool<'u>(
    cx: &mut Cx,
    upstreams: &'u mut Upstreams,
    key: ConnKey,
    destination: &Destination,
    address: Option<SocketAddr>,
) -> &'u mut Pool {
    let pool = pools::pool(cx, upstreams, destination);
    pool.dialling.retain(|dialling| *dialling != key);
    pool.conns.push(key);
    pool.outage = None;
    if address.is_some_and(|address| pool.backoff.remove(&address).is_some()) {
        pool.refresh_near(cx.now);
    }
    pool
}

/// After a failed dial: has another address dialled. If none is left, requests wait for one for as long
/// as a dial may take, and then fail. `may_wait` is the start of a dial that failed for a reason that
/// may pass.
pub(crate) fn after_failed_dial(
    cx: &mut Cx,
    upstreams: &mut Upstreams,
    destination: &Destination,
    address: Option<SocketAddr>,
    cause: Cause,
    may_wait: Option<Instant>,
) {
    let (now, patience) = (cx.now, cx.config.timeouts.connect);
    let config = Arc::clone(&cx.config);
    let pool = pools::pool(cx, upstreams, destination);
    if !pool.dialling.is_empty() || (pool.waiting.is_empty() && !pool.is_of_any_network) {
        return;
    }
    let untried = match (&pool.state, destination) {
        (Some(state), Destination::Service(_)) => Candidates::of(state)
            .addresses
            .iter()
            .any(|address| !pool.is_passed_over(*address, now)),
        (_, Destination::App) => config.app.as_ref().is_some_and(|app| {
            let mut addresses = app.addresses.all();
            app.addresses.are_several()
                && addresses.any(|address| !pool.is_passed_over(address, now))
        }),
        _ => false,
    };
    if pool.is_of_any_network && !untried {
        pool.outage.get_or_insert(now);
    }
    if pool.waiting.is_empty() {
        return;
    }
    if pool.is_of_any_network && !untried {
        cx.effects.push(Effect::LeaveNetwork(destination.clone()));
    }
    if untried {
        return cx.effects.push(Effect::Scale(destination.clone()));
    }
    // A silent connection is better than none: its peer may answer again.
    cx.effects.push(Effect::ServeWaiting(destination.clone()));
    let pool = pools::pool(cx, upstreams, destination);
    if pool.waiting.is_empty() {
        return;
    }
    if let (Some(began), Destination::Service(_)) = (may_wait, destination) {
        let since = *pool.outage.get_or_insert(began);
        if now.saturating_duration_since(since) < patience {
            return;
        }
    }
    let error = unreachable(cx, upstreams, destination, address, cause);
    cx.effects.push(Effect::FailWaiting {
        destination: destination.clone(),
        first: 0,
        error: Box::new(error),
    });
}

/// The error of requests for a destination to which no connection could be made. It names the peer
/// that refused: the gateway, or what is behind it.
pub(crate) fn unreachable(
    cx: &Cx,
    upstreams: &Upstreams,
    destination: &Destination,
    address: Option<SocketAddr>,
    cause: Cause,
) -> RequestError {
    let Cause { code, reason } = cause;
    if let (Destination::AppPort(port), None) = (destination, code) {
        tracing::warn!(address = %port.address, reason, "a port of the app cannot be connected to");
        return RequestError::AppUnreachable { service: cx.config.home.clone(), reason };
    }
    if let (Destination::App, Some(app), None) = (destination, &cx.config.app, code) {
        // Where the app is does not concern callers.
        let addresses: Vec<_> = app.addresses.all().map(|address| address.to_string()).collect();
        let address = addresses.join(", ");
        tracing::warn!(address, reason, "the app cannot be connected to");
        if cx.is_front {
            let (code, peer) = (ErrorCode::AppUnreachable, "its app".to_owned());
            return RequestError::Unreachable { code, peer, reason };
        }
        return RequestError::AppUnreachable { service: cx.config.home.clone(), reason };
    }
    let at = address.map_or(String::new(), |address| format!(" at {address}"));
    let Some(network) = network_beyond(upstreams, destination) else {
        let code = code.unwrap_or(ErrorCode::Unreachable);
        return RequestError::Unreachable { code, peer: describe(destination) + &at, reason };
    };
    let gateway = format!("the gateway of network {network}{at}");
    let own = [None, Some(ErrorCode::GatewayRefused), Some(ErrorCode::GatewayUpstream)];
    let peer = if own.contains(&code) {
        gateway
    } else {
        format!("{} through {gateway}", describe(destination))
    };
    RequestError::Unreachable { code: code.unwrap_or(ErrorCode::GatewayUnreachable), peer, reason }
}

pub(crate) fn is_behind_gateway(upstreams: &Upstreams, destination: &Destination) -> bool {
    network_beyond(upstreams, destination).is_some()
}

/// The network of a service that is reached through gateways.
fn network_beyond<'u>(
    upstreams: &'u Upstreams,
    destination: &Destination,
) -> Option<&'u NetworkName> {
    match upstreams.pools.get(destination)?.state.as_ref()? {
        ServiceState::Remote { remote, .. } => Some(&remote.network),
        ServiceState::Local { .. }
        | ServiceState::Failover { .. }
        | ServiceState::AddressOf(_)
        | ServiceState::Unavailable(_) => None,
    }
}

/// The role of a fresh HTTP/1.1 upstream connection, in `pool` or, without one, for one exchange.
pub(crate) fn h1_client(destination: Destination, pool: Option<PoolKey>) -> Http1Client {
    Http1Client {
        destination,
        pool,
        scanner: h1::HeadScanner::new(),
        input: Vec::new(),
        exchange: None,
        body: None,
        keep_alive: true,
        sink: h1::BodyLength::None,
        served: 0,
        answered: false,
        opened: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(failure: &DialFailure<'_>, by_gateway: bool, word: Option<&str>, part: &str) {
        let Cause { code, reason } = failure.cause(by_gateway);
        assert_eq!(code.map(ErrorCode::word), word, "{reason}");
        assert!(reason.contains(part), "{reason}");
    }

    #[test]
    fn alerts_of_a_gateway_have_codes_of_their_own() {
        let alert = |alert| ConnError::Tls(TlsError::AlertReceived(alert));
        let unknown = alert(AlertDescription::UnrecognisedName);
        let broken = alert(AlertDescription::InternalError);
        let foreign = alert(AlertDescription::UnknownCA);
        check(&DialFailure::Broken(&unknown), true, Some("ERR_GATEWAY_REFUSED"), "does not serve");
        check(&DialFailure::Broken(&unknown), false, Some("ERR_WRONG_IDENTITY"), "was dialled");
        check(&DialFailure::Broken(&broken), true, Some("ERR_GATEWAY_UPSTREAM"), "cannot connect");
        check(&DialFailure::Broken(&broken), false, Some("ERR_TLS_FAILED"), "InternalError");
        let refused = Some("ERR_CERTIFICATE_REFUSED");
        check(&DialFailure::Broken(&foreign), true, refused, "authority");
    }

    #[test]
    fn a_dial_that_fails_before_tls_has_the_code_of_who_was_dialled() {
        let refused = ConnError::Connect(std::io::Error::from_raw_os_error(111));
        check(&DialFailure::Broken(&refused), true, None, "refused");
        check(&DialFailure::TimedOut, false, None, "in time");
        let exhausted = ConnError::Socket(std::io::Error::from_raw_os_error(24));
        let code = Some("ERR_OUT_OF_DESCRIPTORS");
        check(&DialFailure::Broken(&exhausted), false, code, "the limit is");
        check(&DialFailure::Closed, false, Some("ERR_TLS_FAILED"), "handshake");
    }
}
