//! A certificate by an authority of its own, for what has no identity of the mesh: the webhook, and etcd. A Secret
//! has all of it. Pure but for random keys.
//!
//! Those who trust the authority, which lasts for years, see nothing of a renewal of the certificate. A new
//! authority is trusted beside the former one until that ends.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const DAY: Duration = Duration::from_secs(24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A new authority is made when the former one ends within this.
const AUTHORITY_RENEWED_BEFORE: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates are valid from this long before they are made, for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Keys of the Secret.
const AUTHORITIES: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// What a certificate is for.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    /// The common name of the certificate, and with `-authority` behind it that of the authority.
    pub(crate) holder: &'static str,
    /// The names by which servers with it are called.
    pub(crate) names: Vec<String>,
    /// Whether clients show it, too.
    pub(crate) is_of_clients: bool,
}

/// A certificate with its key, and the authorities by which it is known; all PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OwnCertificate {
    /// The one that signs comes first.
    pub(crate) authorities: String,
    authority_key: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnCertificate")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// What is to be done about them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// It is good until then.
    Keep { until: SystemTime },
    /// The authority signs another certificate.
    Renew,
    /// Everything is made again. The former authorities stay trusted.
    Begin,
}

impl OwnCertificate {
    /// Reads the data of the Secret; `None` if something is missing.
    pub(crate) fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        Some(Self {
            authorities: text(AUTHORITIES)?,
            authority_key: text(AUTHORITY_KEY)?,
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?,
        })
    }

    /// As [`Self::read`] takes it.
    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let texts = [
            (AUTHORITIES, &self.authorities),
            (AUTHORITY_KEY, &self.authority_key),
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
        ];
        let bytes = |text: &String| ByteString(text.clone().into_bytes());
        texts.into_iter().map(|(key, text)| (key.to_owned(), bytes(text))).collect()
    }

    /// Something that only those know who can read the Secret, for a use of this name: 32 hexadecimal digits.
    pub(crate) fn secret_of(&self, of: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.authority_key.as_bytes());
        let tag = hmac::sign(&key, of.as_bytes());
        tag.as_ref()[..16].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// When the certificate ends; `None` if it cannot be read.
    pub(crate) fn ends(&self) -> Option<SystemTime> {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Some(SystemTime::from(certificate.validity().not_after.to_datetime()))
    }
}

/// Decides what is to be done.
pub(crate) fn plan(
    credentials: Option<&OwnCertificate>,
    purpose: &Purpose,
    now: SystemTime,
) -> Plan {
    let Some(credentials) = credentials else { return Plan::Begin };
    let Some(authority_ends) = good_authority(credentials, now) else { return Plan::Begin };
    match good_certificate(credentials, &purpose.names, now) {
        Some(ends) => Plan::Keep {
            until: (ends - RENEWED_BEFORE).min(authority_ends - AUTHORITY_RENEWED_BEFORE),
        },
        None => Plan::Renew,
    }
}

/// When the authority ends, if it can sign and lasts for long enough.
fn good_authority(credentials: &OwnCertificate, now: SystemTime) -> Option<SystemTime> {
    let der = CertificateDer::from_pem_slice(credentials.authorities.as_bytes()).ok()?;
    let (_, authority) = X509Certificate::from_der(&der).ok()?;
    let key = KeyPair::from_pem(&credentials.authority_key).ok()?;
    let ends = SystemTime::from(authority.validity().not_after.to_datetime());
    let fits = authority.public_key().raw == key.subject_public_key_info();
    (fits && ends > now + AUTHORITY_RENEWED_BEFORE).then_some(ends)
}

