//! App state: the store that an app has at its network's control plane without any component file.
//!
//! It is in a file of its own beside the control plane's (`tollway.state`), created by the first
//! request, so that writes of apps delay nothing that the mesh needs, and each has its own bounds.
//! The replicas of an app share their entries; other apps do not see them. One task writes the file
//! (`committer.rs`); reads go to the store.

mod committer;
mod operator;
mod quotas;
mod record;

use std::sync::Arc;

use tokio::sync::OnceCell;
use tollway_model::{Label, ServiceName};
use tollway_store::{KeyRange, Sequencer, Store};
use tollway_telemetry::Page;
use tollway_telemetry::metrics::names;
use tollway_wire::v1::state_server::State;
use tollway_wire::v1::write_state_response::Refusal;
use tollway_wire::v1::{
    ReadStateRequest, ReadStateResponse, StateEntry, StateExcess, StateMismatch, WriteStateRequest,
    WriteStateResponse,
};
use tonic::{Request, Response, Status};

pub(crate) use self::committer::FILE_NAME;
use self::committer::{Committer, Refused, StateError, Usage, Write, stored_key};
use self::record::Record;
use crate::background::Background;
use crate::catalogue::Catalogue;
use crate::clock::unix_now_ms;
use crate::connections::{Caller, is_system};
use crate::hub::Hub;
use crate::status::stopping;
use crate::stores::Stores;

/// Largest request, in bytes: what the API takes as one, with the longer keys of the store.
pub(crate) const STATE_REQUEST_BYTES: usize = 5 << 20;
/// Most keys of one read.
const STATE_KEYS: usize = 10_000;
/// Most bytes of values in the answer to one read.
const STATE_ANSWER_BYTES: usize = 3 << 20;
/// Writes that wait for the committer; further ones wait to be queued.
const QUEUE_LIMIT: usize = 1024;

/// Opened when it is first needed.
pub(crate) struct AppState {
    stores: Stores,
    background: Background,
    open: OnceCell<Open>,
    usage: Arc<Usage>,
}

/// The file and the task that writes it.
#[derive(Clone)]
struct Open {
    store: Store,
    writes: Sequencer<Committer>,
}

impl AppState {
    pub(crate) fn new(stores: Stores, background: Background) -> Self {
        Self { stores, background, open: OnceCell::new(), usage: Arc::default() }
    }

    async fn open(&self) -> Result<Open, Status> {
        let opening = || async {
            let (committer, store) = Committer::open(&self.stores, self.usage.clone()).await?;
            let (writes, task) = Sequencer::new(store.clone(), committer, QUEUE_LIMIT);
            self.background.spawn(task.run(self.background.stop.clone().cancelled_owned()));
            Ok(Open { store, writes })
        };
        self.open.get_or_try_init(opening).await.cloned().map_err(|error| failed(&error))
    }

    /// Whether state of actors of a type is stored for an app, or may be: the keys of odd names are
    /// escaped.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(crate) async fn has_actors(
        &self,
        namespace: &Label,
        app: &Label,
        actor_type: &str,
    ) -> Result<bool, Status> {
        if actor_type.contains('|') || actor_type.contains('%') {
            return Ok(true);
        }
        let owner = format!("{}/{}/", namespace.to_lower(), app.to_lower());
        let keys = KeyRange::prefix(stored_key(&owner, &format!("{app}||{actor_type}||")));
        let page = self.open().await?.store.list(&keys, None, 1).await;
        let page = page.map_err(|error| failed(&StateError::Read(error)))?;
        Ok(!page.entries.is_empty())
    }

    /// Adds the entries and bytes of all apps.
    pub(crate) fn add_to(&self, page: &mut Page) {
        page.single(&names::APP_STATE_ENTRIES, self.usage.entries.value());
        page.single(&names::APP_STATE_BYTES, self.usage.bytes.value());
    }
}

