//! Certificates for peers, and for cases in which caller and app use TLS themselves, made by the
//! authority of Tollway's control planes, so that algorithms, names and lengths are equal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tollway_identity::{
    Authority, AuthorityError, IssueError, IssueRequest, KeyError, KeyPair, TokenError,
};
use tollway_model::{Instance, Label, NameError, NetworkName, ServiceName, TrustDomain};
use tollway_net::secret_file;

/// How long they are valid: longer than any experiment.
const TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Why peers have no certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("no certificate can carry the name of network {network:?}")]
    Name { network: String, source: NameError },
    #[error("cannot make a certificate authority")]
    Authority(#[from] AuthorityError),
    #[error("cannot make a key")]
    Key(#[from] KeyError),
    #[error("cannot issue a certificate")]
    Issue(#[from] IssueError),
    #[error("cannot make a token")]
    Token(#[from] TokenError),
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// One workload's identity, as files and names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Roots of all networks.
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) certificate_and_key: PathBuf,
    /// `echo.default.west.mesh`
    pub(crate) name: String,
    /// `spiffe://west.tollway/ns/default/echo`
    pub(crate) id: String,
}

/// The authorities of some networks.
pub(crate) struct Authorities {
    dir: PathBuf,
    ca: PathBuf,
    authorities: Vec<Authority>,
}

impl Authorities {
    /// Makes one for each network and writes their roots to `dir`, which is made.
    pub(crate) fn create(dir: &Path, networks: &[&str]) -> Result<Self, CertificateError> {
        let ca = dir.join("roots.pem");
        fs::create_dir_all(dir).map_err(|source| write_error(dir, source))?;
        let authorities = networks.iter().map(|network| authority(network));
        let authorities: Vec<Authority> = authorities.collect::<Result<_, _>>()?;
        let made = Self { dir: dir.to_path_buf(), ca, authorities };
        write_secret(&made.ca, made.roots_pem().as_bytes())?;
        Ok(made)
    }

    /// The roots of all networks.
    pub(crate) fn roots_pem(&self) -> String {
        self.authorities.iter().map(|a| a.root_pem().trim_end().to_owned() + "\n").collect()
    }

    /// The authority of the network of that place in the list.
    pub(crate) fn of(&self, network: usize) -> &Authority {
        &self.authorities[network]
    }

    /// The name of the workload `app` of the network of that place in the list.
    pub(crate) fn service(
        &self,
        network: usize,
        app: &str,
    ) -> Result<ServiceName, CertificateError> {
        let named = |source| CertificateError::Name { network: app.to_owned(), source };
        let label = |text: &str| Label::new(text).map_err(named);
        let network = self.of(network).network().clone();
        Ok(ServiceName { app: label(app)?, namespace: label("default")?, network })
    }

    /// Writes root and key of the network of that place in the list, for a process that issues in
    /// its name.
    pub(crate) fn keep(&self, network: usize) -> Result<(PathBuf, PathBuf), CertificateError> {
        let authority = self.of(network);
        let file = |kind: &str| self.dir.join(format!("root.{}.{kind}", authority.network()));
        let (root, key, pem) = (file("pem"), file("key"), authority.to_pem());
        write_secret(&root, pem.certificate.as_bytes())?;
        write_secret(&key, pem.key.as_bytes())?;
        Ok((root, key))
    }

    /// Issues to the workload `app` of the network of that place in the list.
    pub(crate) fn issue(&self, network: usize, app: &str) -> Result<Identity, CertificateError> {
        let authority = self.of(network);
        let service = self.service(network, app)?;
        let key = KeyPair::generate()?;
        let request = IssueRequest {
            csr_der: key.csr_der()?,
            service: service.clone(),
            instance: Instance::new("lab")
                .map_err(|source| CertificateError::Name { network: app.to_owned(), source })?,
            ttl: TTL,
        };
        let issued = authority.issue(&request, SystemTime::now())?;
        let (certificate_pem, key_pem) = (issued.to_pem(), key.to_pem());
        let file = |kind: &str| self.dir.join(format!("{app}.{}.{kind}", service.network));
        let identity = Identity {
            ca: self.ca.clone(),
            certificate: file("pem"),
            key: file("key"),
            certificate_and_key: file("both"),
            name: service.dns_san(),
            id: issued.spiffe_id.to_string(),
        };
        write_secret(&identity.certificate, certificate_pem.as_bytes())?;
        write_secret(&identity.key, key_pem.as_bytes())?;
        let both = format!("{certificate_pem}{key_pem}");
        write_secret(&identity.certificate_and_key, both.as_bytes())?;
        Ok(identity)
    }
}

fn authority(network: &str) -> Result<Authority, CertificateError> {
    let name = NetworkName::new(network)
        .map_err(|source| CertificateError::Name { network: network.to_owned(), source })?;
    Ok(Authority::create(&TrustDomain::default_for(&name), &name, SystemTime::now())?)
}

/// Writes a file that only its owner reads.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<(), CertificateError> {
    secret_file::write(path, content).map_err(|source| write_error(path, source))
}

fn write_error(path: &Path, source: io::Error) -> CertificateError {
    CertificateError::Write { path: path.into(), source }
}
