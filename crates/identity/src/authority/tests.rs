use super::*;
use crate::peer::peer_identity;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_leaf_carries_its_workloads_names_and_no_others() {
    let issued = west().issue(&request("Stock.Shop.West", HOUR), now()).unwrap();
    let peer = peer_identity(&issued.chain).unwrap();
    assert_eq!(peer.spiffe.to_string(), "spiffe://west.tollway/ns/shop/stock");
    assert_eq!(peer.dns_names, ["stock.shop.west.mesh", "i-1.stock.shop.west.mesh"]);
    assert_eq!(peer.instance, Some(label("i-1")));
    assert_eq!(peer.service.to_string(), "stock.shop.west");
    assert_eq!(issued.spiffe_id, peer.spiffe);
    assert_eq!((issued.not_before, issued.not_after), (peer.not_before, peer.not_after));
}

#[test]
fn names_that_a_request_asks_for_are_ignored() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["admin.shop.west.mesh".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let csr_der = params.serialize_request(&key).unwrap().der().to_vec();
    let request = IssueRequest { csr_der, ..request("stock", HOUR) };
    let issued = west().issue(&request, now()).unwrap();
    let (_, leaf) = X509Certificate::from_der(&issued.chain[0]).unwrap();
    assert!(!leaf.is_ca());
    let names = peer_identity(&issued.chain).unwrap().dns_names;
    assert!(names.iter().all(|name| name.contains("stock.")), "{names:?}");
}

#[test]
fn a_leaf_starts_a_little_early_and_ends_on_time() {
    let at = |ttl| {
        let issued = west().issue(&request("stock", ttl), now()).unwrap();
        let early = now().duration_since(issued.not_before).unwrap();
        (early.as_secs(), issued.not_after.duration_since(now()).unwrap().as_secs())
    };
    assert_eq!(at(HOUR), (60, 3600));
    assert_eq!(at(Duration::from_secs(20)), (5, 20));
}

#[test]
fn the_issuers_clock_is_derived_from_a_certificate() {
    for ttl in [SHORTEST_TTL, Duration::from_secs(200), HOUR] {
        let issued = west().issue(&request("stock", ttl), now()).unwrap();
        let reported = issued_at(issued.not_before, issued.not_after);
        let off = reported.duration_since(now()).unwrap_or_else(|early| early.duration());
        assert!(off <= Duration::from_secs(1), "{ttl:?}: {off:?}");
    }
}

#[test]
fn a_leaf_never_outlives_the_root() {
    let authority = west();
    let day = Duration::from_secs(86_400);
    let late = authority.root_not_after() - Duration::from_secs(600);
    let issued = authority.issue(&request("stock", day), late).unwrap();
    assert_eq!(issued.not_after, authority.root_not_after());
    let after = authority.root_not_after() + Duration::from_secs(1);
    assert!(matches!(authority.issue(&request("stock", day), after), Err(IssueError::RootEnded)));
}

#[test]
fn serial_numbers_of_one_key_differ() {
    let authority = west();
    let request = request("stock", HOUR);
    let serial = || {
        let issued = authority.issue(&request, now()).unwrap();
        let (_, leaf) = X509Certificate::from_der(&issued.chain[0]).unwrap();
        leaf.raw_serial().to_vec()
    };
    let (first, second) = (serial(), serial());
    assert_ne!(first, second);
    assert_eq!(first.len(), 16);
}

#[test]
fn names_that_are_not_the_authoritys_own_are_refused() {
    let refuse = |name: &str| west().issue(&request(name, HOUR), now()).unwrap_err();
    assert!(matches!(refuse("stock.shop.east"), IssueError::ForeignNetwork { .. }));
    assert!(matches!(refuse("control.tollway.west"), IssueError::ReservedNamespace));
    assert!(matches!(refuse("gateway.Tollway.west"), IssueError::ReservedNamespace));
}

