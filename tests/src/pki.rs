//! Authorities and the certificates that they make, as files and as what clients show.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SignatureAlgorithm,
};
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub root: String,
}

/// What is to be in a certificate, made valid for an hour unless changed.
pub struct Wanted {
    pub params: CertificateParams,
    kind: &'static SignatureAlgorithm,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    pub fn sign(&self, wanted: &Wanted) -> Pair {
        let key = KeyPair::generate_for(wanted.kind).unwrap();
        let certificate = wanted.params.signed_by(&key, &self.issuer).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A server's certificate for these names.
    pub fn server(&self, names: &[&str]) -> Pair {
        self.sign(&Wanted::server(names))
    }
}

impl Wanted {
    pub fn server(names: &[&str]) -> Self {
        Self::of(names.first().unwrap_or(&"nobody"), names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub fn client(name: &str) -> Self {
        Self::of(name, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn of(name: &str, names: &[&str], purpose: ExtendedKeyUsagePurpose) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = named(name);
        params.not_before = (SystemTime::now() - Duration::from_secs(60)).into();
        params.not_after = (SystemTime::now() + Duration::from_secs(3600)).into();
        params.extended_key_usages = vec![purpose];
        Self { params, kind: &rcgen::PKCS_ECDSA_P256_SHA256 }
    }

    pub fn with(mut self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        change(&mut self.params);
        self
    }

    pub fn keyed(mut self, kind: &'static SignatureAlgorithm) -> Self {
        self.kind = kind;
        self
    }

    pub fn expired(self) -> Self {
        self.with(|params| params.not_after = (SystemTime::now() - Duration::from_secs(5)).into())
    }
}

impl Pair {
    /// Writes `<name>.pem` and `<name>.key`, each at once.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = write(folder, &format!("{name}.pem"), &self.certificate);
        (certificate, write(folder, &format!("{name}.key"), &self.key))
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }

    /// As a client shows it.
    pub fn shown(&self) -> Arc<CertifiedKey> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let key = default_provider().key_provider.load_private_key(key).unwrap();
        Arc::new(CertifiedKey::new(vec![self.der()], key))
    }
}

/// The client that `builder` has begun: it presents `shown` on request, or nothing.
pub fn showing(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    shown: Option<Arc<CertifiedKey>>,
    alpn: &[u8],
) -> ClientConfig {
    let mut config = match shown {
        Some(shown) => {
            let resolver: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(shown));
            builder.with_client_cert_resolver(resolver)
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

/// Puts a file in the place of another, whole, for its owner alone.
pub fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    tollway_net::secret_file::write(&path, text.as_bytes()).unwrap();
    path
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}
