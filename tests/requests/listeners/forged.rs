//! Certificates as a thief of the authority's key or a broken authority would make them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, SanType};
use rustls::sign::CertifiedKey;
use tollway_identity::Authority;
use tollway_model::TrustDomain;

use tollway_tests::network::label;
use tollway_tests::pki::Pair;

/// The content of a certificate.
pub(crate) struct Forge {
    pub(crate) uris: Vec<String>,
    pub(crate) dns: Vec<String>,
    /// Relative to now, in seconds.
    pub(crate) not_before_s: i64,
    pub(crate) not_after_s: i64,
}

impl Forge {
    /// An honest certificate of `<app>.default.<network>`, to be spoilt.
    pub(crate) fn workload(app: &str, network: &str) -> Self {
        let name = format!("{app}.default.{network}.mesh");
        Self {
            uris: vec![format!("spiffe://{network}.tollway/ns/default/{app}")],
            dns: vec![name.clone(), format!("i-1.{name}")],
            not_before_s: -60,
            not_after_s: 3600,
        }
    }

    pub(crate) fn sign(&self, authority: &Authority) -> Arc<CertifiedKey> {
        let pem = authority.to_pem();
        let issuer_key = rcgen::KeyPair::from_pem(&pem.key).unwrap();
        let issuer = Issuer::from_ca_cert_der(authority.root_der(), issuer_key).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = self.params().signed_by(&key, &issuer).unwrap();
        Pair { certificate: leaf.pem(), key: key.serialize_pem() }.shown()
    }

    fn params(&self) -> CertificateParams {
        let ia5 = |text: &String| Ia5String::try_from(text.as_str()).unwrap();
        let mut params = CertificateParams::default();
        params.not_before = shifted(self.not_before_s).into();
        params.not_after = shifted(self.not_after_s).into();
        params.subject_alt_names = self.uris.iter().map(|uri| SanType::URI(ia5(uri))).collect();
        params.subject_alt_names.extend(self.dns.iter().map(|name| SanType::DnsName(ia5(name))));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.is_ca = IsCa::ExplicitNoCa;
        params
    }
}

fn shifted(seconds: i64) -> SystemTime {
    let by = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
}

/// A certificate that is refused wherever identities of the network west are checked.
pub(crate) struct Stranger {
    pub(crate) name: &'static str,
    pub(crate) shown: Arc<CertifiedKey>,
    /// The error of the refusing side.
    pub(crate) reason: &'static str,
}

/// Callers as `app`, or nearly so, without being it. `west` is the network's real authority.
pub(crate) fn strangers(app: &str, west: &Authority) -> Vec<Stranger> {
    let authority = |network: &str| {
        let network = label(network);
        let domain = TrustDomain::default_for(&network);
        Authority::create(&domain, &network, SystemTime::now()).unwrap()
    };
    let honest = || Forge::workload(app, "west");
    let twice = format!("spiffe://west.tollway/ns/default/{app}");
    let mut two_identities = honest();
    two_identities.uris.push("spiffe://west.tollway/ns/default/other".into());
    let mut same_twice = honest();
    same_twice.uris.push(twice);
    let stranger = |name, forge: Forge, authority: &Authority, reason| Stranger {
        name,
        shown: forge.sign(authority),
        reason,
    };
    vec![
        stranger("a twin of the authority", honest(), &authority("west"), "another trust root"),
        stranger(
            "an expired certificate",
            Forge { not_after_s: -1, ..honest() },
            west,
            "certificate expired",
        ),
        stranger(
            "a certificate of tomorrow",
            Forge { not_before_s: 3000, ..honest() },
            west,
            "not valid for another",
        ),
        stranger("two identities", two_identities, west, "carries 2 URIs"),
        stranger("one identity twice", same_twice, west, "carries 2 URIs"),
        stranger("no identity", Forge { uris: vec![], ..honest() }, west, "no SPIFFE identity"),
        stranger(
            "names of another network",
            Forge { dns: vec![format!("{app}.default.east.mesh")], ..honest() },
            west,
            "may vouch for names of the network west only",
        ),
    ]
}

/// A workload of a network that is not joined.
pub(crate) fn foreigner(app: &str) -> Arc<CertifiedKey> {
    let network = label("north");
    let domain = TrustDomain::default_for(&network);
    let north = Authority::create(&domain, &network, SystemTime::now()).unwrap();
    Forge::workload(app, "north").sign(&north)
}
