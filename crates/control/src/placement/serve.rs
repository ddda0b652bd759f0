//! The streams of hosts, and of those who call actors.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tollway_actors::placement::{Order, SHARDS};
use tollway_model::{ErrorCode, Label, NetworkName, chain};
use tollway_wire::v1::host_request::Request as Step;
use tollway_wire::v1::host_response::Response as Answer;
use tollway_wire::v1::placement_server::Placement;
use tollway_wire::{ACTOR_TYPES_PER_STREAM_LIMIT, ActorHost, ConvertError, v1};
use tonic::{Request, Response, Status, Streaming};
use tracing::debug;

use super::followers::{Follower, NotFollowed};
use super::host::Host;
use super::placements::{ORDERS_LIMIT, Placements};
use super::realm::{Entered, Entry, NotEntered, RefusedType};
use crate::background::Background;
use crate::connections::{Caller, ShareLimit, evicted_status, expired_status, is_system};
use crate::hub::Hub;
use crate::pace::Pace;
use crate::status::stopping;

/// Responses waiting for a client that does not read.
const RESPONSES_LIMIT: usize = 4;
/// A client that takes no response for this long is dropped; it comes back when it can.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Steps of one stream: as many at once as a host of many types needs when they all move, and so
/// many a second. Further ones wait unread.
const STEPS_BURST: u32 = 4_000;
const STEPS_PER_SECOND: u32 = 200;
/// Time for the first message.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct PlacementService {
    pub(crate) hub: Arc<Hub>,
    pub(crate) network: NetworkName,
    pub(crate) placements: Arc<Placements>,
    /// Bytes of the names that streams follow.
    pub(crate) followed: Arc<ShareLimit>,
    pub(crate) background: Background,
}

type Sink<T> = mpsc::Sender<Result<T, Status>>;

#[tonic::async_trait]
impl Placement for PlacementService {
    type HostStream = ReceiverStream<Result<v1::HostResponse, Status>>;
    type WatchOwnersStream = ReceiverStream<Result<v1::Owners, Status>>;

