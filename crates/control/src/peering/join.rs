//! Joining two networks: export a bundle here, accept it there. The accepting side pins the
//! bundle, dials its gateway and presents its own bundle with the secret; then both trust each
//! other. Whether a network may be admitted is decided by [`decide_admission`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use thiserror::Error;
use tollway_identity::{
    Expected as Whom, JoinToken, SecretHash, TlsError, TokenError, bootstrap_config,
};
use tollway_model::{NetworkName, TrustDomain};
use tollway_store::{Expected, KeyRange, TransactError, Transaction};
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::{MESSAGE_LIMIT_BYTES, TRUST_DOMAINS_LIMIT, v1};
use tonic::Status;
use tracing::{info, warn};

use super::dial::{ALPN, DialError, dial};
use super::link::ways;
use crate::bundle::{BundleError, JoinBundle};
use crate::catalogue::{Catalogue, PinnedTrust};
use crate::key::{JOIN_PREFIX, Key, peer_prefix};
use crate::plane::{Plane, store_status, unix_now_s};
use crate::stored::{JoinSecret, PeerLink};

/// Life of the bundle that is presented in return for one: it is used at once.
const RETURN_BUNDLE_TTL: Duration = Duration::from_secs(600);
/// How often the other network is dialled before the command fails: an own gateway on the way
/// must first learn of the network.
const PRESENT_TRIES: usize = 20;
const PRESENT_PAUSE: Duration = Duration::from_millis(500);
/// Time for the other network's answer.
const PRESENT_TIMEOUT: Duration = Duration::from_secs(10);
const PAGE_ENTRIES: usize = 1_000;

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
        "no gateway is registered, so the other network could not reach this one; start one with `tollway gateway`"
    )]
    NoGateway,
    #[error("the bundle holds no join secret; export it with `tollway join export`")]
    Secret(#[source] TokenError),
    #[error("the join secret is not known here; export a new bundle")]
    UnknownSecret,
    #[error("the join secret expired {expired_for:?} ago; export a new bundle")]
    ExpiredSecret { expired_for: Duration },
    #[error("the join secret was used already; export a bundle for each network")]
    UsedSecret,
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
        let text = crate::error::chain(&error);
        match error {
            JoinError::Bundle(_) | JoinError::Secret(_) => Self::invalid_argument(text),
            JoinError::OwnNetwork { .. }
            | JoinError::SameName { .. }
            | JoinError::TrustDomainTaken { .. }
            | JoinError::OtherAuthority { .. }
            | JoinError::TooMany { .. }
            | JoinError::NoGateway => Self::failed_precondition(text),
            JoinError::UnknownSecret | JoinError::ExpiredSecret { .. } | JoinError::UsedSecret => {
                Self::permission_denied(text)
            }
            JoinError::Dial { .. } => Self::unavailable(text),
            JoinError::Refused { .. } => Self::permission_denied(text),
            JoinError::NotJoined { .. } => Self::not_found(text),
            JoinError::Tls(_) => Self::internal(text),
            JoinError::Write(ref inner) => store_status(inner),
            JoinError::Read(ref inner) => store_status(inner),
        }
    }
}

/// What joining a network means, given what is joined already.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    New,
    /// It is joined under the same authority: only its gateways may be new.
    Again,
}

