//! Joining two networks: export a bundle here, accept it there. The accepting side pins the
//! bundle, dials its gateway and presents its own bundle with the secret; then both trust each
//! other. Whether a network may be admitted is decided by [`decide_admission`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tollway_identity::{Expected as Whom, JoinToken, SecretHash, bootstrap_config};
use tollway_model::NetworkName;
use tollway_store::{Expected, KeyRange, TransactError, Transaction};
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::{MESSAGE_LIMIT_BYTES, v1};
use tracing::{info, warn};

use super::Peering;
use super::admission::{Admission, JoinError, decide_admission, decide_secret};
use super::dial::dial;
use super::joined::encode_gateways;
use super::link::gateways_to;
use crate::bundle::JoinBundle;
use crate::catalogue::PinnedTrust;
use crate::clock::{later, unix_now_ms, unix_now_s};
use crate::connections::ALPN;
use crate::key::{JOIN_PREFIX, Key, peer_prefix};
use crate::stored::{JoinSecret, PeerLink};

/// Life of the bundle that is presented in return for one: it is used at once.
const RETURN_BUNDLE_TTL: Duration = Duration::from_secs(600);
/// Dials of the other network before the command fails: an own gateway in between must first learn
/// of the network.
const PRESENT_TRIES: usize = 20;
const PRESENT_PAUSE: Duration = Duration::from_millis(500);
/// Time for the other network's answer.
const PRESENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to store a network while trust changes.
const ADMIT_TRIES: usize = 10;
const ADMIT_PAUSE: Duration = Duration::from_millis(20);
/// Tries and interval for a gateway that was started a moment ago.
const GATEWAY_TRIES: usize = 40;
const GATEWAY_PAUSE: Duration = Duration::from_millis(50);
const PAGE_ENTRIES: usize = 1_000;

/// Writes a bundle with a fresh secret.
/// The gateways of the network that redeems it may move later if `follow_gateways`.
pub(crate) async fn export(
    peering: &Peering,
    ttl: Duration,
    follow_gateways: bool,
) -> Result<Vec<u8>, JoinError> {
    wait_for_gateway(peering).await;
    let token = JoinToken::generate(peering.authority.network(), peering.authority.root_der())
        .map_err(JoinError::Secret)?;
    let bundle = own_bundle(peering, token.to_string(), ttl)?;
    if bundle.gateways.is_empty() {
        return Err(JoinError::OnlyDialsOut { network: bundle.network });
    }
    let file = bundle.sign(&peering.authority.to_pem())?;
    let record = StoredSecret::new(&token, bundle.expires_at_unix_ms, follow_gateways);
    let put = Transaction::new()
        .when(record.key.clone(), Expected::Absent)
        .put(record.key, record.value.encode_to_vec());
    peering.store.transact(put).await?;
    info!(
        secret = token.id(),
        expires_at_unix_ms = bundle.expires_at_unix_ms,
        "exported a join bundle"
    );
    Ok(file)
}

/// Whether one came shows in the bundle that is made next.
async fn wait_for_gateway(peering: &Peering) {
    for _ in 0..GATEWAY_TRIES {
        if peering.hub.read(|catalogue| catalogue.gateways().next().is_some()) {
            return;
        }
        tokio::time::sleep(GATEWAY_PAUSE).await;
    }
}

struct StoredSecret {
    key: Bytes,
    value: JoinSecret,
}

impl StoredSecret {
    fn new(token: &JoinToken, expires_at_unix_ms: u64, follow_gateways: bool) -> Self {
        let value = JoinSecret {
            expires_at_unix_ms,
            secret_hash: token.secret_hash().as_bytes().to_vec(),
            redeemed_by: Vec::new(),
            follow_gateways,
        };
        Self { key: secret_key(token), value }
    }
}

fn secret_key(token: &JoinToken) -> Bytes {
    format!("{JOIN_PREFIX}{}", token.id()).into()
}