    async fn host(
        &self,
        request: Request<Streaming<v1::HostRequest>>,
    ) -> Result<Response<Self::HostStream>, Status> {
        let caller = Caller::of(&request);
        let (service, instance) = self.hub.read(|catalogue| caller.workload(catalogue))?;
        if is_system(&service) {
            return Err(Status::permission_denied("a part of the mesh has no actors"));
        }
        let (placements, stop) = (self.placements.clone(), self.background.stop.clone());
        let (responses, stream) = mpsc::channel(RESPONSES_LIMIT);
        self.background.spawn(async move {
            let mut requests = request.into_inner();
            let end = match first(&mut requests).await {
                Ok(first) => {
                    let host = Host { app: service.app, instance, life: first.life };
                    let session = HostSession {
                        placements: &placements,
                        stop: &stop,
                        namespace: service.namespace,
                        host,
                        responses: &responses,
                    };
                    session.run(&caller, &first, requests).await
                }
                Err(status) => Err(status),
            };
            send_end(&responses, end);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn watch_owners(
        &self,
        request: Request<Streaming<v1::WatchOwnersRequest>>,
    ) -> Result<Response<Self::WatchOwnersStream>, Status> {
        let caller = Caller::of(&request);
        let (service, _) = self.hub.read(|catalogue| caller.workload(catalogue))?;
        let (placements, stop) = (self.placements.clone(), self.background.stop.clone());
        let network = self.network.clone();
        let share = caller.follow(&self.followed)?;
        let follower = placements.followers.enter(service.namespace.clone(), share);
        let (responses, stream) = mpsc::channel(RESPONSES_LIMIT);
        self.background.spawn(async move {
            let mut watch = Watch {
                placements: &placements,
                network: &network,
                stop: &stop,
                namespace: service.namespace,
                follower,
                responses: &responses,
            };
            let end = watch.run(&caller, request.into_inner()).await;
            send_end(&responses, end);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn send_end<T>(responses: &Sink<T>, end: Result<(), Status>) {
    if let Err(status) = end {
        debug!(reason = status.message(), "a stream about actors ended");
        let _ = responses.try_send(Err(status));
    }
}

async fn send<T>(responses: &Sink<T>, response: T) -> Result<(), Status> {
    match tokio::time::timeout(SLOW_CLIENT_TIMEOUT, responses.send(Ok(response))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the client went away")),
        Err(_) => Err(Status::deadline_exceeded("the client does not read; come back later")),
    }
}

impl NotEntered {
    fn status(self) -> Status {
        match self {
            Self::Superseded => Status::aborted("the host has entered in a later conversation"),
            Self::Succeeded => tollway_wire::with_code(
                Status::aborted(
                    "the instance was started again and has entered since; end one of the two processes, or give each an instance name of its own",
                ),
                ErrorCode::ActorHostSucceeded,
            ),
            Self::Ended => Status::aborted(
                "the operator has assigned a type of this host to other apps; enter again when the lease has ended",
            ),
        }
    }
}

impl From<RefusedType> for v1::RefusedType {
    fn from(refused: RefusedType) -> Self {
        let RefusedType { actor_type, code, text } = refused;
        Self { actor_type, code: code.word().to_owned(), message: text }
    }
}

fn invalid(error: &ConvertError) -> Status {
    Status::invalid_argument(chain(error))
}

async fn first(requests: &mut Streaming<v1::HostRequest>) -> Result<v1::Enter, Status> {
    let first = tokio::time::timeout(OPEN_TIMEOUT, requests.next())
        .await
        .map_err(|_| Status::deadline_exceeded("no `enter` within 10 seconds"))?
        .ok_or_else(|| Status::cancelled("the stream ended before `enter`"))??;
    match first.request {
        Some(Step::Enter(enter)) => Ok(enter),
        _ => Err(Status::invalid_argument("the first request must be `enter`")),
    }
}

/// The stream of one host.
struct HostSession<'a> {
    placements: &'a Placements,
    stop: &'a CancellationToken,
    namespace: Label,
    host: Host,
    responses: &'a Sink<v1::HostResponse>,
}

impl HostSession<'_> {
    async fn run(
        &self,
        caller: &Caller,
        enter: &v1::Enter,
        mut requests: Streaming<v1::HostRequest>,
    ) -> Result<(), Status> {
        let held = tollway_wire::held(&enter.types).map_err(|error| invalid(&error))?;
        let (sender, mut orders) = mpsc::channel(ORDERS_LIMIT);
        let entering = Entry { held: &held, attempt: enter.attempt, shares: enter.shares_types };
        let entered = self.placements.enter(&self.namespace, &self.host, entering, sender);
        let Entered { wrong, refused } = entered.map_err(NotEntered::status)?;
        // The host learns what it does not hold before it gets a lease.
        for order in &wrong {
            self.send(order).await?;
        }
        let lease_ms = u32::try_from(self.placements.lease.as_millis()).unwrap_or(u32::MAX);
        let refused = refused.into_iter().map(Into::into).collect();
        self.answer(Answer::Entered(v1::Entered { lease_ms, refused })).await?;
        let expired = caller.expired();
        tokio::pin!(expired);
        let mut pace = Pace::new(STEPS_BURST, STEPS_PER_SECOND);
        loop {
            tokio::select! {
                // An order is sent before the answer to a later step.
                biased;
                order = orders.recv() => match order {
                    Some(order) => self.send(&order?).await?,
                    None => return Err(Status::aborted("the host has entered on another stream, or has not read its orders; enter again")),
                },
                request = pace.next(&mut requests) => match request {
                    Some(request) => {
                        if let Some(answer) = self.step(request?.request)? {
                            let is_last = matches!(answer, Answer::Left(_));
                            self.answer(answer).await?;
                            if is_last {
                                return Ok(());
                            }
                        }
                    }
                    None => return Ok(()),
                },
                () = &mut expired => return Err(expired_status()),
                () = self.stop.cancelled() => return Err(stopping()),
            }
        }
    }

    async fn answer(&self, answer: Answer) -> Result<(), Status> {
        send(self.responses, v1::HostResponse { response: Some(answer) }).await
    }

    async fn send(&self, order: &Order) -> Result<(), Status> {
        send(self.responses, order.into()).await
    }

    fn step(&self, step: Option<Step>) -> Result<Option<Answer>, Status> {
        let (placements, namespace, host) = (self.placements, &self.namespace, &self.host);
        // Every sign of life renews the lease. A life that was succeeded cannot, and gives back what it
        // holds.
        let is_renewed = placements.renew(namespace, host);
        match step {
            Some(Step::KeepLease(_)) if !is_renewed => {
                Err(Status::failed_precondition("the lease has ended; enter again"))
            }
            Some(Step::KeepLease(_)) => Ok(Some(Answer::LeaseKept(v1::LeaseKept {}))),
            Some(Step::GivenBack(back)) => {
                let name = tollway_wire::actor_type(&back.actor_type).map_err(|e| invalid(&e))?;
                if back.grants.len() > SHARDS {
                    return Err(Status::invalid_argument(format!(
                        "a step names at most {SHARDS} grants, one for each shard"
                    )));
                }
                let grants: Result<Vec<_>, _> =
                    back.grants.iter().map(tollway_wire::read_grant).collect();
                let grants = grants.map_err(|error| invalid(&error))?;
                placements.given_back(namespace, host, name, &grants);
                Ok(None)
            }
            Some(Step::Retire(_)) => {
                placements.retire(namespace, host);
                Ok(None)
            }
            Some(Step::Leave(_)) => {
                placements.leave(namespace, host);
                Ok(Some(Answer::Left(v1::Left {})))
            }
            Some(Step::Enter(_)) => {
                Err(Status::invalid_argument("`enter` is only the first request of a stream"))
            }
            None => Err(Status::invalid_argument("the field `request` is missing")),
        }
    }
}

/// The stream of one sidecar whose app calls actors.
struct Watch<'a> {
    placements: &'a Placements,
    network: &'a NetworkName,
    stop: &'a CancellationToken,
    namespace: Label,
    follower: Follower,
    responses: &'a Sink<v1::Owners>,
}

impl Watch<'_> {
    async fn run(
        &mut self,
        caller: &Caller,
        mut requests: Streaming<v1::WatchOwnersRequest>,
    ) -> Result<(), Status> {
        let expired = caller.expired();
        tokio::pin!(expired);
        let mut pace = Pace::new(STEPS_BURST, STEPS_PER_SECOND);
        loop {
            tokio::select! {
                request = pace.next(&mut requests) => match request {
                    Some(request) => self.request(request?)?,
                    None => return Ok(()),
                },
                () = self.follower.changed() => {}
                () = self.follower.evicted() => return Err(evicted_status()),
                () = &mut expired => return Err(expired_status()),
                () = self.stop.cancelled() => return Err(stopping()),
            }
            self.push().await?;
        }
    }

    fn request(&mut self, request: v1::WatchOwnersRequest) -> Result<(), Status> {
        self.follower.remove(&request.remove);
        for name in &request.add {
            tollway_wire::actor_type(name).map_err(|error| invalid(&error))?;
        }
        self.follower.add(request.add).map_err(|why| match why {
            NotFollowed::TooMany => Status::resource_exhausted(format!(
                "a stream may follow at most {ACTOR_TYPES_PER_STREAM_LIMIT} actor types"
            )),
            NotFollowed::Share(refused) => refused.status(),
        })
    }

    /// Sends the owners of types that have changed.
    async fn push(&mut self) -> Result<(), Status> {
        let (placements, namespace, network) = (self.placements, &self.namespace, self.network);
        for name in self.follower.take() {
            if self.follower.was_sent(&name, placements.version(namespace, &name)) {
                continue;
            }
            let owners = match placements.owners(namespace, &name) {
                Some(owners) => tollway_wire::owners(&name, &owners, |host| ActorHost {
                    service: host.service(namespace, network),
                    instance: host.instance.clone(),
                }),
                None => v1::Owners { actor_type: name.to_string(), ..Default::default() },
            };
            self.follower.note_sent(&name, owners.version);
            send(self.responses, owners).await?;
        }
        Ok(())
    }
}
