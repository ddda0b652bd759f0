//! The join bundle: the file by which one network introduces itself to another.
//!
//! JSON, version 1, signed by the network's root key over canonical bytes (every field with its
//! length, so that no two bundles share them). The signature protects the file against change in
//! transit. That the file comes from the right network is for the operator to verify, as with any
//! first introduction. The secret in it lets one network join, once. Pure: the time is an argument.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::SignatureScheme;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tollway_identity::{AuthorityPem, TrustBundle, control_dns_san};
use tollway_model::{NameError, NetworkName, TrustDomain};
use tollway_wire::{GATEWAYS_PER_NETWORK_LIMIT, ROOTS_PER_TRUST_DOMAIN_LIMIT};

use crate::clock::ago;

/// Largest bundle that is read, in bytes.
pub const BUNDLE_LIMIT_BYTES: usize = 64 * 1024;

const VERSION: u32 = 1;
/// Clocks of two networks may differ by this much.
const CLOCK_SKEW: Duration = Duration::from_secs(120);
/// Separates this signature from any other that the root key makes.
const CONTEXT: &[u8] = b"tollway join bundle v1\0";

/// Why a bundle was refused.
#[derive(Debug, Error)]
pub enum BundleError {
    #[error("the bundle has {length} bytes; at most {BUNDLE_LIMIT_BYTES} are read")]
    TooLarge { length: usize },
    #[error("this is not a join bundle; write one with `tollway join export`")]
    Json(#[source] serde_json::Error),
    #[error(
        "the bundle has version {found}, this program reads {VERSION}; use one version of Tollway in both networks"
    )]
    Version { found: u32 },
    #[error("the bundle names no valid network or trust domain")]
    Name(#[from] NameError),
    #[error("the bundle holds {count} {what}; it needs {least} to {limit}")]
    Count { what: &'static str, count: usize, least: usize, limit: usize },
    #[error("root {index} of the bundle is not a certificate in PEM")]
    Root { index: usize },
    #[error("the roots of the bundle cannot be used")]
    Roots(#[source] tollway_identity::BundleError),
    #[error(
        "the bundle gives the control plane's server name as `{found}`, but its network's is `{expected}`"
    )]
    ServerName { found: String, expected: String },
    #[error("the bundle was changed after it was signed; export it again and copy it whole")]
    Signature,
    #[error("the bundle expired {expired_for:?} ago; export it again")]
    Expired { expired_for: Duration },
    #[error("the bundle is issued {ahead:?} in the future; set the clocks of both networks")]
    NotYetValid { ahead: Duration },
    #[error("the authority's key cannot sign a bundle")]
    Key(#[source] rustls::Error),
    #[error("the authority's key is not readable PEM")]
    KeyPem,
}

/// One network's introduction.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinBundle {
    pub network: NetworkName,
    pub trust_domain: TrustDomain,
    pub roots: Vec<CertificateDer<'static>>,
    /// Where the network's gateways listen for other networks; empty where they only dial out.
    pub gateways: Vec<SocketAddr>,
    /// Lets one network join, once; empty in the bundle that is presented in return. Secret.
    pub join_secret: String,
    pub issued_at_unix_ms: u64,
    pub expires_at_unix_ms: u64,
}

/// The file's form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    network: String,
    trust_domain: String,
    roots: Vec<String>,
    gateways: Vec<SocketAddr>,
    control_server_name: String,
    join_secret: String,
    issued_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    signature: String,
}

impl JoinBundle {
    /// The bundle as a file, signed with the key of `authority`, whose root is the only one in
    /// it.
    ///
    /// # Errors
    /// [`BundleError::Key`] or [`BundleError::KeyPem`] when the authority's key is unusable.
    pub fn sign(&self, authority: &AuthorityPem) -> Result<Vec<u8>, BundleError> {
        let file = File {
            version: VERSION,
            network: self.network.as_str().to_owned(),
            trust_domain: self.trust_domain.to_string(),
            roots: vec![authority.certificate.clone()],
            gateways: self.gateways.clone(),
            control_server_name: control_dns_san(&self.network),
            join_secret: self.join_secret.clone(),
            issued_at_unix_ms: self.issued_at_unix_ms,
            expires_at_unix_ms: self.expires_at_unix_ms,
            signature: URL_SAFE_NO_PAD.encode(sign(authority, &self.canonical())?),
        };
        serde_json::to_vec_pretty(&file).map_err(BundleError::Json)
    }

