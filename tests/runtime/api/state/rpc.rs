//! Over gRPC.

use std::collections::HashMap;

use tollway_wire::dapr::proto::common::v1::state_options::StateConcurrency;
use tollway_wire::dapr::proto::common::v1::{Etag, StateItem, StateOptions};
use tollway_wire::dapr::proto::runtime::v1::{
    DeleteBulkStateRequest, DeleteStateRequest, ExecuteStateTransactionRequest,
    GetBulkStateRequest, GetStateRequest, QueryStateRequest, SaveStateRequest,
    TransactionalStateOperation,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::in_memory;
use crate::api::client;
use tollway_tests::mesh::Mesh;
use tollway_tests::mesh::http::runtime;

const STORE: &str = "statestore";

fn item(key: &str, value: &[u8]) -> StateItem {
    StateItem { key: key.to_owned(), value: value.to_vec(), ..StateItem::default() }
}

fn save(states: Vec<StateItem>) -> SaveStateRequest {
    SaveStateRequest { store_name: STORE.to_owned(), states }
}

fn get(store: &str, key: &str) -> GetStateRequest {
    GetStateRequest { store_name: store.to_owned(), key: key.to_owned(), ..Default::default() }
}

fn etag(value: &str) -> Option<Etag> {
    Some(Etag { value: value.to_owned() })
}

#[track_caller]
fn check(reported: Status, code: Code, reason: &str, words: &str) {
    assert_eq!(reported.code(), code, "{reported}");
    assert!(reported.message().contains(words), "{reported}");
    let details = reported.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason, "dapr.io"));
}

#[test]
fn entries_are_saved_read_and_deleted_over_grpc() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    runtime().block_on(async {
        let mut client = client(sidecar.grpc()).await;
        let ttl = HashMap::from([("ttlInSeconds".to_owned(), "1000".to_owned())]);
        let timed = StateItem { metadata: ttl, ..item("timed", b"1") };
        client.save_state(save(vec![item("a", b"\x00\xff"), timed])).await.unwrap();
        let found = client.get_state(get(STORE, "a")).await.unwrap().into_inner();
        assert_eq!(found.data, b"\x00\xff");
        let old = found.etag;
        assert!(!old.is_empty() && found.metadata.is_empty());
        let none = client.get_state(get(STORE, "none")).await.unwrap().into_inner();
        assert!(none.data.is_empty() && none.etag.is_empty());
        let keys = vec!["timed".to_owned(), "none".to_owned(), "a".to_owned()];
        let bulk = GetBulkStateRequest { store_name: STORE.to_owned(), keys, ..Default::default() };
        let items = client.get_bulk_state(bulk).await.unwrap().into_inner().items;
        let reported: Vec<_> =
            items.iter().map(|item| (item.key.as_str(), &item.data[..])).collect();
        assert_eq!(reported, [("timed", &b"1"[..]), ("none", b""), ("a", b"\x00\xff")]);
        assert!(items[0].metadata.contains_key("ttlExpireTime"));

        let own = StateItem { etag: etag(&old), ..item("a", b"2") };
        client.save_state(save(vec![own.clone()])).await.unwrap();
        let reported = client.save_state(save(vec![own])).await.unwrap_err();
        check(reported, Code::Aborted, "ERR_STATE_SAVE", "failed saving state in state store");
        let options = StateOptions {
            concurrency: StateConcurrency::ConcurrencyFirstWrite.into(),
            ..StateOptions::default()
        };
        let first = StateItem { options: Some(options), ..item("a", b"3") };
        let reported = client.save_state(save(vec![first])).await.unwrap_err();
        check(reported, Code::Aborted, "ERR_STATE_SAVE", "possible etag mismatch");
        let delete = DeleteStateRequest {
            store_name: STORE.to_owned(),
            key: "a".to_owned(),
            etag: etag(&old),
            ..Default::default()
        };
        let reported = client.delete_state(delete.clone()).await.unwrap_err();
        check(reported, Code::Aborted, "ERR_STATE_DELETE", "failed deleting state with key a: ");
        client.delete_state(DeleteStateRequest { etag: None, ..delete }).await.unwrap();

        client.save_state(save(vec![item("b", b"1"), item("c", b"1")])).await.unwrap();
        let states = vec![item("b", b""), StateItem { etag: etag("4711"), ..item("c", b"") }];
        let bulk = DeleteBulkStateRequest { store_name: STORE.to_owned(), states };
        let reported = client.delete_bulk_state(bulk).await.unwrap_err();
        check(
            reported,
            Code::Aborted,
            "ERR_STATE_BULK_DELETE",
            "failed deleting state in state store",
        );
        assert!(client.get_state(get(STORE, "b")).await.unwrap().into_inner().data.is_empty());
        assert_eq!(client.get_state(get(STORE, "c")).await.unwrap().into_inner().data, b"1");
    });
}

