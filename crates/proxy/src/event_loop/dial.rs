//! Dialling: one address of a destination, the role a connection takes when it stands, and what
//! follows when it cannot be made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustls::{AlertDescription, Error as TlsError};
use tollway_http::{h1, h2};
use tollway_model::{ErrorCode, NetworkName, ServiceState};
use tollway_net::{Conn, ConnError, Key, Tls};
use tollway_routing::Failure;

use super::EventLoop;
use super::accept::proven_identity;
use super::pool::{Candidates, Pool};
use crate::bind::UNSENT_BYTES_LIMIT;
use crate::cause::Cause;
use crate::conn::{Connection, Dial, Http1Client, Http2Link, Opened, Purpose, Role};
use crate::exchange::describe;
use crate::exchange::{Destination, Upstream};
use crate::protocol::relay;
use crate::request_error::RequestError;

/// Connections to one service that may each have as many bytes under way as is set. Further ones
/// are for small requests over distance, and have this window together with many others.
const AMPLE: usize = 8;
const SHORT_WINDOW: u32 = 1024 * 1024;

/// How a dial failed.
#[derive(Debug)]
pub(super) enum DialFailure<'a> {
    /// The socket or TLS did.
    Broken(&'a ConnError),
    /// The peer closed in the handshake.
    Closed,
    /// It took longer than the connect timeout.
    TimedOut,
    /// Who answered cannot be trusted now.
    Untrusted(&'a str),
}

impl DialFailure<'_> {
    /// In words. What a gateway says in the handshake is of itself; what else fails there is of
    /// the workload behind it.
    fn cause(&self, by_gateway: bool) -> Cause {
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
            Self::Untrusted(reason) => Cause::coded(ErrorCode::CertificateExpired, *reason),
        }
    }

    /// Whether it may pass by itself: who is away may come back, and a gateway that has just
    /// begun may not know every service yet; who is somebody else stays so.
    fn may_pass(&self) -> bool {
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
            Self::Untrusted(_) => false,
        }
    }
}

impl EventLoop {
    /// Dials one of the destination's addresses, those that failed lately last.
    pub(super) fn dial_for(
        &mut self,
        destination: &Destination,
        purpose: Purpose,
        protocol: &'static [u8],
    ) -> Result<Key, RequestError> {
        let Some(service) = destination.service() else {
            return match self.cx.config.app {
                Some(app) => self
                    .dial_app(app.address, purpose)
                    .map_err(|cause| self.unreachable(destination, None, cause)),
                None => Err(RequestError::NoReadyEndpoint { service: self.cx.config.home.clone() }),
            };
        };
        let instance = match destination {
            Destination::Workload(workload) => Some(&workload.instance),
            _ => None,
        };
        let unready = || RequestError::unready(service, instance);
        let state = self.pool_in_use(destination)?.state.clone().ok_or_else(unready)?;
        let candidates = Candidates::of(&state);
        let trust_domain = candidates.trust_domain.clone().ok_or_else(unready)?;
        let address = self.next_address(destination, &candidates).ok_or_else(unready)?;
        let failed =
            |worker: &Self, cause: Cause| worker.unreachable(destination, Some(address), cause);
        let mesh = self.tls.as_mesh().ok_or_else(unready)?;
        let tls = match mesh.client(service, instance, &trust_domain, protocol) {
            Ok(tls) => tls,
            Err(error) => {
                return Err(failed(self, Cause::coded(ErrorCode::TlsFailed, error.to_string())));
            }
        };
        let io = match self.connect(address, Some(tls)) {
            Ok(io) => io,
            Err(cause) => {
                let until = self.cx.now + self.cx.config.timeouts.dial_backoff;
                // Without descriptors no other address can be dialled either.
                if cause.code.is_none() {
                    self.rest(destination, Some(address), until);
                }
                return Err(self.unreachable(destination, Some(address), cause));
            }
        };
        let pooled = matches!(purpose, Purpose::PoolH2(_) | Purpose::PoolH1(_));
        let dial = Dial::to(address, purpose);
        let mut conn = Connection::new(io, Role::Dialling(dial), self.cx.now);
        conn.remote = Some(address);
        let Some(key) = self.conns.insert(&self.cx, conn) else {
            return Err(failed(self, Cause::out_of_descriptors()));
        };
        if pooled {
            self.pool(destination).dialling.push(key);
        }
        self.cx.metrics.dials.add(1);
        Ok(key)
    }

