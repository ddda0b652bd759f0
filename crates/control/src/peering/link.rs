//! Follows one joined network: holds a stream to its control plane, stores what comes, and probes the
//! network's gateways.
//!
//! A silent control plane is no lost network: its gateways and sidecars still serve. While a
//! gateway answers ([`super::liveness`]), the last state of the control plane is served, marked as
//! old; when none does, the services are withdrawn, whatever the control plane does. The stored state
//! survives a restart, so a control plane that returns serves it at once.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tollway_identity::{Expected, client_config};
use tollway_model::{NetworkName, ProbeSecret};
use tollway_net::Backoff;
use tollway_wire::v1::follow_request::Request as Step;
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::{MESSAGE_LIMIT_BYTES, v1};
use tonic::Status;
use tracing::{debug, info, warn};

use super::Peering;
use super::dial::dial;
use super::intake::{Intake, Pending};
use super::joined::{JoinedNetwork, LinkError};
use super::liveness::{Liveness, Verdict};
use super::probe::probe;
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
/// Before a change of a network's state is stored again that could not be.
const STORE_PAUSE: Duration = Duration::from_millis(200);

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

/// When the other control plane last sent something, and what has gone wrong since.
#[derive(Clone)]
struct Contact(Arc<Mutex<LastContact>>);

struct LastContact {
    at: Instant,
    /// Why there is no stream; empty while there is one, and before the first.
    failure: String,
    /// Something has come since the last failure.
    is_up: bool,
}

impl Contact {
    fn new() -> Self {
        let never = LastContact { at: Instant::now(), failure: String::new(), is_up: false };
        Self(Arc::new(Mutex::new(never)))
    }

    fn heard(&self) {
        *self.lock() = LastContact { at: Instant::now(), failure: String::new(), is_up: true };
    }

