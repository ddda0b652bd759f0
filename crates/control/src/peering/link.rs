//! Follows one joined network: keeps a stream to its control plane, stores what it says, and
//! withdraws its services when it has been silent for too long.
//!
//! What is stored survives a restart, so a control plane that comes back serves what it knew at
//! once, and withdraws it if the other network stays silent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tollway_identity::{Expected as Whom, TlsError, client_config};
use tollway_model::NetworkName;
use tollway_store::{Expected, ReadError, TransactError, Transaction};
use tollway_wire::v1::follow_request::Request as Step;
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::{ConvertError, MESSAGE_LIMIT_BYTES, v1};
use tonic::Status;
use tracing::{debug, warn};

use super::dial::{ALPN, DialError, dial};
use super::intake::Intake;
use crate::catalogue::{Catalogue, PinnedTrust};
use crate::key::Key;
use crate::options::EgressMode;
use crate::plane::Plane;
use crate::stored;

/// Services that one joined network may state.
pub(super) const PEER_SERVICES_LIMIT: usize = 100_000;
/// Acknowledgements waiting to be sent.
const ACKS_LIMIT: usize = 16;
/// First and longest pause before dialling again.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Why a stream to a joined network ended.
#[derive(Debug, Error)]
pub(super) enum LinkError {
    #[error("the network is not joined")]
    NotJoined,
    #[error("cannot dial it")]
    Dial(#[from] DialError),
    #[error("cannot prepare TLS")]
    Tls(#[from] TlsError),
    #[error("it ended the stream: {0}")]
    Status(String),
    #[error("it was silent for {0:?}")]
    Silent(Duration),
    #[error("it sent something malformed")]
    Convert(#[from] ConvertError),
    #[error("it states more than {PEER_SERVICES_LIMIT} services")]
    TooManyServices,
    #[error(
        "it claims the trust domain {found}, but {pinned} was pinned when it was joined; join it again if that is meant"
    )]
    TrustDomainChanged { pinned: String, found: String },
    #[error("its roots cannot be used; the ones pinned before stay")]
    Roots(#[from] tollway_identity::BundleError),
    #[error("cannot store what it said")]
    Write(#[from] TransactError),
    #[error("cannot read what it said before")]
    Read(#[from] ReadError),
}

/// Keeps a link to every joined network until the control plane stops.
pub(crate) async fn supervise(plane: Arc<Plane>) {
    let mut changes = plane.hub.peer_changes();
    let mut links: HashMap<NetworkName, (PinnedTrust, CancellationToken)> = HashMap::new();
    loop {
        changes.mark_unchanged();
        let joined: HashMap<NetworkName, PinnedTrust> = plane.hub.read(|catalogue| {
            let joined = |(name, peer): (&NetworkName, &crate::catalogue::Peer)| {
                Some((name.clone(), peer.joined()?.clone()))
            };
            catalogue.peers().filter_map(joined).collect()
        });
        links.retain(|network, (trust, stop)| {
            // One that was removed and joined again starts anew.
            let same = joined
                .get(network)
                .is_some_and(|now| now.joined_at_unix_s == trust.joined_at_unix_s);
            if !same {
                stop.cancel();
            }
            same
        });
        for (network, trust) in joined {
            links.entry(network.clone()).or_insert_with(|| {
                let stop = plane.stop.child_token();
                let link = Link::new(plane.clone(), network);
                let stopped = stop.clone();
                plane
                    .tasks
                    .spawn(async move { stopped.run_until_cancelled(Box::pin(link.run())).await });
                (trust, stop)
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = plane.stop.cancelled() => return,
        }
    }
}

pub(super) struct Link {
    pub(super) plane: Arc<Plane>,
    pub(super) network: NetworkName,
    contact: Contact,
}

/// When the other network was last heard, and what went wrong since.
#[derive(Clone)]
struct Contact(Arc<Mutex<(Instant, String)>>);

impl Contact {
    fn heard(&self) {
        self.lock().0 = Instant::now();
    }

    fn failed(&self, reason: String) {
        self.lock().1 = reason;
    }

    fn silent_for(&self) -> (Duration, String) {
        let (last, reason) = &*self.lock();
        (last.elapsed(), reason.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Instant, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a network that has been silent for `silent` must be withdrawn now.
fn decide_withdrawal(reachable: bool, silent: Duration, unreachable_after: Duration) -> bool {
    reachable && silent > unreachable_after
}

/// The pause before the `attempt`-th dial in a row (from 0): doubles up to a bound, and `jitter`
/// (any number) takes away up to half, so that many do not come back in step.
fn pause(attempt: u32, jitter: u64) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(10)).min(LONGEST_PAUSE);
    let thousandths = u32::try_from(jitter % 500).expect("below 500");
    whole - whole * thousandths / 1000
}

impl Link {
    fn new(plane: Arc<Plane>, network: NetworkName) -> Self {
        let contact = Contact(Arc::new(Mutex::new((Instant::now(), String::new()))));
        Self { plane, network, contact }
    }

    async fn run(self) {
        let follow = async {
            let mut attempt: u32 = 0;
            loop {
                let before = Instant::now();
                let error = match self.follow(attempt).await {
                    Ok(never) => match never {},
                    Err(error) => error,
                };
                if matches!(error, LinkError::NotJoined) {
                    return;
                }
                // One that lived was no failed attempt: come back fast.
                attempt =
                    if before.elapsed() > LONGEST_PAUSE { 0 } else { attempt.saturating_add(1) };
                let reason = crate::error::chain(&error);
                debug!(network = %self.network, attempt, reason, "no link to a joined network");
                self.contact.failed(reason);
                tokio::time::sleep(pause(attempt, jitter())).await;
            }
        };
        tokio::join!(follow, self.judge());
    }

    /// Withdraws the network when it has been silent for too long.
    async fn judge(&self) {
        let after = self.plane.options.timing.unreachable_after;
        let mut tick = tokio::time::interval((after / 20).max(Duration::from_millis(10)));
        loop {
            tick.tick().await;
            let Some(reachable) = self.ask(|peer| peer.link.reachable) else { return };
            let (silent, reason) = self.contact.silent_for();
            if !decide_withdrawal(reachable, silent, after) {
                continue;
            }
            warn!(network = %self.network, ?silent, reason, "a joined network is unreachable; its services are withdrawn");
            if let Err(error) = self.set_link(false, reason).await {
                warn!(error = %crate::error::chain(&error), "the withdrawal was not stored; trying again");
            }
        }
    }

    async fn follow(&self, attempt: u32) -> Result<std::convert::Infallible, LinkError> {
        let trust =
            self.ask(|peer| peer.joined().cloned()).flatten().ok_or(LinkError::NotJoined)?;
        let gateways = self.plane.hub.read(|catalogue| ways(catalogue, &self.network));
        let whom = Whom::control(&trust.network, &trust.trust_domain);
        let config = client_config(&self.plane.own_credentials(), &whom, ALPN)?;
        let first = usize::try_from(attempt).unwrap_or(0);
        let channel = dial(&gateways, first, &whom.server_name()?, &config).await?;
        let mut client = PeeringClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        let (requests, outgoing) = mpsc::channel(ACKS_LIMIT);
        let revision = self.ask(|peer| peer.cursor).ok_or(LinkError::NotJoined)?;
        let open = v1::FollowRequest { request: Some(Step::Open(v1::FollowOpen { revision })) };
        // The channel is empty, so this cannot fail.
        let _ = requests.try_send(open);
        let silence = self.plane.options.timing.unreachable_after;
        let opened = tokio::time::timeout(silence, client.follow(ReceiverStream::new(outgoing)));
        let opened = opened.await.map_err(|_| LinkError::Silent(silence))?;
        let mut responses = opened.map_err(|status| ended(&status))?.into_inner();
        let mut intake = Intake::new(self, trust);
        let mut changes = self.plane.hub.peer_changes();
        let mut told = Vec::new();
        loop {
            changes.mark_unchanged();
            self.tell_gateways(&mut told, &requests);
            let next = tokio::select! {
                next = tokio::time::timeout(silence, responses.message()) => next,
                changed = changes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => std::future::pending().await,
                },
            };
            let response = next
                .map_err(|_| LinkError::Silent(silence))?
                .map_err(|status| ended(&status))?
                .ok_or_else(|| LinkError::Status("no reason given".to_owned()))?;
            self.contact.heard();
            let revision = response.revision;
            intake.apply(response).await?;
            // A full queue means that earlier ones are still on their way; the next one counts.
            let ack = v1::FollowRequest { request: Some(Step::Ack(v1::FollowAck { revision })) };
            let _ = requests.try_send(ack);
        }
    }

    /// Tells the other network where this one is reached, if that changed since `told`.
    fn tell_gateways(
        &self,
        told: &mut Vec<SocketAddr>,
        requests: &mpsc::Sender<v1::FollowRequest>,
    ) {
        let own: Vec<SocketAddr> = self
            .plane
            .hub
            .read(|catalogue| catalogue.gateways().map(|gateway| gateway.outside).collect());
        if own.is_empty() || own == *told {
            return;
        }
        let addresses = own.iter().map(|gateway| (*gateway).into()).collect();
        let request = Some(Step::ReachedAt(v1::Gateways { addresses }));
        // Without room it is told after the next response.
        if requests.try_send(v1::FollowRequest { request }).is_ok() {
            *told = own;
        }
    }

    pub(super) async fn set_link(
        &self,
        reachable: bool,
        last_error: String,
    ) -> Result<(), LinkError> {
        let trust_key = Key::PeerTrust { network: self.network.clone() }.encode();
        let Some(entry) = self.plane.store.get(&trust_key).await? else {
            return Err(LinkError::NotJoined);
        };
        let link = stored::PeerLink { reachable, last_error };
        let put = Transaction::new()
            .when(trust_key, Expected::Revision(entry.revision))
            .put(Key::PeerLink { network: self.network.clone() }.encode(), link.encode_to_vec());
        let revision = self.plane.store.transact(put).await?;
        self.plane.visible(revision).await;
        Ok(())
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(&crate::catalogue::Peer) -> T) -> Option<T> {
        self.plane.hub.read(|catalogue| catalogue.find_peer(&self.network).map(question))
    }
}

/// Where to dial for another network's control plane.
pub(crate) fn ways(catalogue: &Catalogue, network: &NetworkName) -> Vec<SocketAddr> {
    match catalogue.home().egress {
        EgressMode::Direct => {
            catalogue.find_peer(network).map(|peer| peer.gateways.to_vec()).unwrap_or_default()
        }
        EgressMode::Gateway => catalogue.gateways().map(|gateway| gateway.inside).collect(),
    }
}

fn ended(status: &Status) -> LinkError {
    LinkError::Status(format!("{:?}: {}", status.code(), status.message()))
}

/// Not for secrets: the low bits of the clock spread restarts well enough.
fn jitter() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| u64::from(since.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_network_is_withdrawn_once() {
        let after = Duration::from_secs(5);
        assert!(!decide_withdrawal(true, Duration::from_secs(5), after));
        assert!(decide_withdrawal(true, Duration::from_millis(5_001), after));
        assert!(!decide_withdrawal(false, Duration::from_secs(60), after));
    }

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let ms = |attempt, jitter| pause(attempt, jitter).as_millis();
        assert_eq!((ms(0, 0), ms(1, 0), ms(3, 0)), (100, 200, 800));
        assert_eq!((ms(5, 0), ms(u32::MAX, 0)), (2_000, 2_000));
        assert_eq!(ms(u32::MAX, 499), 1_002);
        assert!((0..3).all(|attempt| ms(attempt, 7) <= 1_000));
    }
}
