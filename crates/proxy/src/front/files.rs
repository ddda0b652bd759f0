//! The files of a front: pairs of certificate and key, and the authorities of its clients.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use thiserror::Error;
use tollway_identity::{
    ClientAuthorities, ClientCertificateError, FrontError, FrontPair, PairError, front_config,
};
use tollway_model::ErrorCode;
use tollway_net::SecretFile;

use crate::tls::alpn;

/// Largest file that is read, in bytes.
const FILE_BYTES_LIMIT: u64 = 4 * 1024 * 1024;

/// Where a front's certificates are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FrontFiles {
    /// Certificate (with its chain) and key; the first is for clients that ask for no known name.
    pub pairs: Vec<(PathBuf, PathBuf)>,
    /// Authorities of clients. If set, every client must show a certificate.
    pub client_ca: Option<PathBuf>,
    /// Keys that others can read are served.
    pub allow_open_files: bool,
}

/// Why the files cannot be served.
#[derive(Debug, Error)]
pub enum FrontFilesError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} has more than {FILE_BYTES_LIMIT} bytes; it cannot be meant")]
    TooLarge { path: PathBuf },
    #[error("cannot serve {path}")]
    Pair { path: PathBuf, source: PairError },
    #[error("cannot demand certificates of {path}")]
    Clients { path: PathBuf, source: ClientCertificateError },
    #[error("cannot serve the certificates")]
    Config(#[source] FrontError),
}

impl FrontFilesError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Read { source, .. } => ErrorCode::of_file(source, ErrorCode::FileUnusable),
            Self::Pair { source: PairError::Expired { .. }, .. } => ErrorCode::CertificateExpired,
            Self::Pair { source: PairError::NotYetValid { .. }, .. } => {
                ErrorCode::CertificateNotYetValid
            }
            Self::TooLarge { .. } | Self::Pair { .. } | Self::Clients { .. } | Self::Config(_) => {
                ErrorCode::CertificateUnusable
            }
        }
    }
}

/// What the files gave: shown to clients and believed of them.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) config: Arc<ServerConfig>,
    /// The authorities of clients, as in their file.
    pub(crate) clients: Option<Arc<[u8]>>,
    /// When the first of the certificates expires.
    pub(crate) expires: SystemTime,
}

/// What distinguishes one content of the files from another without reading them.
pub(super) type Stamps = Vec<Option<(u64, u64, i64, i64, u64)>>;

impl FrontFiles {
    /// Reads them as a front would at its start, and returns what it would serve.
    ///
    /// # Errors
    /// [`FrontFilesError`].
    pub fn check(&self, now: SystemTime) -> Result<Vec<CheckedPair>, FrontFilesError> {
        self.load(now).map(|(_, pairs)| pairs)
    }

    /// What is served from now on, and of which pairs.
    pub(super) fn load(
        &self,
        now: SystemTime,
    ) -> Result<(Served, Vec<CheckedPair>), FrontFilesError> {
        let pairs = self.pairs.iter().map(|files| read_pair(files, self.allow_open_files, now));
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let clients = self.client_ca.as_deref().map(read_clients).transpose()?;
        let (clients, authorities) = clients.unzip();
        let protocols = [alpn::H2, alpn::HTTP1];
        let config = front_config(&pairs, authorities.as_ref(), &protocols)
            .map_err(FrontFilesError::Config)?;
        let expires = pairs.iter().map(FrontPair::not_after).min().unwrap_or(now);
        let checked = self.pairs.iter().zip(&pairs).map(|((certificate, _), pair)| CheckedPair {
            certificate: certificate.clone(),
            names: pair.names().to_vec(),
            not_after: pair.not_after(),
        });
        Ok((Served { config, clients, expires }, checked.collect()))
    }

    pub(super) fn stamps(&self) -> Stamps {
        let pairs = self.pairs.iter().flat_map(|(certificate, key)| [certificate, key]);
        pairs.chain(&self.client_ca).map(|path| stamp(path)).collect()
    }
}

/// A pair that can be served.
#[derive(Clone, Debug)]
pub struct CheckedPair {
    pub certificate: PathBuf,
    /// By which clients can ask for it.
    pub names: Vec<String>,
    pub not_after: SystemTime,
}

fn read_pair(
    (certificate, key): &(PathBuf, PathBuf),
    key_may_be_open: bool,
    now: SystemTime,
) -> Result<FrontPair, FrontFilesError> {
    let chain = read(certificate)?;
    let secret = SecretFile::new(key.clone(), key_may_be_open).read(FILE_BYTES_LIMIT + 1);
    FrontPair::from_pem(&chain, &whole(key, secret)?, now).map_err(|source| {
        let path = if source.is_of_key() { key } else { certificate };
        FrontFilesError::Pair { path: path.clone(), source }
    })
}

fn read_clients(path: &Path) -> Result<(Arc<[u8]>, ClientAuthorities), FrontFilesError> {
    let pem = read(path)?;
    let authorities = ClientAuthorities::from_pem(&pem)
        .map_err(|source| FrontFilesError::Clients { path: path.to_owned(), source })?;
    Ok((pem.into(), authorities))
}

fn read(path: &Path) -> Result<Vec<u8>, FrontFilesError> {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(FILE_BYTES_LIMIT + 1).read_to_end(&mut bytes));
    whole(path, read.map(|_| bytes))
}

/// What was read of a file, unless it is too large.
fn whole(path: &Path, read: std::io::Result<Vec<u8>>) -> Result<Vec<u8>, FrontFilesError> {
    let bytes = read.map_err(|source| FrontFilesError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > FILE_BYTES_LIMIT {
        return Err(FrontFilesError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

fn stamp(path: &Path) -> Option<(u64, u64, i64, i64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
}
