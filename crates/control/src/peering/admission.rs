//! Whether a network may be joined, decided by its bundle, its secret and what is joined already.
//! Pure; `join` acts on it.

use std::time::Duration;

use prost::Message as _;
use thiserror::Error;
use tollway_identity::{SecretHash, TlsError, TokenError};
use tollway_model::{ErrorCode, NetworkName, Revocation, TrustDomain};
use tollway_store::TransactError;
use tollway_wire::{MESSAGE_LIMIT_BYTES, TRUST_DOMAINS_LIMIT, v1};
use tonic::Status;

use super::dial::DialError;
use crate::addresses::AddressRefusal;
use crate::bundle::{BundleError, JoinBundle};
use crate::catalogue::Catalogue;
use crate::clock::ago;
use crate::status::store_status;
use crate::stored::JoinSecret;

/// Bytes of the roots of all networks together: data planes get them in one message, beside the
/// states of services.
pub(crate) const TRUST_BYTES_LIMIT: usize = MESSAGE_LIMIT_BYTES / 4;

/// The longest name of a trust domain.
const TRUST_DOMAIN_BYTES: usize = 255;

/// Why two networks were not joined.
#[derive(Debug, Error)]
pub enum JoinError {
    #[error("the bundle is refused")]
    Bundle(#[from] BundleError),
    #[error("the bundle is this network's own ({network}); accept it in the other network")]
    OwnNetwork { network: NetworkName },
    #[error(
        "the bundle's network {network} is called like this one but has another authority; networks that join need different names"
    )]
    SameName { network: NetworkName },
    #[error(
        "the trust domain {trust_domain} of the bundle belongs to {holder} already; a trust domain has one network"
    )]
    TrustDomainTaken { trust_domain: TrustDomain, holder: NetworkName },
    #[error(
        "the network {network} is joined with another authority or trust domain; remove it first with `tollway join remove {network}` if it was made anew"
    )]
    OtherAuthority { network: NetworkName },
    #[error("{count} networks are joined already; remove one first")]
    TooMany { count: usize },
    #[error(
        "the roots of all networks would be {bytes} bytes long, of at most {TRUST_BYTES_LIMIT}; remove a joined network, or export the bundle with fewer roots"
    )]
    TooManyRoots { bytes: usize },
    #[error("a gateway of the network {network} is refused: {refusal}")]
    Gateway { network: NetworkName, refusal: AddressRefusal },
    #[error(
        "no gateway is registered, so the other network could not reach this one; start one with `tollway gateway`"
    )]
    NoGateway,
    #[error(
        "the gateways of {network} only dial out, so no other network can present itself there; export a bundle in the other network and accept it in {network}"
    )]
    OnlyDialsOut { network: NetworkName },
    #[error("the bundle holds no join secret; export it with `tollway join export`")]
    Secret(#[source] TokenError),
    #[error("the join secret is not known here; export a new bundle")]
    UnknownSecret,
    #[error("the join secret expired {expired_for:?} ago; export a new bundle")]
    ExpiredSecret { expired_for: Duration },
    #[error("the join secret was used already; export a bundle for each network")]
    UsedSecret,
    #[error("another network is being joined at this moment; try again")]
    Busy,
    #[error("cannot prepare TLS")]
    Tls(#[from] TlsError),
    #[error("cannot reach the control plane of {network}")]
    Dial { network: NetworkName, source: DialError },
    #[error("{network} refused: {reason}")]
    Refused { network: NetworkName, reason: String },
    #[error("the network {network} is not joined; `tollway join list` shows those that are")]
    NotJoined { network: NetworkName },
    #[error("the store refused")]
    Write(#[from] TransactError),
    #[error("the store refused")]
    Read(#[from] tollway_store::ReadError),
}

impl From<JoinError> for Status {
    fn from(error: JoinError) -> Self {
        let text = tollway_model::chain(&error);
        let status = match error {
            JoinError::Bundle(_) | JoinError::Secret(_) => Self::invalid_argument(text),
            JoinError::OwnNetwork { .. }
            | JoinError::SameName { .. }
            | JoinError::TrustDomainTaken { .. }
            | JoinError::OtherAuthority { .. }
            | JoinError::TooMany { .. }
            | JoinError::TooManyRoots { .. }
            | JoinError::Gateway { .. }
            | JoinError::NoGateway
            | JoinError::OnlyDialsOut { .. } => Self::failed_precondition(text),
            JoinError::UnknownSecret | JoinError::ExpiredSecret { .. } | JoinError::UsedSecret => {
                Self::permission_denied(text)
            }
            JoinError::Dial { .. } | JoinError::Busy => Self::unavailable(text),
            JoinError::Refused { .. } => Self::permission_denied(text),
            JoinError::NotJoined { .. } => return Self::not_found(text),
            JoinError::Tls(_) => return Self::internal(text),
            JoinError::Write(ref inner) => return store_status(inner),
            JoinError::Read(ref inner) => return store_status(inner),
        };
        tollway_wire::with_code(status, ErrorCode::JoinRefused)
    }
}

/// What joining a network means, given what is joined already.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    New,
    /// It is joined under the same authority: only its gateways may be new.
    Again,
}

/// Whether the network of `bundle` may be joined.
pub(super) fn decide_admission(
    catalogue: &Catalogue,
    bundle: &JoinBundle,
) -> Result<Admission, JoinError> {
    let home = catalogue.home();
    let (network, trust_domain) = (&bundle.network, &bundle.trust_domain);
    if *network == home.network {
        let network = network.clone();
        let own = bundle.roots.iter().any(|root| root.as_ref() == home.root);
        return Err(if own {
            JoinError::OwnNetwork { network }
        } else {
            JoinError::SameName { network }
        });
    }
    let taken = |holder: &NetworkName| JoinError::TrustDomainTaken {
        trust_domain: trust_domain.clone(),
        holder: holder.clone(),
    };
    if *trust_domain == home.trust_domain {
        return Err(taken(&home.network));
    }
    let roots: Vec<Vec<u8>> = bundle.roots.iter().map(|root| root.to_vec()).collect();
    check_trust_bytes(catalogue, network, (&roots, &[]))
        .map_err(|bytes| JoinError::TooManyRoots { bytes })?;
    let mut joined = 0;
    for (name, peer) in catalogue.peers() {
        // One that is being joined holds its name and its trust domain already.
        let Some(trust) = peer.trust() else { continue };
        joined += 1;
        if name == network {
            let same = trust.trust_domain == *trust_domain
                && bundle.roots.iter().all(|root| trust.roots.iter().any(|r| r == root.as_ref()));
            return match (same, trust.pending) {
                (true, false) => Ok(Admission::Again),
                (true, true) => Ok(Admission::New),
                (false, _) => Err(JoinError::OtherAuthority { network: network.clone() }),
            };
        }
        if trust.trust_domain == *trust_domain {
            return Err(taken(name));
        }
    }
    // One place is the own network's.
    if joined + 1 >= TRUST_DOMAINS_LIMIT {
        return Err(JoinError::TooMany { count: joined });
    }
    Ok(Admission::New)
}

/// Whether the trust of all networks can still be sent once `network` has these roots and revoked
/// identities; else the number of its bytes.
pub(super) fn check_trust_bytes(
    catalogue: &Catalogue,
    network: &NetworkName,
    (roots, revoked): (&[Vec<u8>], &[Revocation]),
) -> Result<(), usize> {
    let mut all = catalogue.trust();
    let is_other =
        |bundle: &v1::TrustBundle| !bundle.network.eq_ignore_ascii_case(network.as_str());
    all.bundles.retain(is_other);
    // Of the longest form, so that neither name nor revision matters.
    let longest = "x".repeat(TRUST_DOMAIN_BYTES);
    all.bundles.push(v1::TrustBundle {
        trust_domain: longest.clone(),
        roots: roots.to_vec(),
        network: longest,
        revoked: revoked.iter().map(Into::into).collect(),
    });
    let bytes = all.encoded_len();
    if bytes > TRUST_BYTES_LIMIT { Err(bytes) } else { Ok(()) }
}

/// Whether `secret` is the stored one and still lives.
pub(super) fn decide_secret(
    stored: &JoinSecret,
    secret: &[u8],
    now_unix_ms: u64,
) -> Result<(), JoinError> {
    let hash = SecretHash::from_bytes(&stored.secret_hash).ok_or(JoinError::UnknownSecret)?;
    if !hash.matches(secret) {
        return Err(JoinError::UnknownSecret);
    }
    match ago(now_unix_ms, stored.expires_at_unix_ms) {
        Some(expired_for) => Err(JoinError::ExpiredSecret { expired_for }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use tollway_identity::{CERTIFICATE_BYTES_LIMIT, CertificateDer};
    use tollway_model::Label;
    use tollway_wire::ROOTS_PER_TRUST_DOMAIN_LIMIT;

    use super::*;
    use crate::catalogue::{Home, PinnedTrust};
    use crate::key::Key;
    use crate::options::RemoteCalls;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn bundle(network: &str, trust_domain: &str, root: &[u8]) -> JoinBundle {
        JoinBundle {
            network: label(network),
            trust_domain: TrustDomain::new(trust_domain).unwrap(),
            roots: vec![CertificateDer::from(root.to_vec())],
            gateways: vec!["10.0.0.1:15443".parse().unwrap()],
            join_secret: String::new(),
            issued_at_unix_ms: 0,
            expires_at_unix_ms: 1,
        }
    }

    /// West, joined with east, and joining south.
    fn catalogue() -> Catalogue {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: b"west root".to_vec(),
            remote_calls: RemoteCalls::Direct,
            egress: tollway_model::EgressDefault::Open,
            listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
            peer_addresses: Arc::from([]),
        };
        let mut catalogue = Catalogue::new(home, 0);
        let east = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![b"east root".to_vec()],
            joined_at_unix_s: 0,
            pending: false,
            follow_gateways: false,
            bundle_gateways: Vec::new(),
            is_accepted: false,
            revoked: Vec::new(),
        };
        catalogue.put(&Key::PeerTrust { network: label("east") }, &east.write(), 1).unwrap();
        let south = PinnedTrust {
            network: label("south"),
            trust_domain: TrustDomain::new("south.tollway").unwrap(),
            roots: vec![b"south root".to_vec()],
            joined_at_unix_s: 0,
            pending: true,
            follow_gateways: false,
            bundle_gateways: Vec::new(),
            is_accepted: false,
            revoked: Vec::new(),
        };
        catalogue.put(&Key::PeerTrust { network: label("south") }, &south.write(), 2).unwrap();
        catalogue
    }

    #[track_caller]
    fn check(bundle: &JoinBundle, expected: &str) {
        let decided = match decide_admission(&catalogue(), bundle) {
            Ok(admission) => format!("{admission:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(decided, expected);
    }

    #[test]
    fn collisions_are_refused_with_the_reason() {
        check(&bundle("north", "north.tollway", b"north root"), "New");
        check(&bundle("East", "east.tollway", b"east root"), "Again");
        check(
            &bundle("west", "west.tollway", b"west root"),
            "the bundle is this network's own (west); accept it in the other network",
        );
        check(
            &bundle("West", "other.tollway", b"other root"),
            "the bundle's network West is called like this one but has another authority; networks that join need different names",
        );
        check(
            &bundle("north", "west.tollway", b"north root"),
            "the trust domain west.tollway of the bundle belongs to west already; a trust domain has one network",
        );
        check(
            &bundle("north", "east.tollway", b"north root"),
            "the trust domain east.tollway of the bundle belongs to east already; a trust domain has one network",
        );
        check(&bundle("south", "south.tollway", b"south root"), "New");
        check(
            &bundle("north", "south.tollway", b"north root"),
            "the trust domain south.tollway of the bundle belongs to south already; a trust domain has one network",
        );
        check(
            &bundle("south", "south.tollway", b"another root"),
            "the network south is joined with another authority or trust domain; remove it first with `tollway join remove south` if it was made anew",
        );
        let other = "the network east is joined with another authority or trust domain; remove it first with `tollway join remove east` if it was made anew";
        check(&bundle("east", "east.tollway", b"another root"), other);
        check(&bundle("east", "other.tollway", b"east root"), other);
    }

    #[test]
    fn roots_that_do_not_fit_into_one_message_with_those_of_others_are_refused() {
        let mut catalogue = catalogue();
        let root = CertificateDer::from(vec![7; CERTIFICATE_BYTES_LIMIT]);
        let mut joined = 0;
        let refused_at = loop {
            let (network, domain) = (format!("n{joined}"), format!("n{joined}.tollway"));
            let mut bundle = bundle(&network, &domain, b"");
            bundle.roots = vec![root.clone(); ROOTS_PER_TRUST_DOMAIN_LIMIT];
            match decide_admission(&catalogue, &bundle) {
                Ok(Admission::New) => {}
                Err(JoinError::TooManyRoots { bytes }) => break bytes,
                other => panic!("{other:?}"),
            }
            let trust = PinnedTrust {
                network: label(&network),
                trust_domain: TrustDomain::new(&domain).unwrap(),
                roots: bundle.roots.iter().map(|root| root.to_vec()).collect(),
                joined_at_unix_s: 0,
                pending: false,
                follow_gateways: false,
                bundle_gateways: Vec::new(),
                is_accepted: false,
                revoked: Vec::new(),
            };
            let key = Key::PeerTrust { network: label(&network) };
            catalogue.put(&key, &trust.write(), 3 + joined).unwrap();
            joined += 1;
        };
        assert!(joined > 10, "{joined} networks of the largest size");
        assert!(refused_at > TRUST_BYTES_LIMIT);
        assert!(catalogue.trust().encoded_len() <= TRUST_BYTES_LIMIT);
        // One that is joined may have as many roots later, and no other may have more.
        let roots = vec![root.to_vec(); ROOTS_PER_TRUST_DOMAIN_LIMIT];
        assert_eq!(check_trust_bytes(&catalogue, &label("n0"), (&roots, &[])), Ok(()));
        assert!(check_trust_bytes(&catalogue, &label("east"), (&roots, &[])).is_err());
    }

    #[test]
    fn a_secret_must_match_and_live() {
        let stored = JoinSecret {
            expires_at_unix_ms: 100,
            secret_hash: SecretHash::of(b"secret").as_bytes().to_vec(),
            redeemed_by: Vec::new(),
            follow_gateways: false,
        };
        assert!(decide_secret(&stored, b"secret", 99).is_ok());
        assert!(matches!(decide_secret(&stored, b"other", 99), Err(JoinError::UnknownSecret)));
        assert!(matches!(
            decide_secret(&stored, b"secret", 100),
            Err(JoinError::ExpiredSecret { .. })
        ));
    }
}
