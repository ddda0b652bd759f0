//! Reminders of actors, stored for the hosts that run them, in a file of their own beside the
//! control plane's (`tollway.reminders`). The first request creates it.
//!
//! Only the host that holds the shard of an actor, by the placement, writes for it. The reasons
//! are in `docs/design/005-reminders.md`.

mod committer;
mod counts;
mod decide;
mod key;
mod list;
mod operator;
mod record;

use std::sync::Arc;

use tokio::sync::OnceCell;
use tokio_stream::wrappers::ReceiverStream;
use tollway_model::{Label, chain};
use tollway_store::{Sequencer, Store};
use tollway_wire::v1::reminders_server;
use tollway_wire::{REMINDER_CHANGES_LIMIT, v1};
use tonic::{Request, Response, Status};

pub(crate) use self::committer::FILE_NAME;
use self::committer::{Committer, RemindersError, Request as Decided, Write};
use self::counts::Counts;
use crate::background::Background;
use crate::connections::{Caller, is_system};
use crate::hub::Hub;
use crate::placement::{Host, Placements};
use crate::status::{stopping, store_status};
use crate::stores::Stores;

/// Requests that wait for the committer; further ones wait to be queued.
const QUEUE_LIMIT: usize = 256;

/// Opened when it is first needed.
pub(crate) struct Reminders {
    stores: Stores,
    placements: Arc<Placements>,
    background: Background,
    open: OnceCell<Open>,
    pub(crate) counts: Arc<Counts>,
}

/// The file and the task that writes it.
#[derive(Clone)]
struct Open {
    store: Store,
    writes: Sequencer<Committer>,
}

impl Reminders {
    pub(crate) fn new(stores: Stores, placements: Arc<Placements>, background: Background) -> Self {
        Self { stores, placements, background, open: OnceCell::new(), counts: Arc::default() }
    }

    /// Whether any reminder of an actor type is stored.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(crate) async fn has_some(
        &self,
        namespace: &Label,
        actor_type: &str,
    ) -> Result<bool, Status> {
        let open = self.open().await?;
        let page = open.store.list(&key::of_type(namespace, actor_type), None, 1).await;
        let page = page.map_err(|error| status(&RemindersError::Read(error)))?;
        Ok(!page.entries.is_empty())
    }

    async fn open(&self) -> Result<Open, Status> {
        let opening = || async {
            let (placements, counts) = (self.placements.clone(), self.counts.clone());
            let (committer, store) =
                Committer::open(&self.stores, committer::LIMITS, placements, counts).await?;
            let (writes, task) = Sequencer::new(store.clone(), committer, QUEUE_LIMIT);
            self.background.spawn(task.run(self.background.stop.clone().cancelled_owned()));
            Ok(Open { store, writes })
        };
        self.open.get_or_try_init(opening).await.cloned().map_err(|error| status(&error))
    }
}

/// The service over it.
pub(crate) struct RemindersService {
    pub(crate) hub: Arc<Hub>,
    pub(crate) reminders: Arc<Reminders>,
}

impl RemindersService {
    /// The host that asks, and its namespace.
    fn host<T>(&self, request: &Request<T>, life: u64) -> Result<(Label, Host), Status> {
        let caller = Caller::of(request);
        let (service, instance) = self.hub.read(|catalogue| caller.workload(catalogue))?;
        if is_system(&service) {
            return Err(Status::permission_denied("a part of the mesh has no actors"));
        }
        Ok((service.namespace, Host { app: service.app, instance, life }))
    }
}

#[tonic::async_trait]
impl reminders_server::Reminders for RemindersService {
    type ListRemindersStream = ReceiverStream<Result<v1::ListRemindersResponse, Status>>;

    async fn write_reminders(
        &self,
        request: Request<v1::WriteRemindersRequest>,
    ) -> Result<Response<v1::WriteRemindersResponse>, Status> {
        let (namespace, host) = self.host(&request, request.get_ref().life)?;
        let stated = request.into_inner().changes;
        if stated.len() > REMINDER_CHANGES_LIMIT {
            let count = stated.len();
            return Err(Status::invalid_argument(format!(
                "{count} changes; a batch has at most {REMINDER_CHANGES_LIMIT}: send several"
            )));
        }
        let changes: Result<Vec<_>, _> =
            stated.into_iter().map(tollway_wire::reminder_change).collect();
        let changes = changes.map_err(|error| Status::invalid_argument(chain(&error)))?;
        let open = self.reminders.open().await?;
        let write = Decided::Write(Write { namespace, host, changes });
        let results = open.writes.send(write).await.map_err(|_| stopping())?;
        let results = results.await.map_err(|_| stopping())?.map_err(|error| status(&error))?;
        let results = results.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::WriteRemindersResponse { results }))
    }

    async fn list_reminders(
        &self,
        request: Request<v1::ListRemindersRequest>,
    ) -> Result<Response<Self::ListRemindersStream>, Status> {
        let (namespace, host) = self.host(&request, request.get_ref().life)?;
        let wanted = list::Wanted::read(namespace, host, request.get_ref())?;
        let open = self.reminders.open().await?;
        // Every write that an earlier holder of these shards got a response for is then in the file.
        open.writes.settle().await.map_err(|_| stopping())?;
        let split = wanted.split(&self.reminders.placements);
        let (held, fenced) = split.ok_or_else(|| status(&RemindersError::NotEntered))?;
        Ok(Response::new(list::begin(
            &self.reminders.background,
            open.store,
            &wanted,
            &held,
            &fenced,
        )))
    }
}

fn status(error: &RemindersError) -> Status {
    match error {
        RemindersError::Write(source) => store_status(source.as_ref()),
        RemindersError::NotEntered | RemindersError::HasHosts { .. } => {
            Status::failed_precondition(chain(error))
        }
        RemindersError::Open(_) | RemindersError::Read(_) | RemindersError::Foreign { .. } => {
            let reason = chain(error);
            tracing::warn!(reason, "reminders cannot be used");
            Status::failed_precondition(reason)
        }
    }
}
