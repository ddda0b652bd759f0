//! The listeners of the mesh: who may come in, by which name, with which protocol.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, PeerIncompatible,
    ProtocolVersion, ServerConfig, version,
};

use super::world::{
    H2, HOUR, Outcome, TestClock, World, authority, bundle_of, label, service, shake,
};
use crate::authority::control_dns_san;
use crate::bundle::TrustBundles;
use crate::credentials::{Credentials, CredentialsError};
use crate::key::KeyPair;
use crate::peer::{PeerError, peer_identity};
use crate::pin::RootPin;
use crate::tls::tests::forged::{Forge, trusting_client};
use crate::tls::{
    Expected, KeyExchange, Refusal, TlsError, UNRECOGNIZED_NAME_RECORD, bootstrap_config_at,
    client_config, control_server_config, explain, provider, server_config,
};

#[test]
fn joined_networks_shake_hands_and_know_each_other() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock.shop.east"));
    let outcome = dial(&orders, &stock, &world.expected("stock.shop.east")).established();
    let (client, server) = (&outcome.client_connection, &outcome.server_connection);
    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(
        client.negotiated_cipher_suite().unwrap().suite(),
        rustls::CipherSuite::TLS13_AES_128_GCM_SHA256
    );
    assert_eq!(server.alpn_protocol(), Some(&b"h2"[..]));
    let caller = peer_identity(server.peer_certificates().unwrap()).unwrap();
    assert_eq!(caller.spiffe.to_string(), "spiffe://west.tollway/ns/default/orders");
    let callee = peer_identity(client.peer_certificates().unwrap()).unwrap();
    assert_eq!(callee.service, service("stock.shop.east"));
    assert_eq!(callee.instance, Some(label("i-1")));
    assert!(callee.valid_at(world.clock.now()));
    assert!(!callee.valid_at(world.clock.now() + 2 * HOUR));
}

#[test]
fn one_replica_is_dialled_by_its_own_name() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let domain = world.west.trust_domain();
    let this = Expected::instance(&service("stock"), &label("i-1"), domain);
    dial(&orders, &stock, &this).established();
    let other = Expected::instance(&service("stock"), &label("i-2"), domain);
    let outcome = dial(&orders, &stock, &other);
    assert_eq!(outcome.client, Err(Error::AlertReceived(AlertDescription::AccessDenied)));
}

#[test]
fn a_dialler_refuses_the_wrong_service_behind_the_right_name() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let mut expected = world.expected("payments");
    expected.dns_san = service("stock").dns_san();
    let outcome = dial(&orders, &stock, &expected);
    let refusal = Refusal::from_error(outcome.client.as_ref().unwrap_err());
    assert!(matches!(refusal, Some(Refusal::WrongIdentity { .. })), "{refusal:?}");
    assert_eq!(outcome.server, Err(Error::AlertReceived(AlertDescription::CertificateUnknown)));
}

#[test]
fn a_callee_refuses_a_name_that_is_not_its_own() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let outcome = dial(&orders, &stock, &world.expected("payments"));
    assert!(outcome.server.is_err());
    let error = outcome.client.unwrap_err();
    assert_eq!(error, Error::AlertReceived(AlertDescription::AccessDenied));
    assert!(explain(&error).contains("does not have the name that was dialled"));
}

#[test]
fn a_callee_refuses_callers_without_a_server_name() {
    let world = World::new();
    let stock = world.workload("stock");
    let mut config = ClientConfig::clone(&trusting_client(&world, None));
    config.enable_sni = false;
    let name = ServerName::try_from("stock.default.west.mesh").unwrap();
    let outcome = shake(&Arc::new(config), &server_config(&stock, H2).unwrap(), name);
    assert_eq!(outcome.client, Err(Error::AlertReceived(AlertDescription::AccessDenied)));
    assert!(!stock.answers_to(None));
    assert!(stock.answers_to(Some("Stock.default.west.mesh")));
    assert!(stock.answers_to(Some("i-1.stock.default.west.mesh")));
    assert!(!stock.answers_to(Some("stock.default.east.mesh")));
}

#[test]
fn the_precise_alert_for_a_wrong_name_is_understood() {
    let world = World::new();
    let expected = world.expected("stock");
    let config = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let mut client = ClientConnection::new(config, expected.server_name().unwrap()).unwrap();
    client.read_tls(&mut &UNRECOGNIZED_NAME_RECORD[..]).unwrap();
    let error = client.process_new_packets().unwrap_err();
    assert_eq!(error, Error::AlertReceived(AlertDescription::UnrecognisedName));
}

