//! One connection to the control plane: the stream of updates, the registration, and the
//! renewal of the certificate. It ends at the first failure; `supervise` opens the next one.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tollway_dial::wall_clock_reads;
use tollway_identity::{Credentials, Expected, client_config, renewal_time};
use tollway_model::{ErrorCode, ServiceName, Workload, chain};
use tollway_net::Backoff;
use tollway_routing::PolicySet;
use tollway_wire::v1::discovery_client::DiscoveryClient;
use tollway_wire::v1::open::Scope;
use tollway_wire::v1::register_request::Request as Announce;
use tollway_wire::v1::register_response::Response as Answer;
use tollway_wire::v1::registry_client::RegistryClient;
use tollway_wire::v1::watch_request::Request as Ask;
use tollway_wire::{ConvertError, MESSAGE_LIMIT_BYTES, SERVICES_PER_REQUEST_LIMIT, v1};
use tonic::Streaming;
use tonic::transport::Channel;
use tracing::{debug, error, info, warn};

use super::config::{Announcement, Role};
use super::connect::{ALPN, connect_by_clock};
use super::enroll::{self, Enrolment, bundles};
use super::knowledge::Knowledge;
use super::policies::{Applied, Receipt};
use super::state_folder::StateFolder;
use super::{
    EgressUpdate, MeshDelta, MeshError, PolicyUpdate, RoutesUpdate, Shared, TrafficUpdate,
};
use crate::egress::Present;

/// Requests waiting for a control plane that does not read.
const REQUESTS_LIMIT: usize = 16;
/// A control plane that says nothing, not even that nothing changed, is lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(6);
/// Time to open a stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often requests that found no room are tried again, and keep-alives are considered.
const TICK: Duration = Duration::from_millis(200);
/// Before a failed renewal is tried again, while the certificate is still good.
const RENEWAL_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// A certificate is not renewed for a peer that refuses it so soon: the peer's clock is wrong.
const REFUSED_TOO_SOON: Duration = Duration::from_secs(60);

/// Why a session ended in good order.
pub(super) enum End {
    /// There is a new certificate: connect with it.
    Renewed,
}

/// Connects, and serves until something fails or the certificate is renewed.
pub(super) async fn run(
    who: &Enrolment,
    shared: &Arc<Shared>,
    knowledge: &mut Knowledge,
    on_delta: &mut (dyn FnMut(MeshDelta) + Send),
) -> Result<End, MeshError> {
    let credentials = shared.credentials.borrow().clone();
    let expected =
        Expected::home_control(&who.service.network, &credentials.spiffe_id().trust_domain);
    let config =
        |clock| client_config(&Credentials::clone(&credentials).with_clock(clock), &expected, ALPN);
    let channel = connect_by_clock(&who.control, expected.server_name()?, &config).await?;
    let watch = Watch::open(who, shared, knowledge, channel.clone()).await?;
    shared.status.send_modify(|status| {
        status.connected = true;
        status.last_error = None;
    });
    let following = watch.run(shared, knowledge, on_delta);
    let registering = register(who, shared, channel.clone());
    let renewing = renew(who, shared, channel);
    tokio::select! {
        failed = following => failed.map(|never| match never {}),
        failed = registering => failed.map(|never| match never {}),
        () = renewing => Ok(End::Renewed),
    }
}

/// Returns when the certificate was renewed.
async fn renew(who: &Enrolment, shared: &Shared, channel: Channel) {
    let present = shared.credentials.borrow().clone();
    let at = renewal_time(&present);
    let began = Instant::now();
    let refused = async {
        loop {
            shared.refused.notified().await;
            if began.elapsed() >= REFUSED_TOO_SOON {
                return;
            }
        }
    };
    tokio::select! {
        () = wall_clock_reads(at, SystemTime::now) => {}
        () = refused => info!("a peer refuses the certificate as one that has ended; renewing it"),
    }
    let mut attempt = 0;
    loop {
        let renewed = match enroll::renew(channel.clone(), who).await {
            // Another process has renewed with this key. The token is what it has not.
            Err(refused) if refused.code() == Some(ErrorCode::KeyRefused) => {
                let (code, reason) = (ErrorCode::KeyRefused, chain(&refused));
                error!(%code, reason, "the certificate is not renewed");
                enroll::by_token(who).await
            }
            renewed => renewed,
        };
        let taken = match renewed {
            Ok(renewed) => take_over(who, shared, renewed, Unwritten::IsRefused).await,
            Err(error) => Err(error),
        };
        let Err(error) = taken else { return };
        warn!(error = %chain(&error), "the certificate was not renewed; trying again");
        tokio::time::sleep(RENEWAL_BACKOFF.pause(attempt)).await;
        attempt = attempt.saturating_add(1);
    }
}