    fn failed(&self, reason: String) {
        let mut last = self.lock();
        last.failure = reason;
        last.is_up = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LastContact> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be stored as the reason why the other control plane does not answer: `None` for what is
/// there. Without a verdict, its gateways cannot be probed yet.
fn decide_error(
    verdict: Option<&Verdict>,
    silent: Duration,
    last: &LastContact,
    limit: Duration,
) -> Option<String> {
    let has_failed = !last.failure.is_empty();
    match verdict {
        Some(Verdict::Silent) => {
            let between = if has_failed { "; " } else { "" };
            Some(format!("no gateway of it answers{between}{}", last.failure))
        }
        None if has_failed => Some(last.failure.clone()),
        Some(Verdict::Reachable { .. }) | None if silent > limit => {
            Some(if has_failed { last.failure.clone() } else { "it is silent".to_owned() })
        }
        Some(Verdict::Reachable { .. }) | None => last.is_up.then(String::new),
    }
}

/// Where calls of a joined network are dialled, and what is stored of its state.
struct PeerNow {
    gateways: Arc<[SocketAddr]>,
    link: stored::PeerLink,
    /// It has no gateway that could be probed: `gateways` are own ones that hold reverse connections.
    dials_out: bool,
}

/// A network that only dials out lives while an own gateway holds reverse connections of it: that
/// gateway drops those of one that is silent, and reports the rest.
fn verdict_of_reverse(holders: &[SocketAddr]) -> Verdict {
    if holders.is_empty() {
        return Verdict::Silent;
    }
    Verdict::Reachable { passed_over: Vec::new() }
}

impl Link {
    fn new(peering: Arc<Peering>, network: NetworkName) -> Self {
        let contact = Contact::new();
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

    /// Probes the gateways, and stores whether the network can be reached.
    async fn judge(&self) {
        let mut changes = self.joined.peering.hub.peer_changes();
        let mut liveness = Liveness::default();
        // What is still under way ends with it.
        let mut probes = JoinSet::new();
        loop {
            changes.mark_unchanged();
            let Some(PeerNow { gateways, link, dials_out }) = self.way() else { return };
            let mut wait = STORE_PAUSE;
            if !dials_out && let Some(secret) = ProbeSecret::read(&link.probe_secret) {
                let is_silent =
                    |address: &SocketAddr| !link.reachable || link.is_passed_over(*address);
                liveness.follow(&gateways, is_silent);
                let look = liveness.look(Instant::now());
                wait = look.wait;
                for gateway in look.probes {
                    let (secret, network) = (secret.clone(), self.joined.network.clone());
                    probes.spawn(async move { (gateway, probe(gateway, secret, network).await) });
                }
            }
            let verdict =
                if dials_out { Some(verdict_of_reverse(&gateways)) } else { liveness.verdict() };
            if let Err(error) = self.note(&link, verdict).await {
                warn!(error = %tollway_model::chain(&error), "whether a joined network can be reached was not stored; trying again");
                tokio::time::sleep(STORE_PAUSE).await;
            }
            let next = tokio::time::sleep(wait);
            tokio::pin!(next);
            loop {
                tokio::select! {
                    ended = probes.join_next(), if !probes.is_empty() => {
                        // None is cancelled, and none panics.
                        let Some(Ok((gateway, answer))) = ended else { continue };
                        self.joined.peering.counts.probed(answer.is_some());
                        liveness.ended(gateway, answer, Instant::now());
                        let is_same = liveness.verdict() == Some(stored_verdict(&link));
                        if answer.is_some() && !is_same {
                            break;
                        }
                    }
                    () = &mut next => break,
                    changed = changes.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                }
            }
        }
    }

    fn way(&self) -> Option<PeerNow> {
        let network = &self.joined.network;
        self.joined.peering.hub.read(|catalogue| {
            let peer = catalogue.find_peer(network)?;
            let gateways = catalogue.reach(network, peer).gateways;
            Some(PeerNow { gateways, link: peer.link.clone(), dials_out: peer.dials_out() })
        })
    }

    /// Stores what has changed.
    async fn note(
        &self,
        link: &stored::PeerLink,
        verdict: Option<Verdict>,
    ) -> Result<(), LinkError> {
        let network = &self.joined.network;
        let limit = self.joined.peering.timing.unreachable_after;
        let (silent, error) = {
            let last = self.contact.lock();
            let silent = last.at.elapsed();
            (silent, decide_error(verdict.as_ref(), silent, &last, limit))
        };
        let verdict = verdict.unwrap_or_else(|| stored_verdict(link));
        let is_reachable = verdict != Verdict::Silent;
        let error = error.filter(|error| error.is_empty() != link.last_error.is_empty());
        let passed_over: Vec<v1::Address> = match verdict {
            Verdict::Reachable { passed_over } => passed_over.into_iter().map(Into::into).collect(),
            Verdict::Silent => Vec::new(),
        };
        let is_moved = link.reachable != is_reachable || link.passed_over != passed_over;
        if !is_moved && error.is_none() {
            return Ok(());
        }
        if link.reachable && !is_reachable {
            self.joined.peering.counts.withdrawn.add(1);
            warn!(%network, "no gateway of a joined network answers; its services are withdrawn");
        } else if !link.reachable && is_reachable {
            info!(%network, "a gateway of a joined network answers");
        } else if link.passed_over != passed_over {
            let gateways = tollway_wire::addresses(&passed_over, "passed_over", usize::MAX);
            let gateways = gateways.unwrap_or_default();
            info!(%network, ?gateways, "gateways of a joined network are passed over: they are silent, or end");
        }
        if is_reachable && let Some(reason) = error.as_ref().filter(|reason| !reason.is_empty()) {
            warn!(%network, ?silent, reason, "the control plane of a joined network is away; its gateways answer, its services stay as they were");
        }
        let change = |link: &mut stored::PeerLink| {
            link.reachable = is_reachable;
            link.passed_over.clone_from(&passed_over);
            if let Some(error) = &error {
                link.last_error.clone_from(error);
            }
        };
        self.joined.change_link(change).await
    }

    /// Where to dial, and the TLS configuration that trusts only the network's control plane.
    fn route(&self) -> Result<(Vec<SocketAddr>, Arc<ClientConfig>), LinkError> {
        let gateways =
            self.joined.peering.hub.read(|catalogue| gateways_to(catalogue, &self.joined.network));
        let config = client_config(&self.joined.peering.credentials(), &self.whom()?, ALPN)?;
        Ok((gateways, config))
    }

    fn whom(&self) -> Result<Expected, LinkError> {
        let trust = self.trust()?;
        Ok(Expected::control(&trust.network, &trust.trust_domain))
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
}

/// The verdict that is stored.
fn stored_verdict(link: &stored::PeerLink) -> Verdict {
    let addresses = tollway_wire::addresses(&link.passed_over, "passed_over", usize::MAX);
    if !link.reachable {
        return Verdict::Silent;
    }
    Verdict::Reachable { passed_over: addresses.unwrap_or_default() }
}

/// Where to dial for another network's control plane: first where a gateway answers.
pub(crate) fn gateways_to(catalogue: &Catalogue, network: &NetworkName) -> Vec<SocketAddr> {
    let Some(peer) = catalogue.find_peer(network) else { return Vec::new() };
    let mut gateways = catalogue.reach(network, peer).gateways.to_vec();
    gateways.sort_by_key(|gateway| peer.link.is_passed_over(*gateway));
    gateways
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
    fn a_network_that_only_dials_out_is_withdrawn_with_its_last_reverse_connection() {
        assert_eq!(verdict_of_reverse(&[]), Verdict::Silent);
        let holder = SocketAddr::from(([10, 0, 0, 1], 15444));
        let reachable = Verdict::Reachable { passed_over: Vec::new() };
        assert_eq!(verdict_of_reverse(&[holder]), reachable);
    }

    #[test]
    fn what_is_stored_of_a_silent_control_plane_follows_from_the_last_contact() {
        let reachable = Some(Verdict::Reachable { passed_over: Vec::new() });
        let (silent, none) = (Some(Verdict::Silent), None);
        let check = |verdict: &Option<Verdict>, silent_s, failure: &str, is_up, expected| {
            let last = LastContact { at: Instant::now(), failure: failure.to_owned(), is_up };
            let limit = Duration::from_secs(5);
            let silent = Duration::from_secs(silent_s);
            let found = decide_error(verdict.as_ref(), silent, &last, limit);
            let expected: Option<&str> = expected;
            assert_eq!(found.as_deref(), expected, "{verdict:?} {silent_s} {failure} {is_up}");
        };
        // Its gateways answer: what is stored stays until it has answered, or has been silent for long.
        check(&reachable, 1, "", false, None);
        check(&reachable, 1, "cannot dial it", false, None);
        check(&reachable, 1, "", true, Some(""));
        check(&reachable, 6, "cannot dial it", false, Some("cannot dial it"));
        check(&reachable, 6, "", true, Some("it is silent"));
        check(&silent, 1, "", true, Some("no gateway of it answers"));
        check(&silent, 9, "cut", false, Some("no gateway of it answers; cut"));
        // Without the secret for probes.
        check(&none, 1, "", false, None);
        check(&none, 1, "malformed", false, Some("malformed"));
        check(&none, 6, "", false, Some("it is silent"));
        check(&none, 1, "", true, Some(""));
    }
}
