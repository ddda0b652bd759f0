//! Sessions are resumed, and never longer than the trust they were made under.

use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, HandshakeKind, ServerConfig};

use super::world::{H2, HOUR, World, shake};
use crate::credentials::Credentials;
use crate::peer::peer_identity;
use crate::tls::{Expected, client_config, server_config};

#[test]
fn a_second_connection_resumes_and_still_knows_its_peer() {
    let line = Line::new(24 * HOUR);
    assert_eq!(line.connect(), HandshakeKind::Full);
    assert_eq!(line.connect(), HandshakeKind::Resumed);
    let outcome = shake(&line.client, &line.server, line.expected.server_name().unwrap());
    assert_eq!(outcome.kind(), HandshakeKind::Resumed);
    let caller = outcome.server_connection.peer_certificates().unwrap();
    assert_eq!(peer_identity(caller).unwrap().spiffe, *line.orders.spiffe_id());
}

#[test]
fn a_new_revision_of_trust_ends_old_sessions_at_either_end() {
    let mut line = Line::new(24 * HOUR);
    line.connect();
    line.server = server_config(&line.trusting_anew(&line.stock), H2).unwrap();
    assert_eq!(line.connect(), HandshakeKind::Full);
    assert_eq!(line.connect(), HandshakeKind::Resumed);
    line.client = client_config(&line.trusting_anew(&line.orders), &line.expected, H2).unwrap();
    assert_eq!(line.connect(), HandshakeKind::Full);
}

#[test]
fn a_session_lives_an_hour_at_most() {
    let line = Line::new(24 * HOUR);
    line.connect();
    line.world.clock.advance(HOUR - Duration::from_secs(1));
    assert_eq!(line.connect(), HandshakeKind::Resumed);
    line.world.clock.advance(HOUR);
    assert_eq!(line.connect(), HandshakeKind::Full);
}

#[test]
fn a_server_refuses_its_old_tickets_whatever_the_client_keeps() {
    let mut line = Line::new(24 * HOUR);
    let other_clock = World::new();
    // This dialler's clock does not advance, so it offers tickets for ever.
    let orders = line.orders.clone().with_clock(other_clock.clock);
    line.client = client_config(&orders, &line.expected, H2).unwrap();
    line.connect();
    line.world.clock.advance(Duration::from_secs(600));
    assert_eq!(line.connect(), HandshakeKind::Resumed);
    line.world.clock.advance(2 * HOUR);
    assert_eq!(line.connect(), HandshakeKind::Full);
}

#[test]
fn a_session_ends_with_the_callees_certificate() {
    let line = Line::new(Duration::from_secs(600));
    line.connect();
    line.world.clock.advance(Duration::from_secs(599));
    assert_eq!(line.connect(), HandshakeKind::Resumed);
    line.world.clock.advance(Duration::from_secs(2));
    let outcome = shake(&line.client, &line.server, line.expected.server_name().unwrap());
    assert!(outcome.client.is_err(), "an expired certificate was accepted");
}

/// One dialler and one callee with their configurations.
struct Line {
    world: World,
    orders: Credentials,
    stock: Credentials,
    expected: Expected,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Line {
    /// The callee's certificate lives `ttl`, the dialler's a week.
    fn new(ttl: Duration) -> Self {
        let world = World::new();
        let orders = world.workload_for("orders", 7 * 24 * HOUR);
        let stock = world.workload_for("stock.shop.east", ttl);
        let expected = world.expected("stock.shop.east");
        let client = client_config(&orders, &expected, H2).unwrap();
        let server = server_config(&stock, H2).unwrap();
        Self { world, orders, stock, expected, client, server }
    }

    fn connect(&self) -> HandshakeKind {
        let name = self.expected.server_name().unwrap();
        shake(&self.client, &self.server, name).established().kind()
    }

    fn trusting_anew(&self, credentials: &Credentials) -> Credentials {
        credentials.with_bundles(self.world.bundles(2)).unwrap()
    }
}
