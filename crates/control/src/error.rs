//! Why a control plane did not start or stopped.

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;
use tollway_identity::{
    AuthorityError, CredentialsError, IssueError, KeyError, SealError, TlsError,
};
use tollway_model::{ErrorCode, NameError, NetworkName, TrustDomain};
use tollway_store::{EtcdError, OpenError, ReadError, TransactError};

use crate::feed::FeedError;

/// Why a control plane did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot make the directory {}; choose another one with --store", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("cannot serve this network")]
    Network(#[from] NameError),
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    #[error("cannot use etcd")]
    Etcd(#[from] EtcdError),
    #[error(
        "this control plane is no master of its etcd any more: it did not answer in time, or another one has taken over; start it again, and it stands by"
    )]
    Lost,
    #[error("cannot read the store")]
    Read(#[from] ReadError),
    #[error("cannot write the store")]
    Write(#[from] TransactError),
    #[error("cannot read the registry")]
    Feed(#[from] FeedError),
    #[error(
        "the store belongs to the network {stored} ({stored_domain}), not to {asked} ({asked_domain}); choose another directory with --store"
    )]
    Foreign {
        stored: NetworkName,
        stored_domain: TrustDomain,
        asked: NetworkName,
        asked_domain: TrustDomain,
    },
    #[error("the stored authority does not read back; restore the store from a copy")]
    StoredAuthority,
    #[error(
        "the key of the network's authority is sealed in the store; give its passphrase with --authority-key-file"
    )]
    AuthorityKeyMissing,
    #[error("the key of the network's authority cannot be used: {0}")]
    AuthorityKey(SealError),
    #[error("the certificate authority cannot be used")]
    Authority(#[from] AuthorityError),
    #[error("cannot issue the control plane's own certificate")]
    Own(#[from] OwnCertificateError),
    #[error("cannot drop what an interrupted join left behind")]
    Pending(#[source] crate::peering::admission::JoinError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot listen on {address} for metrics; choose another address with --admin-listen")]
    ListenAdmin { address: SocketAddr, source: std::io::Error },
    #[error("cannot listen on the admin socket {}; a path has at most 107 bytes, choose a shorter directory with --store", path.display())]
    AdminSocket { path: PathBuf, source: std::io::Error },
    #[error("cannot write the ports file {}", path.display())]
    PortsFile { path: PathBuf, source: std::io::Error },
}

impl StartError {
    /// Whether another process has the store.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Store(OpenError::Locked { .. }))
    }

    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Network(_) => Some(ErrorCode::BadName),
            Self::Store(error) => Some(error.code()),
            Self::Write(error) => error.code(),
            Self::Directory { source, .. } => {
                Some(ErrorCode::of_file(source, ErrorCode::StoreUnwritable))
            }
            Self::Foreign { .. } => Some(ErrorCode::StoreForeign),
            Self::StoredAuthority => Some(ErrorCode::StoreCorrupt),
            Self::AuthorityKeyMissing | Self::AuthorityKey(_) => Some(ErrorCode::AuthorityKey),
            Self::Listen { source, .. } | Self::ListenAdmin { source, .. } => {
                ErrorCode::of_io(source)
            }
            Self::AdminSocket { source, .. } | Self::PortsFile { source, .. } => {
                Some(ErrorCode::of_file(source, ErrorCode::FileUnusable))
            }
            Self::Etcd(_) | Self::Lost => Some(ErrorCode::StoreUnwritable),
            Self::Read(_)
            | Self::Feed(_)
            | Self::Authority(_)
            | Self::Own(_)
            | Self::Pending(_) => None,
        }
    }
}

/// Why the control plane could not give itself a certificate.
#[derive(Debug, Error)]
pub enum OwnCertificateError {
    #[error("a stored trust bundle does not read back")]
    Stored,
    #[error("cannot make a key")]
    Key(#[from] KeyError),
    #[error("the authority refused")]
    Issue(#[from] IssueError),
    #[error("the trust bundles are unusable")]
    Bundle(#[from] tollway_identity::BundleError),
    #[error("the certificate is unusable")]
    Credentials(#[from] CredentialsError),
    #[error("TLS refuses the certificate")]
    Tls(#[from] TlsError),
}