/// When the certificate ends, if the authority has signed it, it has these names and its key, and lasts
/// for long enough.
fn good_certificate(
    credentials: &OwnCertificate,
    names: &[String],
    now: SystemTime,
) -> Option<SystemTime> {
    let authority = CertificateDer::from_pem_slice(credentials.authorities.as_bytes()).ok()?;
    let (_, authority) = X509Certificate::from_der(&authority).ok()?;
    let der = CertificateDer::from_pem_slice(credentials.certificate.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let key = KeyPair::from_pem(&credentials.key).ok()?;
    let is_signed = certificate.verify_signature(Some(authority.public_key())).is_ok();
    let fits = certificate.public_key().raw == key.subject_public_key_info();
    let alternatives = certificate.subject_alternative_name().ok()??;
    let has = |name: &String| {
        alternatives.value.general_names.iter().any(|one| *one == GeneralName::DNSName(name))
    };
    let ends = SystemTime::from(certificate.validity().not_after.to_datetime());
    (is_signed && fits && names.iter().all(has) && ends > now + RENEWED_BEFORE).then_some(ends)
}

/// Makes what the plan asks for; `None` if it asks for nothing.
///
/// # Errors
/// [`rcgen::Error`] if a key or a certificate cannot be made.
pub(crate) fn carry_out(
    plan: &Plan,
    credentials: Option<&OwnCertificate>,
    purpose: &Purpose,
    now: SystemTime,
) -> Result<Option<OwnCertificate>, rcgen::Error> {
    let (authorities, authority_key) = match (plan, credentials) {
        (Plan::Keep { .. }, _) => return Ok(None),
        (Plan::Renew, Some(credentials)) => {
            (credentials.authorities.clone(), credentials.authority_key.clone())
        }
        (Plan::Renew | Plan::Begin, _) => {
            let (certificate, key) = new_authority(purpose, now)?;
            let former = credentials.map_or("", |credentials| &credentials.authorities);
            (certificate + &still_good(former, now), key)
        }
    };
    let authority = first_pem(&authorities);
    let issuer = Issuer::from_ca_cert_pem(authority, KeyPair::from_pem(&authority_key)?)?;
    let mut certificate = CertificateParams::new(purpose.names.clone())?;
    certificate.distinguished_name.push(DnType::CommonName, purpose.holder);
    (certificate.not_before, certificate.not_after) = span(now, LIFE);
    certificate.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    certificate.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    if purpose.is_of_clients {
        certificate.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    certificate.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let signed = certificate.signed_by(&key, &issuer)?;
    let (certificate, key) = (signed.pem(), key.serialize_pem());
    Ok(Some(OwnCertificate { authorities, authority_key, certificate, key }))
}

/// A certificate and its key.
fn new_authority(purpose: &Purpose, now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, format!("{}-authority", purpose.holder));
    (authority.not_before, authority.not_after) = span(now, AUTHORITY_LIFE);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok((authority.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn span(now: SystemTime, life: Duration) -> (OffsetDateTime, OffsetDateTime) {
    (OffsetDateTime::from(now - CLOCK_SKEW), OffsetDateTime::from(now + life))
}

const PEM_END: &str = "-----END CERTIFICATE-----";

fn first_pem(text: &str) -> &str {
    text.find(PEM_END).map_or(text, |at| &text[..at + PEM_END.len()])
}

/// The newest of the former authorities, while it lasts: others have been replaced for years.
fn still_good(former: &str, now: SystemTime) -> String {
    let lasts = || {
        let der = CertificateDer::from_pem_slice(former.as_bytes()).ok()?;
        let (_, authority) = X509Certificate::from_der(&der).ok()?;
        (SystemTime::from(authority.validity().not_after.to_datetime()) > now + DAY).then_some(())
    };
    lasts().map(|()| format!("{}\n", first_pem(former))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purpose() -> Purpose {
        let names = vec!["tollway-injector.tollway.svc".to_owned()];
        Purpose { holder: "tollway-injector", names, is_of_clients: false }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    fn begun(credentials: Option<&OwnCertificate>, now: SystemTime) -> OwnCertificate {
        carry_out(&plan(credentials, &purpose(), now), credentials, &purpose(), now)
            .unwrap()
            .unwrap()
    }

    fn authorities(credentials: &OwnCertificate) -> usize {
        credentials.authorities.matches(PEM_END).count()
    }

    #[test]
    fn what_is_made_is_kept_until_a_month_before_its_end() {
        assert_eq!(plan(None, &purpose(), now()), Plan::Begin);
        let credentials = begun(None, now());
        let until = now() + LIFE - RENEWED_BEFORE;
        assert_eq!(plan(Some(&credentials), &purpose(), now()), Plan::Keep { until });
        assert_eq!(
            OwnCertificate::read(&credentials.data()),
            Some(credentials.clone()),
            "the Secret has all of it"
        );
        assert_eq!(plan(Some(&credentials), &purpose(), until), Plan::Renew);
    }

    /// As etcd's members and its clients read it.
    #[test]
    fn it_is_good_for_servers_and_for_clients_where_it_is_of_both() {
        let usages = |is_of_clients| {
            let purpose = Purpose { is_of_clients, ..purpose() };
            let made = carry_out(&Plan::Begin, None, &purpose, now()).unwrap().unwrap();
            let der = CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
            let (_, read) = X509Certificate::from_der(&der).unwrap();
            let usages = read.extended_key_usage().unwrap().unwrap().value;
            (usages.server_auth, usages.client_auth)
        };
        assert_eq!((usages(false), usages(true)), ((true, false), (true, true)));
    }

    #[test]
    fn a_renewal_changes_nothing_at_the_api_server() {
        let credentials = begun(None, now());
        let later = now() + 61 * DAY;
        let renewed = begun(Some(&credentials), later);
        assert_eq!(renewed.authorities, credentials.authorities);
        assert_ne!(renewed.certificate, credentials.certificate);
        assert_eq!(renewed.ends(), Some(later + LIFE));
    }

    #[test]
    fn a_new_authority_is_trusted_beside_the_former_one_while_that_lasts() {
        let credentials = begun(None, now());
        let years = now() + AUTHORITY_LIFE - AUTHORITY_RENEWED_BEFORE;
        assert_eq!(plan(Some(&credentials), &purpose(), years), Plan::Begin);
        let second = begun(Some(&credentials), years);
        assert_eq!(authorities(&second), 2);
        assert!(
            second.authorities.ends_with(&format!("{}\n", first_pem(&credentials.authorities)))
        );
        assert!(matches!(plan(Some(&second), &purpose(), years), Plan::Keep { .. }));
        let third = begun(Some(&second), years + AUTHORITY_LIFE - AUTHORITY_RENEWED_BEFORE);
        assert_eq!(authorities(&third), 2, "the first has ended");
        let last = begun(Some(&third), years + 3 * AUTHORITY_LIFE);
        assert_eq!(authorities(&last), 1, "all former ones have ended");
    }

    #[test]
    fn what_does_not_fit_together_is_made_again() {
        let credentials = begun(None, now());
        let other = begun(None, now());
        let foreign =
            OwnCertificate { authority_key: other.authority_key.clone(), ..credentials.clone() };
        assert_eq!(plan(Some(&foreign), &purpose(), now()), Plan::Begin);
        for wrong in [
            OwnCertificate { key: other.key.clone(), ..credentials.clone() },
            OwnCertificate {
                certificate: other.certificate.clone(),
                key: other.key,
                ..credentials.clone()
            },
            OwnCertificate { certificate: "nothing".to_owned(), ..credentials.clone() },
        ] {
            assert_eq!(plan(Some(&wrong), &purpose(), now()), Plan::Renew);
        }
        let names = [purpose().names, vec!["other.svc".to_owned()]].concat();
        let more = Purpose { names, ..purpose() };
        assert_eq!(plan(Some(&credentials), &more, now()), Plan::Renew, "another name");
        let damaged = OwnCertificate { authorities: "nothing".to_owned(), ..credentials };
        assert_eq!(plan(Some(&damaged), &purpose(), now()), Plan::Begin);
    }
}