    /// Reads a file and checks everything that can be checked without knowing the network.
    /// `now_unix_ms` is the time in milliseconds since 1970.
    ///
    /// # Errors
    /// [`BundleError`], the first reason found.
    pub fn verify(file: &[u8], now_unix_ms: u64) -> Result<Self, BundleError> {
        if file.len() > BUNDLE_LIMIT_BYTES {
            return Err(BundleError::TooLarge { length: file.len() });
        }
        let file: File = serde_json::from_slice(file).map_err(BundleError::Json)?;
        if file.version != VERSION {
            return Err(BundleError::Version { found: file.version });
        }
        let bundle = Self::read(&file)?;
        let signature =
            URL_SAFE_NO_PAD.decode(&file.signature).map_err(|_| BundleError::Signature)?;
        bundle.check_signature(&signature)?;
        bundle.check_roots()?;
        bundle.check_time(now_unix_ms)?;
        Ok(bundle)
    }

    fn read(file: &File) -> Result<Self, BundleError> {
        in_limit("roots", file.roots.len(), 1..=ROOTS_PER_TRUST_DOMAIN_LIMIT)?;
        in_limit("gateways", file.gateways.len(), 0..=GATEWAYS_PER_NETWORK_LIMIT)?;
        let network = NetworkName::of_network(&file.network)?;
        let expected = control_dns_san(&network);
        if file.control_server_name != expected {
            let found = file.control_server_name.clone();
            return Err(BundleError::ServerName { found, expected });
        }
        let root = |(index, pem): (usize, &String)| {
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| BundleError::Root { index })
        };
        Ok(Self {
            network,
            trust_domain: TrustDomain::new(&file.trust_domain)?,
            roots: file.roots.iter().enumerate().map(root).collect::<Result<_, _>>()?,
            gateways: file.gateways.clone(),
            join_secret: file.join_secret.clone(),
            issued_at_unix_ms: file.issued_at_unix_ms,
            expires_at_unix_ms: file.expires_at_unix_ms,
        })
    }

    fn check_signature(&self, signature: &[u8]) -> Result<(), BundleError> {
        let message = self.canonical();
        let signed_by = |(index, root): (usize, &CertificateDer<'static>)| {
            let certificate =
                webpki::EndEntityCert::try_from(root).map_err(|_| BundleError::Root { index })?;
            let algorithm = webpki::aws_lc_rs::ECDSA_P256_SHA256;
            Ok::<_, BundleError>(
                certificate.verify_signature(algorithm, &message, signature).is_ok(),
            )
        };
        for root in self.roots.iter().enumerate() {
            if signed_by(root)? {
                return Ok(());
            }
        }
        Err(BundleError::Signature)
    }

    /// All of them, not only the one that has signed.
    fn check_roots(&self) -> Result<(), BundleError> {
        let (network, trust_domain) = (self.network.clone(), self.trust_domain.clone());
        TrustBundle::new(network, trust_domain, self.roots.clone())
            .map(|_| ())
            .map_err(BundleError::Roots)
    }

    fn check_time(&self, now_unix_ms: u64) -> Result<(), BundleError> {
        if let Some(expired_for) = ago(now_unix_ms, self.expires_at_unix_ms) {
            return Err(BundleError::Expired { expired_for });
        }
        let ahead = Duration::from_millis(self.issued_at_unix_ms.saturating_sub(now_unix_ms));
        if ahead > CLOCK_SKEW {
            return Err(BundleError::NotYetValid { ahead });
        }
        Ok(())
    }

    /// Every field in order, each with its length.
    fn canonical(&self) -> Vec<u8> {
        let mut bytes = CONTEXT.to_vec();
        let mut field = |content: &[u8]| {
            let length = u64::try_from(content.len()).expect("a length fits in 64 bits");
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(content);
        };
        let count = |n: usize| u64::try_from(n).expect("a length fits in 64 bits").to_be_bytes();
        field(self.network.as_str().as_bytes());
        field(self.trust_domain.as_str().as_bytes());
        field(&count(self.roots.len()));
        self.roots.iter().for_each(|root| field(root));
        field(&count(self.gateways.len()));
        self.gateways.iter().for_each(|gateway| field(gateway.to_string().as_bytes()));
        field(self.join_secret.as_bytes());
        field(&self.issued_at_unix_ms.to_be_bytes());
        field(&self.expires_at_unix_ms.to_be_bytes());
        bytes
    }
}

