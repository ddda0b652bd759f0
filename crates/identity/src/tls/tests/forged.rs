//! Certificates as an attacker or a broken authority would make them, shown at both ends.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, ServerConfig, version};

use super::world::{H2, HOUR, World, authority, label, service, shake};
use crate::authority::Authority;
use crate::bundle::{TrustBundle, TrustBundles};
use crate::credentials::Credentials;
use crate::peer::{CERTIFICATE_BYTES_LIMIT, CHAIN_LIMIT, NAMES_LIMIT, PeerError, peer_identity};
use crate::tls::{AnyCertificate, Expected, client_config, explain, provider, server_config};

/// Shows what `forge` makes to a dialler and to a listener, and compares the reasons.
#[track_caller]
fn check(forge: &Forge, reason: &str) {
    let world = World::new();
    check_chain(&world, forge, forge.sign(&world, &world.west), reason, reason);
}

#[track_caller]
fn check_chain(world: &World, forge: &Forge, chain: Chain, to_dialler: &str, to_listener: &str) {
    let expected = world.expected("stock");
    let name = expected.server_name().unwrap();
    let dialler = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let outcome = shake(&dialler, &forge.server(chain.clone()), name.clone());
    assert_reason("dialler", outcome.client, to_dialler);
    let listener = server_config(&world.workload("stock"), H2).unwrap();
    let outcome = shake(&trusting_client(world, Some(forge.certified(chain))), &listener, name);
    assert_reason("listener", outcome.server, to_listener);
    assert!(outcome.client.is_err(), "the refused caller was not told");
}

#[track_caller]
fn assert_reason(end: &str, result: Result<(), Error>, reason: &str) {
    let text = explain(&result.expect_err(&format!("the {end} accepted it: {reason}")));
    assert!(text.contains(reason), "the {end} said: {text}\nexpected: {reason}");
}

#[test]
fn an_honest_certificate_made_this_way_is_accepted() {
    let world = World::new();
    let forge = Forge::workload("stock");
    let chain = forge.sign(&world, &world.west);
    let expected = world.expected("stock");
    let name = expected.server_name().unwrap();
    let dialler = client_config(&world.workload("orders"), &expected, H2).unwrap();
    shake(&dialler, &forge.server(chain.clone()), name.clone()).established();
    let listener = server_config(&world.workload("stock"), H2).unwrap();
    shake(&trusting_client(&world, Some(forge.certified(chain))), &listener, name).established();
}

#[test]
fn a_certificate_out_of_its_time_is_refused() {
    check(&Forge { not_after_s: -1, ..Forge::workload("stock") }, "certificate expired 1 s ago");
    let early = Forge { not_before_s: 60, ..Forge::workload("stock") };
    check(&early, "not valid for another");
}

#[test]
fn a_certificate_without_exactly_one_identity_is_refused() {
    let uri = "spiffe://west.tollway/ns/default/stock".to_owned();
    let two = Forge { uris: vec![uri.clone(), uri], ..Forge::workload("stock") };
    check(&two, "carries 2 URIs");
    let other = "spiffe://east.tollway/ns/default/stock";
    let mut mixed = Forge::workload("stock");
    mixed.uris.push(other.to_owned());
    check(&mixed, "carries 2 URIs");
    let dns_only = Forge { uris: Vec::new(), ..Forge::workload("stock") };
    check(&dns_only, "no SPIFFE identity");
    let common_name_only = Forge { uris: Vec::new(), dns: Vec::new(), ..Forge::workload("stock") };
    check(&common_name_only, "no SPIFFE identity");
}

#[test]
fn an_identity_that_is_not_written_exactly_is_refused() {
    for uri in [
        "spiffe://west.tollway/ns/default/../default/stock",
        "spiffe://west.tollway/ns/../stock",
        "spiffe://west.tollway/ns/%2e%2e/stock",
        "spiffe://west.tollway/ns/default/stock/",
        "spiffe://west.tollway//ns/default/stock",
        "spiffe://West.Tollway/ns/default/stock",
        "spiffe://xn--wst-bma.tollway@west.tollway/ns/default/stock",
        "spiffe://west.tollway:443/ns/default/stock",
        "spiffe://west.tollway/ns/default/stock?x=1",
        "SPIFFE://west.tollway/ns/default/stock",
        "https://west.tollway/ns/default/stock",
    ] {
        let forge = Forge { uris: vec![uri.to_owned()], ..Forge::workload("stock") };
        check(&forge, "is not an identity");
    }
}

