//! The service of neighbours, at the admin socket and at the port for workloads.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tollway_model::neighbour::packed;
use tollway_model::{Group, Instance, NeighbourKey, Vni, chain};
use tollway_wire::v1::neighbours_server::Neighbours;
use tollway_wire::v1::watch_neighbours_request::Request as Said;
use tollway_wire::{ConvertError, neighbour_group, neighbour_key, v1};
use tonic::{Request, Response, Status, Streaming};

use super::agents::{Progress, WATCHES};
use super::key::{pack_row, row_key, rows, rows_of_vni};
use super::lane::Lane;
use super::open::{self, Open, PendingAnswer, answer};
use super::requests::{Changes, keys};
use super::walk::{Walk, Wanted};
use super::watch::{Answer, Watcher};
use crate::background::Background;
use crate::connections::{Caller, expired_status, is_system};
use crate::hub::Hub;
use crate::status::{stopping, store_status};

/// Largest request, in bytes: as many neighbours as one may have, in the longer form.
pub(crate) const NEIGHBOURS_REQUEST_BYTES: usize = 256 << 10;
/// Writes of one bulk stream that are under way.
const BULK_WRITES: usize = 16;
/// Batches under way to one reader, besides those in its connection.
const BATCHES: usize = 2;
/// How long a status waits for agents by default, and at most.
const WAIT: Duration = Duration::from_secs(60);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// What requests may do, by the socket that they come in at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// The admin socket: everything.
    Operator,
    /// The port for workloads: an agent reads its group.
    Agent,
}

pub(crate) struct NeighboursService {
    pub(crate) hub: Arc<Hub>,
    pub(crate) neighbours: Arc<open::Neighbours>,
    /// How often a watch without changes sends a message.
    pub(crate) heartbeat: Duration,
    pub(crate) background: Background,
    pub(crate) access: Access,
}

/// The caller.
enum Asker {
    Operator,
    Agent(Group, Instance),
}

impl Asker {
    /// The requested group, if the caller may have it.
    fn group(&self, stated: &str) -> Result<Group, Status> {
        let group = neighbour_group(stated).map_err(|error| invalid(&error))?;
        match self {
            Self::Agent(own, _) if *own != group => Err(Status::permission_denied(format!(
                "the certificate is of an agent of the group {own}; it may not read the group {group}"
            ))),
            Self::Operator | Self::Agent(..) => Ok(group),
        }
    }
}

impl NeighboursService {
    fn asker<T>(&self, request: &Request<T>) -> Result<Asker, Status> {
        if self.access == Access::Operator {
            return Ok(Asker::Operator);
        }
        let caller = Caller::of(request);
        let (service, instance) = self.hub.read(|catalogue| caller.workload(catalogue))?;
        match Group::of_agent_app(&service.app).filter(|_| is_system(&service)) {
            Some(group) => Ok(Asker::Agent(group, instance)),
            None => Err(Status::permission_denied(format!(
                "neighbours are read by agents of the fabric; the certificate is of {service}: make a token with `tollway token create --fabric GROUP`"
            ))),
        }
    }

    fn operator<T>(&self, request: &Request<T>) -> Result<(), Status> {
        match self.asker(request)? {
            Asker::Operator => Ok(()),
            Asker::Agent(..) => Err(Status::permission_denied(
                "an agent reads neighbours; they are written on the control plane's admin socket",
            )),
        }
    }

    async fn open(&self) -> Result<Arc<Open>, Status> {
        self.neighbours.open().await
    }
}

#[tonic::async_trait]
impl Neighbours for NeighboursService {
    async fn write_neighbours(
        &self,
        request: Request<v1::WriteNeighboursRequest>,
    ) -> Result<Response<v1::WriteNeighboursResponse>, Status> {
        self.operator(&request)?;
        let open = self.open().await?;
        let (pending, invalid) = begin_write(&open, request.get_ref()).await?;
        finish_write(pending, invalid).await.map(Response::new)
    }

    type WriteNeighboursInBulkStream = ReceiverStream<Result<v1::WriteNeighboursResponse, Status>>;

