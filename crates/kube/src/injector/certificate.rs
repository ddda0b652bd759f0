//! The certificate of the webhook: an authority of its own, and what it signs. Pure but for random keys.
//!
//! The API server trusts the authority, which lasts for years, so that renewing the certificate changes
//! nothing there. A new authority is trusted beside the former one until that ends.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData as _,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
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

/// A certificate with its key, and the authorities by which it is known; all PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WebhookCredentials {
    /// The one that signs comes first.
    pub(crate) authorities: String,
    authority_key: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl std::fmt::Debug for WebhookCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookCredentials")
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

impl WebhookCredentials {
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

    /// A part of the webhook's paths that only replicas and the API server know, since the answers have what
    /// a namespace has of Dapr: 32 hexadecimal digits.
    pub(crate) fn path_secret(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.authority_key.as_bytes());
        let tag = hmac::sign(&key, b"path of the webhook");
        tag.as_ref()[..16].iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// When the certificate ends; `None` if it cannot be read.
    pub(crate) fn ends(&self) -> Option<SystemTime> {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Some(SystemTime::from(certificate.validity().not_after.to_datetime()))
    }
}

/// Decides what is to be done for a webhook of these names.
pub(crate) fn plan(
    credentials: Option<&WebhookCredentials>,
    names: &[String],
    now: SystemTime,
) -> Plan {
    let Some(credentials) = credentials else { return Plan::Begin };
    let Some(authority_ends) = good_authority(credentials, now) else { return Plan::Begin };
    match good_certificate(credentials, names, now) {
        Some(ends) => Plan::Keep {
            until: (ends - RENEWED_BEFORE).min(authority_ends - AUTHORITY_RENEWED_BEFORE),
        },
        None => Plan::Renew,
    }
}

/// When the authority ends, if it can sign and lasts for long enough.
fn good_authority(credentials: &WebhookCredentials, now: SystemTime) -> Option<SystemTime> {
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
    credentials: &WebhookCredentials,
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
    credentials: Option<&WebhookCredentials>,
    names: &[String],
    now: SystemTime,
) -> Result<Option<WebhookCredentials>, rcgen::Error> {
    let (authorities, authority_key) = match (plan, credentials) {
        (Plan::Keep { .. }, _) => return Ok(None),
        (Plan::Renew, Some(credentials)) => {
            (credentials.authorities.clone(), credentials.authority_key.clone())
        }
        (Plan::Renew | Plan::Begin, _) => {
            let (certificate, key) = new_authority(now)?;
            let former = credentials.map_or("", |credentials| &credentials.authorities);
            (certificate + &still_good(former, now), key)
        }
    };
    let authority = first_pem(&authorities);
    let issuer = Issuer::from_ca_cert_pem(authority, KeyPair::from_pem(&authority_key)?)?;
    let mut certificate = CertificateParams::new(names)?;
    certificate.distinguished_name.push(DnType::CommonName, "tollway-injector");
    (certificate.not_before, certificate.not_after) = span(now, LIFE);
    certificate.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    certificate.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    certificate.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let signed = certificate.signed_by(&key, &issuer)?;
    let (certificate, key) = (signed.pem(), key.serialize_pem());
    Ok(Some(WebhookCredentials { authorities, authority_key, certificate, key }))
}

/// A certificate and its key.
fn new_authority(now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "tollway-injector-authority");
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

/// What a TLS server needs.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn server_config(
    credentials: &WebhookCredentials,
) -> Result<rustls::ServerConfig, String> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(credentials.certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes())
        .map_err(|error| format!("the key cannot be read: {error}"))?;
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| format!("the certificate cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["tollway-injector.tollway.svc".to_owned()]
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    fn begun(credentials: Option<&WebhookCredentials>, now: SystemTime) -> WebhookCredentials {
        carry_out(&plan(credentials, &names(), now), credentials, &names(), now).unwrap().unwrap()
    }

    fn authorities(credentials: &WebhookCredentials) -> usize {
        credentials.authorities.matches(PEM_END).count()
    }

    #[test]
    fn what_is_made_is_kept_until_a_month_before_its_end() {
        assert_eq!(plan(None, &names(), now()), Plan::Begin);
        let credentials = begun(None, now());
        let until = now() + LIFE - RENEWED_BEFORE;
        assert_eq!(plan(Some(&credentials), &names(), now()), Plan::Keep { until });
        assert_eq!(
            WebhookCredentials::read(&credentials.data()),
            Some(credentials.clone()),
            "the Secret has all of it"
        );
        server_config(&credentials).unwrap();
        assert_eq!(plan(Some(&credentials), &names(), until), Plan::Renew);
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
        assert_eq!(plan(Some(&credentials), &names(), years), Plan::Begin);
        let second = begun(Some(&credentials), years);
        assert_eq!(authorities(&second), 2);
        assert!(
            second.authorities.ends_with(&format!("{}\n", first_pem(&credentials.authorities)))
        );
        assert!(matches!(plan(Some(&second), &names(), years), Plan::Keep { .. }));
        let third = begun(Some(&second), years + AUTHORITY_LIFE - AUTHORITY_RENEWED_BEFORE);
        assert_eq!(authorities(&third), 2, "the first has ended");
        let last = begun(Some(&third), years + 3 * AUTHORITY_LIFE);
        assert_eq!(authorities(&last), 1, "all former ones have ended");
    }

    #[test]
    fn what_does_not_fit_together_is_made_again() {
        let credentials = begun(None, now());
        let other = begun(None, now());
        let foreign = WebhookCredentials {
            authority_key: other.authority_key.clone(),
            ..credentials.clone()
        };
        assert_eq!(plan(Some(&foreign), &names(), now()), Plan::Begin);
        for wrong in [
            WebhookCredentials { key: other.key.clone(), ..credentials.clone() },
            WebhookCredentials {
                certificate: other.certificate.clone(),
                key: other.key,
                ..credentials.clone()
            },
            WebhookCredentials { certificate: "nothing".to_owned(), ..credentials.clone() },
        ] {
            assert_eq!(plan(Some(&wrong), &names(), now()), Plan::Renew);
        }
        let more = [names(), vec!["other.svc".to_owned()]].concat();
        assert_eq!(plan(Some(&credentials), &more, now()), Plan::Renew, "another name");
        let damaged = WebhookCredentials { authorities: "nothing".to_owned(), ..credentials };
        assert_eq!(plan(Some(&damaged), &names(), now()), Plan::Begin);
    }
}