#[test]
fn names_that_dns_cannot_carry_are_refused() {
    let refuse = |name: &str| west().issue(&request(name, HOUR), now()).unwrap_err();
    assert!(matches!(refuse("-stock"), IssueError::Name { .. }));
    let long = format!("{}.{}.west", "a".repeat(63), "b".repeat(63));
    let request = IssueRequest { instance: label(&"i".repeat(63)), ..request(&long, HOUR) };
    assert!(west().issue(&request, now()).is_ok());
    let network = label(&"w".repeat(63));
    let trust_domain = TrustDomain::default_for(&network);
    let authority = Authority::create(&trust_domain, &network, now()).unwrap();
    let service = ServiceName { network, ..request.service.clone() };
    let request = IssueRequest { service, ..request };
    assert!(matches!(authority.issue(&request, now()), Err(IssueError::Name { .. })));
}

#[test]
fn a_life_out_of_bounds_is_refused() {
    for ttl in [Duration::ZERO, SHORTEST_TTL / 2, LONGEST_TTL + HOUR, Duration::MAX] {
        let refused = west().issue(&request("stock", ttl), now());
        assert!(matches!(refused, Err(IssueError::Ttl { .. })), "{ttl:?}");
    }
}

#[test]
fn requests_that_prove_nothing_are_refused() {
    let refuse = |csr_der: Vec<u8>| {
        let request = IssueRequest { csr_der, ..request("stock", HOUR) };
        west().issue(&request, now()).unwrap_err()
    };
    assert!(matches!(refuse(Vec::new()), IssueError::Request(_)));
    assert!(matches!(refuse(vec![0; 5000]), IssueError::RequestTooLarge { bytes: 5000, .. }));
    let mut forged = KeyPair::generate().unwrap().csr_der().unwrap();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(matches!(refuse(forged), IssueError::Request(_)));
    let rsa = &rcgen::PKCS_RSA_SHA256;
    let large = rcgen::KeyPair::generate_rsa_for(rsa, rcgen::RsaKeySize::_2048).unwrap();
    let csr = CertificateParams::default().serialize_request(&large).unwrap();
    assert!(matches!(refuse(csr.der().to_vec()), IssueError::KeyType));
}

#[test]
fn an_authority_survives_its_text_form() {
    let authority = west();
    let again = read(&authority.to_pem(), "west").unwrap();
    assert_eq!(again.root_der(), authority.root_der());
    assert_eq!(again.root_not_after(), authority.root_not_after());
    let issued = again.issue(&request("stock", HOUR), now()).unwrap();
    let anchor = webpki::anchor_from_trusted_cert(authority.root_der()).unwrap();
    let leaf = webpki::EndEntityCert::try_from(&issued.chain[0]).unwrap();
    leaf.verify_for_usage(
        crate::tls::provider().signature_verification_algorithms.all,
        &[anchor],
        &[],
        rustls::pki_types::UnixTime::since_unix_epoch(now().duration_since(UNIX_EPOCH).unwrap()),
        webpki::KeyUsage::server_auth(),
        None,
        None,
    )
    .unwrap();
}

#[test]
fn an_authority_of_another_network_or_with_another_key_is_refused() {
    let (ours, theirs) = (west().to_pem(), west().to_pem());
    assert!(matches!(read(&ours, "east"), Err(AuthorityError::Foreign { .. })));
    let mixed = AuthorityPem { key: theirs.key, ..ours.clone() };
    assert!(matches!(read(&mixed, "west"), Err(AuthorityError::KeyMismatch)));
    let no_text = AuthorityPem { certificate: String::new(), ..ours };
    assert!(matches!(read(&no_text, "west"), Err(AuthorityError::Pem(_))));
}

#[test]
fn debug_hides_the_authoritys_key() {
    let authority = west();
    let pem = authority.to_pem();
    let secret = pem.key.lines().nth(1).unwrap();
    assert!(!format!("{pem:?}{authority:?}").contains(secret));
}

fn read(pem: &AuthorityPem, network: &str) -> Result<Authority, AuthorityError> {
    let network = label(network);
    Authority::from_pem(&TrustDomain::default_for(&network), &network, pem)
}

fn west() -> Authority {
    let network = label("west");
    Authority::create(&TrustDomain::default_for(&network), &network, now()).unwrap()
}

fn request(name: &str, ttl: Duration) -> IssueRequest {
    IssueRequest {
        csr_der: KeyPair::generate().unwrap().csr_der().unwrap(),
        service: ServiceName::parse_in(name, &label("default"), &label("west")).unwrap(),
        instance: label("i-1"),
        ttl,
    }
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}
