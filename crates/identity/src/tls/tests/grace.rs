//! Certificates that have ended: a control plane takes them for as long as its grace lasts.

use std::time::Duration;

use rustls::{AlertDescription, Error};

use super::world::{H2, HOUR, Outcome, World, label, shake};
use crate::credentials::Credentials;
use crate::peer::peer_identity;
use crate::tls::{Expected, client_config, control_server_config, server_config};

const GRACE: Duration = Duration::from_secs(72 * 3600);

fn dial_control(world: &World, from: &Credentials, grace: Duration) -> Outcome {
    // A control plane has renewed its own before it accepts.
    let control = world.control(&world.west);
    let expected = Expected::control(&label("west"), world.west.trust_domain());
    let client = client_config(from, &expected, H2).unwrap();
    let server = control_server_config(&control, H2, grace).unwrap();
    shake(&client, &server, expected.server_name().unwrap())
}

#[track_caller]
fn check_expired(outcome: &Outcome) {
    assert!(outcome.server.is_err());
    let expired = Error::AlertReceived(AlertDescription::CertificateExpired);
    assert_eq!(outcome.client, Err(expired));
}

/// The harm: after a control plane was away for longer than certificates last, no certificate can be
/// renewed.
#[test]
fn an_ended_certificate_reaches_its_control_plane_within_the_grace_and_no_longer() {
    let world = World::new();
    let orders = world.workload("orders");
    world.clock.advance(HOUR + GRACE);
    check_expired(&dial_control(&world, &orders, Duration::ZERO));
    let outcome = dial_control(&world, &orders, GRACE).established();
    let shown = outcome.server_connection.peer_certificates().unwrap();
    let identity = peer_identity(shown).unwrap();
    assert_eq!(identity.spiffe, *orders.spiffe_id());
    let now = world.clock.now();
    assert!(!identity.valid_at(now) && identity.ended_within(GRACE, now));
    assert!(!identity.ended_within(GRACE - Duration::from_secs(1), now));
    world.clock.advance(Duration::from_secs(1));
    check_expired(&dial_control(&world, &orders, GRACE));
}

#[test]
fn the_grace_is_for_the_own_trust_domain_and_for_signatures_of_its_root() {
    let world = World::new();
    let (foreign, stranger) = (world.workload("orders.shop.east"), World::new());
    let forged = stranger.workload("orders");
    world.clock.advance(2 * HOUR);
    stranger.clock.advance(2 * HOUR);
    check_expired(&dial_control(&world, &foreign, GRACE));
    // Another root of the same name: the forger holds a key and no signature of ours.
    let forged = forged.with_bundles(world.bundles(1)).unwrap();
    assert!(dial_control(&world, &forged, GRACE).server.is_err());
}

/// The harm: a stolen certificate that has ended opens a workload.
#[test]
fn an_ended_certificate_is_refused_by_workloads() {
    let world = World::new();
    let orders = world.workload("orders");
    world.clock.advance(2 * HOUR);
    let expected = world.expected("stock");
    let client = client_config(&orders, &expected, H2).unwrap();
    let server = server_config(&world.workload("stock"), H2).unwrap();
    check_expired(&shake(&client, &server, expected.server_name().unwrap()));
}
