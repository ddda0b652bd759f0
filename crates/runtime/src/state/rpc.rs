//! The state API over gRPC: requests and responses as messages.

use std::collections::HashMap;

use serde_json::value::RawValue;
use tollway_state::{Concurrency, Consistency, Delete, Entry, Op, Set, Value};
use tollway_wire::dapr::proto::common::v1::state_options::{StateConcurrency, StateConsistency};
use tollway_wire::dapr::proto::common::v1::{Etag, StateItem, StateOptions};
use tollway_wire::dapr::proto::runtime::v1::{
    BulkStateItem, DeleteBulkStateRequest, DeleteStateRequest, ExecuteStateTransactionRequest,
    GetBulkStateRequest, GetBulkStateResponse, GetStateRequest, GetStateResponse, SaveStateRequest,
};

use super::document::{TTL_END, expiry, ttl_of};
use super::problem::{Doing, Problem};
use super::stores::Stores;

pub(crate) async fn get(
    stores: &Stores,
    request: GetStateRequest,
) -> Result<GetStateResponse, Problem> {
    let store = stores.choose(&request.store_name)?;
    let found = store.get(&request.key, consistency(request.consistency())).await?;
    Ok(found.map_or_else(GetStateResponse::default, |entry| GetStateResponse {
        metadata: metadata(&entry),
        etag: entry.etag.unwrap_or_default(),
        data: entry.value.into(),
    }))
}

pub(crate) async fn bulk_get(
    stores: &Stores,
    request: GetBulkStateRequest,
) -> Result<GetBulkStateResponse, Problem> {
    let store = stores.choose(&request.store_name)?;
    let found = store.bulk_get(&request.keys).await?;
    let items = request.keys.into_iter().zip(found).map(|(key, entry)| match entry {
        None => BulkStateItem { key, ..BulkStateItem::default() },
        Some(entry) => BulkStateItem {
            key,
            metadata: metadata(&entry),
            etag: entry.etag.unwrap_or_default(),
            data: entry.value.into(),
            error: String::new(),
        },
    });
    Ok(GetBulkStateResponse { items: items.collect() })
}

pub(crate) async fn save(stores: &Stores, request: SaveStateRequest) -> Result<(), Problem> {
    let store = stores.choose(&request.store_name)?;
    if request.states.iter().any(|item| item.key.is_empty()) {
        return Err(Problem::malformed("state key cannot be empty"));
    }
    let ops = request.states.into_iter().map(set).collect::<Result<Vec<_>, _>>();
    let ops = ops.map_err(|why| Problem::refused(store.name(), Doing::Save, &why))?;
    store.change(ops, Doing::Save).await
}

pub(crate) async fn delete(stores: &Stores, request: DeleteStateRequest) -> Result<(), Problem> {
    let store = stores.choose(&request.store_name)?;
    let key = request.key.clone();
    let op = removal(request.key, request.etag, request.options);
    store.change(vec![op], Doing::Delete(&key)).await
}

pub(crate) async fn bulk_delete(
    stores: &Stores,
    request: DeleteBulkStateRequest,
) -> Result<(), Problem> {
    let store = stores.choose(&request.store_name)?;
    let removed = |item: StateItem| removal(item.key, item.etag, item.options);
    let ops = request.states.into_iter().map(removed).collect();
    store.change(ops, Doing::BulkDelete).await
}

pub(crate) async fn transact(
    stores: &Stores,
    request: ExecuteStateTransactionRequest,
) -> Result<(), Problem> {
    let store = stores.choose(&request.store_name)?;
    let mut ops = Vec::with_capacity(request.operations.len());
    for step in request.operations {
        let item = step.request.unwrap_or_default();
        ops.push(match step.operation_type.as_str() {
            "upsert" => {
                set(item).map_err(|why| Problem::refused(store.name(), Doing::Transact, &why))?
            }
            "delete" => removal(item.key, item.etag, item.options),
            other => return Err(Problem::unknown_operation(other)),
        });
    }
    store.transact(ops).await
}

/// The error of every query.
pub(crate) fn query(stores: &Stores, store: &str) -> Problem {
    match stores.choose(store) {
        Ok(store) => Problem::no_queries(store.name()),
        Err(problem) => problem,
    }
}

fn set(item: StateItem) -> Result<Op, String> {
    let ttl = ttl_of(&item.metadata)?;
    let value = if item.metadata.get("contentType").is_some_and(|kind| kind == "application/json") {
        let read = serde_json::from_slice::<&RawValue>(&item.value);
        read.map_err(|error| format!("the value of {} is no JSON: {error}", item.key))?;
        Value::Json(item.value.into())
    } else {
        Value::Bytes(item.value.into())
    };
    let (concurrency, consistency) = options(item.options);
    let etag = item.etag.map(|etag| etag.value);
    Ok(Op::Set(Set { key: item.key, value, etag, concurrency, consistency, ttl }))
}

fn removal(key: String, etag: Option<Etag>, wanted: Option<StateOptions>) -> Op {
    let (concurrency, consistency) = options(wanted);
    Op::Delete(Delete { key, etag: etag.map(|etag| etag.value), concurrency, consistency })
}

fn options(options: Option<StateOptions>) -> (Concurrency, Consistency) {
    let options = options.unwrap_or_default();
    let concurrency = match options.concurrency() {
        StateConcurrency::ConcurrencyFirstWrite => Concurrency::FirstWrite,
        StateConcurrency::ConcurrencyLastWrite | StateConcurrency::ConcurrencyUnspecified => {
            Concurrency::LastWrite
        }
    };
    (concurrency, consistency(options.consistency()))
}

fn consistency(wanted: StateConsistency) -> Consistency {
    match wanted {
        StateConsistency::ConsistencyStrong => Consistency::Strong,
        StateConsistency::ConsistencyEventual | StateConsistency::ConsistencyUnspecified => {
            Consistency::Eventual
        }
    }
}

fn metadata(entry: &Entry) -> HashMap<String, String> {
    expiry(entry).map(|end| (TTL_END.to_owned(), end)).into_iter().collect()
}
