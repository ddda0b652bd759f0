//! Sends a joined network what this one offers: aggregates and gateways, never endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tollway_model::{NetworkName, ProbeSecret, Revision};
use tollway_store::{Expected, Transaction};
use tollway_wire::v1::follow_request::Request as Step;
use tollway_wire::{SERVICES_PER_RESPONSE_LIMIT, v1};
use tonic::{Status, Streaming};
use tracing::info;

use super::Peering;
use super::joined::{Gateways, JoinedNetwork, encode_gateways};
use super::pace::{ReadPace, cost};
use crate::connections::{Caller, expired_status};
use crate::delta;
use crate::hub::Watcher;
use crate::key::Key;
use crate::status::{stopping, store_status};

/// Responses waiting for a network that does not read.
const RESPONSES_LIMIT: usize = 4;
/// A network that takes no response for this long is dropped; it resumes when it comes back.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Changes within this time of each other travel together.
const BUNDLE_WINDOW: Duration = Duration::from_millis(20);
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Time for the first message.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

type Outbox = mpsc::Sender<Result<v1::FollowResponse, Status>>;

/// Starts the stream for the control plane of `network`.
pub(crate) fn start(
    peering: Arc<Peering>,
    caller: Caller,
    network: NetworkName,
    requests: Streaming<v1::FollowRequest>,
) -> ReceiverStream<Result<v1::FollowResponse, Status>> {
    let (outbox, stream) = mpsc::channel(RESPONSES_LIMIT);
    let session = Session {
        watcher: peering.hub.watch_whole(),
        joined: JoinedNetwork { peering: peering.clone(), network },
        known: None,
        pace: ReadPace::new(),
        reached_at: None,
        warned: false,
        trust: None,
    };
    peering.background.spawn(async move {
        let network = session.joined.network.clone();
        if let Err(status) = session.run(&caller, requests, &outbox).await {
            info!(%network, reason = status.message(), "a joined network follows no more");
            let _ = outbox.try_send(Err(status));
        }
    });
    ReceiverStream::new(stream)
}

struct Session {
    joined: JoinedNetwork,
    watcher: Watcher,
    /// The other network has been sent everything up to here.
    known: Option<Revision>,
    pace: ReadPace,
    /// Where it is reached as it states, if that is not stored yet.
    reached_at: Option<Vec<SocketAddr>>,
    /// The operator was warned of gateways that are refused.
    warned: bool,
    /// The trust revision at which it was last compared with what was sent, and what was sent.
    trust: Option<(u64, v1::TrustBundle)>,
}