impl std::fmt::Debug for JoinBundle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinBundle")
            .field("network", &self.network)
            .field("trust_domain", &self.trust_domain)
            .field("gateways", &self.gateways)
            .finish_non_exhaustive()
    }
}

fn in_limit(
    what: &'static str,
    count: usize,
    range: RangeInclusive<usize>,
) -> Result<(), BundleError> {
    if range.contains(&count) {
        return Ok(());
    }
    let (least, limit) = range.into_inner();
    Err(BundleError::Count { what, count, least, limit })
}

fn sign(authority: &AuthorityPem, message: &[u8]) -> Result<Vec<u8>, BundleError> {
    let key =
        PrivateKeyDer::from_pem_slice(authority.key.as_bytes()).map_err(|_| BundleError::KeyPem)?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(key).map_err(BundleError::Key)?;
    let no_scheme = || BundleError::Key(rustls::Error::General("not an EC P-256 key".into()));
    let signer =
        key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).ok_or_else(no_scheme)?;
    signer.sign(message).map_err(BundleError::Key)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use tollway_identity::Authority;

    use super::*;

    /// In milliseconds since 1970.
    const ISSUED: u64 = 1_800_000_000_000;

    fn authority(network: &str) -> Authority {
        let network = NetworkName::new(network).unwrap();
        let now = UNIX_EPOCH + Duration::from_millis(ISSUED);
        Authority::create(&TrustDomain::default_for(&network), &network, now).unwrap()
    }

    fn bundle(authority: &Authority) -> JoinBundle {
        JoinBundle {
            network: authority.network().clone(),
            trust_domain: authority.trust_domain().clone(),
            roots: vec![authority.root_der().clone()],
            gateways: vec!["10.0.0.1:15443".parse().unwrap()],
            join_secret: "secret".into(),
            issued_at_unix_ms: ISSUED,
            expires_at_unix_ms: ISSUED + 3_600_000,
        }
    }

    /// The refusal of a signed bundle of `east` in which `find` is replaced by `by`.
    #[track_caller]
    fn refusal(find: &str, by: &str) -> String {
        let authority = authority("east");
        let file = bundle(&authority).sign(&authority.to_pem()).unwrap();
        let text = String::from_utf8(file).unwrap();
        assert!(text.contains(find), "{text}");
        let changed = text.replace(find, by);
        JoinBundle::verify(changed.as_bytes(), ISSUED).unwrap_err().to_string()
    }

    #[test]
    fn a_signed_bundle_reads_back() {
        let authority = authority("East");
        let expected = bundle(&authority);
        let file = expected.sign(&authority.to_pem()).unwrap();
        assert_eq!(JoinBundle::verify(&file, ISSUED + 3_599_999).unwrap(), expected);
    }

    #[test]
    fn a_bundle_may_name_no_gateway_and_no_more_than_a_network_has() {
        let authority = authority("east");
        let with = |count: usize| {
            let gateways = vec!["10.0.0.1:15443".parse().unwrap(); count];
            let bundle = JoinBundle { gateways, ..bundle(&authority) };
            JoinBundle::verify(&bundle.sign(&authority.to_pem()).unwrap(), ISSUED)
        };
        assert!(with(0).unwrap().gateways.is_empty());
        assert!(with(GATEWAYS_PER_NETWORK_LIMIT).is_ok());
        assert_eq!(
            with(GATEWAYS_PER_NETWORK_LIMIT + 1).unwrap_err().to_string(),
            "the bundle holds 65 gateways; it needs 0 to 64"
        );
    }

    #[test]
    fn every_changed_field_is_noticed() {
        let changed =
            "the bundle was changed after it was signed; export it again and copy it whole";
        for (find, by) in [
            ("\"trust_domain\": \"east.tollway\"", "\"trust_domain\": \"west.tollway\""),
            ("10.0.0.1:15443", "10.0.0.2:15443"),
            ("\"join_secret\": \"secret\"", "\"join_secret\": \"other\""),
            ("\"issued_at_unix_ms\": 1800000000000", "\"issued_at_unix_ms\": 1800000000001"),
            ("\"expires_at_unix_ms\": 1800003600000", "\"expires_at_unix_ms\": 1900003600000"),
            ("\"network\": \"east\"", "\"network\": \"EAST\""),
            ("\"signature\": \"", "\"signature\": \"AAAA"),
        ] {
            assert_eq!(refusal(find, by), changed, "{find}");
        }
        assert_eq!(
            refusal("control.east.mesh", "control.west.mesh"),
            "the bundle gives the control plane's server name as `control.west.mesh`, but its network's is `control.east.mesh`"
        );
    }

    #[test]
    fn no_byte_can_be_changed_to_another_meaning() {
        let authority = authority("east");
        let expected = bundle(&authority);
        let file = expected.sign(&authority.to_pem()).unwrap();
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            // White space between the fields means nothing.
            if let Ok(read) = JoinBundle::verify(&changed, ISSUED) {
                assert_eq!(read, expected, "byte {at} of the file");
            }
            let cut = JoinBundle::verify(&file[..at], ISSUED);
            assert!(cut.is_err(), "the first {at} bytes alone");
        }
    }

    #[test]
    fn a_network_called_any_has_no_bundle() {
        let authority = authority("any");
        let file = bundle(&authority).sign(&authority.to_pem()).unwrap();
        let refused = JoinBundle::verify(&file, ISSUED).unwrap_err();
        let text = tollway_model::chain(&refused);
        assert!(text.contains("a network cannot be called `any`"), "{text}");
    }

    #[test]
    fn another_networks_root_does_not_vouch() {
        let (east, other) = (authority("east"), authority("east"));
        let file = bundle(&east).sign(&other.to_pem()).unwrap();
        let forged = bundle(&east);
        let text = String::from_utf8(file).unwrap();
        let root_of = |a: &Authority| serde_json::to_string(a.root_pem()).unwrap();
        let text = text.replace(&root_of(&other), &root_of(&east));
        assert_eq!(forged.roots, [east.root_der().clone()]);
        let refused = JoinBundle::verify(text.as_bytes(), ISSUED);
        assert!(matches!(refused, Err(BundleError::Signature)), "{refused:?}");
    }

    #[test]
    fn every_root_must_be_usable_not_only_the_one_that_signed() {
        let authority = authority("east");
        let junk = CertificateDer::from(vec![0x30, 0]);
        let two =
            JoinBundle { roots: vec![authority.root_der().clone(), junk], ..bundle(&authority) };
        let file = two.sign(&authority.to_pem()).unwrap();
        let mut file: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let pem = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        file["roots"].as_array_mut().unwrap().push(pem.into());
        let refused = JoinBundle::verify(file.to_string().as_bytes(), ISSUED);
        assert!(matches!(refused, Err(BundleError::Roots(_))), "{refused:?}");
    }

    #[test]
    fn malformed_files_are_refused_with_the_reason() {
        let verify = |file: &[u8]| JoinBundle::verify(file, ISSUED).unwrap_err().to_string();
        assert_eq!(
            verify(b"{}"),
            "this is not a join bundle; write one with `tollway join export`"
        );
        assert_eq!(
            verify(&vec![b' '; BUNDLE_LIMIT_BYTES + 1]),
            "the bundle has 65537 bytes; at most 65536 are read"
        );
        assert_eq!(
            refusal("\"version\": 1", "\"version\": 2"),
            "the bundle has version 2, this program reads 1; use one version of Tollway in both networks"
        );
        assert_eq!(
            refusal("\"version\": 1,", "\"version\": 1, \"extra\": 1,"),
            "this is not a join bundle; write one with `tollway join export`"
        );
        assert_eq!(
            refusal("BEGIN CERTIFICATE", "BEGIN NONSENSE"),
            "root 0 of the bundle is not a certificate in PEM"
        );
    }

    #[test]
    fn a_bundle_lives_from_its_issue_to_its_end() {
        let authority = authority("east");
        let file = bundle(&authority).sign(&authority.to_pem()).unwrap();
        let verify = |now| JoinBundle::verify(&file, now).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(verify(ISSUED - 120_000), Ok(()));
        assert_eq!(
            verify(ISSUED - 121_000),
            Err("the bundle is issued 121s in the future; set the clocks of both networks".into())
        );
        assert_eq!(
            verify(ISSUED + 3_700_000),
            Err("the bundle expired 100s ago; export it again".into())
        );
    }
}
