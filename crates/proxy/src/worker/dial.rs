//! Dialling: one address of a destination, the role a connection takes when it stands, and what
//! follows when it cannot be made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::{h1, h2};
use tollway_net::{Conn, Key};
use tollway_routing::Failure;

use super::Worker;
use super::accept::proven_identity;
use super::pool::Candidates;
use crate::connection::{Connection, Dial, H1Client, H2Link, Purpose, Role};
use crate::exchange::{Destination, Upstream};
use crate::fault::Fault;

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
                    .map_err(|reason| Fault::Unreachable { peer: app_peer(app.address), reason }),
                None => Err(Fault::NoReadyEndpoint { service: self.config.home.clone() }),
            };
        };
        let unready = || Fault::NoReadyEndpoint { service: service.clone() };
        let state = self.service_state(service).ok_or_else(unready)?;
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
        let missing = match candidates.remote_replicas {
            Some(_) => Vec::new(),
            None => {
                let pool = self.pools.get(destination)?;
                self.missing_endpoints(pool, candidates)
            }
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
                    self.on_dial_failed(key, &error);
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
        self.mark_dirty(key);
        let pool = self.pool(&destination);
        pool.dialling.retain(|dialling| *dialling != key);
        pool.conns.push(key);
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
    pub(super) fn on_dial_failed(&mut self, key: Key, reason: &str) {
        let Some(conn) = self.conns.remove(key) else { return };
        let Role::Dialling(dial) = conn.role else { return };
        self.metrics.dials_failed.add(1);
        let until = self.now + self.config.timeouts.dial_backoff;
        match dial.purpose {
            Purpose::PoolH2(destination) | Purpose::PoolH1(destination) => {
                tracing::debug!(?destination, address = ?dial.address, reason, "dial failed");
                let pool = self.pool(&destination);
                pool.dialling.retain(|dialling| *dialling != key);
                if let Some(address) = dial.address {
                    pool.backoff.insert(address, until);
                }
                self.after_failed_dial(&destination, dial.address, reason);
            }
            Purpose::Upgrade(exchange) => {
                if let Some(state) = self.exchanges.get_mut(exchange) {
                    state.attempts += 1;
                    self.on_attempt_failed(exchange, Failure::NotConnected, reason);
                }
            }
            Purpose::Relay(down) => {
                self.rest_relayed(down, until);
                self.on_relay_dial_failed(down, reason);
            }
        }
    }

    /// A gateway leaves an endpoint alone for a while that it could not dial.
    fn rest_relayed(&mut self, down: Key, until: Instant) {
        let Some(conn) = self.conns.get(down) else { return };
        let Some((service, address)) = conn.relays_to.clone() else { return };
        self.pool(&Destination::Service(service)).backoff.insert(address, until);
    }

    fn after_failed_dial(
        &mut self,
        destination: &Destination,
        address: Option<SocketAddr>,
        reason: &str,
    ) {
        let now = self.now;
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
        let peer = match address {
            Some(address) => format!("{} at {address}", super::exchange::describe(destination)),
            None => super::exchange::describe(destination),
        };
        let fault = Fault::Unreachable { peer, reason: reason.to_owned() };
        self.fail_waiting(destination, &fault);
    }
}

/// The app in words.
pub(super) fn app_peer(address: SocketAddr) -> String {
    format!("the app at {address}")
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
