//! Reads the identity from a certificate. It verifies nothing: `tls` checks the chain.
//!
//! A workload's certificate carries exactly one URI, its SPIFFE identity, and DNS names made of
//! the same app and namespace: `<app>.<namespace>.<network>.mesh` and at most one
//! `<instance>.<app>.<namespace>.<network>.mesh`. Anything else is refused, never skipped.

use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tollway_model::{Instance, Label, MESH_SUFFIX, NameError, NetworkName, ServiceName, SpiffeId};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::authority::{control_dns_san, control_spiffe_id, system_time};

/// Largest certificate that is read, in bytes.
pub const CERTIFICATE_BYTES_LIMIT: usize = 8 * 1024;
/// Most subject alternative names of one certificate.
pub const NAMES_LIMIT: usize = 16;
/// Most certificates a peer may show: the leaf, and what leads to its root.
pub const CHAIN_LIMIT: usize = 4;

/// Why a certificate names no peer of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PeerError {
    #[error("the peer showed no certificate")]
    NoCertificate,
    #[error("the peer showed {count} certificates; at most {CHAIN_LIMIT} are read")]
    ChainTooLong { count: usize },
    #[error("the certificate has {bytes} bytes; at most {CERTIFICATE_BYTES_LIMIT} are read")]
    TooLarge { bytes: usize },
    #[error("the certificate is malformed")]
    Malformed,
    #[error("the certificate does not say what it may be used for (extended key usage)")]
    NoPurpose,
    #[error("the certificate has {count} names; at most {NAMES_LIMIT} are read")]
    TooManyNames { count: usize },
    #[error("the certificate carries no SPIFFE identity (a URI among its alternative names)")]
    NoIdentity,
    #[error("the certificate carries {count} URIs; exactly one, its SPIFFE identity, is allowed")]
    ManyIdentities { count: usize },
    #[error("the certificate's URI is not an identity")]
    Identity(#[source] NameError),
    #[error("the certificate of {spiffe} may not carry the name `{name}`")]
    ForeignName { spiffe: SpiffeId, name: String },
    #[error("the certificate of {spiffe} does not carry its service's DNS name")]
    NoServiceName { spiffe: SpiffeId },
    #[error("the certificate of {spiffe} names more than one {what}")]
    Ambiguous { spiffe: SpiffeId, what: &'static str },
}

/// The identity in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    pub spiffe: SpiffeId,
    pub service: ServiceName,
    /// Every DNS name of the certificate, as written.
    pub dns_names: Vec<String>,
    pub instance: Option<Instance>,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// SHA-256 of its public key (`SubjectPublicKeyInfo`).
    pub key_hash: [u8; 32],
    /// The certificate's serial number, big-endian.
    pub serial: Vec<u8>,
}

impl PeerIdentity {
    /// Whether the certificate is valid at `now`. A resumed session skips the check that a full
    /// handshake makes, so ask this after every handshake.
    #[must_use]
    pub fn valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// Whether the certificate has ended, and at most `grace` before `now`. Never without a grace.
    #[must_use]
    pub fn ended_within(&self, grace: Duration, now: SystemTime) -> bool {
        now.duration_since(self.not_after).is_ok_and(|ago| !ago.is_zero() && ago <= grace)
    }
}