#[test]
fn a_transaction_happens_whole_over_grpc() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    runtime().block_on(async {
        let mut client = client(sidecar.grpc()).await;
        client.save_state(save(vec![item("gone", b"1")])).await.unwrap();
        let step = |operation: &str, item: StateItem| TransactionalStateOperation {
            operation_type: operation.to_owned(),
            request: Some(item),
        };
        let transaction = |operations| ExecuteStateTransactionRequest {
            store_name: STORE.to_owned(),
            operations,
            metadata: HashMap::new(),
        };
        let both = vec![step("upsert", item("a", b"1")), step("delete", item("gone", b""))];
        client.execute_state_transaction(transaction(both)).await.unwrap();
        assert_eq!(client.get_state(get(STORE, "a")).await.unwrap().into_inner().data, b"1");
        assert!(client.get_state(get(STORE, "gone")).await.unwrap().into_inner().data.is_empty());
        let stale = StateItem { etag: etag("4711"), ..item("a", b"2") };
        let both = vec![step("upsert", item("b", b"2")), step("upsert", stale)];
        let reported = client.execute_state_transaction(transaction(both)).await.unwrap_err();
        check(reported, Code::Internal, "ERR_STATE_TRANSACTION", "error while executing state");
        assert!(client.get_state(get(STORE, "b")).await.unwrap().into_inner().data.is_empty());
        let unknown = transaction(vec![step("increase", item("a", b""))]);
        let reported = client.execute_state_transaction(unknown).await.unwrap_err();
        let reason = "ERR_NOT_SUPPORTED_STATE_OPERATION";
        check(reported, Code::Unimplemented, reason, "operation type increase not supported");
        let many = transaction(vec![step("delete", item("a", b"")); 1001]);
        let reported = client.execute_state_transaction(many).await.unwrap_err();
        check(
            reported,
            Code::InvalidArgument,
            "DAPR_STATE_TOO_MANY_TRANSACTIONS",
            "1001 operations",
        );
    });
}

#[test]
fn refusals_over_grpc_are_those_of_dapr() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    runtime().block_on(async {
        let mut client = client(sidecar.grpc()).await;
        let reported = client.get_state(get("other", "a")).await.unwrap_err();
        assert_eq!(reported.get_error_details().error_info().unwrap().metadata["appID"], "caller");
        check(
            reported,
            Code::InvalidArgument,
            "DAPR_STATE_NOT_FOUND",
            "state store other is not found",
        );
        let reported = client.get_state(get(STORE, "ke||y")).await.unwrap_err();
        let details = reported.get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "ke||y");
        assert_eq!(details.resource_info().unwrap().resource_name, STORE);
        check(reported, Code::InvalidArgument, "DAPR_STATE_ILLEGAL_KEY", "can't contain '||'");
        let reported = client.save_state(save(vec![item("", b"1")])).await.unwrap_err();
        check(reported, Code::InvalidArgument, "ERR_MALFORMED_REQUEST", "key cannot be empty");
        let query = QueryStateRequest { store_name: STORE.to_owned(), ..Default::default() };
        let reported = client.query_state_alpha1(query).await.unwrap_err();
        let reason = "DAPR_STATE_QUERYING_NOT_SUPPORTED";
        check(reported, Code::Internal, reason, "does not support querying");
        let kind = HashMap::from([("contentType".to_owned(), "application/json".to_owned())]);
        let wrong = StateItem { metadata: kind, ..item("a", b"{not json") };
        let reported = client.save_state(save(vec![wrong])).await.unwrap_err();
        check(reported, Code::Internal, "ERR_STATE_SAVE", "the value of a is no JSON");
    });
}