/// Whether an identity is used that the state folder does not take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwritten {
    IsRefused,
    IsUsed,
}

/// Uses new credentials from here on. They are in the state folder before: a process that ends has
/// never used what it does not find again.
pub(super) async fn take_over(
    who: &Enrolment,
    shared: &Shared,
    credentials: Credentials,
    unwritten: Unwritten,
) -> Result<(), MeshError> {
    if let Some(state) = &who.state
        && let Err(error) = state.keep(&credentials).await
    {
        if unwritten == Unwritten::IsRefused {
            return Err(error.into());
        }
        let (code, reason) = (error.code(), chain(&error));
        error!(%code, reason, "the identity is not kept; a restart needs a token");
    }
    shared.credentials.send_replace(Arc::new(credentials));
    Ok(())
}

/// A part of a response; one that cannot be read is logged, and what was sent of it before holds.
fn readable<T>(what: &str, part: Result<Option<T>, ConvertError>) -> Option<T> {
    part.unwrap_or_else(|why| {
        let reason = chain(&why);
        error!(
            reason,
            "{what} cannot be read, of a later version perhaps; what was sent before holds"
        );
        None
    })
}

/// The stream of updates.
struct Watch {
    requests: mpsc::Sender<v1::WatchRequest>,
    responses: Streaming<v1::WatchResponse>,
    /// What the control plane was asked to follow.
    asked: HashSet<ServiceName>,
    /// Only a sidecar subscribes.
    subscribes: bool,
    acknowledged: u64,
    /// The own service, which policies protect.
    service: ServiceName,
    state: Option<Arc<StateFolder>>,
}

