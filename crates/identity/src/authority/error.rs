//! Why an authority could not be made, or a certificate not be issued.

use std::time::Duration;

use thiserror::Error;
use tollway_model::NetworkName;

use super::SYSTEM_NAMESPACE;
use crate::key::KeyError;

/// Why an authority could not be made or read.
#[derive(Debug, Error)]
pub enum AuthorityError {
    #[error("cannot make the key of the authority")]
    Key(#[source] KeyError),
    #[error("cannot sign the root certificate")]
    Sign(#[source] rcgen::Error),
    #[error("the system gives no randomness")]
    Randomness,
    #[error("the clock shows a time that a certificate cannot hold; set it")]
    Clock,
    #[error("the root certificate is not readable PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the root certificate is not the root of a certificate authority")]
    NotARoot,
    #[error("the key does not belong to the root certificate")]
    KeyMismatch,
    #[error(
        "the root certificate belongs to {found}, not to {expected}; use the authority of this network"
    )]
    Foreign { expected: String, found: String },
    #[error("`{name}` cannot stand in a certificate as a DNS name; choose another network name")]
    Name { name: String },
}

/// Why a certificate was not issued.
#[derive(Debug, Error)]
pub enum IssueError {
    #[error("the certificate request has {bytes} bytes; it may have {limit}")]
    RequestTooLarge { bytes: usize, limit: usize },
    #[error(
        "the certificate request is malformed, its signature is wrong, or its key type is unknown"
    )]
    Request(#[source] rcgen::Error),
    #[error(
        "the certificate request has a key of a type that is not accepted; use EC P-256, P-384 or Ed25519"
    )]
    KeyType,
    #[error("this authority issues names of the network {own} only, not of {asked}")]
    ForeignNetwork { own: NetworkName, asked: NetworkName },
    #[error("the namespace `{SYSTEM_NAMESPACE}` belongs to the mesh itself; choose another one")]
    ReservedNamespace,
    #[error(
        "`{name}` cannot stand in a certificate: a DNS name has at most 253 characters and no part that begins or ends with `-`"
    )]
    Name { name: String },
    #[error(
        "a certificate cannot live {asked:?}; between {shortest:?} and {longest:?} is possible"
    )]
    Ttl { asked: Duration, shortest: Duration, longest: Duration },
    #[error("the authority's root has ended; make a new root and distribute it before it ends")]
    RootEnded,
    #[error("the clock shows a time that a certificate cannot hold; set it")]
    Clock,
    #[error("the system gives no randomness")]
    Randomness,
    #[error("cannot sign the certificate")]
    Sign(#[source] rcgen::Error),
}