    fn next_address(
        &mut self,
        destination: &Destination,
        candidates: &Candidates,
    ) -> Option<SocketAddr> {
        let now = self.cx.now;
        let pool = self.pools.get(destination)?;
        let missing = match candidates.remote_replicas {
            Some(_) => self.unused_gateways(pool, candidates),
            None => self.missing_endpoints(pool, candidates),
        };
        let pool = self.pool(destination);
        pool.turn = pool.turn.wrapping_add(1);
        let turn = pool.turn;
        let rested =
            |address: &&SocketAddr| pool.backoff.get(*address).is_none_or(|until| *until <= now);
        let pick = |addresses: &[SocketAddr]| {
            let usable: Vec<_> = addresses.iter().filter(rested).copied().collect();
            let from = if usable.is_empty() { addresses } else { &usable };
            (!from.is_empty()).then(|| from[turn % from.len()])
        };
        pick(&missing).or_else(|| pick(&candidates.addresses))
    }

    /// Dials the app, as it speaks.
    pub(super) fn dial_app(&mut self, address: SocketAddr, purpose: Purpose) -> Result<Key, Cause> {
        self.cx.metrics.app_dials.add(1);
        let Some(tls) = &self.cx.config.app_tls else { return self.dial_plain(address, purpose) };
        let tls = tls.client(address, &purpose);
        let tls = tls.map_err(|error| Cause::coded(ErrorCode::TlsFailed, error.to_string()))?;
        let io = self.connect(address, Some(tls))?;
        let mut dial = Dial::to(address, purpose);
        dial.is_app = true;
        let conn = Connection::new(io, Role::Dialling(dial), self.cx.now);
        self.conns.insert(&self.cx, conn).ok_or_else(Cause::out_of_descriptors)
    }

    /// Dials without TLS.
    pub(super) fn dial_plain(
        &mut self,
        address: SocketAddr,
        purpose: Purpose,
    ) -> Result<Key, Cause> {
        let io = self.connect(address, None)?;
        let dial = Dial::to(address, purpose);
        let conn = Connection::new(io, Role::Dialling(dial), self.cx.now);
        self.conns.insert(&self.cx, conn).ok_or_else(Cause::out_of_descriptors)
    }

    /// Starts to connect. The kernel may refuse at once: no port, no descriptor or no route is
    /// there. For a descriptor somebody may give way.
    fn connect(&mut self, address: SocketAddr, tls: Option<Tls>) -> Result<Conn, Cause> {
        let dial = || Conn::connect(address, None).map_err(|error| Cause::from(&error));
        let mut dialled = dial();
        if let Err(Cause { code: Some(code @ ErrorCode::OutOfDescriptors), .. }) = dialled
            && self.make_room(code)
        {
            dialled = dial();
        }
        let mut io = dialled.inspect_err(|_| self.cx.metrics.dials_failed.add(1))?;
        // The kernel knows this option of every TCP socket.
        let _ = io.limit_unsent(UNSENT_BYTES_LIMIT);
        if let Some(tls) = tls {
            io.start_tls(tls);
        }
        Ok(io)
    }

    /// A dial stands: the connection takes its role.
    pub(super) fn on_dialled(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let is_app = matches!(&conn.role, Role::Dialling(dial) if dial.is_app);
        if let Some(peer) = conn.io.peer().filter(|_| !is_app) {
            match proven_identity(&peer) {
                Ok(identity) => conn.peer = Some(Arc::new(identity)),
                Err(error) => {
                    self.on_dial_failed(key, &DialFailure::Untrusted(&error));
                    return false;
                }
            }
        }
        let Role::Dialling(dial) = &conn.role else { return false };
        let (purpose, address) = (dial.purpose.clone(), dial.address);
        let opened = dial.opened(conn.since, self.cx.now);
        conn.since = self.cx.now;
        match purpose {
            Purpose::PoolH2(destination) => self.join_pool_h2(key, destination, address, opened),
            Purpose::PoolH1(destination) => {
                let opened = destination.is_of_mesh().then_some(opened);
                let client = Http1Client { opened, ..h1_client(destination.clone(), false) };
                conn.role = Role::Http1Client(Box::new(client));
                self.conns.schedule(&self.cx, key);
                self.join_pool(key, &destination, address).idle.push(key);
                self.serve_waiting(&destination);
            }
            Purpose::Upgrade(exchange) => self.start_upgrade(key, exchange, opened),
            Purpose::Relay(down) => relay::on_dialled(&mut self.cx, &mut self.conns, key, down),
        }
        true
    }