impl Watch {
    async fn open(
        who: &Enrolment,
        shared: &Shared,
        knowledge: &mut Knowledge,
        channel: Channel,
    ) -> Result<Self, MeshError> {
        knowledge.begin_stream();
        let subscribes = matches!(who.role, Role::Sidecar { .. });
        let desired = shared.desired().clone();
        // Only what was answered before can be resumed; the rest is requested again.
        let asked: HashSet<ServiceName> = desired
            .into_iter()
            .filter(|service| subscribes && knowledge.knows(service))
            .take(SERVICES_PER_REQUEST_LIMIT)
            .collect();
        let scope = if subscribes { Scope::Subscribed } else { Scope::Network };
        let open = v1::Open {
            scope: scope.into(),
            revision: knowledge.revision().0,
            resume: asked.iter().map(v1::ServiceName::from).collect(),
            trust_revision: shared.credentials.borrow().bundles().revision(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let (requests, outgoing) = mpsc::channel(REQUESTS_LIMIT);
        // The channel is empty, so this cannot fail.
        let _ = requests.try_send(v1::WatchRequest { request: Some(Ask::Open(open)) });
        let mut client = DiscoveryClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        let opening = client.watch(ReceiverStream::new(outgoing));
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
        let responses = opened.map_err(|_| MeshError::Silent(OPEN_TIMEOUT))??.into_inner();
        let (service, state) = (who.service.clone(), who.state.clone());
        Ok(Self { requests, responses, asked, subscribes, acknowledged: 0, service, state })
    }

    async fn run(
        mut self,
        shared: &Shared,
        knowledge: &mut Knowledge,
        on_delta: &mut (dyn FnMut(MeshDelta) + Send),
    ) -> Result<Infallible, MeshError> {
        let mut tick = ticks();
        let mut received = Instant::now();
        let mut applied = shared.changes_applied.subscribe();
        loop {
            tokio::select! {
                response = self.responses.message() => {
                    let ended = || MeshError::Unavailable { code: None, reason: "it ended the stream".to_owned() };
                    let response = response?.ok_or_else(ended)?;
                    received = Instant::now();
                    self.apply(shared, knowledge, on_delta, &response)?;
                    if response.trust.is_some() {
                        self.keep_roots(shared).await;
                    }
                }
                // The sender lives as long as the client does.
                _ = applied.changed() => self.acknowledge(shared, knowledge),
                () = shared.subscriptions.notified() => self.ask(shared, knowledge)?,
                _ = tick.tick() => {
                    if received.elapsed() > SILENCE_LIMIT {
                        return Err(MeshError::Silent(SILENCE_LIMIT));
                    }
                    self.ask(shared, knowledge)?;
                }
            }
        }
    }

    fn apply(
        &mut self,
        shared: &Shared,
        knowledge: &mut Knowledge,
        on_delta: &mut (dyn FnMut(MeshDelta) + Send),
        response: &v1::WatchResponse,
    ) -> Result<(), MeshError> {
        // Trust before the services that need it.
        if let Some(trust) = &response.trust {
            let renewed = shared.credentials.borrow().with_bundles(bundles(trust)?)?;
            info!(trust_revision = trust.revision, networks = trust.bundles.len(), "trust changed");
            shared.credentials.send_replace(Arc::new(renewed));
        }
        let known = knowledge.change_number();
        let mut delta = knowledge.take(response)?;
        let is_policed = knowledge.change_number() > known;
        if is_policed {
            info!("traffic policies of called services changed");
        }
        for (service, why) in knowledge.take_unread() {
            let reason = chain(&why);
            error!(%service, reason, "routes or traffic policies cannot be read, of a later version perhaps; those of before hold");
        }
        if let Some((number, policies)) = knowledge.take_policies(response)? {
            info!(policies = policies.len(), "policies changed");
            let policies = policies.iter().cloned().map(Arc::new);
            let set = PolicySet::new(self.service.clone(), policies);
            let applied = shared.changes_applied.clone();
            delta.policies = Some(PolicyUpdate::new(set, number, applied));
        }
        let traffic = readable("traffic policies", knowledge.take_own_traffic(response));
        if let Some((number, parts)) = traffic {
            info!("limits of traffic policies changed");
            let receipt = Receipt::new(number, shared.changes_applied.clone());
            delta.traffic = Some(TrafficUpdate::new(&parts, &self.service, receipt));
        }
        if let Some((number, rules)) = readable("egress", knowledge.take_egress(response)) {
            info!("egress changed");
            let receipt = Receipt::new(number, shared.changes_applied.clone());
            delta.egress = Some(EgressUpdate::new(Present::new(rules), receipt));
        }
        if let Some(ports) = readable("ports of Services", knowledge.take_ports(response)) {
            info!(?ports, "ports beside that of the app are served, to which Services lead");
            delta.ports = Some(Arc::new(ports));
        }
        if self.subscribes {
            retain_asked(&mut delta, &self.asked, knowledge);
            let credentials = shared.credentials.borrow().clone();
            for update in &delta.services {
                let Some(number) = knowledge.take_routes(update) else { continue };
                info!(service = %update.service, routes = update.routes.len(), "routes changed");
                let receipt = Receipt::new(number, shared.changes_applied.clone());
                let routes = RoutesUpdate::new(update, &self.service, &credentials, receipt);
                delta.routes.push(routes);
            }
        }
        if is_policed || delta.services.iter().any(|update| update.service.is_in_any_network()) {
            let number = knowledge.number_change();
            delta.applied = Applied::at(Receipt::new(number, shared.changes_applied.clone()));
        }
        let revision = delta.revision;
        let has_changes = !delta.services.is_empty()
            || !delta.networks.is_empty()
            || delta.policies.is_some()
            || delta.traffic.is_some()
            || delta.egress.is_some()
            || delta.ports.is_some();
        if has_changes {
            debug!(%revision, services = delta.services.len(), networks = delta.networks.len(), "applied");
            on_delta(delta);
        }
        shared.status.send_if_modified(|status| {
            std::mem::replace(&mut status.revision, revision) != revision
        });
        self.acknowledge(shared, knowledge);
        Ok(())
    }

    /// Roots of the own network may have changed.
    async fn keep_roots(&self, shared: &Shared) {
        let Some(state) = &self.state else { return };
        let credentials = shared.credentials.borrow().clone();
        if let Err(error) = state.keep(&credentials).await {
            let (code, reason) = (error.code(), chain(&error));
            warn!(%code, reason, "changed roots are not kept");
        }
    }

    /// Acknowledges the revision that was applied, unless policies, routes or traffic policies are still
    /// on their way to the data threads.
    fn acknowledge(&mut self, shared: &Shared, knowledge: &Knowledge) {
        let revision = knowledge.revision().0;
        let are_changes_applied = *shared.changes_applied.borrow() >= knowledge.change_number();
        if revision == self.acknowledged || !are_changes_applied {
            return;
        }
        let ack = v1::WatchRequest { request: Some(Ask::Ack(v1::Ack { revision })) };
        // Without room the next acknowledgement counts for this one too.
        if self.requests.try_send(ack).is_ok() {
            self.acknowledged = revision;
        }
    }

    /// Brings what the control plane was asked for in line with what is desired. What finds no
    /// room is asked for at the next tick.
    fn ask(&mut self, shared: &Shared, knowledge: &mut Knowledge) -> Result<(), MeshError> {
        if !self.subscribes {
            return Ok(());
        }
        let (more, less) = {
            let desired = shared.desired();
            let more: Vec<_> =
                desired.difference(&self.asked).take(SERVICES_PER_REQUEST_LIMIT).cloned().collect();
            let less: Vec<_> = self.asked.difference(&desired).cloned().collect();
            (more, less)
        };
        if !less.is_empty() {
            let services = less.iter().map(v1::ServiceName::from).collect();
            if self.send(Ask::Unsubscribe(v1::Unsubscribe { services }))? {
                for service in &less {
                    self.asked.remove(service);
                    knowledge.forget(service);
                }
            }
        }
        if !more.is_empty() {
            let services = more.iter().map(v1::ServiceName::from).collect();
            if self.send(Ask::Subscribe(v1::Subscribe { services }))? {
                self.asked.extend(more);
            }
        }
        Ok(())
    }

    /// Returns whether there was room.
    fn send(&self, request: Ask) -> Result<bool, MeshError> {
        try_send(&self.requests, v1::WatchRequest { request: Some(request) })
    }
}

/// Leaves out services that are no longer followed: an answer may cross an unsubscription. Their states
/// are not passed on, so that they are news when the service is followed again.
pub(super) fn retain_asked(
    delta: &mut MeshDelta,
    asked: &HashSet<ServiceName>,
    knowledge: &mut Knowledge,
) {
    let crossed = delta.services.extract_if(.., |update| !asked.contains(&update.service));
    crossed.for_each(|update| knowledge.forget(&update.service));
}

/// Keeps the announcement current and alive.
async fn register(
    who: &Enrolment,
    shared: &Shared,
    channel: Channel,
) -> Result<Infallible, MeshError> {
    let mut announcements = shared.announcement.subscribe();
    if matches!(who.role, Role::Sidecar { .. }) {
        // No caller is sent to a sidecar before it has its policies: until then it refuses every
        // request. The sender lives as long as the client does.
        let _ = shared.changes_applied.subscribe().wait_for(|number| *number > 0).await;
    }
    loop {
        let wanted = announcements.wait_for(Option::is_some).await.is_ok();
        if !wanted {
            // The sender lives as long as the client does.
            return std::future::pending().await;
        }
        let registration = Registration::new(channel.clone());
        match registration.run(who, shared, &mut announcements).await {
            Ok(()) => {}
            Err(error) if error.may_pass() => return Err(error),
            Err(error) => {
                // Trying the same again would be refused again; updates go on meanwhile.
                let reason = chain(&error);
                warn!(service = %who.service, reason, "the registration was refused");
                shared.status.send_modify(|status| {
                    status.registered = None;
                    status.last_error = Some(reason);
                });
                if announcements.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// One registration stream: from an announcement to its deregistration.
struct Registration {
    requests: mpsc::Sender<v1::RegisterRequest>,
    client: RegistryClient<Channel>,
    outgoing: mpsc::Receiver<v1::RegisterRequest>,
}

impl Registration {
    fn new(channel: Channel) -> Self {
        let client = RegistryClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
        let (requests, outgoing) = mpsc::channel(REQUESTS_LIMIT);
        Self { requests, client, outgoing }
    }

    /// Returns once the announcement was taken back.
    async fn run(
        self,
        who: &Enrolment,
        shared: &Shared,
        announcements: &mut watch::Receiver<Option<Announcement>>,
    ) -> Result<(), MeshError> {
        let Self { requests, mut client, outgoing } = self;
        let opening = client.register(ReceiverStream::new(outgoing));
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opening).await;
        let mut answers = opened.map_err(|_| MeshError::Silent(OPEN_TIMEOUT))??.into_inner();
        let mut sent: Option<Announcement> = None;
        let mut unanswered: VecDeque<Announcement> = VecDeque::new();
        let mut leaving = false;
        let mut keep_alive_every = SILENCE_LIMIT;
        let mut last_sent = Instant::now();
        let mut tick = ticks();
        loop {
            let present = announcements.borrow_and_update().clone();
            let request = match &present {
                Some(now) if sent.as_ref() != Some(now) => Some(announce(who, now)),
                None if !leaving => Some(Announce::Deregister(v1::Deregister {})),
                Some(_) if last_sent.elapsed() >= keep_alive_every => {
                    Some(Announce::KeepAlive(v1::KeepAlive {}))
                }
                Some(_) | None => None,
            };
            if let Some(request) = request
                && try_send(&requests, v1::RegisterRequest { request: Some(request) })?
            {
                last_sent = Instant::now();
                if sent != present {
                    unanswered.extend(present.clone());
                }
                leaving = present.is_none();
                if !leaving {
                    shared.announced.send_replace(true);
                }
                sent = present;
            }
            tokio::select! {
                answer = answers.message() => {
                    let ended = || MeshError::Unavailable { code: None, reason: "it ended the registration".to_owned() };
                    match answer?.ok_or_else(ended)?.response {
                        Some(Answer::Registered(registered)) => {
                            let lease = Duration::from_millis(u64::from(registered.lease_ms));
                            keep_alive_every = lease / 3;
                            info!(service = %who.service, instance = %who.instance, revision = registered.revision, "registered");
                            shared.set_registered(unanswered.pop_front());
                        }
                        Some(Answer::Deregistered(_)) => {
                            info!(service = %who.service, instance = %who.instance, "deregistered");
                            shared.set_registered(None);
                            shared.announced.send_replace(false);
                            return Ok(());
                        }
                        Some(Answer::KeepAliveAck(_)) | None => {}
                    }
                }
                _ = announcements.changed() => {}
                _ = tick.tick() => {}
            }
        }
    }
}

fn announce(who: &Enrolment, announcement: &Announcement) -> Announce {
    match announcement {
        Announcement::Workload { address, protocol, ready } => {
            let workload = Workload {
                service: who.service.clone(),
                instance: who.instance.clone(),
                address: *address,
                protocol: *protocol,
                ready: *ready,
                locality: who.locality.clone(),
            };
            Announce::Workload((&workload).into())
        }
        Announcement::Gateway { outside, inside, reaches } => Announce::Gateway(v1::Gateway {
            instance: who.instance.as_str().to_owned(),
            outside: outside.iter().copied().map(Into::into).collect(),
            inside: inside.iter().copied().map(Into::into).collect(),
            reaches: reaches.iter().map(|network| network.as_str().to_owned()).collect(),
        }),
    }
}

fn try_send<T>(queue: &mpsc::Sender<T>, request: T) -> Result<bool, MeshError> {
    match queue.try_send(request) {
        Ok(()) => Ok(true),
        Err(TrySendError::Full(_)) => Ok(false),
        Err(TrySendError::Closed(_)) => {
            Err(MeshError::Unavailable { code: None, reason: "it closed the stream".to_owned() })
        }
    }
}

fn ticks() -> tokio::time::Interval {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

#[cfg(test)]
mod tests;
