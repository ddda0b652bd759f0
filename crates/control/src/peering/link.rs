//! Follows one joined network: holds a stream to its control plane, stores what comes, and decides
//! whether the network can be reached while its control plane is silent.
//!
//! A silent control plane is no lost network: its gateways and sidecars still serve. While a
//! gateway answers ([`super::probe`]), the last state of the control plane is served, marked as
//! old; when none does, the services are withdrawn. The stored state survives a restart, so a
//! control plane that returns serves it at once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tollway_identity::{Expected as Whom, client_config, gateway_dns_san};
use tollway_model::NetworkName;
use tollway_net::Backoff;
use tollway_wire::v1::follow_request::Request as Step;
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::{MESSAGE_LIMIT_BYTES, v1};
use tonic::Status;
use tracing::{debug, warn};

use super::Peering;
use super::dial::dial;
use super::intake::{Intake, Pending};
use super::joined::{JoinedNetwork, LinkError};
use super::probe;
use crate::catalogue::{Catalogue, PinnedTrust};
use crate::connections::ALPN;
use crate::stored;

/// Acknowledgements waiting to be sent.
const ACKS_LIMIT: usize = 16;
/// Before dialling again.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2) };
/// Before dialling again a network that sent what cannot be taken: it most likely sends it again.
const FAULT_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(300) };
/// Probes of the gateways within the time after which a silent network is lost.
const PROBES_PER_LIMIT: u32 = 5;

/// Keeps a link to every joined network until the control plane stops.
pub(crate) async fn supervise(peering: Arc<Peering>) {
    let mut changes = peering.hub.peer_changes();
    let mut links: HashMap<NetworkName, (PinnedTrust, CancellationToken)> = HashMap::new();
    loop {
        changes.mark_unchanged();
        let joined: HashMap<NetworkName, PinnedTrust> = peering.hub.read(|catalogue| {
            let joined = |(name, peer): (&NetworkName, &crate::catalogue::Peer)| {
                Some((name.clone(), peer.joined()?.clone()))
            };
            catalogue.peers().filter_map(joined).collect()
        });
        links.retain(|network, (trust, stop)| {
            // A network that was removed and joined again starts afresh.
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
                let stop = peering.background.stop.child_token();
                let link = Link::new(peering.clone(), network);
                let stopped = stop.clone();
                peering
                    .background
                    .spawn(async move { stopped.run_until_cancelled(Box::pin(link.run())).await });
                (trust, stop)
            });
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = peering.background.stop.cancelled() => return,
        }
    }
}

struct Link {
    joined: JoinedNetwork,
    contact: Contact,
}

/// When the other network last answered, and the error since.
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

/// Whether a joined network can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reachability {
    /// Its control plane answered lately.
    Heard,
    /// Its control plane is silent, a gateway of it answers.
    Unheard,
    /// Neither.
    Lost,
}

/// Decides by the time since the control plane last sent something (`heard`) and since a gateway
/// `answered`, if one did after that.
fn decide_reachability(
    heard: Duration,
    answered: Option<Duration>,
    limit: Duration,
) -> Reachability {
    if heard <= limit {
        Reachability::Heard
    } else if answered.is_some_and(|answered| answered <= limit) {
        Reachability::Unheard
    } else {
        Reachability::Lost
    }
}

impl Link {
    fn new(peering: Arc<Peering>, network: NetworkName) -> Self {
        let contact = Contact(Arc::new(Mutex::new((Instant::now(), String::new()))));
        Self { joined: JoinedNetwork { peering, network }, contact }
    }

    async fn run(self) {
        let follow = async {
            let (mut attempt, mut faults): (u32, u32) = (0, 0);
            let mut pending = Pending::new(self.joined.peering.timing.peer_roots);
            loop {
                let before = Instant::now();
                let error = match self.follow(attempt, &mut pending).await {
                    Ok(never) => match never {},
                    Err(error) => error,
                };
                if matches!(error, LinkError::NotJoined) {
                    return;
                }
                // One that lived was no failed attempt: come back fast.
                attempt =
                    if before.elapsed() > BACKOFF.longest { 0 } else { attempt.saturating_add(1) };
                if before.elapsed() > FAULT_BACKOFF.longest {
                    faults = 0;
                }
                let reason = tollway_model::chain(&error);
                if error.is_theirs() {
                    self.contact.failed(reason.clone());
                    self.joined.peering.counts.streams_ended.add(1);
                    let pause = FAULT_BACKOFF.pause(faults);
                    warn!(network = %self.joined.network, reason, ?pause, "what a joined network sends is not taken; it is asked again after a pause");
                    faults = faults.saturating_add(1);
                    tokio::time::sleep(pause).await;
                    continue;
                }
                debug!(network = %self.joined.network, attempt, reason, "no link to a joined network");
                self.contact.failed(reason);
                tokio::time::sleep(BACKOFF.pause(attempt)).await;
            }
        };
        tokio::join!(follow, self.judge());
    }