    fn join_pool_h2(
        &mut self,
        key: Key,
        destination: Destination,
        address: Option<SocketAddr>,
        opened: Opened,
    ) {
        let mut config = self.cx.config.limits.h2.clone();
        if self.pools.get(&destination).is_some_and(|pool| pool.conns.len() >= AMPLE) {
            config.connection_window = config.connection_window.min(SHORT_WINDOW);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        let codec = h2::Connection::client(config, conn.io.out());
        let mut link = Http2Link::new(codec, self.cx.now);
        link.destination = Some(destination.clone());
        link.address = address;
        link.opened = Some(opened);
        conn.role = Role::Http2Client(Box::new(link));
        self.conns.schedule(&self.cx, key);
        self.conns.mark_dirty(key);
        self.join_pool(key, &destination, address);
        self.serve_waiting(&destination);
        self.keep_dialled(&destination);
    }

    /// A dial is a connection of its pool from now on, and its address answers.
    fn join_pool(
        &mut self,
        key: Key,
        destination: &Destination,
        address: Option<SocketAddr>,
    ) -> &mut Pool {
        let pool = self.pool(destination);
        pool.dialling.retain(|dialling| *dialling != key);
        pool.conns.push(key);
        pool.outage = None;
        if let Some(address) = address {
            pool.backoff.remove(&address);
        }
        pool
    }

    fn start_upgrade(&mut self, key: Key, exchange: Key, opened: Opened) {
        let waits = self.exchanges.get(exchange).filter(|e| e.up == Upstream::Waiting);
        let Some(state) = waits else { return self.conns.close(&mut self.cx, key) };
        let destination = state.destination.clone();
        if let Some(conn) = self.conns.get_mut(key) {
            let client = Http1Client { opened: Some(opened), ..h1_client(destination, true) };
            conn.role = Role::Http1Client(Box::new(client));
        }
        self.send_request(exchange, key);
    }

    /// A dial failed: its address rests; who waits tries another or is told.
    pub(super) fn on_dial_failed(&mut self, key: Key, failure: &DialFailure<'_>) {
        let Some(mut conn) = self.conns.take(&self.cx, key) else { return };
        let unsent = std::mem::take(conn.io.out());
        let Role::Dialling(dial) = conn.role else { return };
        self.cx.metrics.dials_failed.add(1);
        let until = self.cx.now + self.cx.config.timeouts.dial_backoff;
        match dial.purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                let cause = failure.cause(self.is_behind_gateway(&destination));
                let reason = &cause.reason;
                tracing::debug!(?destination, address = ?dial.address, reason, "dial failed");
                self.pool(&destination).dialling.retain(|dialling| *dialling != key);
                self.rest(&destination, dial.address, until);
                if destination == Destination::App {
                    self.outside.app_unreachable();
                }
                self.note_failed_dial(&destination, dial.address, &cause);
                let may_wait = failure.may_pass().then_some(conn.since);
                self.after_failed_dial(&destination, dial.address, cause, may_wait);
            }
            Purpose::Upgrade(exchange) => {
                let Some(state) = self.exchanges.get_mut(exchange) else { return };
                state.attempts += 1;
                let destination = state.destination.clone();
                self.rest(&destination, dial.address, until);
                let cause = failure.cause(self.is_behind_gateway(&destination));
                self.on_attempt_failed(exchange, Failure::NotConnected, cause);
            }
            Purpose::Relay(down) => {
                if let Some(address) = dial.address {
                    self.rest_relay(down, address, until);
                }
                self.on_relay_dial_failed(down, unsent, &failure.cause(false));
            }
        }
    }

    /// Leaves an address alone for a while, unless it is the only one there can be: whoever calls
    /// one workload hears at once how it is.
    pub(super) fn rest(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        until: Instant,
    ) {
        if let Some(address) = address
            && !matches!(destination, Destination::Workload(_))
        {
            self.pool(destination).backoff.insert(address, until);
        }
    }

    /// The same for an address that was dialled for a relay.
    pub(super) fn rest_relay(&mut self, down: Key, address: SocketAddr, until: Instant) {
        let Some(conn) = self.conns.get(down) else { return };
        if let Some((target, _)) = conn.relays_to.clone() {
            self.rest_relayed(&target, address, until);
        } else if let Some(service) = conn.raw_target.clone() {
            self.rest(&Destination::Service(service), Some(address), until);
        }
    }

    /// Who waits gets another address; when none is left, waits on for one that may come back,
    /// as long as a dial may take; then is told. `may_wait` is when a dial began that failed for
    /// a reason that may pass.
    fn after_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        cause: Cause,
        may_wait: Option<Instant>,
    ) {
        let (now, patience) = (self.cx.now, self.cx.config.timeouts.connect);
        let pool = self.pool(destination);
        if !pool.dialling.is_empty() || pool.waiting.is_empty() {
            return;
        }
        let untried = match (&pool.state, destination) {
            (Some(state), Destination::Service(_)) => Candidates::of(state)
                .addresses
                .iter()
                .any(|address| pool.backoff.get(address).is_none_or(|until| *until <= now)),
            _ => false,
        };
        if untried {
            return self.keep_dialled(destination);
        }
        // A silent connection is better than none: it may go on.
        self.serve_waiting(destination);
        let pool = self.pool(destination);
        if pool.waiting.is_empty() {
            return;
        }
        if let (Some(began), Destination::Service(_)) = (may_wait, destination) {
            let since = *pool.outage.get_or_insert(began);
            if now.saturating_duration_since(since) < patience {
                return;
            }
        }
        let error = self.unreachable(destination, address, cause);
        self.fail_waiting(destination, &error);
    }

    /// Nobody could be connected to: names who is in the way.
    pub(super) fn unreachable(
        &self,
        destination: &Destination,
        address: Option<SocketAddr>,
        cause: Cause,
    ) -> RequestError {
        let Cause { code, reason } = cause;
        if let (Destination::App, Some(app), None) = (destination, self.cx.config.app, code) {
            if self.tls.is_front() {
                let (code, peer) =
                    (ErrorCode::AppUnreachable, format!("the app at {}", app.address));
                return RequestError::Unreachable { code, peer, reason };
            }
            let service = self.cx.config.home.clone();
            return RequestError::AppUnreachable { service, address: app.address, reason };
        }
        let at = address.map_or(String::new(), |address| format!(" at {address}"));
        let Some(network) = self.network_beyond(destination) else {
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
        RequestError::Unreachable {
            code: code.unwrap_or(ErrorCode::GatewayUnreachable),
            peer,
            reason,
        }
    }

    fn is_behind_gateway(&self, destination: &Destination) -> bool {
        self.network_beyond(destination).is_some()
    }

    /// The network of a service that is reached through gateways.
    fn network_beyond(&self, destination: &Destination) -> Option<&NetworkName> {
        match self.pools.get(destination)?.state.as_ref()? {
            ServiceState::Remote { remote, .. } => Some(&remote.network),
            ServiceState::Local { .. } | ServiceState::Unavailable(_) => None,
        }
    }
}

