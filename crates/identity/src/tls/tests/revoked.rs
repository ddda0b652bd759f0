//! Peers whose identity was taken back: their certificates are good, and they are refused.

use rustls::{AlertDescription, CertificateError, Error, HandshakeKind};
use tollway_model::{ErrorCode, Revocation};

use super::world::{H2, World, bundle, label, shake};
use crate::bundle::{Distrust, TrustBundle, TrustBundles};
use crate::credentials::Credentials;
use crate::peer::peer_identity;
use crate::revocations::Revocations;
use crate::tls::{client_config, code_of, control_server_config, explain, server_config};

/// The same credentials once `app` of `network`, or its instance, is revoked.
fn without(
    world: &World,
    of: &Credentials,
    network: &str,
    (app, instance): (&str, Option<&str>),
) -> Credentials {
    let revocation =
        Revocation { namespace: label("default"), app: label(app), instance: instance.map(label) };
    let bundles = [&world.west, &world.east].map(|authority| {
        let revoked = (*authority.network() == label(network)).then(|| revocation.clone());
        bundle(authority).with_revoked(Revocations::new(revoked))
    });
    of.with_bundles(TrustBundles::new(2, bundles).unwrap()).unwrap()
}

/// A handshake of orders with stock, from each other's view.
fn dial(world: &World, caller: &Credentials, callee: &Credentials) -> super::world::Outcome {
    let expected = world.expected("stock");
    let client = client_config(caller, &expected, H2).unwrap();
    let server = server_config(callee, H2).unwrap();
    shake(&client, &server, expected.server_name().unwrap())
}

#[test]
fn a_stolen_key_opens_no_connection_once_its_identity_is_revoked() {
    let world = World::new();
    let (thief, stock) = (world.workload("orders"), world.workload("stock"));
    dial(&world, &thief, &stock).established();
    for revoked in [("orders", None), ("Orders", Some("I-1"))] {
        let outcome = dial(&world, &thief, &without(&world, &stock, "west", revoked));
        let refused = Error::InvalidCertificate(CertificateError::Revoked);
        assert_eq!(outcome.server, Err(refused), "{revoked:?}");
        let refused = outcome.client.unwrap_err();
        assert_eq!(refused, Error::AlertReceived(AlertDescription::CertificateRevoked));
        assert_eq!(code_of(&refused), ErrorCode::IdentityRevoked);
        assert!(explain(&refused).contains("this side's identity was revoked"));
    }
    let others =
        [("west", "orders", Some("i-2")), ("west", "order", None), ("east", "orders", None)];
    for (network, app, instance) in others {
        let callee = without(&world, &stock, network, (app, instance));
        dial(&world, &thief, &callee).established();
    }
}

#[test]
fn a_stolen_key_serves_no_caller_once_its_identity_is_revoked() {
    let world = World::new();
    let (orders, thief) = (world.workload("orders"), world.workload("stock"));
    let caller = without(&world, &orders, "west", ("stock", Some("i-1")));
    let outcome = dial(&world, &caller, &thief);
    let error = outcome.client.unwrap_err();
    assert_eq!(error, Error::InvalidCertificate(CertificateError::Revoked));
    assert_eq!(code_of(&error).word(), "ERR_IDENTITY_REVOKED");
    assert!(explain(&error).contains("the peer's identity was revoked"));
}

#[test]
fn a_control_plane_takes_no_revoked_certificate_either() {
    let world = World::new();
    let control = world.control(&world.west);
    let control = without(&world, &control, "west", ("orders", None));
    let expected = crate::tls::Expected::control(&label("west"), world.west.trust_domain());
    let client = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let server = control_server_config(&control, H2, std::time::Duration::ZERO).unwrap();
    let outcome = shake(&client, &server, expected.server_name().unwrap());
    assert_eq!(outcome.server, Err(Error::InvalidCertificate(CertificateError::Revoked)));
}

#[test]
fn a_session_ticket_does_not_outlive_a_revocation() {
    let world = World::new();
    let (thief, stock) = (world.workload("orders"), world.workload("stock"));
    let expected = world.expected("stock");
    let client = client_config(&thief, &expected, H2).unwrap();
    let server = server_config(&stock, H2).unwrap();
    let name = || expected.server_name().unwrap();
    shake(&client, &server, name()).established();
    assert_eq!(shake(&client, &server, name()).established().kind(), HandshakeKind::Resumed);
    let revoked = without(&world, &stock, "west", ("orders", None));
    let server = server_config(&revoked, H2).unwrap();
    assert!(shake(&client, &server, name()).server.is_err());
}

#[test]
fn peers_of_open_connections_are_judged_by_the_present_trust() {
    let world = World::new();
    let stock = world.workload("stock");
    let peer = peer_identity(world.workload("orders").chain()).unwrap();
    assert_eq!(stock.bundles().judge(&peer), Ok(()));
    let revoked = without(&world, &stock, "west", ("orders", Some("i-1")));
    assert_eq!(revoked.bundles().judge(&peer), Err(Distrust::Revoked));
    let alone = TrustBundles::new(3, [bundle(&world.east)]).unwrap();
    assert_eq!(alone.judge(&peer), Err(Distrust::Network));
}

#[test]
fn peers_of_open_connections_are_judged_by_the_roots_that_are_left() {
    let world = World::new();
    let orders = world.workload("orders");
    let peer = peer_identity(orders.chain()).unwrap();
    let (first, second) = (bundle(&world.west), bundle(&World::new().west));
    let of = |revision, roots: &[&TrustBundle]| {
        let roots = roots.iter().flat_map(|of| of.roots()).cloned().collect();
        let (network, domain) = (first.network().clone(), first.trust_domain().clone());
        let bundle = TrustBundle::new(network, domain, roots).unwrap();
        TrustBundles::new(revision, [bundle]).unwrap()
    };
    let [both, old, new] = [of(1, &[&first, &second]), of(2, &[&first]), of(3, &[&second])];
    let now = peer.not_after - std::time::Duration::from_secs(60);
    for (bundles, judged) in [(&both, Ok(())), (&old, Ok(())), (&new, Err(Distrust::Root))] {
        assert_eq!(bundles.judge_chain(&peer, orders.chain(), now), judged);
    }
    assert_eq!(both.judge_chain(&peer, &[], now), Err(Distrust::Root));
    let domains = |present: &TrustBundles, former| present.without_roots_of(former).len();
    assert_eq!((domains(&new, &both), domains(&both, &new), domains(&old, &old)), (1, 0, 0));
}