impl Open {
    /// The durable entries of these keys, in their order, as many as fit into an answer.
    async fn read(&self, owner: &str, keys: &[String]) -> Result<Vec<StateEntry>, StateError> {
        if keys.len() > STATE_KEYS {
            let text = format!("it asks for {} keys; ask for {STATE_KEYS} at most", keys.len());
            return Err(StateError::Malformed(text));
        }
        let now = unix_now_ms();
        let (mut entries, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for key in keys {
            let state = self.read_one(owner, key, now).await?;
            bytes += state.value.len();
            if bytes > STATE_ANSWER_BYTES && !entries.is_empty() {
                break;
            }
            entries.push(state);
        }
        Ok(entries)
    }

    /// The entry of `key`; the default one when there is none, or when it is over.
    async fn read_one(&self, owner: &str, key: &str, now: u64) -> Result<StateEntry, StateError> {
        let Some(entry) = self.store.get(stored_key(owner, key).as_bytes()).await? else {
            return Ok(StateEntry::default());
        };
        match Record::decode(&entry.value) {
            None => Err(StateError::Foreign { key: key.to_owned() }),
            Some(record) if record.is_over(now) => Ok(StateEntry::default()),
            Some(record) => Ok(StateEntry {
                value: record.value.into(),
                revision: entry.revision,
                expires_unix_ms: record.expires_unix_ms,
            }),
        }
    }
}

/// The gRPC service of app state.
pub(crate) struct StateService {
    pub(crate) hub: Arc<Hub>,
    pub(crate) state: Arc<AppState>,
}

impl StateService {
    /// The start of the keys that the caller's app owns, and the open file.
    async fn begin<T>(&self, request: &Request<T>) -> Result<(String, Open), Status> {
        let caller = Caller::of(request);
        let (service, _) = self.hub.read(|catalogue: &Catalogue| caller.workload(catalogue))?;
        if is_system(&service) {
            return Err(Status::permission_denied("state is for apps"));
        }
        Ok((owner(&service), self.state.open().await?))
    }
}

#[tonic::async_trait]
impl State for StateService {
    async fn read_state(
        &self,
        request: Request<ReadStateRequest>,
    ) -> Result<Response<ReadStateResponse>, Status> {
        let (owner, open) = self.begin(&request).await?;
        let entries = open.read(&owner, &request.get_ref().keys).await;
        let entries = entries.map_err(|error| failed(&error))?;
        Ok(Response::new(ReadStateResponse { entries }))
    }

    async fn write_state(
        &self,
        request: Request<WriteStateRequest>,
    ) -> Result<Response<WriteStateResponse>, Status> {
        let (owner, open) = self.begin(&request).await?;
        let write = Write { owner, request: request.into_inner() };
        let written = open.writes.send(write).await.map_err(|_| stopping())?;
        let refusal = match written.await.map_err(|_| stopping())? {
            Ok(()) => None,
            Err(StateError::Refused(refused)) => Some(refusal(refused)),
            Err(error) => return Err(failed(&error)),
        };
        Ok(Response::new(WriteStateResponse { refusal }))
    }
}

/// Start of the keys of an app; names compare without case.
fn owner(service: &ServiceName) -> String {
    format!("{}/{}/", service.namespace.to_lower(), service.app.to_lower())
}

fn refusal(refused: Refused) -> Refusal {
    match refused {
        Refused::Mismatch { key, revision } => Refusal::Mismatch(StateMismatch { key, revision }),
        Refused::Fenced => Refusal::Fenced(true),
        Refused::Excess { what, found, limit } => {
            Refusal::Excess(StateExcess { what, found, limit })
        }
    }
}

fn failed(error: &StateError) -> Status {
    let text = tollway_model::chain(error);
    match error {
        StateError::Malformed(_) => Status::invalid_argument(text),
        StateError::Open(_)
        | StateError::Read(_)
        | StateError::Write(_)
        | StateError::Foreign { .. } => {
            tracing::warn!(reason = text, "app state cannot be used");
            Status::failed_precondition(text)
        }
        StateError::Refused(_) => Status::internal(text),
    }
}

#[cfg(test)]
mod tests;