#[test]
fn a_certificate_without_the_name_of_its_service_is_refused() {
    let dns = vec!["i-1.stock.default.west.mesh".to_owned()];
    let instance_only = Forge { dns, ..Forge::workload("stock") };
    check(&instance_only, "does not carry its service's DNS name");
}

/// The harm: another key passes for the one that an instance was enrolled with.
#[test]
fn a_key_is_known_by_its_hash() {
    let world = World::new();
    let forge = Forge::workload("stock");
    let identity = |forge: &Forge| peer_identity(&forge.sign(&world, &world.west).0).unwrap();
    let spki = rcgen::PublicKeyData::subject_public_key_info(&forge.key);
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &spki);
    assert_eq!(identity(&forge).key_hash, hash.as_ref());
    assert_ne!(identity(&Forge::workload("stock")).key_hash, hash.as_ref());
}

#[test]
fn dns_names_must_belong_to_the_identity() {
    for name in [
        "*.default.west.mesh",
        "*.mesh",
        "payments.default.west.mesh",
        "stock.shop.west.mesh",
        "a.b.stock.default.west.mesh",
        "i-1.payments.default.west.mesh",
        "i-1.stock.shop.west.mesh",
        "control.west.mesh",
        "stock.default.west.example",
    ] {
        let mut forge = Forge::workload("stock");
        forge.dns.push(name.to_owned());
        check(&forge, &format!("may not carry the name `{name}`"));
    }
    let forge = Forge { dns: Vec::new(), ..Forge::workload("stock") };
    check(&forge, "does not carry its service's DNS name");
    let mut forge = Forge::workload("stock");
    forge.dns.push("i-2.stock.default.west.mesh".to_owned());
    check(&forge, "more than one instance");
}

#[test]
fn a_trust_domain_cannot_take_another_networks_names() {
    let world = World::new();
    let mut forge = Forge::workload("stock");
    forge.dns = vec!["stock.default.east.mesh".into()];
    let chain = forge.sign(&world, &world.west);
    check_chain(
        &world,
        &forge,
        chain,
        "names of the network west only",
        "names of the network west only",
    );
}

#[test]
fn a_root_holds_its_own_authority_to_its_network() {
    let world = World::new();
    let west = &world.west;
    let roots = vec![west.root_der().clone()];
    // Trust that was set up wrongly: it takes the root of west for the authority of north.
    let bundle = TrustBundle::new(label("north"), west.trust_domain().clone(), roots).unwrap();
    let trusting = TrustBundles::new(2, [bundle]).unwrap();
    let forge = Forge { dns: vec!["stock.default.north.mesh".into()], ..Forge::workload("stock") };
    let dialler = world.workload("orders").with_bundles(trusting).unwrap();
    let expected = Expected {
        spiffe: world.expected("stock").spiffe,
        dns_san: "stock.default.north.mesh".into(),
    };
    let client = client_config(&dialler, &expected, H2).unwrap();
    let chain = forge.sign(&world, west);
    let outcome = shake(&client, &forge.server(chain), expected.server_name().unwrap());
    assert_reason("dialler", outcome.client, "NameConstraintViolation");
}

#[test]
fn a_foreign_authority_cannot_issue_our_names() {
    let world = World::new();
    let forge = Forge::workload("stock");
    let chain = forge.sign(&world, &world.east);
    check_chain(&world, &forge, chain, "another trust root", "another trust root");
    let twin = authority("west", &world.clock);
    let chain = forge.sign(&world, &twin);
    check_chain(&world, &forge, chain, "another trust root", "another trust root");
    let mut self_made = forge.sign(&world, &twin);
    self_made.0.push(twin.root_der().clone());
    check_chain(&world, &forge, self_made, "another trust root", "another trust root");
}

/// A server that shows its certificate whatever name is dialled.
fn careless(world: &World, credentials: &Credentials) -> Arc<ServerConfig> {
    let certified = SingleCertAndKey::from(Arc::clone(credentials.certified()));
    let mut config = ServerConfig::builder_with_details(provider(), world.clock.clone())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(certified));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[test]
