//! What apps keep with their network's control plane: the store that an app has without any
//! component file.
//!
//! It is in a file of its own beside the control plane's (`tollway.state`), made when the first
//! app asks: nothing that apps write delays what the mesh needs, and both are bounded apart. The
//! replicas of an app share what it keeps; other apps do not see it. One process writes it, so a
//! lock on the keys that a request touches is enough for conditions to hold.

mod keeper;
mod record;

use std::sync::Arc;

use tokio::sync::OnceCell;
use tollway_model::ServiceName;
use tollway_wire::v1::state_server::State;
use tollway_wire::v1::write_state_response::Refusal;
use tollway_wire::v1::{
    ReadStateRequest, ReadStateResponse, StateExcess, StateMismatch, WriteStateRequest,
    WriteStateResponse,
};
use tonic::{Request, Response, Status};

use self::keeper::{Keeper, KeptError, Refused};
use crate::book::Usage;
use crate::caller::{Caller, is_system};
use crate::catalogue::Catalogue;
use crate::plane::Plane;
use crate::stores::Stores;

/// Name of the file in the directory of the store.
const FILE_NAME: &str = "tollway.state";
/// Largest request, in bytes: what the API takes as one, with the longer keys of the store.
pub(crate) const STATE_REQUEST_BYTES: usize = 5 << 20;

/// Opened when it is first needed.
#[derive(Default)]
pub(crate) struct Kept {
    keeper: OnceCell<Arc<Keeper>>,
}

impl Kept {
    async fn keeper(&self, stores: &Stores) -> Result<Arc<Keeper>, KeptError> {
        let opening = || Keeper::open(stores);
        self.keeper.get_or_try_init(opening).await.cloned()
    }

    /// What all apps keep; nothing as long as nobody has come for it.
    pub(crate) fn usage(&self) -> Usage {
        self.keeper.get().map(|keeper| keeper.usage()).unwrap_or_default()
    }
}

/// The service over it.
pub(crate) struct StateService(pub(crate) Arc<Plane>);

impl StateService {
    /// Whose entries a request is about, and what keeps them.
    async fn begin<T>(&self, request: &Request<T>) -> Result<(String, Arc<Keeper>), Status> {
        let caller = Caller::of(request);
        let plane = &self.0;
        let (service, _) = plane.hub.read(|catalogue: &Catalogue| caller.workload(catalogue))?;
        if is_system(&service) {
            return Err(Status::permission_denied("state is for apps"));
        }
        let keeper = plane.kept.keeper(&plane.stores).await.map_err(|error| failed(&error))?;
        Ok((owner(&service), keeper))
    }
}

#[tonic::async_trait]
impl State for StateService {
    async fn read_state(
        &self,
        request: Request<ReadStateRequest>,
    ) -> Result<Response<ReadStateResponse>, Status> {
        let (owner, keeper) = self.begin(&request).await?;
        let entries = keeper.read(&owner, &request.get_ref().keys).await;
        let entries = entries.map_err(|error| failed(&error))?;
        Ok(Response::new(ReadStateResponse { entries }))
    }

    async fn write_state(
        &self,
        request: Request<WriteStateRequest>,
    ) -> Result<Response<WriteStateResponse>, Status> {
        let (owner, keeper) = self.begin(&request).await?;
        let request = request.into_inner();
        // A write that has begun is brought to its end, also when its caller has gone: what is
        // counted would not be what is kept otherwise.
        let writing = tokio::spawn(async move { keeper.write(&owner, request).await });
        let written = writing.await.map_err(|_| Status::internal("the write was broken off"))?;
        let refusal = match written {
            Ok(()) => None,
            Err(KeptError::Refused(refused)) => Some(refusal(refused)),
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

fn failed(error: &KeptError) -> Status {
    let text = tollway_model::chain(error);
    match error {
        KeptError::Malformed(_) => Status::invalid_argument(text),
        KeptError::Open(_)
        | KeptError::Read(_)
        | KeptError::Write(_)
        | KeptError::Foreign { .. } => {
            tracing::warn!(reason = text, "what apps keep cannot be used");
            Status::failed_precondition(text)
        }
        KeptError::Refused(_) => Status::internal(text),
    }
}