impl Session {
    async fn run(
        mut self,
        caller: &Caller,
        mut requests: Streaming<v1::FollowRequest>,
        outbox: &Outbox,
    ) -> Result<(), Status> {
        self.known = open(&mut requests).await?;
        info!(network = %self.joined.network, from = ?self.known, "a joined network follows");
        let peering = self.joined.peering.clone();
        let mut heartbeat = interval(peering.timing.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let expired = caller.expired();
        tokio::pin!(expired);
        loop {
            // A network that is no longer joined gets no more.
            peering.hub.read(|catalogue| caller.peer(catalogue))?;
            let (read_at, move_at) = (self.pace.next_at(), self.joined.next_move_at());
            let read = async {
                tokio::time::sleep_until(read_at).await;
                requests.next().await
            };
            tokio::select! {
                request = read => match request {
                    Some(request) => self.request(request?.request).await?,
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(move_at), if self.reached_at.is_some() => {
                    self.take_gateways().await?;
                }
                () = self.watcher.changed() => {
                    tokio::time::sleep(BUNDLE_WINDOW).await;
                    self.push(outbox).await?;
                }
                _ = heartbeat.tick() => {
                    if !self.push(outbox).await? {
                        let revision = self.known.unwrap_or_default().0;
                        let beat = v1::FollowResponse {
                            revision,
                            heartbeat: true,
                            version: VERSION.to_owned(),
                            ..Default::default()
                        };
                        send(outbox, beat).await?;
                    }
                }
                () = &mut expired => return Err(expired_status()),
                () = peering.background.stop.cancelled() => {
                    return Err(stopping());
                }
            }
        }
    }

    async fn request(&mut self, step: Option<Step>) -> Result<(), Status> {
        self.pace.spend(cost(0, false));
        match step {
            Some(Step::ReachedAt(stated)) => {
                let limit = tollway_wire::GATEWAYS_PER_NETWORK_LIMIT;
                let read = tollway_wire::addresses(&stated.addresses, "reached_at", limit)
                    .map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
                self.reached_at = Some(read);
                self.take_gateways().await
            }
            Some(Step::Ack(ack)) => {
                self.watcher.acknowledge(Revision(ack.revision));
                Ok(())
            }
            Some(Step::Open(_)) => Err(Status::invalid_argument("the stream is open already")),
            None => Err(Status::invalid_argument("the field `request` is missing")),
        }
    }

    /// Stores the addresses at which the network is reached, if they may change now.
    async fn take_gateways(&mut self) -> Result<(), Status> {
        let Some(stated) = self.reached_at.take() else { return Ok(()) };
        let moved = match self.joined.decide_gateways(&stated, &mut self.warned) {
            Gateways::Keep => return Ok(()),
            Gateways::Later => {
                self.reached_at = Some(stated);
                return Ok(());
            }
            Gateways::Move(moved) => moved,
        };
        let JoinedNetwork { peering, network } = &self.joined;
        let trust = Key::PeerTrust { network: network.clone() }.encode();
        let entry = peering.store.get(&trust).await.map_err(|error| store_status(&error))?;
        let entry = entry.ok_or_else(|| Status::permission_denied("the network is not joined"))?;
        let put = Transaction::new()
            .when(trust, Expected::Revision(entry.revision))
            .put(Key::PeerGateways { network: network.clone() }.encode(), encode_gateways(&moved));
        peering.store.transact(put).await.map_err(|error| store_status(&error))?;
        Ok(())
    }

    /// Sends what changed. Returns whether anything was sent.
    async fn push(&mut self, outbox: &Outbox) -> Result<bool, Status> {
        let delta = self.joined.peering.hub.read(|catalogue| delta::plan(catalogue, self.known));
        let revision = delta.revision;
        let mut trust = self.changed_trust();
        let mut probe_secret = match &trust {
            Some(_) => tollway_wire::probe_secret_bytes(self.probe_secret().as_ref()),
            None => Vec::new(),
        };
        let is_same = delta.services.is_empty() && !delta.gateways && trust.is_none();
        if !delta.snapshot && is_same {
            self.known = Some(revision);
            return Ok(false);
        }
        let chunks = delta.services.len().div_ceil(SERVICES_PER_RESPONSE_LIMIT).max(1);
        for index in 0..chunks {
            let (first, last) = (index == 0, index + 1 == chunks);
            let names = delta.services.iter().skip(index * SERVICES_PER_RESPONSE_LIMIT);
            let response = self.joined.peering.hub.read(|catalogue| v1::FollowResponse {
                revision: if last { revision.0 } else { self.known.unwrap_or_default().0 },
                services: names
                    .take(SERVICES_PER_RESPONSE_LIMIT)
                    .map(|name| catalogue.aggregate(name))
                    .collect(),
                gateways: (first && delta.gateways).then(|| v1::Gateways {
                    addresses: catalogue.outside_gateways().map(Into::into).collect(),
                }),
                trust: trust.take(),
                snapshot_start: delta.snapshot && first,
                snapshot_end: delta.snapshot && last,
                heartbeat: false,
                version: if first { VERSION.to_owned() } else { String::new() },
                probe_secret: std::mem::take(&mut probe_secret),
            });
            send(outbox, response).await?;
        }
        self.known = Some(revision);
        Ok(true)
    }

    /// With what the other network probes the own gateways.
    fn probe_secret(&self) -> Option<ProbeSecret> {
        let JoinedNetwork { peering, network } = &self.joined;
        let joined_at = peering.hub.read(|catalogue| catalogue.joined_at(network))?;
        Some(peering.authority.probe_secret(network, joined_at))
    }

    /// The own roots and revoked identities, if they differ from what was sent on this stream.
    fn changed_trust(&mut self) -> Option<v1::TrustBundle> {
        let compared = self.trust.as_ref().map(|(revision, _)| *revision);
        let (revision, present) = self.joined.peering.hub.read(|catalogue| {
            let revision = catalogue.trust_revision();
            (Some(revision) != compared).then(|| (revision, catalogue.own_trust()))
        })?;
        let is_same = self.trust.as_ref().is_some_and(|(_, sent)| *sent == present);
        self.trust = Some((revision, present.clone()));
        (!is_same).then_some(present)
    }
}

async fn open(requests: &mut Streaming<v1::FollowRequest>) -> Result<Option<Revision>, Status> {
    let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next())
        .await
        .map_err(|_| Status::deadline_exceeded("no `open` within 10 seconds"))?
        .ok_or_else(|| Status::cancelled("the stream ended before `open`"))??;
    match first.request {
        Some(Step::Open(open)) => Ok(Some(Revision(open.revision)).filter(|known| known.0 > 0)),
        Some(Step::Ack(_) | Step::ReachedAt(_)) | None => {
            Err(Status::invalid_argument("the first request must be `open`"))
        }
    }
}

async fn send(outbox: &Outbox, response: v1::FollowResponse) -> Result<(), Status> {
    match tokio::time::timeout(SLOW_CLIENT_TIMEOUT, outbox.send(Ok(response))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the other network went away")),
        Err(_) => Err(Status::deadline_exceeded("the other network does not read; resume later")),
    }
}