    /// Asks the gateways while the control plane is silent, and stores whether it can be reached.
    async fn judge(&self) {
        let limit = self.joined.peering.timing.unreachable_after;
        let mut tick = tokio::time::interval((limit / 20).max(Duration::from_millis(10)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answered = None;
        loop {
            tick.tick().await;
            let Some(known) = self.joined.ask(|peer| peer.cursor > 0) else { return };
            let (silent, reason) = self.contact.silent_for();
            // Gateways are probed before the limit, so that there is an answer when it is reached.
            if silent <= limit / 2 {
                answered = None;
                continue;
            }
            let reason = match self.probe().await {
                Ok(()) => {
                    answered = Some(Instant::now());
                    reason
                }
                Err(error) => format!("{reason}; {}", tollway_model::chain(&error)),
            };
            let (silent, _) = self.contact.silent_for();
            // Without any state there is nothing to serve.
            let answered = answered.filter(|_| known).map(|answered| answered.elapsed());
            let reachability = decide_reachability(silent, answered, limit);
            if let Err(error) = self.note(reachability, silent, reason).await {
                warn!(error = %tollway_model::chain(&error), "whether a joined network can be reached was not stored; trying again");
            }
            tokio::time::sleep(limit / PROBES_PER_LIMIT).await;
        }
    }

    async fn note(
        &self,
        reachability: Reachability,
        silent: Duration,
        reason: String,
    ) -> Result<(), LinkError> {
        let Some(link) = self.joined.ask(|peer| peer.link.clone()) else { return Ok(()) };
        let limit = self.joined.peering.timing.unreachable_after;
        let network = &self.joined.network;
        match reachability {
            Reachability::Heard => Ok(()),
            Reachability::Unheard if link.reachable && !link.last_error.is_empty() => Ok(()),
            Reachability::Unheard => {
                warn!(%network, ?silent, reason, "the control plane of a joined network is away; its gateways answer, its services stay as they were");
                self.set_link(true, reason).await
            }
            Reachability::Lost
                if !link.reachable || self.joined.peering.standstill.ended_within(limit) =>
            {
                Ok(())
            }
            Reachability::Lost => {
                warn!(%network, ?silent, reason, "a joined network is unreachable; its services are withdrawn");
                self.set_link(false, reason).await
            }
        }
    }

    /// Whether a gateway of the network answers, over the route that calls use.
    async fn probe(&self) -> Result<(), LinkError> {
        let (gateways, config) = self.route()?;
        let name = gateway_dns_san(&self.joined.network);
        let name = ServerName::try_from(name).map_err(|_| LinkError::NotJoined)?;
        Ok(probe::any_answers(&gateways, &name, &config).await?)
    }

    /// Where to dial, and the TLS configuration that trusts only the network's control plane.
    fn route(&self) -> Result<(Vec<SocketAddr>, Arc<ClientConfig>), LinkError> {
        let gateways =
            self.joined.peering.hub.read(|catalogue| gateways_to(catalogue, &self.joined.network));
        let config = client_config(&self.joined.peering.credentials(), &self.whom()?, ALPN)?;
        Ok((gateways, config))
    }

    fn whom(&self) -> Result<Whom, LinkError> {
        let trust = self.trust()?;
        Ok(Whom::control(&trust.network, &trust.trust_domain))
    }

    fn trust(&self) -> Result<PinnedTrust, LinkError> {
        self.joined.ask(|peer| peer.joined().cloned()).flatten().ok_or(LinkError::NotJoined)
    }

    async fn follow(
        &self,
        attempt: u32,
        pending: &mut Pending,
    ) -> Result<std::convert::Infallible, LinkError> {
        let trust = self.trust()?;
        let (gateways, config) = self.route()?;
        let first = usize::try_from(attempt).unwrap_or(0);
        let channel = dial(&gateways, first, &self.whom()?.server_name()?, &config).await?;
        let mut client = PeeringClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        let (requests, outgoing) = mpsc::channel(ACKS_LIMIT);
        let revision = self.joined.ask(|peer| peer.cursor).ok_or(LinkError::NotJoined)?;
        let open = v1::FollowRequest { request: Some(Step::Open(v1::FollowOpen { revision })) };
        // The channel is empty, so this cannot fail.
        let _ = requests.try_send(open);
        let silence = self.joined.peering.timing.unreachable_after;
        let opened = tokio::time::timeout(silence, client.follow(ReceiverStream::new(outgoing)));
        let opened = opened.await.map_err(|_| LinkError::Silent(silence))?;
        let mut responses = opened.map_err(|status| ended(&status))?.into_inner();
        let mut intake = Intake::new(&self.joined, trust, pending);
        let mut changes = self.joined.peering.hub.peer_changes();
        let mut sent = Vec::new();
        loop {
            changes.mark_unchanged();
            self.send_gateways(&mut sent, &requests);
            let store_at = intake.store_at();
            if store_at.is_some_and(|at| at <= Instant::now()) {
                intake.store().await?;
                acknowledge(&intake, &requests);
                continue;
            }
            let read_at = intake.read_at();
            let read = async {
                tokio::time::sleep_until(read_at).await;
                tokio::time::timeout(silence, responses.message()).await
            };
            let store_time = async {
                match store_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                next = read => next,
                () = store_time => continue,
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
            intake.take(response)?;
            acknowledge(&intake, &requests);
        }
    }

    /// Sends the other network the own gateways, if they differ from those of `sent`.
    fn send_gateways(
        &self,
        sent: &mut Vec<SocketAddr>,
        requests: &mpsc::Sender<v1::FollowRequest>,
    ) {
        let own: Vec<SocketAddr> =
            self.joined.peering.hub.read(|catalogue| catalogue.outside_gateways().collect());
        if own.is_empty() || own == *sent {
            return;
        }
        let addresses = own.iter().map(|gateway| (*gateway).into()).collect();
        let request = Some(Step::ReachedAt(v1::Gateways { addresses }));
        // With a full queue they are sent after the next response.
        if requests.try_send(v1::FollowRequest { request }).is_ok() {
            *sent = own;
        }
    }

    async fn set_link(&self, reachable: bool, last_error: String) -> Result<(), LinkError> {
        let version = self.joined.ask(|peer| peer.link.version.clone()).unwrap_or_default();
        self.joined.store_link(stored::PeerLink { reachable, last_error, version }).await
    }
}

/// Where to dial for another network's control plane.
pub(crate) fn gateways_to(catalogue: &Catalogue, network: &NetworkName) -> Vec<SocketAddr> {
    let reach = |peer| catalogue.reach(network, peer).gateways.to_vec();
    catalogue.find_peer(network).map(reach).unwrap_or_default()
}

/// A full queue means that earlier ones are not sent yet; the next one counts.
fn acknowledge(intake: &Intake<'_>, requests: &mpsc::Sender<v1::FollowRequest>) {
    if let Some(revision) = intake.stored() {
        let ack = v1::FollowRequest { request: Some(Step::Ack(v1::FollowAck { revision })) };
        let _ = requests.try_send(ack);
    }
}

fn ended(status: &Status) -> LinkError {
    LinkError::Status(format!("{:?}: {}", status.code(), status.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_lost_when_neither_control_plane_nor_gateways_answer() {
        let check = |heard_ms, answered_ms: Option<u64>, expected| {
            let ms = Duration::from_millis;
            let found = decide_reachability(ms(heard_ms), answered_ms.map(ms), ms(5_000));
            assert_eq!(found, expected, "{heard_ms} {answered_ms:?}");
        };
        check(0, None, Reachability::Heard);
        check(5_000, None, Reachability::Heard);
        check(5_001, None, Reachability::Lost);
        check(5_001, Some(1_000), Reachability::Unheard);
        check(600_000, Some(5_000), Reachability::Unheard);
        check(600_000, Some(5_001), Reachability::Lost);
    }
}