#[test]
fn a_caller_without_a_certificate_is_refused() {
    let world = World::new();
    let server = server_config(&world.workload("stock"), H2).unwrap();
    let name = world.expected("stock").server_name().unwrap();
    let outcome = shake(&trusting_client(&world, None), &server, name);
    assert_eq!(outcome.server, Err(Error::NoCertificatesPresented));
    let error = outcome.client.unwrap_err();
    assert_eq!(error, Error::AlertReceived(AlertDescription::CertificateRequired));
    assert!(explain(&error).contains("demands a certificate"));
}

#[test]
fn protocols_must_match() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let expected = world.expected("stock");
    let client = client_config(&orders, &expected, &[b"http/1.1"]).unwrap();
    let server = server_config(&stock, H2).unwrap();
    let outcome = shake(&client, &server, expected.server_name().unwrap());
    assert_eq!(outcome.server, Err(Error::NoApplicationProtocol));
    assert_eq!(outcome.client, Err(Error::AlertReceived(AlertDescription::NoApplicationProtocol)));
}

#[test]
fn tls_1_2_is_refused_both_ways() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let expected = world.expected("stock");
    let name = expected.server_name().unwrap();
    let old_provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let old_client = ClientConfig::builder_with_provider(Arc::clone(&old_provider))
        .with_protocol_versions(&[&version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server = server_config(&stock, H2).unwrap();
    let outcome = shake(&Arc::new(old_client), &server, name.clone());
    assert_eq!(
        outcome.server,
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
    );
    let old_server = ServerConfig::builder_with_provider(old_provider)
        .with_protocol_versions(&[&version::TLS12])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(Arc::clone(
            stock.certified(),
        ))));
    let client = client_config(&orders, &expected, H2).unwrap();
    let outcome = shake(&client, &Arc::new(old_server), name);
    assert_eq!(outcome.client, Err(Error::AlertReceived(AlertDescription::ProtocolVersion)));
}

#[test]
fn an_unknown_network_is_refused_before_dialling_and_at_the_listener() {
    let world = World::new();
    let alone = TrustBundles::new(2, [super::world::bundle(&world.west)]).unwrap();
    let stock = world.workload("stock").with_bundles(alone.clone()).unwrap();
    let caller = world.workload("orders.shop.east");
    let outcome = dial(&caller, &stock, &world.expected("stock"));
    let refusal = Refusal::from_error(outcome.server.as_ref().unwrap_err());
    assert!(matches!(refusal, Some(Refusal::UnknownTrustDomain { .. })), "{refusal:?}");
    let refused = client_config(&stock, &world.expected("stock.shop.east"), H2);
    assert!(matches!(refused, Err(TlsError::UnknownTrustDomain { .. })));
    let refused = world.workload("orders.shop.east").with_bundles(alone);
    assert!(matches!(refused, Err(CredentialsError::NoOwnBundle { .. })));
}

#[test]
fn roots_rotate_without_a_refused_call() {
    let world = World::new();
    let new_west = authority("west", &world.clock);
    let (old, new) = (world.west.root_der().clone(), new_west.root_der().clone());
    let stage =
        |revision, roots| TrustBundles::new(revision, [bundle_of(&world.west, roots)]).unwrap();
    let stages =
        [stage(1, vec![old.clone()]), stage(2, vec![old, new.clone()]), stage(3, vec![new])];
    let old_stock = world.workload("stock");
    let rotated = World { clock: Arc::clone(&world.clock), west: new_west, east: world.east };
    let new_stock = rotated.workload("stock");
    let expected = rotated.expected("stock");
    let call = |from: &Credentials, to: &Credentials, revision: usize| {
        let from = from.with_bundles(stages[revision - 1].clone()).unwrap();
        let to = to.with_bundles(stages[revision - 1].clone()).unwrap();
        let outcome = dial(&from, &to, &expected);
        (outcome.client.is_ok(), outcome.server.is_ok())
    };
    assert_eq!(call(&old_stock, &old_stock, 1), (true, true));
    for (from, to) in [
        (&old_stock, &old_stock),
        (&old_stock, &new_stock),
        (&new_stock, &old_stock),
        (&new_stock, &new_stock),
    ] {
        assert_eq!(call(from, to, 2), (true, true));
    }
    assert_eq!(call(&new_stock, &new_stock, 3), (true, true));
    assert!(!call(&new_stock, &old_stock, 3).0);
    assert!(!call(&old_stock, &new_stock, 3).1);
}

