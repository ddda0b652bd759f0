//! Pairs, the choice among them, and clients' certificates, with certificates made here.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SanType, SignatureAlgorithm,
};
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;

use super::choice::ByServerName;
use super::*;

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).unwrap()
}

fn own_signed(params: &CertificateParams, kind: &'static SignatureAlgorithm) -> (String, String) {
    let key = KeyPair::generate_for(kind).unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn pair(names: &[&str], kind: &'static SignatureAlgorithm) -> FrontPair {
    let (certificate, key) = own_signed(&params(names), kind);
    FrontPair::from_pem(certificate.as_bytes(), key.as_bytes(), SystemTime::now()).unwrap()
}

#[track_caller]
fn check_refused(certificate: &str, key: &str, of_key: bool, part: &str) {
    let now = SystemTime::now();
    let error = FrontPair::from_pem(certificate.as_bytes(), key.as_bytes(), now).unwrap_err();
    assert!(error.to_string().contains(part), "{error}");
    assert_eq!(error.is_of_key(), of_key, "{error}");
}

#[test]
fn what_cannot_be_served_is_refused_with_what_is_wrong() {
    let (certificate, key) = own_signed(&params(&["a.example"]), &PKCS_ECDSA_P256_SHA256);
    let (other, other_key) = own_signed(&params(&["b.example"]), &PKCS_ECDSA_P256_SHA256);
    check_refused("", &key, false, "no certificate in it");
    check_refused(&key, &key, false, "no certificate in it");
    check_refused(&certificate, "", true, "no private key in it");
    check_refused(&certificate, &certificate, true, "no private key in it");
    check_refused(&certificate, &other_key, true, "not that of the certificate");
    check_refused(&format!("{certificate}{other}"), &other_key, false, "number 2");
    let cut = certificate.replace("-----END CERTIFICATE-----", "");
    check_refused(&cut, &key, false, "not valid PEM");
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check_refused(empty, &key, false, "damaged");
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    check_refused(&certificate, &encrypted, true, "pass phrase");
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    check_refused(&certificate, nonsense, true, "cannot be used");
}

#[test]
fn a_certificate_out_of_its_time_is_refused() {
    let mut late = params(&["a.example"]);
    late.not_after = (SystemTime::now() - Duration::from_secs(7260)).into();
    let (certificate, key) = own_signed(&late, &PKCS_ECDSA_P256_SHA256);
    check_refused(&certificate, &key, false, "has expired 2 h 1 min ago; renew it");
    let mut early = params(&["a.example"]);
    early.not_before = (SystemTime::now() + Duration::from_secs(3601)).into();
    let (certificate, key) = own_signed(&early, &PKCS_ECDSA_P256_SHA256);
    check_refused(&certificate, &key, false, "another 1 h");
}

#[test]
fn the_certificate_that_has_the_name_is_chosen() {
    let pairs = [
        pair(&["first.example", "www.first.example"], &PKCS_ECDSA_P256_SHA256),
        pair(&["*.wild.example"], &PKCS_ECDSA_P256_SHA256),
        pair(&["exact.wild.example", "B.Example"], &PKCS_ECDSA_P256_SHA256),
        pair(&["first.example"], &PKCS_ECDSA_P256_SHA256),
    ];
    let choice = ByServerName::of(&pairs).unwrap();
    let schemes = [SignatureScheme::ECDSA_NISTP256_SHA256];
    let check = |name: Option<&str>, expected: usize| {
        let chosen = choice.choose(name, &schemes).unwrap();
        let at = pairs.iter().position(|pair| pair.certified().cert == chosen.cert);
        assert_eq!(at, Some(expected), "{name:?}");
    };
    check(Some("first.example"), 0);
    check(Some("www.first.example"), 0);
    check(Some("any.wild.example"), 1);
    check(Some("exact.wild.example"), 2);
    check(Some("b.example"), 2);
    // A wildcard covers one label.
    check(Some("wild.example"), 0);
    check(Some("a.b.wild.example"), 0);
    check(Some("unknown.example"), 0);
    check(None, 0);
    assert!(ByServerName::of(&[]).is_none());
}

#[test]
fn of_twins_the_one_is_chosen_whose_signature_the_client_can_check() {
    let pairs =
        [pair(&["a.example"], &PKCS_ECDSA_P256_SHA256), pair(&["a.example"], &PKCS_ED25519)];
    let choice = ByServerName::of(&pairs).unwrap();
    let check = |name: Option<&str>, schemes: &[SignatureScheme], expected: usize| {
        let chosen = choice.choose(name, schemes).unwrap();
        assert_eq!(chosen.cert, pairs[expected].certified().cert, "{name:?} {schemes:?}");
    };
    let (ecdsa, ed25519) = (SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519);
    check(Some("a.example"), &[ed25519, ecdsa], 0);
    check(Some("a.example"), &[ed25519], 1);
    check(None, &[ed25519], 1);
    check(Some("other.example"), &[ed25519], 1);
    // No certificate has the name: the first is used, and the handshake reports what is missing.
    check(Some("a.example"), &[SignatureScheme::RSA_PSS_SHA256], 0);
}

/// A certificate as its authority would make it; nothing here checks signatures.
fn client(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

fn field_of(certificate: &CertificateDer<'static>) -> String {
    let read = ClientCertificate::read(std::slice::from_ref(certificate)).unwrap().unwrap();
    let field = String::from_utf8(read.field().to_vec()).unwrap();
    assert!(field.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{field}");
    let (hash, rest) = field.split_once(';').unwrap();
    assert_eq!((hash.len(), &hash[..5]), ("Hash=".len() + 64, "Hash="));
    rest.to_owned()
}

#[test]
fn a_client_is_described_by_subject_and_names() {
    let certificate = client(|params| {
        params.distinguished_name.push(DnType::CountryName, "DE");
        params.distinguished_name.push(DnType::OrganizationName, "Ü, Inc.");
        params.distinguished_name.push(DnType::CommonName, "robot");
        params.subject_alt_names = vec![
            SanType::URI("spiffe://a/b".try_into().unwrap()),
            SanType::DnsName("robot.example".try_into().unwrap()),
        ];
    });
    let subject = r#"Subject="CN=robot,O=\\c3\\9c\\, Inc.,C=DE""#;
    assert_eq!(field_of(&certificate), format!("{subject};URI=spiffe://a/b;DNS=robot.example"));
    assert_eq!(field_of(&client(|_| {})), r#"Subject="""#);
    assert_eq!(ClientCertificate::read(&[]).unwrap(), None);
}

/// What is in quotes cannot end them, whatever an authority signs.
#[test]
fn a_name_cannot_add_parts_to_the_field() {
    let evil = r#"x";URI=spiffe://root/admin;A=" \"#;
    let certificate = client(|params| {
        params.distinguished_name.push(DnType::CommonName, evil);
        params.subject_alt_names = vec![SanType::URI("a:b;DNS=root,Hash=1\"c".try_into().unwrap())];
    });
    let field = field_of(&certificate);
    let parts = unquoted_parts(&field);
    assert_eq!(parts.len(), 2, "{field}");
    let expected = format!("CN={}", r#"x\"\;URI\=spiffe://root/admin\;A\=\" \\"#);
    assert_eq!(parts[0], ("Subject".to_owned(), expected));
    assert_eq!(parts[1], ("URI".to_owned(), "a:b;DNS=root,Hash=1\"c".to_owned()));
}

/// How a reader of the field takes it apart: at semicolons outside quotes.
fn unquoted_parts(field: &str) -> Vec<(String, String)> {
    let mut parts = vec![String::new()];
    let (mut quoted, mut escaped) = (false, false);
    for c in field.chars() {
        let part = parts.last_mut().unwrap();
        match c {
            _ if escaped => {
                part.push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => parts.push(String::new()),
            c => part.push(c),
        }
    }
    let split = |part: &String| part.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
    parts.iter().map(|part| split(part).unwrap()).collect()
}

#[test]
fn a_certificate_that_no_field_can_hold_is_refused() {
    let names = |count: usize| {
        client(|params| {
            let name = |n| SanType::DnsName(format!("n{n}.example").try_into().unwrap());
            params.subject_alt_names = (0..count).map(name).collect();
        })
    };
    let read = |certificate| ClientCertificate::read(&[certificate]);
    assert!(read(names(CLIENT_NAMES_LIMIT)).is_ok());
    let many = read(names(CLIENT_NAMES_LIMIT + 1)).unwrap_err();
    assert!(matches!(many, ClientCertificateError::TooManyNames { .. }), "{many}");
    let large = read(names(1000)).unwrap_err();
    assert!(matches!(large, ClientCertificateError::TooLarge { .. }), "{large}");
    let line_end = client(|params| {
        params.subject_alt_names = vec![SanType::URI("a:b\r\nx-admin: 1".try_into().unwrap())];
    });
    assert!(matches!(read(line_end), Err(ClientCertificateError::UnprintableName)));
    assert!(matches!(
        read(CertificateDer::from(vec![0x30, 0])),
        Err(ClientCertificateError::Malformed)
    ));
}

fn authority() -> (Certificate, Issuer<'static, KeyPair>) {
    let mut params = params(&[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate, Issuer::new(params, key))
}

#[test]
fn authorities_of_clients_are_read_or_refused() {
    let (root, _) = authority();
    let two = format!("{}{}", root.pem(), authority().0.pem());
    assert_eq!(ClientAuthorities::from_pem(two.as_bytes()).unwrap().count(), 2);
    let refused = |pem: &str, part: &str| {
        let error = ClientAuthorities::from_pem(pem.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused("", "no certificate in it");
    refused("-----BEGIN CERTIFICATE-----\n", "not valid PEM");
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    refused(&format!("{}{damaged}", root.pem()), "number 2 cannot be an authority");
}

#[test]
fn a_client_that_shows_too_many_certificates_is_refused_before_they_are_looked_at() {
    let (root, issuer) = authority();
    let mut wanted = params(&["robot.example"]);
    wanted.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let leaf = wanted.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
    let authorities = ClientAuthorities::from_pem(root.pem().as_bytes()).unwrap();
    let verify = |intermediates: usize| {
        let shown = vec![authority().0.der().clone(); intermediates];
        let now = rustls::pki_types::UnixTime::now();
        authorities.verifier().verify_client_cert(leaf.der(), &shown, now)
    };
    assert!(verify(0).is_ok());
    assert!(verify(CLIENT_CHAIN_LIMIT - 1).is_ok(), "those that lead nowhere do no harm");
    let refused = verify(CLIENT_CHAIN_LIMIT).unwrap_err();
    assert_eq!(front_code_of(&refused).word(), "ERR_CLIENT_CERTIFICATE_REFUSED");
    assert_eq!(front_explain(&refused), "the client showed 9 certificates; at most 8 are read");
    let shown = vec![leaf.der().clone(); CLIENT_CHAIN_LIMIT + 1];
    let again = ClientCertificate::read(&shown).unwrap_err();
    assert!(matches!(again, ClientCertificateError::ChainTooLong { count: 9 }), "{again}");
}

#[test]
fn refusals_of_a_front_speak_of_clients() {
    use rustls::{AlertDescription, CertificateError, Error};
    let check = |error: Error, word: &str, part: &str| {
        assert_eq!(front_code_of(&error).word(), word, "{error}");
        assert!(front_explain(&error).contains(part), "{}", front_explain(&error));
    };
    check(Error::NoCertificatesPresented, "ERR_NO_CLIENT_CERTIFICATE", "no certificate");
    let foreign = CertificateError::UnknownIssuer.into();
    check(foreign, "ERR_FOREIGN_AUTHORITY", "--client-ca");
    let purpose = CertificateError::InvalidPurpose.into();
    check(purpose, "ERR_CLIENT_CERTIFICATE_REFUSED", "not meant for clients");
    let not_after = rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(40));
    let time = rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(100));
    let late = CertificateError::ExpiredContext { time, not_after }.into();
    check(late, "ERR_CERTIFICATE_EXPIRED", "the client's certificate expired 1 min ago");
    let alert = Error::AlertReceived(AlertDescription::UnknownCA);
    check(alert, "ERR_TLS_FAILED", "does not know the authority");
}
