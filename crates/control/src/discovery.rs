//! Discovery: one stream per data plane, with the states of the services it subscribed to, or of
//! the whole network for a gateway, as they change.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tollway_identity::{Authority, GATEWAY_APP};
use tollway_model::{Instance, Revision, ServiceName};
use tollway_wire::v1::discovery_server::Discovery;
use tollway_wire::v1::open::Scope;
use tollway_wire::v1::watch_request::Request as Step;
use tollway_wire::{
    MESSAGE_LIMIT_BYTES, SERVICES_PER_REQUEST_LIMIT, SERVICES_PER_RESPONSE_LIMIT, v1,
};
use tonic::{Request, Response, Status, Streaming};
use tracing::debug;

use crate::background::Background;
use crate::catalogue::Catalogue;
use crate::connected::{Connected, DataPlane, Stay};
use crate::connections::{Caller, ShareLimit, evicted_status, expired_status, is_system};
use crate::delta::{self, Delta};
use crate::hub::{Hub, NotFollowed, Watcher};
use crate::objects::policies_message;
use crate::restored::SeenAhead;
use crate::status::stopping;

/// Responses waiting for a client that does not read.
const RESPONSES_LIMIT: usize = 4;
/// A client that takes no response for this long is dropped; it resumes when it comes back.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Changes within this time of each other travel together.
const BUNDLE_WINDOW: Duration = Duration::from_millis(5);
/// Services in one response, in bytes; the limit of a message leaves space for one large service
/// and the trust bundles.
const PART_BYTES: usize = MESSAGE_LIMIT_BYTES / 4;
/// Time for the first message.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// What all discovery streams share.
pub(crate) struct Streams {
    pub(crate) hub: Arc<Hub>,
    /// Makes the secrets with which gateways are probed.
    pub(crate) authority: Arc<Authority>,
    /// Bytes of the names that streams follow.
    pub(crate) followed: Arc<ShareLimit>,
    pub(crate) connected: Arc<Connected>,
    pub(crate) seen_ahead: Arc<SeenAhead>,
    /// How often a stream without changes sends a message.
    pub(crate) heartbeat: Duration,
    pub(crate) background: Background,
}

pub(crate) struct DiscoveryService(pub(crate) Arc<Streams>);