/// The own bundle. It names no gateway where all of them only dial out.
fn own_bundle(
    peering: &Peering,
    join_secret: String,
    ttl: Duration,
) -> Result<JoinBundle, JoinError> {
    let (gateways, has_gateway) = peering.hub.read(|catalogue| {
        let outside: Vec<_> = catalogue.outside_gateways().collect();
        (outside, catalogue.gateways().next().is_some())
    });
    if !has_gateway {
        return Err(JoinError::NoGateway);
    }
    let issued_at_unix_ms = unix_now_ms();
    Ok(JoinBundle {
        network: peering.authority.network().clone(),
        trust_domain: peering.authority.trust_domain().clone(),
        roots: vec![peering.authority.root_der().clone()],
        gateways,
        join_secret,
        issued_at_unix_ms,
        expires_at_unix_ms: later(issued_at_unix_ms, ttl),
    })
}

/// The exporting side: another network presents its bundle with the secret.
pub(crate) async fn redeem(peering: &Peering, secret: &str, file: &[u8]) -> Result<(), JoinError> {
    let result = try_redeem(peering, secret, file).await;
    if let Err(error) = &result {
        warn!(reason = %tollway_model::chain(error), "a network was not admitted");
    }
    result
}

async fn try_redeem(peering: &Peering, secret: &str, file: &[u8]) -> Result<(), JoinError> {
    let token: JoinToken = secret.parse().map_err(JoinError::Secret)?;
    let now = unix_now_ms();
    let key = secret_key(&token);
    let entry = peering.store.get(&key).await?.ok_or(JoinError::UnknownSecret)?;
    let stored = JoinSecret::decode(entry.value.clone()).map_err(|_| JoinError::UnknownSecret)?;
    // The secret first: without it a peer must not learn what is joined here.
    decide_secret(&stored, token.secret(), now)?;
    let bundle = JoinBundle::verify(file, now)?;
    let admission = peering.hub.read(|catalogue| decide_admission(catalogue, &bundle))?;
    let entrant = Entrant::stated(&bundle, stored.follow_gateways);
    let refused = |refusal| JoinError::Gateway { network: bundle.network.clone(), refusal };
    peering.hub.read(|catalogue| {
        let mut checked =
            bundle.gateways.iter().map(|gateway| catalogue.check_gateway(None, *gateway));
        checked.try_for_each(|checked| checked.map_err(refused))
    })?;
    let redeemed_by = SecretHash::of(&bundle.roots[0]).as_bytes().to_vec();
    if !stored.redeemed_by.is_empty() {
        // The same network retries after the answer to its first attempt was lost.
        let repeated = stored.redeemed_by == redeemed_by && admission == Admission::Again;
        return if repeated { Ok(()) } else { Err(JoinError::UsedSecret) };
    }
    let used = JoinSecret { redeemed_by, ..stored };
    let change = Transaction::new()
        .when(key.clone(), Expected::Revision(entry.revision))
        .put(key, used.encode_to_vec());
    let admitted = match admission {
        Admission::New => admit(peering, &entrant, false, change).await,
        Admission::Again => refresh(peering, &entrant, change).await,
    };
    match admitted {
        Err(JoinError::Write(TransactError::Conflict { .. })) => Err(JoinError::UsedSecret),
        done => done,
    }
}

/// A network that comes in.
struct Entrant<'a> {
    bundle: &'a JoinBundle,
    /// This network's operator has accepted the bundle.
    is_accepted: bool,
    follow_gateways: bool,
}

impl<'a> Entrant<'a> {
    /// By a bundle that this network's operator has accepted.
    fn accepted(bundle: &'a JoinBundle, follow_gateways: bool) -> Self {
        Self { bundle, is_accepted: true, follow_gateways }
    }

    /// By a bundle that it presents itself.
    fn stated(bundle: &'a JoinBundle, follow_gateways: bool) -> Self {
        Self { bundle, is_accepted: false, follow_gateways }
    }
}

/// Stores a network as joined, or as being joined, if it may be at that moment: two
/// that claim one trust domain must not come in side by side.
async fn admit(
    peering: &Peering,
    entrant: &Entrant<'_>,
    pending: bool,
    change: Transaction,
) -> Result<(), JoinError> {
    for _ in 0..ADMIT_TRIES {
        let (admission, trust_revision) = peering.hub.read(|catalogue| {
            decide_admission(catalogue, entrant.bundle)
                .map(|known| (known, catalogue.trust_revision()))
        })?;
        if admission == Admission::Again {
            return refresh(peering, entrant, change).await;
        }
        let unchanged = Expected::Revision(trust_revision);
        let guarded = change.clone().when(Key::Trust.encode(), unchanged);
        match put_network(peering, entrant, pending, guarded).await {
            Err(JoinError::Write(TransactError::Conflict { key, .. }))
                if key == Key::Trust.encode() =>
            {
                tokio::time::sleep(ADMIT_PAUSE).await;
            }
            done => return done,
        }
    }
    Err(JoinError::Busy)
}

