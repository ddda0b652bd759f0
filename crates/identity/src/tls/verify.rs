//! Decides whether a peer's certificate is believed.
//!
//! The order keeps a hostile certificate cheap: sizes and counts, then names, then the trust
//! domain's bundle, and only then signatures (webpki bounds those).

use std::time::{Duration, UNIX_EPOCH};

use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DistinguishedName, Error};
use tollway_model::{SpiffeId, TrustDomain};
use webpki::{EndEntityCert, KeyUsage};

use super::refusal::{Refusal, from_webpki};
use super::{Expected, provider};
use crate::bundle::{TrustBundle, TrustBundles};
use crate::peer::{CHAIN_LIMIT, PeerError, PeerIdentity, peer_identity};

/// id-kp-serverAuth. Authorities may leave purposes out; the leaf's own must be there, which
/// `peer_identity` has seen to.
const SERVER_AUTH: KeyUsage = KeyUsage::required_if_present(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
/// id-kp-clientAuth, likewise.
const CLIENT_AUTH: KeyUsage = KeyUsage::required_if_present(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);

/// The methods that every verifier has: signatures are checked by the library's algorithms. The two
/// traits of rustls share no supertrait for these.
macro_rules! signatures_of_the_library {
    () => {
        /// Never called: TLS 1.2 is not offered.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &rustls::pki_types::CertificateDer<'_>,
            _signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Err(rustls::PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &rustls::pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            let algorithms = &$crate::tls::provider().signature_verification_algorithms;
            rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            $crate::tls::provider().signature_verification_algorithms.supported_schemes()
        }
    };
}
pub(super) use signatures_of_the_library;

/// Whether callers must show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Requirement {
    Certificate,
    CertificateIfShown,
}

/// A dialler's check: the other end is exactly the one expected.
#[derive(Debug)]
pub(super) struct ExactPeer {
    bundle: TrustBundle,
    expected: Expected,
}

impl ExactPeer {
    pub(super) fn new(bundle: TrustBundle, expected: Expected) -> Self {
        Self { bundle, expected }
    }
}

impl ServerCertVerifier for ExactPeer {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let peer = read_peer(leaf, intermediates)?;
        verify_identity(&self.expected.spiffe, &peer)?;
        verify_network(&self.bundle, &peer)?;
        verify_name(&self.expected.dns_san, &peer)?;
        verify_name(&server_name.to_str(), &peer)?;
        verify_chain(&self.bundle, leaf, intermediates, now, SERVER_AUTH)?;
        verify_not_revoked(&self.bundle, &peer)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures_of_the_library!();
}

/// A listener's check: the caller is of a known trust domain.
#[derive(Debug)]
pub(super) struct AnyKnownPeer {
    bundles: TrustBundles,
    requirement: Requirement,
    grace: Option<Grace>,
}

/// How long certificates of a trust domain may have ended.
#[derive(Debug)]
pub(super) struct Grace {
    pub(super) trust_domain: TrustDomain,
    pub(super) time: Duration,
}

impl AnyKnownPeer {
    pub(super) fn new(bundles: TrustBundles, requirement: Requirement) -> Self {
        Self { bundles, requirement, grace: None }
    }

    pub(super) fn with_grace(self, grace: Grace) -> Self {
        Self { grace: Some(grace), ..self }
    }
}

impl Grace {
    /// The time at which a chain is judged: within the grace, the end of the certificate.
    fn time_for(&self, peer: &PeerIdentity, now: UnixTime) -> UnixTime {
        let present = UNIX_EPOCH + Duration::from_secs(now.as_secs());
        let is_own = peer.spiffe.trust_domain == self.trust_domain;
        if is_own && peer.ended_within(self.time, present) {
            let end = peer.not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
            return UnixTime::since_unix_epoch(end);
        }
        now
    }
}

impl ClientCertVerifier for AnyKnownPeer {
    fn client_auth_mandatory(&self) -> bool {
        self.requirement == Requirement::Certificate
    }

    /// None: a caller must not learn the known roots before it has authenticated.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Mutant `replace <impl ClientCertVerifier for AnyKnownPeer>::root_hint_subjects -> &[DistinguishedName] with
        // Vec::leak(Vec::new())`: it is the same.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let peer = read_peer(leaf, intermediates)?;
        let bundle = self
            .bundles
            .get(&peer.spiffe.trust_domain)
            .ok_or_else(|| Refusal::UnknownTrustDomain { spiffe: peer.spiffe.clone() })?;
        verify_network(bundle, &peer)?;
        let at = self.grace.as_ref().map_or(now, |grace| grace.time_for(&peer, now));
        verify_chain(bundle, leaf, intermediates, at, CLIENT_AUTH)?;
        verify_not_revoked(bundle, &peer)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures_of_the_library!();
}

/// Reads the leaf's identity, after counting what was shown.
pub(super) fn read_peer(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<PeerIdentity, Refusal> {
    let count = intermediates.len() + 1;
    if count > CHAIN_LIMIT {
        return Err(PeerError::ChainTooLong { count }.into());
    }
    Ok(peer_identity(std::slice::from_ref(leaf))?)
}

pub(super) fn verify_name(name: &str, peer: &PeerIdentity) -> Result<(), Refusal> {
    if peer.dns_names.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(Refusal::MissingName { spiffe: peer.spiffe.clone(), name: name.to_owned() })
}

/// Checks signatures, validity, purpose and constraints, up to a root of `bundle`.
pub(super) fn verify_chain(
    bundle: &TrustBundle,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
) -> Result<(), Error> {
    verify_to_anchors(bundle.anchors(), leaf, intermediates, now, usage)
}

/// As [`verify_chain`], for a peer that may have been dialled or have dialled.
pub(crate) fn verify_either(
    bundle: &TrustBundle,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    let of = |usage| verify_chain(bundle, leaf, intermediates, now, usage);
    of(CLIENT_AUTH).or_else(|_| of(SERVER_AUTH))
}

/// As [`verify_chain`], for a server and given anchors.
pub(super) fn verify_server_to(
    anchors: &[rustls::pki_types::TrustAnchor<'_>],
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), Error> {
    verify_to_anchors(anchors, leaf, intermediates, now, SERVER_AUTH)
}

fn verify_to_anchors(
    anchors: &[rustls::pki_types::TrustAnchor<'_>],
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
) -> Result<(), Error> {
    let algorithms = provider().signature_verification_algorithms.all;
    EndEntityCert::try_from(leaf)
        .and_then(|leaf| {
            leaf.verify_for_usage(algorithms, anchors, intermediates, now, usage, None, None)
                .map(|_| ())
        })
        .map_err(from_webpki)
}

fn verify_identity(expected: &SpiffeId, peer: &PeerIdentity) -> Result<(), Refusal> {
    if peer.spiffe == *expected {
        return Ok(());
    }
    Err(Refusal::WrongIdentity { expected: expected.clone(), found: peer.spiffe.clone() })
}

/// Last, so that the alert `certificate_revoked` answers none but the holder of such a certificate.
fn verify_not_revoked(bundle: &TrustBundle, peer: &PeerIdentity) -> Result<(), Error> {
    if bundle.revokes(peer) {
        return Err(Error::InvalidCertificate(CertificateError::Revoked));
    }
    Ok(())
}

fn verify_network(bundle: &TrustBundle, peer: &PeerIdentity) -> Result<(), Refusal> {
    if peer.service.network == *bundle.network() {
        return Ok(());
    }
    Err(Refusal::ForeignNetwork {
        trust_domain: bundle.trust_domain().clone(),
        own: bundle.network().clone(),
        claimed: peer.service.network.clone(),
    })
}