#[tonic::async_trait]
impl Discovery for DiscoveryService {
    type WatchStream = ReceiverStream<Result<v1::WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<v1::WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = Caller::of(&request);
        let (service, instance) = self.0.hub.read(|catalogue| caller.workload(catalogue))?;
        let mut requests = request.into_inner();
        let (responses, stream) = mpsc::channel(RESPONSES_LIMIT);
        let shared = self.0.clone();
        // The answer's head goes out before the first message comes in: a client may wait for it.
        self.0.background.spawn(async move {
            let outbox = Outbox(responses);
            let end = match open(&shared, &caller, (&service, instance), &mut requests).await {
                Ok((mut session, stay)) => {
                    let run = session.run(&caller, requests, &outbox);
                    let ended = stay.replaced().run_until_cancelled(run).await;
                    ended.unwrap_or_else(|| Err(replaced_status()))
                }
                Err(status) => Err(status),
            };
            if let Err(status) = end {
                debug!(%service, reason = status.message(), "a discovery stream ended");
                let _ = outbox.0.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

async fn open(
    shared: &Arc<Streams>,
    caller: &Caller,
    (service, instance): (&ServiceName, Instance),
    requests: &mut Streaming<v1::WatchRequest>,
) -> Result<(Session, Stay), Status> {
    let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next())
        .await
        .map_err(|_| Status::deadline_exceeded("no `open` within 10 seconds"))?
        .ok_or_else(|| Status::cancelled("the stream ended before `open`"))??;
    let Some(Step::Open(open)) = first.request else {
        return Err(Status::invalid_argument("the first request must be `open`"));
    };
    let known = Revision(open.revision);
    let present = shared.hub.read(Catalogue::revision);
    shared.seen_ahead.note((service, &instance), known, present);
    let follow = match open.scope() {
        Scope::Subscribed => {
            let share = caller.follow(&shared.followed)?;
            let watcher = shared.hub.watch_as(service.clone(), instance.clone(), share);
            watcher.resume(read_names(&open.resume)?, known).map_err(not_followed)?;
            Follow::Subscriptions { watcher }
        }
        Scope::Network => {
            if !(is_system(service) && service.app.as_str() == GATEWAY_APP) {
                return Err(Status::permission_denied(format!(
                    "only a gateway may watch the whole network, and this is {service}"
                )));
            }
            Follow::Network {
                watcher: shared.hub.watch_whole(),
                known: Some(known).filter(|known| known.0 > 0),
            }
        }
        Scope::Unspecified => {
            return Err(Status::invalid_argument("the field `scope` is missing"));
        }
    };
    let data_plane = DataPlane { service: service.clone(), instance, version: open.version };
    let stay = shared.connected.enter(data_plane);
    let (shared, trust_revision) = (shared.clone(), open.trust_revision);
    Ok((Session { shared, follow, trust_revision, sent: known }, stay))
}

/// One discovery stream.
struct Session {
    shared: Arc<Streams>,
    follow: Follow,
    trust_revision: u64,
    /// The client has been sent everything up to here.
    sent: Revision,
}

enum Follow {
    Subscriptions { watcher: Watcher },
    Network { watcher: Watcher, known: Option<Revision> },
}

impl Follow {
    fn watcher(&self) -> &Watcher {
        match self {
            Self::Subscriptions { watcher } | Self::Network { watcher, .. } => watcher,
        }
    }
}

struct Outbox(mpsc::Sender<Result<v1::WatchResponse, Status>>);

impl Outbox {
    async fn send(&self, response: v1::WatchResponse) -> Result<(), Status> {
        match tokio::time::timeout(SLOW_CLIENT_TIMEOUT, self.0.send(Ok(response))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the client went away")),
            Err(_) => Err(Status::deadline_exceeded("the client does not read; resume later")),
        }
    }
}

impl Session {
    async fn run(
        &mut self,
        caller: &Caller,
        mut requests: Streaming<v1::WatchRequest>,
        outbox: &Outbox,
    ) -> Result<(), Status> {
        let shared = self.shared.clone();
        let mut heartbeat = interval(shared.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let expired = caller.expired();
        tokio::pin!(expired);
        loop {
            tokio::select! {
                request = requests.next() => match request {
                    Some(request) => self.request(request?.request)?,
                    None => return Ok(()),
                },
                () = self.follow.watcher().changed() => {
                    tokio::time::sleep(BUNDLE_WINDOW).await;
                    self.push(outbox).await?;
                }
                _ = heartbeat.tick() => {
                    if !self.push(outbox).await? {
                        let revision = self.sent.0;
                        outbox.send(v1::WatchResponse { revision, heartbeat: true, ..Default::default() }).await?;
                    }
                }
                () = self.follow.watcher().evicted() => return Err(evicted_status()),
                () = &mut expired => return Err(expired_status()),
                () = shared.background.stop.cancelled() => {
                    return Err(stopping());
                }
            }
        }
    }

    fn request(&mut self, step: Option<Step>) -> Result<(), Status> {
        match (step, &self.follow) {
            (Some(Step::Subscribe(subscribe)), Follow::Subscriptions { watcher }) => {
                watcher.subscribe(read_names(&subscribe.services)?).map_err(not_followed)
            }
            (Some(Step::Unsubscribe(unsubscribe)), Follow::Subscriptions { watcher }) => {
                watcher.unsubscribe(&read_names(&unsubscribe.services)?);
                Ok(())
            }
            (Some(Step::Subscribe(_) | Step::Unsubscribe(_)), Follow::Network { .. }) => {
                Err(Status::invalid_argument("a stream of the whole network has no subscriptions"))
            }
            (Some(Step::Ack(ack)), follow) => {
                follow.watcher().acknowledge(Revision(ack.revision));
                Ok(())
            }
            (Some(Step::Open(_)), _) => Err(Status::invalid_argument("the stream is open already")),
            (None, _) => Err(Status::invalid_argument("the field `request` is missing")),
        }
    }

    /// Sends what changed. Returns whether anything was sent.
    async fn push(&mut self, outbox: &Outbox) -> Result<bool, Status> {
        let trust = self.changed_trust();
        let sent_trust = trust.is_some();
        let sent = match &mut self.follow {
            Follow::Subscriptions { watcher } => {
                push_subscriptions(watcher, trust, &mut self.sent, outbox).await?
            }
            Follow::Network { known, .. } => {
                push_network(&self.shared, known, trust, &mut self.sent, outbox).await?
            }
        };
        Ok(sent || sent_trust)
    }

    fn changed_trust(&mut self) -> Option<v1::TrustBundles> {
        let known = self.trust_revision;
        let trust = self
            .shared
            .hub
            .read(|catalogue| (catalogue.trust_revision() != known).then(|| catalogue.trust()))?;
        self.trust_revision = trust.revision;
        Some(trust)
    }
}

async fn push_subscriptions(
    watcher: &Watcher,
    mut trust: Option<v1::TrustBundles>,
    sent: &mut Revision,
    outbox: &Outbox,
) -> Result<bool, Status> {
    let mut any = false;
    loop {
        let updates = watcher.take(SERVICES_PER_RESPONSE_LIMIT);
        let has_own = updates.policies.is_some()
            || updates.traffic.is_some()
            || updates.egress.is_some()
            || updates.ports.is_some();
        if has_own {
            let is_all = updates.services.is_empty() && trust.is_none();
            if is_all {
                *sent = updates.revision;
            }
            let response = v1::WatchResponse {
                revision: sent.0,
                policies: updates.policies.as_deref().map(policies_message),
                traffic: updates.traffic.as_ref().map(Into::into),
                egress: updates.egress,
                ports: updates.ports.as_deref().map(Into::into),
                ..Default::default()
            };
            outbox.send(response).await?;
            any = true;
        }
        if updates.services.is_empty() && trust.is_none() {
            *sent = updates.revision;
            return Ok(any);
        }
        let services = updates.services.iter().map(v1::ServiceUpdate::from).collect();
        let mut parts = parts(services).into_iter().peekable();
        while let Some(services) = parts.next() {
            let last = parts.peek().is_none() && !updates.more;
            // Only the last part brings the client up to the revision.
            let revision = if last { updates.revision } else { *sent };
            *sent = revision;
            let trust = trust.take();
            let response =
                v1::WatchResponse { revision: revision.0, services, trust, ..Default::default() };
            outbox.send(response).await?;
        }
        any = true;
        if !updates.more {
            return Ok(any);
        }
    }
}

async fn push_network(
    shared: &Streams,
    known: &mut Option<Revision>,
    mut trust: Option<v1::TrustBundles>,
    sent: &mut Revision,
    outbox: &Outbox,
) -> Result<bool, Status> {
    let (hub, authority) = (&shared.hub, &shared.authority);
    let delta = hub.read(|catalogue| delta::plan(catalogue, *known));
    let Delta { revision, snapshot, services, networks, .. } = delta;
    *known = Some(revision);
    if !snapshot && services.is_empty() && networks.is_empty() && trust.is_none() {
        *sent = revision;
        return Ok(false);
    }
    let networks = hub.read(|catalogue| {
        let update = |network| {
            let secret = catalogue.joined_at(network).map(|at| authority.probe_secret(network, at));
            let update = v1::NetworkUpdate::from(&catalogue.network_update(network));
            v1::NetworkUpdate {
                probe_secret: tollway_wire::probe_secret_bytes(secret.as_ref()),
                ..update
            }
        };
        networks.iter().map(update).collect()
    });
    let mut networks: Vec<_> = networks;
    let chunks = services.len().div_ceil(SERVICES_PER_RESPONSE_LIMIT).max(1);
    let mut first = true;
    for index in 0..chunks {
        let chunk = services.iter().skip(index * SERVICES_PER_RESPONSE_LIMIT);
        let updates = hub.read(|catalogue| {
            let update = |name| v1::ServiceUpdate::from(&catalogue.update(name, None));
            chunk.take(SERVICES_PER_RESPONSE_LIMIT).map(update).collect()
        });
        let mut parts = parts(updates).into_iter().peekable();
        while let Some(services) = parts.next() {
            let last = parts.peek().is_none() && index + 1 == chunks;
            if last {
                *sent = revision;
            }
            let response = v1::WatchResponse {
                revision: sent.0,
                services,
                networks: std::mem::take(&mut networks),
                trust: trust.take(),
                snapshot_start: snapshot && first,
                snapshot_end: snapshot && last,
                heartbeat: false,
                policies: None,
                traffic: None,
                egress: None,
                ports: None,
            };
            first = false;
            outbox.send(response).await?;
        }
    }
    Ok(true)
}

/// Splits updates so that each part fits in a message; at least one part, which may be empty.
fn parts(updates: Vec<v1::ServiceUpdate>) -> Vec<Vec<v1::ServiceUpdate>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for update in updates {
        let length = update.encoded_len();
        if bytes + length > PART_BYTES && bytes > 0 {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(part) = parts.last_mut() {
            part.push(update);
        }
    }
    parts
}

fn read_names(names: &[v1::ServiceName]) -> Result<Vec<ServiceName>, Status> {
    if names.len() > SERVICES_PER_REQUEST_LIMIT {
        return Err(Status::invalid_argument(format!(
            "a request names at most {SERVICES_PER_REQUEST_LIMIT} services"
        )));
    }
    let mut read: Vec<ServiceName> = Vec::with_capacity(names.len());
    for name in names {
        let mut name = tollway_wire::called_name(Some(name))
            .map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
        // Names of one namespace share its text.
        if let Some(last) = read.last() {
            for (label, known) in
                [(&mut name.namespace, &last.namespace), (&mut name.network, &last.network)]
            {
                if label.as_str() == known.as_str() {
                    label.clone_from(known);
                }
            }
        }
        read.push(name);
    }
    Ok(read)
}

fn replaced_status() -> Status {
    Status::aborted("newer streams of the same data plane have taken the place of this one")
}

fn not_followed(why: NotFollowed) -> Status {
    match why {
        NotFollowed::TooMany => Status::resource_exhausted(format!(
            "a data plane subscribes to at most {} services; unsubscribe idle ones",
            tollway_wire::SUBSCRIPTIONS_PER_STREAM_LIMIT
        )),
        NotFollowed::Share(refused) => refused.status(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peering::admission::TRUST_BYTES_LIMIT;

    fn update(bytes: usize) -> v1::ServiceUpdate {
        let service = v1::ServiceName { app: "a".repeat(bytes), ..v1::ServiceName::default() };
        v1::ServiceUpdate { service: Some(service), ..v1::ServiceUpdate::default() }
    }

    #[test]
    fn the_trust_of_all_networks_fits_beside_the_largest_service() {
        let endpoint = v1::Endpoint {
            instance: "i".repeat(63),
            address: Some(v1::Address { ip: vec![0xff; 16], port: u32::from(u16::MAX) }),
            locality: 256,
            app: "a".repeat(63),
            port: u32::from(u16::MAX),
        };
        let name = || "n".repeat(63);
        let service = v1::ServiceName { app: name(), namespace: name(), network: name() };
        let local = v1::Local {
            endpoints: vec![endpoint; tollway_wire::ENDPOINTS_PER_SERVICE_LIMIT],
            protocol: 1,
            trust_domain: name(),
            localities: vec![
                v1::Locality { region: name(), zone: name() };
                tollway_wire::LOCALITIES_PER_SERVICE_LIMIT
            ],
            unready: vec![v1::UnreadyReplicas { locality: 256, replicas: u32::MAX }; 257],
        };
        let update = v1::ServiceUpdate {
            service: Some(service),
            revision: u64::MAX,
            state: Some(v1::service_update::State::Local(local)),
            routes: Vec::new(),
            traffic: None,
        };
        let routes = tollway_wire::OBJECT_BYTES_PER_SCOPE_LIMIT;
        // Faults and rates are lists, and each is of one traffic policy.
        let traffic = 2 * tollway_wire::OBJECT_LIMIT_BYTES;
        let largest = (update.encoded_len() + routes + traffic).max(PART_BYTES);
        let others = 64 << 10;
        assert!(TRUST_BYTES_LIMIT + largest + others <= MESSAGE_LIMIT_BYTES, "{largest}");
    }

    #[test]
    fn updates_are_split_where_a_message_would_be_too_large() {
        let sizes = |updates| parts(updates).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(vec![]), [0]);
        assert_eq!(sizes(vec![update(1), update(2)]), [2]);
        let half = PART_BYTES / 2 - 100;
        assert_eq!(sizes(vec![update(half), update(half), update(half)]), [2, 1]);
        assert_eq!(sizes(vec![update(1), update(2 * PART_BYTES), update(1)]), [1, 1, 1]);
    }
}
