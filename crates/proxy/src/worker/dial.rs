//! Dialling: one address of a destination, the role a connection takes when it stands, and what
//! follows when it cannot be made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustls::{AlertDescription, Error as TlsError};
use tollway_http::{h1, h2};
use tollway_net::{Conn, ConnError, Key};
use tollway_routing::Failure;

use super::Worker;
use super::accept::proven_identity;
use super::exchange::describe;
use super::pool::Candidates;
use crate::connection::{Connection, Dial, H1Client, H2Link, Purpose, Role};
use crate::exchange::{Destination, Upstream};
use crate::fault::Fault;
use crate::tls::explain;

/// How a dial failed.
#[derive(Debug)]
pub(super) enum DialFailure<'a> {
    /// The socket or TLS did.
    Broken(&'a ConnError),
    /// The peer closed in the handshake.
    Closed,
    /// It took longer than the connect timeout.
    Late,
    /// Who answered cannot be trusted now.
    Untrusted(&'a str),
}

impl DialFailure<'_> {
    fn reason(&self) -> String {
        match self {
            Self::Broken(error) => explain(error),
            Self::Closed => "the peer closed the connection in the TLS handshake".to_owned(),
            Self::Late => "it did not answer in time".to_owned(),
            Self::Untrusted(reason) => (*reason).to_owned(),
        }
    }

    /// Whether it may pass by itself: who is away may come back, and a gateway that has just
    /// begun may not know every service yet; who is somebody else stays so.
    fn may_pass(&self) -> bool {
        match self {
            Self::Broken(ConnError::Tls(error)) => {
                *error == TlsError::AlertReceived(AlertDescription::UnrecognisedName)
            }
            Self::Broken(ConnError::Connect(_) | ConnError::Socket(_))
            | Self::Closed
            | Self::Late => true,
            Self::Untrusted(_) => false,
        }
    }
}

impl Worker {
    /// Dials one of the destination's addresses, those that failed lately last.
    pub(super) fn dial_for(
        &mut self,
        destination: &Destination,
        purpose: Purpose,
        protocol: &'static [u8],
    ) -> Result<Key, Fault> {
        let Destination::Service(service) = destination else {
            return match self.config.app {
                Some(app) => self
                    .dial_plain(app.address, purpose)
                    .map_err(|reason| self.unreachable(destination, None, &reason)),
                None => Err(Fault::NoReadyEndpoint { service: self.config.home.clone() }),
            };
        };
        let unready = || Fault::NoReadyEndpoint { service: service.clone() };
        let state = self.service_state(service)?.ok_or_else(unready)?;
        let candidates = Candidates::of(&state);
        let trust_domain = candidates.trust_domain.clone().ok_or_else(unready)?;
        let address = self.next_address(destination, &candidates).ok_or_else(unready)?;
        let peer = || format!("service {service} at {address}");
        let tls = self
            .tls
            .client(service, &trust_domain, protocol)
            .map_err(|error| Fault::Unreachable { peer: peer(), reason: error.to_string() })?;
        let io = Conn::connect(address, Some(tls))
            .map_err(|error| Fault::Unreachable { peer: peer(), reason: error.to_string() })?;
        let pooled = matches!(purpose, Purpose::PoolH2(_) | Purpose::PoolH1(_));
        let dial = Dial { address: Some(address), purpose };
        let mut conn = Connection::new(io, Role::Dialling(dial), self.now);
        conn.remote = Some(address);
        let key = self.insert(conn).ok_or_else(|| Fault::Unreachable {
            peer: peer(),
            reason: "no descriptors are left".to_owned(),
        })?;
        if pooled {
            self.pool(destination).dialling.push(key);
        }
        self.metrics.dials.add(1);
        Ok(key)
    }

