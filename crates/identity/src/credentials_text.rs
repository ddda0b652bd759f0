//! Credentials as text, for a process that keeps them over a restart.
//!
//! The first line has the version, the SHA-256 of what follows, and how many certificates are the
//! chain; then come the private key, the chain, leaf first, and the roots of the own trust domain, in
//! PEM. Other trust domains come from the control plane at the first connection.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;

use crate::authority::pem;
use crate::bundle::{BundleError, ROOTS_LIMIT, TrustBundle, TrustBundles};
use crate::credentials::{Credentials, CredentialsError};
use crate::key::{KeyError, KeyPair};
use crate::peer::{CHAIN_LIMIT, PeerError, peer_identity};

const VERSION: &str = "tollway-identity-1";
/// Largest text that is read, in bytes: far more than the largest certificates make.
pub const CREDENTIALS_TEXT_BYTES_LIMIT: usize = 256 * 1024;

/// Why a text gives no credentials.
#[derive(Debug, Error)]
pub enum CredentialsTextError {
    #[error("this is no identity in the form of this version")]
    Shape,
    #[error("it is damaged: its checksum does not fit")]
    Damaged,
    #[error("a certificate in it cannot be read")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("it has {count} certificates")]
    Count { count: usize },
    #[error("its certificate cannot be used")]
    Certificate(#[source] PeerError),
    #[error("its key cannot be used")]
    Key(#[source] KeyError),
    #[error("its roots cannot be used")]
    Bundle(#[source] BundleError),
    #[error("its parts do not belong together")]
    Credentials(#[source] CredentialsError),
}

impl Credentials {
    /// The certificate, the private key and the roots of the own trust domain as text. Secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut body = String::new();
        if let PrivateKeyDer::Pkcs8(key) = self.key()
            && let Ok(key) = KeyPair::from_pkcs8_der(key.secret_pkcs8_der())
        {
            body.push_str(&key.to_pem());
        }
        let own = self.bundles().get(&self.spiffe_id().trust_domain);
        let roots = own.map(TrustBundle::roots).unwrap_or_default();
        body.extend(self.chain().iter().chain(roots).map(pem));
        format!("{VERSION} {} {}\n{body}", hash(&body), self.chain().len())
    }

    /// Reads what [`Credentials::to_text`] has written. The trust has revision 0, so that the control
    /// plane sends all of it. No signature is verified: the peers do.
    ///
    /// # Errors
    /// [`CredentialsTextError`].
    pub fn from_text(text: &str) -> Result<Self, CredentialsTextError> {
        let (head, body) = text.split_once('\n').ok_or(CredentialsTextError::Shape)?;
        let [version, sum, chain] = head.split(' ').collect::<Vec<_>>()[..] else {
            return Err(CredentialsTextError::Shape);
        };
        if version != VERSION {
            return Err(CredentialsTextError::Shape);
        }
        if hash(body) != sum {
            return Err(CredentialsTextError::Damaged);
        }
        let key = KeyPair::from_pem(body).map_err(CredentialsTextError::Key)?;
        let mut certificates = CertificateDer::pem_slice_iter(body.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(CredentialsTextError::Pem)?;
        let count = certificates.len();
        let chain: usize = chain.parse().map_err(|_| CredentialsTextError::Shape)?;
        if chain > count.min(CHAIN_LIMIT) || count - chain > ROOTS_LIMIT {
            return Err(CredentialsTextError::Count { count });
        }
        let roots = certificates.split_off(chain);
        let identity = peer_identity(&certificates).map_err(CredentialsTextError::Certificate)?;
        let network = identity.service.network;
        let own = TrustBundle::new(network, identity.spiffe.trust_domain, roots);
        let bundles = TrustBundles::new(0, [own.map_err(CredentialsTextError::Bundle)?]);
        let bundles = bundles.map_err(CredentialsTextError::Bundle)?;
        Self::new(&key, certificates, bundles).map_err(CredentialsTextError::Credentials)
    }
}

/// SHA-256 in hexadecimal digits.
fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;
    use tollway_model::{Label, ServiceName, TrustDomain};

    use super::*;
    use crate::authority::{Authority, IssueRequest};

    fn credentials() -> Credentials {
        let label = |text| Label::new(text).unwrap();
        let (network, domain) = (label("west"), TrustDomain::new("west.tollway").unwrap());
        let now = SystemTime::now();
        let authority = Authority::create(&domain, &network, now).unwrap();
        let key = KeyPair::generate().unwrap();
        let service = ServiceName {
            app: label("web"),
            namespace: label("default"),
            network: network.clone(),
        };
        let request = IssueRequest {
            csr_der: key.csr_der().unwrap(),
            service,
            instance: label("web-1"),
            ttl: Duration::from_secs(3600),
        };
        let issued = authority.issue(&request, now).unwrap();
        let bundle = TrustBundle::new(network, domain, vec![authority.root_der().clone()]);
        let bundles = TrustBundles::new(7, [bundle.unwrap()]).unwrap();
        Credentials::new(&key, issued.chain, bundles).unwrap()
    }

    #[test]
    fn credentials_survive_their_text_form() {
        let before = credentials();
        let after = Credentials::from_text(&before.to_text()).unwrap();
        assert_eq!(after.spiffe_id(), before.spiffe_id());
        assert_eq!(after.instance(), before.instance());
        assert_eq!(after.chain(), before.chain());
        assert_eq!(after.key(), before.key());
        let domain = &before.spiffe_id().trust_domain;
        assert_eq!(after.bundles().get(domain), before.bundles().get(domain));
        assert_eq!(after.bundles().revision(), 0, "so that all trust is sent again");
    }

    #[test]
    fn text_of_another_kind_or_version_is_refused() {
        for text in ["", "\n", "nonsense", "tollway-identity-2 0 1\n"] {
            assert!(
                matches!(Credentials::from_text(text), Err(CredentialsTextError::Shape)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_text_that_is_whole_and_lacks_a_part_is_refused() {
        let text = credentials().to_text();
        let (_, body) = text.split_once('\n').unwrap();
        let with = |body: &str, chain: usize| {
            Credentials::from_text(&format!("{VERSION} {} {chain}\n{body}", hash(body)))
        };
        assert!(with(body, 1).is_ok());
        assert!(matches!(
            with(body, 0),
            Err(CredentialsTextError::Certificate(PeerError::NoCertificate))
        ));
        assert!(matches!(with(body, 2), Err(CredentialsTextError::Bundle(_))), "no root");
        assert!(matches!(with(body, 3), Err(CredentialsTextError::Count { count: 2 })));
        assert!(matches!(with("", 0), Err(CredentialsTextError::Key(_))));
        let other = KeyPair::generate().unwrap().to_pem();
        let certificates = &body[body.find("-----BEGIN CERTIFICATE").unwrap()..];
        let swapped = with(&format!("{other}{certificates}"), 1);
        assert!(matches!(swapped, Err(CredentialsTextError::Credentials(_))));
    }

    proptest! {
        #[test]
        fn a_text_with_a_changed_byte_is_never_taken(at: prop::sample::Index, other in 1_u8..128) {
            let text = credentials().to_text();
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len());
            prop_assume!(bytes[at] != other);
            bytes[at] = other;
            let changed = String::from_utf8(bytes).unwrap();
            prop_assert!(Credentials::from_text(&changed).is_err());
        }
    }
}
