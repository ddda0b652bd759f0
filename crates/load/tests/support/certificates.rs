//! Certificates of a test's own authority, as PEM files.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority and what it has issued; the files go with it.
pub(crate) struct Certificates {
    directory: TempDir,
}

impl Certificates {
    /// `ca.pem`; `server.pem` with `server.key` for `localhost` and 127.0.0.1; `client.pem` with
    /// its key in the same file.
    pub(crate) fn make() -> Self {
        let directory = TempDir::new().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        let name = format!("authority of {}", directory.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let made = Self { directory };
        made.write("ca.pem", &issuer.pem());
        let (certificate, key) = leaf(&issuer, &["localhost", "127.0.0.1"]);
        made.write("server.pem", &certificate);
        made.write("server.key", &key);
        let (certificate, key) = leaf(&issuer, &["client"]);
        made.write("client.pem", &format!("{certificate}{key}"));
        made
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }
}

fn leaf(issuer: &CertifiedIssuer<'_, KeyPair>, names: &[&str]) -> (String, String) {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, issuer).unwrap();
    (certificate.pem(), key.serialize_pem())
}