fn the_valid_certificate_of_another_tenant_is_not_the_one_expected() {
    let world = World::new();
    let tenant = careless(&world, &world.workload("stock.shop.east"));
    let expected = world.expected("stock");
    let dialler = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let outcome = shake(&dialler, &tenant, expected.server_name().unwrap());
    assert_reason("dialler", outcome.client, "the peer is spiffe://east.tollway/ns/shop/stock");
}

#[test]
fn the_valid_certificate_of_another_replica_is_not_the_one_expected() {
    let world = World::new();
    let first = careless(&world, &world.workload("stock"));
    let expected = Expected::instance(&service("stock"), &label("i-2"), world.west.trust_domain());
    let dialler = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let outcome = shake(&dialler, &first, expected.server_name().unwrap());
    assert_reason("dialler", outcome.client, "i-2.stock.default.west.mesh");
}

#[test]
fn a_certificate_for_another_purpose_is_refused() {
    let world = World::new();
    let client_only =
        Forge { purposes: vec![ExtendedKeyUsagePurpose::ClientAuth], ..Forge::workload("stock") };
    let expected = world.expected("stock");
    let name = expected.server_name().unwrap();
    let dialler = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let chain = client_only.sign(&world, &world.west);
    let outcome = shake(&dialler, &client_only.server(chain), name.clone());
    assert_reason("dialler", outcome.client, "InvalidPurpose");
    let server_only =
        Forge { purposes: vec![ExtendedKeyUsagePurpose::ServerAuth], ..Forge::workload("stock") };
    let listener = server_config(&world.workload("stock"), H2).unwrap();
    let chain = server_only.sign(&world, &world.west);
    let caller = trusting_client(&world, Some(server_only.certified(chain)));
    let outcome = shake(&caller, &listener, name);
    assert_reason("listener", outcome.server, "InvalidPurpose");
    check(&Forge { purposes: Vec::new(), ..Forge::workload("stock") }, "does not say what");
}

#[test]
fn an_authoritys_own_certificate_is_no_workloads() {
    let forge =
        Forge { is_ca: IsCa::Ca(BasicConstraints::Unconstrained), ..Forge::workload("stock") };
    check(&forge, "CaUsedAsEndEntity");
}

#[test]
fn a_workload_cannot_issue_below_itself() {
    let world = World::new();
    let parent = Forge::workload("stock");
    let parent_chain = parent.sign(&world, &world.west);
    let issuer = Issuer::from_ca_cert_der(&parent_chain.0[0], copy_of(&parent.key)).unwrap();
    let child = Forge::workload("stock");
    let leaf = child.params(&world).signed_by(&child.key, &issuer).unwrap();
    let chain = Chain(vec![leaf.der().clone(), parent_chain.0[0].clone()]);
    check_chain(&world, &child, chain, "EndEntityUsedAsCa", "EndEntityUsedAsCa");
}

#[test]
fn deep_chains_and_loops_are_refused_cheaply() {
    let world = World::new();
    let forge = Forge::workload("stock");
    let (chain, _) = chain_of_authorities(&world, &forge, 30);
    check_chain(&world, &forge, chain, "showed 31 certificates", "showed 31 certificates");
    let (chain, _) = chain_of_authorities(&world, &forge, 3);
    check_chain(&world, &forge, chain, "another trust root", "another trust root");
    let chain = cross_signed_loop(&world, &forge);
    check_chain(&world, &forge, chain, "another trust root", "another trust root");
}

#[test]
fn swollen_certificates_are_refused_unread() {
    let names = |count: usize| (0..count).map(|i| format!("n{i}.stock.default.west.mesh"));
    let mut forge = Forge::workload("stock");
    forge.dns.extend(names(20));
    check(&forge, "has 23 names");
    let world = World::new();
    for (names, refused) in [(NAMES_LIMIT, None), (NAMES_LIMIT + 1, Some(NAMES_LIMIT + 1))] {
        // One is the identity.
        let dns = vec!["stock.default.west.mesh".to_owned(); names - 1];
        let chain = Forge { dns, ..Forge::workload("stock") }.sign(&world, &world.west);
        let refused = refused.map(|count| PeerError::TooManyNames { count });
        assert_eq!(peer_identity(&chain.0).err(), refused);
    }
    let mut forge = Forge::workload("stock");
    forge.dns.extend(names(1000));
    check(&forge, "at most 8192 are read");
}