async fn put_network(
    peering: &Peering,
    entrant: &Entrant<'_>,
    pending: bool,
    change: Transaction,
) -> Result<(), JoinError> {
    let bundle = entrant.bundle;
    let network = &bundle.network;
    let trust = PinnedTrust {
        network: network.clone(),
        trust_domain: bundle.trust_domain.clone(),
        roots: bundle.roots.iter().map(|root| root.to_vec()).collect(),
        joined_at_unix_s: unix_now_s(),
        pending,
        follow_gateways: entrant.follow_gateways,
        bundle_gateways: bundle.gateways.clone(),
        is_accepted: entrant.is_accepted,
        revoked: Vec::new(),
    };
    // Its services are withdrawn until its control plane first answers.
    let link =
        PeerLink { reachable: false, last_error: "just joined".to_owned(), ..Default::default() };
    let mut change = put_gateways(bundle, change)
        .put(Key::PeerLink { network: network.clone() }.encode(), link.encode_to_vec())
        .put(Key::PeerTrust { network: network.clone() }.encode(), trust.write())
        .delete(Key::PeerCursor { network: network.clone() }.encode());
    if !pending {
        change = change.put(Key::Trust.encode(), Bytes::new());
    }
    let revision = peering.store.transact(change).await?;
    peering.hub.visible(revision).await;
    if !pending {
        info!(%network, trust_domain = %bundle.trust_domain, revision, "joined a network");
    }
    Ok(())
}

/// The accepting side: pins the network of the bundle and presents this one to it.
///
/// The bundle's gateways are the operator's word, but where they lead to this network itself, or to its
/// machine or link.
pub(crate) async fn accept(
    peering: &Arc<Peering>,
    file: &[u8],
    follow_gateways: bool,
) -> Result<JoinBundle, JoinError> {
    let bundle = JoinBundle::verify(file, unix_now_ms())?;
    if bundle.gateways.is_empty() {
        return Err(JoinError::OnlyDialsOut { network: bundle.network });
    }
    let admission = peering.hub.read(|catalogue| decide_admission(catalogue, &bundle))?;
    let refused = |refusal| JoinError::Gateway { network: bundle.network.clone(), refusal };
    peering.hub.read(|catalogue| {
        let mut gateways = bundle.gateways.iter();
        gateways.try_for_each(|gateway| catalogue.check_named_gateway(*gateway).map_err(refused))
    })?;
    let entrant = Entrant::accepted(&bundle, follow_gateways);
    let token: JoinToken = bundle.join_secret.parse().map_err(JoinError::Secret)?;
    wait_for_gateway(peering).await;
    let own = own_bundle(peering, String::new(), RETURN_BUNDLE_TTL)?;
    let own = own.sign(&peering.authority.to_pem())?;
    // With this an own gateway in between learns of the network, or of its new address.
    match admission {
        Admission::New => admit(peering, &entrant, true, Transaction::new()).await?,
        Admission::Again => refresh(peering, &entrant, Transaction::new()).await?,
    }
    let presented = present(peering, &bundle, &token, own).await;
    match (presented, admission) {
        (Ok(()), Admission::New) => admit(peering, &entrant, false, Transaction::new()).await?,
        (Ok(()), Admission::Again) => {}
        (Err(error), Admission::New) => {
            // The other side may have joined it meanwhile; that entry then remains.
            if is_pending(peering, &bundle.network) {
                forget(peering, &bundle.network).await?;
            }
            return Err(error);
        }
        (Err(error), Admission::Again) => return Err(error),
    }
    Ok(bundle)
}