/// Whether the network of `bundle` may be joined.
fn decide_admission(catalogue: &Catalogue, bundle: &JoinBundle) -> Result<Admission, JoinError> {
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
    let mut joined = 0;
    for (name, peer) in catalogue.peers() {
        let Some(trust) = peer.joined() else { continue };
        joined += 1;
        if name == network {
            let same = trust.trust_domain == *trust_domain
                && bundle.roots.iter().all(|root| trust.roots.iter().any(|r| r == root.as_ref()));
            let network = network.clone();
            return if same {
                Ok(Admission::Again)
            } else {
                Err(JoinError::OtherAuthority { network })
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

/// Writes a bundle with a fresh secret.
pub(crate) async fn export(plane: &Plane, ttl: Duration) -> Result<Vec<u8>, JoinError> {
    let token = JoinToken::generate(plane.authority.network(), plane.authority.root_der())
        .map_err(JoinError::Secret)?;
    let bundle = own_bundle(plane, token.to_string(), ttl)?;
    let file = bundle.sign(&plane.authority.to_pem())?;
    let record = StoredSecret::new(&token, bundle.expires_at_unix_s);
    let put = Transaction::new()
        .when(record.key.clone(), Expected::Absent)
        .put(record.key, record.value.encode_to_vec());
    plane.store.transact(put).await?;
    info!(
        secret = token.id(),
        expires_at_unix_s = bundle.expires_at_unix_s,
        "exported a join bundle"
    );
    Ok(file)
}

struct StoredSecret {
    key: Bytes,
    value: JoinSecret,
}

impl StoredSecret {
    fn new(token: &JoinToken, expires_at_unix_s: u64) -> Self {
        let value = JoinSecret {
            expires_at_unix_s,
            secret_hash: token.secret_hash().as_bytes().to_vec(),
            redeemed_by: Vec::new(),
        };
        Self { key: secret_key(token), value }
    }
}

fn secret_key(token: &JoinToken) -> Bytes {
    format!("{JOIN_PREFIX}{}", token.id()).into()
}

fn own_bundle(plane: &Plane, join_secret: String, ttl: Duration) -> Result<JoinBundle, JoinError> {
    let gateways: Vec<_> =
        plane.hub.read(|catalogue| catalogue.gateways().map(|g| g.outside).collect());
    if gateways.is_empty() {
        return Err(JoinError::NoGateway);
    }
    let issued_at_unix_s = unix_now_s();
    Ok(JoinBundle {
        network: plane.authority.network().clone(),
        trust_domain: plane.authority.trust_domain().clone(),
        roots: vec![plane.authority.root_der().clone()],
        gateways,
        join_secret,
        issued_at_unix_s,
        expires_at_unix_s: issued_at_unix_s.saturating_add(ttl.as_secs()),
    })
}

/// The exporting side: another network presents its bundle with the secret.
pub(crate) async fn redeem(plane: &Plane, secret: &str, file: &[u8]) -> Result<(), JoinError> {
    let result = try_redeem(plane, secret, file).await;
    if let Err(error) = &result {
        warn!(reason = %crate::error::chain(error), "a network was not admitted");
    }
    result
}

async fn try_redeem(plane: &Plane, secret: &str, file: &[u8]) -> Result<(), JoinError> {
    let token: JoinToken = secret.parse().map_err(JoinError::Secret)?;
    let now = unix_now_s();
    let key = secret_key(&token);
    let entry = plane.store.get(&key).await?.ok_or(JoinError::UnknownSecret)?;
    let stored = JoinSecret::decode(entry.value.clone()).map_err(|_| JoinError::UnknownSecret)?;
    // The secret first: nobody else learns what is joined here.
    decide_secret(&stored, token.secret(), now)?;
    let bundle = JoinBundle::verify(file, now)?;
    let admission = plane.hub.read(|catalogue| decide_admission(catalogue, &bundle))?;
    let redeemed_by = SecretHash::of(&bundle.roots[0]).as_bytes().to_vec();
    if !stored.redeemed_by.is_empty() {
        // The same network asks again when the answer to its first try was lost.
        let repeated = stored.redeemed_by == redeemed_by && admission == Admission::Again;
        return if repeated { Ok(()) } else { Err(JoinError::UsedSecret) };
    }
    let used = JoinSecret { redeemed_by, ..stored };
    let change = Transaction::new()
        .when(key.clone(), Expected::Revision(entry.revision))
        .put(key, used.encode_to_vec());
    let admitted = match admission {
        Admission::New => admit(plane, &bundle, false, change).await,
        Admission::Again => refresh(plane, &bundle, change).await,
    };
    match admitted {
        Err(JoinError::Write(TransactError::Conflict { .. })) => Err(JoinError::UsedSecret),
        done => done,
    }
}

/// Whether `secret` is the stored one and still lives.
fn decide_secret(stored: &JoinSecret, secret: &[u8], now_unix_s: u64) -> Result<(), JoinError> {
    let hash = SecretHash::from_bytes(&stored.secret_hash).ok_or(JoinError::UnknownSecret)?;
    if !hash.matches(secret) {
        return Err(JoinError::UnknownSecret);
    }
    if now_unix_s >= stored.expires_at_unix_s {
        let expired_for = Duration::from_secs(now_unix_s - stored.expires_at_unix_s);
        return Err(JoinError::ExpiredSecret { expired_for });
    }
    Ok(())
}

/// Stores the network of `bundle` as joined, or as being joined.
async fn admit(
    plane: &Plane,
    bundle: &JoinBundle,
    pending: bool,
    change: Transaction,
) -> Result<(), JoinError> {
    let network = &bundle.network;
    let trust = PinnedTrust {
        network: network.clone(),
        trust_domain: bundle.trust_domain.clone(),
        roots: bundle.roots.iter().map(|root| root.to_vec()).collect(),
        joined_at_unix_s: unix_now_s(),
        pending,
    };
    // Its services are withdrawn until its control plane is first heard.
    let link = PeerLink { reachable: false, last_error: "just joined".to_owned() };
    let mut change = put_gateways(bundle, change)
        .put(Key::PeerLink { network: network.clone() }.encode(), link.encode_to_vec())
        .put(Key::PeerTrust { network: network.clone() }.encode(), trust.write())
        .delete(Key::PeerCursor { network: network.clone() }.encode());
    if !pending {
        change = change.put(Key::Trust.encode(), Bytes::new());
    }
    let revision = plane.store.transact(change).await?;
    plane.visible(revision).await;
    if !pending {
        info!(%network, trust_domain = %bundle.trust_domain, revision, "joined a network");
    }
    Ok(())
}

/// The accepting side: pins the network of the bundle and presents this one to it.
pub(crate) async fn accept(plane: &Arc<Plane>, file: &[u8]) -> Result<JoinBundle, JoinError> {
    let bundle = JoinBundle::verify(file, unix_now_s())?;
    let admission = plane.hub.read(|catalogue| decide_admission(catalogue, &bundle))?;
    let token: JoinToken = bundle.join_secret.parse().map_err(JoinError::Secret)?;
    let own = own_bundle(plane, String::new(), RETURN_BUNDLE_TTL)?;
    let own = own.sign(&plane.authority.to_pem())?;
    // An own gateway on the way learns of the network, or of where it is now, by this.
    match admission {
        Admission::New => admit(plane, &bundle, true, Transaction::new()).await?,
        Admission::Again => refresh(plane, &bundle, Transaction::new()).await?,
    }
    let presented = present(plane, &bundle, &token, own).await;
    match (presented, admission) {
        (Ok(()), Admission::New) => admit(plane, &bundle, false, Transaction::new()).await?,
        (Ok(()), Admission::Again) => {}
        (Err(error), Admission::New) => {
            forget(plane, &bundle.network).await?;
            return Err(error);
        }
        (Err(error), Admission::Again) => return Err(error),
    }
    Ok(bundle)
}

/// Takes over the gateways of a network that is joined already: all of its own may have moved.
async fn refresh(plane: &Plane, bundle: &JoinBundle, change: Transaction) -> Result<(), JoinError> {
    let change = put_gateways(bundle, change);
    let revision = plane.store.transact(change).await?;
    plane.visible(revision).await;
    info!(network = %bundle.network, revision, "joined a network again");
    Ok(())
}

fn put_gateways(bundle: &JoinBundle, change: Transaction) -> Transaction {
    let addresses = bundle.gateways.iter().map(|gateway| (*gateway).into()).collect();
    let key = Key::PeerGateways { network: bundle.network.clone() }.encode();
    change.put(key, v1::Gateways { addresses }.encode_to_vec())
}

/// Presents the own bundle to the network of `bundle`.
async fn present(
    plane: &Plane,
    bundle: &JoinBundle,
    token: &JoinToken,
    own: Vec<u8>,
) -> Result<(), JoinError> {
    // The token pins the root, so the first contact needs no trust configured before.
    let config = bootstrap_config(token, ALPN)?;
    let name = Whom::control(&bundle.network, &bundle.trust_domain).server_name()?;
    let dial_error = |source| JoinError::Dial { network: bundle.network.clone(), source };
    let mut tries = 0;
    let channel = loop {
        let gateways = plane.hub.read(|catalogue| match ways(catalogue, &bundle.network) {
            known if known.is_empty() => bundle.gateways.clone(),
            known => known,
        });
        match dial(&gateways, tries, &name, &config).await {
            Ok(channel) => break channel,
            Err(error) if tries + 1 >= PRESENT_TRIES => return Err(dial_error(error)),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(PRESENT_PAUSE).await;
    };
    let mut client = PeeringClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let request = v1::JoinRequest { secret: bundle.join_secret.clone(), bundle: own };
    let refused = |reason: String| JoinError::Refused { network: bundle.network.clone(), reason };
    match tokio::time::timeout(PRESENT_TIMEOUT, client.join(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(refused(status.message().to_owned())),
        Err(_) => Err(refused(format!("no answer within {PRESENT_TIMEOUT:?}"))),
    }
}

/// Ends the trust in a joined network and withdraws its services. The other side notices by
/// being refused.
pub(crate) async fn remove(plane: &Plane, network: &NetworkName) -> Result<(), JoinError> {
    if plane.hub.read(|catalogue| catalogue.find_peer(network).is_none()) {
        return Err(JoinError::NotJoined { network: network.clone() });
    }
    forget(plane, network).await?;
    info!(%network, "removed a joined network");
    Ok(())
}

/// Deletes every key of a network; its trust goes first.
async fn forget(plane: &Plane, network: &NetworkName) -> Result<(), JoinError> {
    let first = Transaction::new()
        .delete(Key::PeerTrust { network: network.clone() }.encode())
        .put(Key::Trust.encode(), Bytes::new());
    let mut revision = plane.store.transact(first).await?;
    let range = KeyRange::prefix(peer_prefix(network));
    loop {
        let page = plane.store.list(&range, None, PAGE_ENTRIES).await?;
        if page.entries.is_empty() {
            break;
        }
        let delete = page.entries.iter().fold(Transaction::new(), |t, e| t.delete(e.key.clone()));
        revision = plane.store.transact(delete).await?;
    }
    plane.visible(revision).await;
    Ok(())
}

/// Drops what an interrupted `accept` left behind. Called before serving.
pub(crate) async fn forget_pending(plane: &Plane) -> Result<(), JoinError> {
    let pending: Vec<NetworkName> = plane.hub.read(|catalogue| {
        let pending =
            |peer: &crate::catalogue::Peer| peer.trust().is_none_or(|trust| trust.pending);
        catalogue.peers().filter(|(_, peer)| pending(peer)).map(|(name, _)| name.clone()).collect()
    });
    for network in pending {
        forget(plane, &network).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollway_identity::CertificateDer;
    use tollway_model::Label;

    use super::*;
    use crate::catalogue::Home;
    use crate::options::EgressMode;

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
            issued_at_unix_s: 0,
            expires_at_unix_s: 1,
        }
    }

    /// West, joined with east.
    fn catalogue() -> Catalogue {
        let home = Home {
            network: label("west"),
            trust_domain: TrustDomain::new("west.tollway").unwrap(),
            root: b"west root".to_vec(),
            egress: EgressMode::Direct,
        };
        let mut catalogue = Catalogue::new(home, 0);
        let east = PinnedTrust {
            network: label("east"),
            trust_domain: TrustDomain::new("east.tollway").unwrap(),
            roots: vec![b"east root".to_vec()],
            joined_at_unix_s: 0,
            pending: false,
        };
        catalogue.put(&Key::PeerTrust { network: label("east") }, &east.write(), 1).unwrap();
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
        let other = "the network east is joined with another authority or trust domain; remove it first with `tollway join remove east` if it was made anew";
        check(&bundle("east", "east.tollway", b"another root"), other);
        check(&bundle("east", "other.tollway", b"east root"), other);
    }

    #[test]
    fn a_secret_must_match_and_live() {
        let stored = JoinSecret {
            expires_at_unix_s: 100,
            secret_hash: SecretHash::of(b"secret").as_bytes().to_vec(),
            redeemed_by: Vec::new(),
        };
        assert!(decide_secret(&stored, b"secret", 99).is_ok());
        assert!(matches!(decide_secret(&stored, b"other", 99), Err(JoinError::UnknownSecret)));
        assert!(matches!(
            decide_secret(&stored, b"secret", 100),
            Err(JoinError::ExpiredSecret { .. })
        ));
    }
}
