//! The API of actors over gRPC: requests and responses as messages.

use std::collections::HashMap;

use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tollway_model::ErrorCode;
use tollway_proxy::ERROR_FIELD;
use tollway_state::{Concurrency, Consistency, Delete, Entry, Op, Set, Value};
use tollway_wire::dapr::proto::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorStateRequest, GetActorStateResponse,
    InvokeActorRequest, InvokeActorResponse, TransactionalActorStateOperation,
};
use tonic::{Response, Status};

use super::Actors;
use super::call::Call;
use super::names::{Work, actor};
use super::problem::{Problem, status};
use crate::fields::metadata_of;
use crate::state::{TTL_END, expiry, ttl_of};

impl Actors {
    pub(crate) async fn rpc_invoke(
        &self,
        request: InvokeActorRequest,
    ) -> Result<Response<InvokeActorResponse>, Status> {
        let InvokeActorRequest { actor_type, actor_id, method, data, metadata } = request;
        let read = || {
            let work = Work::Method { name: method.clone(), query: None };
            Ok((actor(&actor_type, &actor_id)?, work.checked()?))
        };
        let (actor, work) = read().map_err(|problem: Problem| problem.status())?;
        let call = Call { actor, work, fields: fields(metadata), body: data.into(), caller: None };
        let answer =
            self.invoke(call).await.map_err(|problem| match self.lookup_failed(&problem) {
                Some(text) => Status::failed_precondition(text),
                None => problem.status(),
            })?;
        let (head, body) = answer.into_parts();
        let body = body
            .collect()
            .await
            .map_err(|error| Problem::invoke(&format!("the answer broke off: {error}")).status())?;
        let data = body.to_bytes().to_vec();
        if let Some(word) = head.headers.get(ERROR_FIELD) {
            return Err(envelope_status(word.as_bytes(), &data));
        }
        let answer = InvokeActorResponse { data };
        Ok(Response::from_parts(metadata_of(&head.headers), answer, tonic::Extensions::new()))
    }

    pub(crate) async fn rpc_get_state(
        &self,
        request: GetActorStateRequest,
    ) -> Result<Response<GetActorStateResponse>, Status> {
        let get = async {
            let actor = actor(&request.actor_type, &request.actor_id)?;
            self.get_state(&actor, &request.key).await
        };
        let found: Option<Entry> = get.await.map_err(|problem: Problem| problem.status())?;
        Ok(Response::new(found.map_or_else(GetActorStateResponse::default, |entry| {
            let end = expiry(&entry).map(|end| (TTL_END.to_owned(), end));
            let metadata = end.into_iter().collect();
            GetActorStateResponse { data: entry.value.into(), metadata }
        })))
    }

    pub(crate) async fn rpc_transact(
        &self,
        request: ExecuteActorStateTransactionRequest,
    ) -> Result<Response<()>, Status> {
        let transact = async {
            let actor = actor(&request.actor_type, &request.actor_id)?;
            let ops = request.operations.into_iter().map(op).collect::<Result<Vec<_>, _>>()?;
            self.transact(&actor, ops).await
        };
        transact.await.map(Response::new).map_err(|problem: Problem| problem.status())
    }
}

fn op(operation: TransactionalActorStateOperation) -> Result<Op, Problem> {
    let TransactionalActorStateOperation { operation_type, key, value, metadata } = operation;
    let malformed = |why: String| Problem::new(ErrorCode::MalformedRequest, why);
    match operation_type.as_str() {
        "upsert" => {
            let ttl = ttl_of(&metadata).map_err(malformed)?;
            let value = Value::Bytes(value.unwrap_or_default().value.into());
            Ok(Op::Set(Set { ttl, ..Set::new(key, value) }))
        }
        "delete" => Ok(Op::Delete(Delete {
            key,
            etag: None,
            concurrency: Concurrency::default(),
            consistency: Consistency::default(),
        })),
        other => Err(malformed(format!("operation type {other:?} is neither upsert nor delete"))),
    }
}

/// Metadata of a call as fields. Entries that cannot be fields are left out, as in Dapr. Without a
/// content type the content is JSON, since some apps accept nothing else.
fn fields(metadata: HashMap<String, String>) -> HeaderMap {
    let read = |(name, value): (String, String)| Some((name.parse().ok()?, value.parse().ok()?));
    let mut fields = metadata.into_iter().filter_map(read).collect::<HeaderMap>();
    fields.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    fields
}

/// The gRPC status of an error envelope of another sidecar or of the data loop.
pub(super) fn envelope_status(word: &[u8], body: &[u8]) -> Status {
    let envelope = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = envelope.as_ref().and_then(|envelope| envelope.get("message")?.as_str());
    let message = message.unwrap_or("the call failed");
    let code = ErrorCode::ALL.iter().find(|code| code.word().as_bytes() == word);
    code.map_or_else(|| Status::internal(message), |code| status(*code, message))
}