#[test]
fn a_join_token_is_all_a_first_contact_needs() {
    let world = World::new();
    let control = world.control(&world.west);
    let outcome = first_contact(&world, &world.west, &control).established();
    let seen = outcome.server_connection.peer_certificates().unwrap_or_default();
    assert_eq!(peer_identity(seen), Err(PeerError::NoCertificate));
    let outcome = dial_control(&world.workload("orders"), &control, &world).established();
    let seen = outcome.server_connection.peer_certificates().unwrap();
    assert_eq!(peer_identity(seen).unwrap().service, service("orders"));
}

#[test]
fn a_first_contact_refuses_everybody_but_the_control_plane_of_its_network() {
    let world = World::new();
    let refusal = |authority, server: &Credentials| {
        let outcome = first_contact(&world, authority, server);
        explain(&outcome.client.unwrap_err())
    };
    let other_root = authority("west", &world.clock);
    let text = refusal(&other_root, &world.control(&world.west));
    assert!(text.contains("names another root"), "{text}");
    let text = refusal(&world.west, &world.control(&world.east));
    assert!(text.contains("does not have the name"), "{text}");

    let mut forge = Forge::workload("stock");
    forge.dns = vec!["stock.default.west.mesh".into(), "i-1.stock.default.west.mesh".into()];
    let mut chain = forge.sign(&world, &world.west);
    chain.0.push(world.west.root_der().clone());
    let outcome = shake(&bootstrap(&world, &world.west), &forge.server(chain), control_name());
    let text = explain(&outcome.client.unwrap_err());
    assert!(text.contains("ns/default/stock"), "{text}");

    let mut forge = Forge::control();
    forge.not_after_s = -10;
    let mut chain = forge.sign(&world, &world.west);
    chain.0.push(world.west.root_der().clone());
    let outcome = shake(&bootstrap(&world, &world.west), &forge.server(chain), control_name());
    let text = explain(&outcome.client.unwrap_err());
    assert!(text.contains("expired"), "{text}");
}

#[test]
fn a_pinned_root_that_did_not_sign_is_refused() {
    let world = World::new();
    let impostor = authority("west", &world.clock);
    let forge = Forge::control();
    let mut chain = forge.sign(&world, &impostor);
    chain.0.push(world.west.root_der().clone());
    let outcome = shake(&bootstrap(&world, &world.west), &forge.server(chain), control_name());
    assert!(matches!(outcome.client, Err(Error::InvalidCertificate(_))), "{:?}", outcome.client);
}

#[test]
fn a_key_that_is_not_the_certificates_is_refused() {
    let world = World::new();
    let chain = world.workload("stock").chain().to_vec();
    let key = KeyPair::generate().unwrap();
    let refused = Credentials::new(&key, chain, world.bundles(1));
    assert!(matches!(refused, Err(CredentialsError::KeyMismatch { .. })));
}

#[test]
fn every_handshake_without_a_session_is_a_full_one() {
    let world = World::new();
    let (orders, stock) = (world.workload("orders"), world.workload("stock"));
    let expected = world.expected("stock");
    for _ in 0..2 {
        let outcome = dial(&orders, &stock, &expected).established();
        assert_eq!(outcome.kind(), HandshakeKind::Full);
    }
}

fn dial(from: &Credentials, to: &Credentials, expected: &Expected) -> Outcome {
    let client = client_config(from, expected, H2).unwrap();
    let server = server_config(to, H2).unwrap();
    shake(&client, &server, expected.server_name().unwrap())
}

fn dial_control(from: &Credentials, to: &Credentials, world: &World) -> Outcome {
    let expected = Expected::control(&label("west"), world.west.trust_domain());
    let client = client_config(from, &expected, H2).unwrap();
    let server = control_server_config(to, H2, Duration::ZERO).unwrap();
    shake(&client, &server, expected.server_name().unwrap())
}

fn first_contact(
    world: &World,
    pinned: &crate::authority::Authority,
    server: &Credentials,
) -> Outcome {
    let server = control_server_config(server, H2, Duration::ZERO).unwrap();
    shake(&bootstrap(world, pinned), &server, control_name())
}

fn bootstrap(world: &World, pinned: &crate::authority::Authority) -> Arc<ClientConfig> {
    let pin = RootPin::of(&label("west"), pinned.root_der());
    let clock: Arc<TestClock> = Arc::clone(&world.clock);
    bootstrap_config_at(&pin, H2, KeyExchange::Hybrid, clock).unwrap()
}

fn control_name() -> ServerName<'static> {
    ServerName::try_from(control_dns_san(&label("west"))).unwrap()
}

#[test]
fn no_suite_but_tls_1_3_is_offered() {
    assert!(provider().cipher_suites.iter().all(|suite| suite.tls13().is_some()));
}