    fn next_address(
        &mut self,
        destination: &Destination,
        candidates: &Candidates,
    ) -> Option<SocketAddr> {
        let now = self.now;
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

    /// A dial stands: the connection takes its role.
    pub(super) fn on_dialled(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        if let Some(peer) = conn.io.peer() {
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
        conn.since = self.now;
        match purpose {
            Purpose::PoolH2(destination) => self.join_pool_h2(key, destination, address),
            Purpose::PoolH1(destination) => {
                let client = h1_client(destination.clone(), false);
                conn.role = Role::H1Client(Box::new(client));
                let pool = self.pool(&destination);
                pool.dialling.retain(|dialling| *dialling != key);
                pool.conns.push(key);
                pool.idle.push(key);
                self.look_in_time(key);
                self.serve_waiting(&destination);
            }
            Purpose::Upgrade(exchange) => self.start_upgrade(key, exchange),
            Purpose::Relay(down) => self.on_relay_dialled(key, down),
        }
        true
    }

    fn join_pool_h2(&mut self, key: Key, destination: Destination, address: Option<SocketAddr>) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let codec = h2::Connection::client(self.config.limits.h2.clone(), conn.io.out());
        let mut link = H2Link::new(codec);
        link.destination = Some(destination.clone());
        link.address = address;
        conn.role = Role::H2Client(Box::new(link));
        self.look_in_time(key);
        self.mark_dirty(key);
        let pool = self.pool(&destination);
        pool.dialling.retain(|dialling| *dialling != key);
        pool.conns.push(key);
        pool.outage = None;
        if let Some(address) = address {
            pool.backoff.remove(&address);
        }
        self.serve_waiting(&destination);
        self.keep_dialled(&destination);
    }

    fn start_upgrade(&mut self, key: Key, exchange: Key) {
        let waits = self.exchanges.get(exchange).filter(|e| e.up == Upstream::Waiting);
        let Some(state) = waits else { return self.remove(key) };
        let destination = state.destination.clone();
        if let Some(conn) = self.conns.get_mut(key) {
            conn.role = Role::H1Client(Box::new(h1_client(destination, true)));
        }
        self.send_request(exchange, key);
    }

    /// A dial failed: its address rests; who waits tries another or is told.
    pub(super) fn on_dial_failed(&mut self, key: Key, failure: &DialFailure<'_>) {
        let Some(mut conn) = self.conns.remove(key) else { return };
        let unsent = std::mem::take(conn.io.out());
        let Role::Dialling(dial) = conn.role else { return };
        self.metrics.connections.set(self.conns.len() as u64);
        self.metrics.dials_failed.add(1);
        let reason = failure.reason();
        let until = self.now + self.config.timeouts.dial_backoff;
        match dial.purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                tracing::debug!(?destination, address = ?dial.address, reason, "dial failed");
                self.pool(&destination).dialling.retain(|dialling| *dialling != key);
                self.rest(&destination, dial.address, until);
                if destination == Destination::App {
                    self.outside.app_unreachable();
                }
                let may_wait = failure.may_pass().then_some(conn.since);
                self.after_failed_dial(&destination, dial.address, &reason, may_wait);
            }
            Purpose::Upgrade(exchange) => {
                let Some(state) = self.exchanges.get_mut(exchange) else { return };
                state.attempts += 1;
                let destination = state.destination.clone();
                self.rest(&destination, dial.address, until);
                self.on_attempt_failed(exchange, Failure::NotConnected, &reason);
            }
            Purpose::Relay(down) => {
                self.rest_relayed(down, dial.address, until);
                self.on_relay_dial_failed(down, unsent, &reason);
            }
        }
    }

    /// Leaves an address alone for a while.
    fn rest(&mut self, destination: &Destination, address: Option<SocketAddr>, until: Instant) {
        if let Some(address) = address {
            self.pool(destination).backoff.insert(address, until);
        }
    }

    fn rest_relayed(&mut self, down: Key, address: Option<SocketAddr>, until: Instant) {
        let Some(conn) = self.conns.get(down) else { return };
        let routed = conn.relays_to.as_ref().map(|(service, _)| service);
        let Some(service) = routed.or(conn.raw_target.as_ref()).cloned() else { return };
        self.rest(&Destination::Service(service), address, until);
    }

    /// Who waits gets another address; when none is left, waits on for one that may come back,
    /// as long as a dial may take; then is told. `may_wait` is when a dial began that failed for
    /// a reason that may pass.
    fn after_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        reason: &str,
        may_wait: Option<Instant>,
    ) {
        let (now, patience) = (self.now, self.config.timeouts.connect);
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
        if let (Some(began), Destination::Service(_)) = (may_wait, destination) {
            let since = *pool.outage.get_or_insert(began);
            if now.saturating_duration_since(since) < patience {
                return;
            }
        }
        let fault = self.unreachable(destination, address, reason);
        self.fail_waiting(destination, &fault);
    }

    /// Nobody could be connected to.
    pub(super) fn unreachable(
        &self,
        destination: &Destination,
        address: Option<SocketAddr>,
        reason: &str,
    ) -> Fault {
        let reason = reason.to_owned();
        if let (Destination::App, Some(app)) = (destination, self.config.app) {
            let service = self.config.home.clone();
            return Fault::AppUnreachable { service, address: app.address, reason };
        }
        let peer = match address {
            Some(address) => format!("{} at {address}", describe(destination)),
            None => describe(destination),
        };
        Fault::Unreachable { peer, reason }
    }
}

/// The role of a fresh HTTP/1.1 upstream connection; `dedicated` keeps it out of the pool.
pub(super) fn h1_client(destination: Destination, dedicated: bool) -> H1Client {
    H1Client {
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
    }
}