/// Reads the identity from a peer's certificates, leaf first, after a handshake (full or
/// resumed) has verified them.
///
/// # Errors
/// [`PeerError`].
pub fn peer_identity(certs: &[CertificateDer<'_>]) -> Result<PeerIdentity, PeerError> {
    let leaf = certs.first().ok_or(PeerError::NoCertificate)?;
    if certs.len() > CHAIN_LIMIT {
        return Err(PeerError::ChainTooLong { count: certs.len() });
    }
    if leaf.len() > CERTIFICATE_BYTES_LIMIT {
        return Err(PeerError::TooLarge { bytes: leaf.len() });
    }
    let (rest, certificate) = X509Certificate::from_der(leaf).map_err(|_| PeerError::Malformed)?;
    if !rest.is_empty() {
        return Err(PeerError::Malformed);
    }
    let purpose = certificate.extended_key_usage().map_err(|_| PeerError::Malformed)?;
    purpose.ok_or(PeerError::NoPurpose)?;
    let names = read_names(&certificate)?;
    let spiffe = match names.uris[..] {
        [] => return Err(PeerError::NoIdentity),
        [uri] => SpiffeId::parse(uri).map_err(PeerError::Identity)?,
        _ => return Err(PeerError::ManyIdentities { count: names.uris.len() }),
    };
    let named = read_dns_names(&spiffe, &names.dns)?;
    Ok(PeerIdentity {
        service: named.service,
        instance: named.instance,
        dns_names: names.dns.iter().map(|name| (*name).to_owned()).collect(),
        not_before: system_time(certificate.validity().not_before.timestamp()),
        not_after: system_time(certificate.validity().not_after.timestamp()),
        key_hash: sha256(certificate.public_key().raw),
        serial: certificate.serial.to_bytes_be(),
        spiffe,
    })
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[derive(Default)]
struct Names<'a> {
    uris: Vec<&'a str>,
    dns: Vec<&'a str>,
}

fn read_names<'a>(certificate: &'a X509Certificate<'_>) -> Result<Names<'a>, PeerError> {
    let extension = certificate.subject_alternative_name().map_err(|_| PeerError::Malformed)?;
    let Some(extension) = extension else { return Err(PeerError::NoIdentity) };
    let general = &extension.value.general_names;
    if general.len() > NAMES_LIMIT {
        return Err(PeerError::TooManyNames { count: general.len() });
    }
    let mut names = Names::default();
    // Addresses, directory names and the like decide nothing here.
    for name in general {
        if let GeneralName::URI(uri) = name {
            names.uris.push(uri);
        } else if let GeneralName::DNSName(dns) = name {
            names.dns.push(dns);
        }
    }
    Ok(names)
}

struct Named {
    service: ServiceName,
    instance: Option<Instance>,
}

/// Reads the DNS names, each of which must belong to `spiffe`.
fn read_dns_names(spiffe: &SpiffeId, dns: &[&str]) -> Result<Named, PeerError> {
    let (mut network, mut instance, mut service_named) = (None, None, false);
    for name in dns {
        let foreign =
            || PeerError::ForeignName { spiffe: spiffe.clone(), name: (*name).to_owned() };
        let parts = read_dns_name(spiffe, name).ok_or_else(foreign)?;
        set_once(&mut network, parts.network, spiffe, "network")?;
        match parts.kind {
            NameKind::Service => service_named = true,
            NameKind::Instance(label) => set_once(&mut instance, label, spiffe, "instance")?,
            NameKind::Control => {}
        }
    }
    match network {
        Some(network) if service_named => Ok(Named {
            service: ServiceName {
                app: spiffe.app.clone(),
                namespace: spiffe.namespace.clone(),
                network,
            },
            instance,
        }),
        _ => Err(PeerError::NoServiceName { spiffe: spiffe.clone() }),
    }
}

fn set_once(
    slot: &mut Option<Label>,
    value: Label,
    spiffe: &SpiffeId,
    what: &'static str,
) -> Result<(), PeerError> {
    match slot {
        Some(known) if *known != value => {
            Err(PeerError::Ambiguous { spiffe: spiffe.clone(), what })
        }
        _ => {
            *slot = Some(value);
            Ok(())
        }
    }
}

struct DnsNameParts {
    network: NetworkName,
    kind: NameKind,
}

enum NameKind {
    Service,
    Instance(Instance),
    Control,
}

/// Splits a DNS name; `None` when it is not one that the holder of `spiffe` may carry.
fn read_dns_name(spiffe: &SpiffeId, name: &str) -> Option<DnsNameParts> {
    let labels = name.split('.').map(Label::new).collect::<Result<Vec<_>, _>>().ok()?;
    let (suffix, labels) = labels.split_last()?;
    let (network, owner) = labels.split_last()?;
    if suffix.as_str() != MESH_SUFFIX || network.is_any_network() {
        return None;
    }
    let own = |app: &Label, namespace: &Label| *app == spiffe.app && *namespace == spiffe.namespace;
    let kind = match owner {
        [app, namespace] if own(app, namespace) => NameKind::Service,
        [instance, app, namespace] if own(app, namespace) => NameKind::Instance(instance.clone()),
        [_] if *spiffe == control_spiffe_id(&spiffe.trust_domain)
            && name == control_dns_san(network) =>
        {
            NameKind::Control
        }
        _ => return None,
    };
    Some(DnsNameParts { network: network.clone(), kind })
}