    async fn write_neighbours_in_bulk(
        &self,
        request: Request<Streaming<v1::WriteNeighboursRequest>>,
    ) -> Result<Response<Self::WriteNeighboursInBulkStream>, Status> {
        self.operator(&request)?;
        let open = self.open().await?;
        let mut requests = request.into_inner();
        let (begun, mut pending) = mpsc::channel(BULK_WRITES);
        let (answers, out) = mpsc::channel(BULK_WRITES);
        self.background.spawn_until_stop(async move {
            while let Ok(Some(request)) = requests.message().await {
                let writing = begin_write(&open, &request).await;
                let is_over = writing.is_err();
                if begun.send(writing).await.is_err() || is_over {
                    return;
                }
            }
        });
        self.background.spawn_until_stop(async move {
            while let Some(writing) = pending.recv().await {
                let answer = match writing {
                    Ok((pending, invalid)) => finish_write(pending, invalid).await,
                    Err(status) => Err(status),
                };
                let is_over = answer.is_err();
                if answers.send(answer).await.is_err() || is_over {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }

    async fn get_neighbours(
        &self,
        request: Request<v1::GetNeighboursRequest>,
    ) -> Result<Response<v1::GetNeighboursResponse>, Status> {
        let asker = self.asker(&request)?;
        let group = asker.group(&request.get_ref().group)?;
        let keys = keys(&request.get_ref().keys)?;
        let open = self.open().await?;
        let (lane, status) = match open.groups.find(&group) {
            Some(lane) => (lane.head().number, lane.status().revision),
            None => (0, open.groups.revision(&group)),
        };
        let stored: Vec<_> = keys.iter().map(|key| row_key(lane, key)).collect();
        let found = open.store.get_many(&stored).await.map_err(|error| store_status(&error))?;
        let mut packed = Vec::new();
        for entry in found.iter().flatten() {
            if !packed::is_tombstone(&entry.value) {
                let _ = pack_row(&entry.key, entry.revision, &entry.value, &mut packed);
            }
        }
        open.counts.looked_up(keys.len());
        let (packed, revision, table) = (packed.into(), status, open.table);
        Ok(Response::new(v1::GetNeighboursResponse { packed, revision, table }))
    }

    type ListNeighboursStream = ReceiverStream<Result<v1::ListNeighboursResponse, Status>>;

    async fn list_neighbours(
        &self,
        request: Request<v1::ListNeighboursRequest>,
    ) -> Result<Response<Self::ListNeighboursStream>, Status> {
        let group = self.asker(&request)?.group(&request.get_ref().group)?;
        let wanted = Listed::read(request.get_ref())?;
        let open = self.open().await?;
        let (out, listed) = mpsc::channel(BATCHES);
        let listing = wanted.list(open, group, out);
        self.background.spawn_until_stop(listing);
        Ok(Response::new(ReceiverStream::new(listed)))
    }

    type WatchNeighboursStream = ReceiverStream<Answer>;

    async fn watch_neighbours(
        &self,
        request: Request<Streaming<v1::WatchNeighboursRequest>>,
    ) -> Result<Response<Self::WatchNeighboursStream>, Status> {
        let asker = self.asker(&request)?;
        let caller = Caller::of(&request);
        let mut said = request.into_inner();
        let Some(Said::Start(start)) = said.message().await?.and_then(|first| first.request) else {
            return Err(Status::invalid_argument("a watch begins with `start`"));
        };
        let group = asker.group(&start.group)?;
        let open = self.open().await?;
        let lane = lane(&open, &group)?;
        let agent = match asker {
            Asker::Operator => None,
            Asker::Agent(group, instance) => Some((group, instance)),
        };
        let progress = open.agents.begin(agent, start.version).map_err(|_| {
            Status::resource_exhausted(format!("{WATCHES} watches are the most there can be"))
        })?;
        let progress = Arc::new(progress);
        let (out, told) = mpsc::channel(BATCHES);
        let watcher = Watcher {
            store: open.store.clone(),
            lane,
            counts: open.counts.clone(),
            table: open.table,
            out: out.clone(),
            heartbeat: self.heartbeat,
            progress: progress.clone(),
        };
        let stop = self.background.stop.clone();
        self.background.spawn(async move {
            tokio::select! {
                () = watcher.run(start.from_revision, start.table) => {}
                () = read_reports(said, &progress) => {}
                () = progress.replaced() => end(&out, replaced()).await,
                () = stop.cancelled() => end(&out, stopping()).await,
                () = caller.expired() => end(&out, expired_status()).await,
            }
        });
        // The first message then leaves with the head of the answer.
        tokio::task::yield_now().await;
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn get_fabric_status(
        &self,
        request: Request<v1::GetFabricStatusRequest>,
    ) -> Result<Response<v1::GetFabricStatusResponse>, Status> {
        let asker = self.asker(&request)?;
        let request = request.into_inner();
        let open = self.open().await?;
        if request.group.is_empty() {
            if let Asker::Agent(own, _) = &asker {
                return Err(Status::permission_denied(format!(
                    "an agent asks for its own group: {own}"
                )));
            }
            if request.held_revision != 0 {
                return Err(Status::invalid_argument(
                    "revisions are those of a group; say which one is to be held",
                ));
            }
            let known = open.groups.all().into_iter();
            let groups = known.map(|(group, lane)| fabric_group(&open, &group, &lane)).collect();
            return Ok(Response::new(v1::GetFabricStatusResponse { groups, is_held: true }));
        }
        let group = asker.group(&request.group)?;
        let wait = match request.wait_ms {
            0 => WAIT,
            wait_ms => Duration::from_millis(wait_ms.into()).min(LONGEST_WAIT),
        };
        let held = held(&open, &group, request.held_revision);
        let is_held = tokio::time::timeout(wait, held).await.is_ok();
        let known = open.groups.find(&group);
        let groups = known.iter().map(|lane| fabric_group(&open, &group, lane)).collect();
        Ok(Response::new(v1::GetFabricStatusResponse { groups, is_held }))
    }
}

/// Takes the reports of an agent until it sends no more.
async fn read_reports(mut said: Streaming<v1::WatchNeighboursRequest>, progress: &Progress) {
    while let Some(Ok(message)) = said.next().await {
        if let Some(Said::Report(report)) = message.request {
            progress.report(report);
        }
    }
    // The agent may still read; the other direction shows when it has gone.
    std::future::pending().await
}

fn replaced() -> Status {
    Status::aborted("another watch of the same agent has begun; give each agent its own name")
}

/// Reports why a stream ends, if its queue has room.
async fn end(out: &mpsc::Sender<Answer>, status: Status) {
    let _ = tokio::time::timeout(Duration::from_secs(1), out.send(Err(status))).await;
}

/// Completes when every connected agent of a group holds a revision.
async fn held(open: &Open, group: &Group, revision: u64) {
    let mut changes = open.agents.subscribe();
    while revision != 0 && !open.agents.hold(group, revision) {
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn fabric_group(open: &Open, group: &Group, lane: &Lane) -> v1::FabricGroup {
    let status = lane.status();
    v1::FabricGroup {
        group: group.to_string(),
        revision: status.revision,
        oldest_revision: status.oldest,
        neighbours: status.neighbours,
        tombstones: status.tombstones,
        agents: open.agents.of(group, lane),
    }
}

fn lane(open: &Open, group: &Group) -> Result<Arc<Lane>, Status> {
    open.groups.lane(group).map_err(|error| Status::resource_exhausted(chain(&error)))
}

fn invalid(error: &ConvertError) -> Status {
    Status::invalid_argument(chain(error))
}

/// Reads a request and queues it; also returns what of it is no neighbour.
async fn begin_write(
    open: &Open,
    request: &v1::WriteNeighboursRequest,
) -> Result<(PendingAnswer, Vec<v1::NeighbourFailure>), Status> {
    let group = neighbour_group(&request.group).map_err(|error| invalid(&error))?;
    let changes = Changes::read(request)?;
    open.counts.invalid(changes.invalid.len());
    let pending = open.write(group, changes.valid).await?;
    Ok((pending, changes.invalid))
}

async fn finish_write(
    pending: PendingAnswer,
    invalid: Vec<v1::NeighbourFailure>,
) -> Result<v1::WriteNeighboursResponse, Status> {
    let mut response = answer(pending).await?;
    if !invalid.is_empty() {
        response.failures.extend(invalid);
        response.failures.sort_by_key(|failure| failure.index);
    }
    Ok(response)
}

/// What a list is of.
struct Listed {
    vni: Option<Vni>,
    after: Option<NeighbourKey>,
    limit: usize,
}

impl Listed {
    fn read(request: &v1::ListNeighboursRequest) -> Result<Self, Status> {
        let vni = request.vni.map(Vni::new).transpose();
        let vni = vni.map_err(|error| Status::invalid_argument(chain(&error)))?;
        let after = request.after.as_ref().map(neighbour_key).transpose();
        let after = after.map_err(|error| invalid(&error))?;
        let limit = match request.limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        Ok(Self { vni, after, limit })
    }

    async fn list(
        self,
        open: Arc<Open>,
        group: Group,
        out: mpsc::Sender<Result<v1::ListNeighboursResponse, Status>>,
    ) {
        let (number, revision) = match open.groups.find(&group) {
            Some(lane) => (lane.head().number, lane.status().revision),
            None => (0, open.groups.revision(&group)),
        };
        let range = self.vni.map_or_else(|| rows(number), |vni| rows_of_vni(number, vni));
        let after = self.after.map(|key| row_key(number, &key));
        let mut walk = Walk::new(open.store.clone(), range, after, Wanted::Present);
        let (mut left, mut is_first) = (self.limit, true);
        loop {
            let (packed, records, is_over) = match walk.next(left).await {
                Ok(Some(batch)) => (batch.packed, batch.records, false),
                Ok(None) => (Default::default(), 0, true),
                Err(error) => {
                    let _ = out.send(Err(store_status(&error))).await;
                    return;
                }
            };
            left -= records;
            if is_over && !is_first {
                return;
            }
            let page = v1::ListNeighboursResponse { packed, revision };
            if out.send(Ok(page)).await.is_err() || is_over || left == 0 {
                return;
            }
            is_first = false;
        }
    }
}