fn is_pending(peering: &Peering, network: &NetworkName) -> bool {
    peering.hub.read(|catalogue| {
        let trust = catalogue.find_peer(network).and_then(crate::catalogue::Peer::trust);
        trust.is_some_and(|trust| trust.pending)
    })
}

/// Takes over the gateways of a network that is joined already: all of its own may have moved.
async fn refresh(
    peering: &Peering,
    entrant: &Entrant<'_>,
    change: Transaction,
) -> Result<(), JoinError> {
    let network = &entrant.bundle.network;
    let key = Key::PeerTrust { network: network.clone() }.encode();
    for _ in 0..ADMIT_TRIES {
        let not_joined = || JoinError::NotJoined { network: network.clone() };
        let entry = peering.store.get(&key).await?.ok_or_else(not_joined)?;
        let known = PinnedTrust::read(&entry.value).map_err(|_| not_joined())?;
        let trust = PinnedTrust {
            follow_gateways: entrant.follow_gateways,
            bundle_gateways: entrant.bundle.gateways.clone(),
            is_accepted: entrant.is_accepted,
            ..known
        };
        let change = put_gateways(entrant.bundle, change.clone())
            .when(key.clone(), Expected::Revision(entry.revision))
            .put(key.clone(), trust.write());
        match peering.store.transact(change).await {
            Ok(revision) => {
                peering.hub.visible(revision).await;
                info!(%network, revision, "joined a network again");
                return Ok(());
            }
            Err(TransactError::Conflict { key: changed, .. }) if changed == key => {
                tokio::time::sleep(ADMIT_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(JoinError::Busy)
}

fn put_gateways(bundle: &JoinBundle, change: Transaction) -> Transaction {
    let key = Key::PeerGateways { network: bundle.network.clone() }.encode();
    change.put(key, encode_gateways(&bundle.gateways))
}

/// Presents the own bundle to the network of `bundle`.
async fn present(
    peering: &Peering,
    bundle: &JoinBundle,
    token: &JoinToken,
    own: Vec<u8>,
) -> Result<(), JoinError> {
    // The token pins the root, so the first contact needs no trust configured before.
    let config = bootstrap_config(token.pin(), ALPN, peering.key_exchange)?;
    let name = Whom::control(&bundle.network, &bundle.trust_domain).server_name()?;
    let dial_error = |source| JoinError::Dial { network: bundle.network.clone(), source };
    let mut tries = 0;
    let channel = loop {
        let gateways =
            peering.hub.read(|catalogue| match gateways_to(catalogue, &bundle.network) {
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
pub(crate) async fn remove(peering: &Peering, network: &NetworkName) -> Result<(), JoinError> {
    if peering.hub.read(|catalogue| catalogue.find_peer(network).is_none()) {
        return Err(JoinError::NotJoined { network: network.clone() });
    }
    forget(peering, network).await?;
    info!(%network, "removed a joined network");
    Ok(())
}

/// Deletes every key of a network; its trust goes first.
async fn forget(peering: &Peering, network: &NetworkName) -> Result<(), JoinError> {
    let first = Transaction::new()
        .delete(Key::PeerTrust { network: network.clone() }.encode())
        .put(Key::Trust.encode(), Bytes::new());
    let mut revision = peering.store.transact(first).await?;
    let range = KeyRange::prefix(peer_prefix(network));
    loop {
        let page = peering.store.list(&range, None, PAGE_ENTRIES).await?;
        if page.entries.is_empty() {
            break;
        }
        let delete = page.entries.iter().fold(Transaction::new(), |t, e| t.delete(e.key.clone()));
        revision = peering.store.transact(delete).await?;
    }
    peering.hub.visible(revision).await;
    peering.gateway_moves().remove(network);
    Ok(())
}

/// Drops what an interrupted `accept` left behind. Called before serving.
pub(crate) async fn forget_pending(peering: &Peering) -> Result<(), JoinError> {
    let pending: Vec<NetworkName> = peering.hub.read(|catalogue| {
        let pending =
            |peer: &crate::catalogue::Peer| peer.trust().is_none_or(|trust| trust.pending);
        catalogue.peers().filter(|(_, peer)| pending(peer)).map(|(name, _)| name.clone()).collect()
    });
    for network in pending {
        forget(peering, &network).await?;
    }
    Ok(())
}