#[test]
fn ten_thousand_names_do_not_fit_through_the_listener() {
    let world = World::new();
    let mut forge = Forge::workload("stock");
    forge.dns.extend((0..10_000).map(|i| format!("n{i}.stock.default.west.mesh")));
    let chain = forge.sign(&world, &world.west);
    let listener = server_config(&world.workload("stock"), H2).unwrap();
    let caller = trusting_client(&world, Some(forge.certified(chain)));
    let outcome = shake(&caller, &listener, world.expected("stock").server_name().unwrap());
    assert_reason("listener", outcome.server, "HandshakePayloadTooLarge");
}

#[test]
fn what_is_shown_is_counted_and_measured_before_it_is_read() {
    let junk = |bytes: usize| CertificateDer::from(vec![0x30; bytes]);
    for (certificates, bytes, refusal) in [
        (CHAIN_LIMIT, CERTIFICATE_BYTES_LIMIT, PeerError::Malformed),
        (CHAIN_LIMIT + 1, 2, PeerError::ChainTooLong { count: 5 }),
        (1, CERTIFICATE_BYTES_LIMIT + 1, PeerError::TooLarge { bytes: 8193 }),
    ] {
        assert_eq!(peer_identity(&vec![junk(bytes); certificates]).unwrap_err(), refusal);
    }
    let mut chain = World::new().workload("stock").chain()[0].to_vec();
    chain.push(0);
    assert_eq!(peer_identity(&[chain.into()]).unwrap_err(), PeerError::Malformed);
}

#[test]
fn a_certificate_counts_in_its_time_and_renews_itself_within_the_grace_alone() {
    let chain = World::new().workload("stock").chain().to_vec();
    let peer = peer_identity(&chain).unwrap();
    let (second, grace) = (Duration::from_secs(1), HOUR);
    for (at, is_valid) in [
        (peer.not_before - second, false),
        (peer.not_before, true),
        (peer.not_after, true),
        (peer.not_after + second, false),
    ] {
        assert_eq!(peer.valid_at(at), is_valid);
    }
    for (at, grace, may_renew) in [
        (peer.not_after - second, grace, false),
        (peer.not_after, grace, false),
        (peer.not_after + second, grace, true),
        (peer.not_after + grace, grace, true),
        (peer.not_after + grace + second, grace, false),
        (peer.not_after + second, Duration::ZERO, false),
    ] {
        assert_eq!(peer.ended_within(grace, at), may_renew, "{at:?} of {peer:?}");
    }
}

proptest! {
    #[test]
    fn damaged_certificates_never_panic(at in 0_usize..4096, byte: u8, cut in 0_usize..4096) {
        thread_local! {
            static HONEST: Vec<u8> = World::new().workload("stock").chain()[0].to_vec();
        }
        let mut der = HONEST.with(Clone::clone);
        let length = der.len();
        der[at % length] = byte;
        let _ = peer_identity(&[CertificateDer::from(der.clone())]);
        der.truncate(cut % length);
        prop_assert!(peer_identity(&[CertificateDer::from(der)]).is_err());
    }
}