/// The role of a fresh HTTP/1.1 upstream connection; `dedicated` keeps it out of the pool.
pub(super) fn h1_client(destination: Destination, dedicated: bool) -> Http1Client {
    Http1Client {
        destination,
        scanner: h1::HeadScanner::new(),
        input: Vec::new(),
        exchange: None,
        body: None,
        keep_alive: true,
        sink: h1::BodyLength::None,
        served: 0,
        dedicated,
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
    fn what_a_gateway_says_in_the_handshake_is_its_own() {
        let alert = |alert| ConnError::Tls(TlsError::AlertReceived(alert));
        let unknown = alert(AlertDescription::UnrecognisedName);
        let broken = alert(AlertDescription::InternalError);
        let stranger = alert(AlertDescription::UnknownCA);
        check(&DialFailure::Broken(&unknown), true, Some("ERR_GATEWAY_REFUSED"), "does not serve");
        check(&DialFailure::Broken(&unknown), false, Some("ERR_WRONG_IDENTITY"), "was dialled");
        check(&DialFailure::Broken(&broken), true, Some("ERR_GATEWAY_UPSTREAM"), "cannot connect");
        check(&DialFailure::Broken(&broken), false, Some("ERR_TLS_FAILED"), "InternalError");
        let refused = Some("ERR_CERTIFICATE_REFUSED");
        check(&DialFailure::Broken(&stranger), true, refused, "authority");
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