/// Leaf first.
#[derive(Clone)]
pub(super) struct Chain(pub(super) Vec<CertificateDer<'static>>);

/// The content of a forged certificate.
pub(super) struct Forge {
    pub(super) uris: Vec<String>,
    pub(super) dns: Vec<String>,
    /// Relative to now, in seconds.
    pub(super) not_before_s: i64,
    pub(super) not_after_s: i64,
    purposes: Vec<ExtendedKeyUsagePurpose>,
    is_ca: IsCa,
    key: rcgen::KeyPair,
}

impl Forge {
    /// An honest certificate of `<app>.default.west`, to be spoilt.
    pub(super) fn workload(app: &str) -> Self {
        Self {
            uris: vec![format!("spiffe://west.tollway/ns/default/{app}")],
            dns: vec![format!("{app}.default.west.mesh"), format!("i-1.{app}.default.west.mesh")],
            not_before_s: -60,
            not_after_s: 3600,
            purposes: vec![
                ExtendedKeyUsagePurpose::ClientAuth,
                ExtendedKeyUsagePurpose::ServerAuth,
            ],
            is_ca: IsCa::ExplicitNoCa,
            key: rcgen::KeyPair::generate().unwrap(),
        }
    }

    /// An honest certificate of the control plane of west, to be spoilt.
    pub(super) fn control() -> Self {
        Self {
            uris: vec!["spiffe://west.tollway/ns/tollway/control".into()],
            dns: vec!["control.west.mesh".into(), "control.tollway.west.mesh".into()],
            ..Self::workload("stock")
        }
    }

    pub(super) fn sign(&self, world: &World, authority: &Authority) -> Chain {
        let leaf = self.params(world).signed_by(&self.key, &issuer_of(authority)).unwrap();
        Chain(vec![leaf.der().clone()])
    }

    fn params(&self, world: &World) -> CertificateParams {
        let ia5 = |text: &String| Ia5String::try_from(text.as_str()).unwrap();
        let mut params = CertificateParams::default();
        params.not_before = shifted(world, self.not_before_s).into();
        params.not_after = shifted(world, self.not_after_s).into();
        params
            .distinguished_name
            .push(DnType::CommonName, "spiffe://west.tollway/ns/default/stock");
        params.subject_alt_names = self.uris.iter().map(|uri| SanType::URI(ia5(uri))).collect();
        let dns = self.dns.iter().map(|name| SanType::DnsName(ia5(name)));
        params.subject_alt_names.extend(dns);
        params.extended_key_usages = self.purposes.clone();
        params.is_ca = self.is_ca;
        params
    }

    pub(super) fn certified(&self, chain: Chain) -> CertifiedKey {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        CertifiedKey::new(chain.0, provider().key_provider.load_private_key(key).unwrap())
    }

    /// A server that shows the chain to everybody.
    pub(super) fn server(&self, chain: Chain) -> Arc<ServerConfig> {
        let shown = SingleCertAndKey::from(self.certified(chain));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown));
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

fn shifted(world: &World, seconds: i64) -> SystemTime {
    let by = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { world.clock.now() - by } else { world.clock.now() + by }
}

fn copy_of(key: &rcgen::KeyPair) -> rcgen::KeyPair {
    rcgen::KeyPair::from_pem(&key.serialize_pem()).unwrap()
}

fn issuer_of(authority: &Authority) -> Issuer<'static, rcgen::KeyPair> {
    let pem = authority.to_pem();
    let key = rcgen::KeyPair::from_pem(&pem.key).unwrap();
    Issuer::from_ca_cert_der(authority.root_der(), key).unwrap()
}

/// The leaf of `forge` below `depth` intermediate authorities of an unknown root.
fn chain_of_authorities(
    world: &World,
    forge: &Forge,
    depth: usize,
) -> (Chain, CertificateDer<'static>) {
    let authority_params = |level: usize| {
        let mut params = CertificateParams::default();
        params.not_before = (world.clock.now() - HOUR).into();
        params.not_after = (world.clock.now() + HOUR).into();
        params.distinguished_name.push(DnType::CommonName, format!("level {level}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let root_key = rcgen::KeyPair::generate().unwrap();
    let root = authority_params(0).self_signed(&root_key).unwrap();
    let mut issuer = Issuer::new(authority_params(0), root_key);
    let mut above = Vec::new();
    for level in 1..=depth {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = authority_params(level);
        above.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
        issuer = Issuer::new(params, key);
    }
    let leaf = forge.params(world).signed_by(&forge.key, &issuer).unwrap();
    let mut chain = vec![leaf.der().clone()];
    chain.append(&mut above);
    (Chain(chain), root.der().clone())
}

/// Three authorities of one name that certify each other in a ring.
fn cross_signed_loop(world: &World, forge: &Forge) -> Chain {
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.not_before = (world.clock.now() - HOUR).into();
        params.not_after = (world.clock.now() + HOUR).into();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let (a, b) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    let issuer_a = Issuer::new(params("a"), copy_of(&a));
    let issuer_b = Issuer::new(params("b"), copy_of(&b));
    let leaf = forge.params(world).signed_by(&forge.key, &issuer_a).unwrap();
    let a_by_b = params("a").signed_by(&a, &issuer_b).unwrap();
    let b_by_a = params("b").signed_by(&b, &issuer_a).unwrap();
    Chain(vec![leaf.der().clone(), a_by_b.der().clone(), b_by_a.der().clone()])
}

/// A caller that believes every server and shows `certified`, or nothing.
pub(super) fn trusting_client(world: &World, certified: Option<CertifiedKey>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_details(provider(), world.clock.clone())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(AnyCertificate::new(&provider()));
    let mut config = match certified {
        Some(certified) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}
