//! The state API over HTTP and gRPC, over a store in memory.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::{Method, Request};
use tollway_model::ErrorCode;
use tollway_state::{Consistency, MemoryStore, StateStore, TRANSACTION_OPS, UnusableStore};
use tollway_wire::dapr::proto::common::v1::state_options::{StateConcurrency, StateConsistency};
use tollway_wire::dapr::proto::common::v1::{Etag, StateItem, StateOptions};
use tollway_wire::dapr::proto::runtime::v1::{
    DeleteBulkStateRequest, DeleteStateRequest, ExecuteStateTransactionRequest,
    GetBulkStateRequest, GetStateRequest, SaveStateRequest, TransactionalStateOperation,
};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::stores::{AllOpened, Stores};
use super::{Problem, http, rpc};
use crate::body_collector::BodyCollector;
use crate::testing::{request, service};

const LONGEST_MESSAGE: usize = 100_000;

struct World {
    stores: Stores,
    engine: Arc<MemoryStore>,
    bodies: BodyCollector,
}

impl World {
    /// The app `cart` with the store `statestore`.
    fn new() -> Self {
        let engine = Arc::new(MemoryStore::default());
        let opened = AllOpened::by_default(Arc::clone(&engine) as Arc<dyn StateStore>, false);
        let stores = Stores::new(opened, service("cart"), None);
        Self { stores, engine, bodies: BodyCollector::new(LONGEST_MESSAGE, LONGEST_MESSAGE) }
    }

    async fn send(&self, request: Request<Body>) -> (u16, hyper::HeaderMap, String) {
        let Ok(answer) = http::answer(&self.stores, &self.bodies, request).await else {
            panic!("it is not about state")
        };
        let (head, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> (u16, String) {
        let path = format!("/v1.0/state/{path}");
        let (status, _, body) = self.send(request(method, &path, body)).await;
        (status, body)
    }

    async fn save(&self, body: &str) -> (u16, String) {
        self.ask(Method::POST, "statestore", body).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask(Method::GET, &format!("statestore/{path}"), "").await
    }

    async fn etag(&self, key: &str) -> String {
        let path = format!("/v1.0/state/statestore/{key}");
        self.send(request(Method::GET, &path, "")).await.1["etag"].to_str().unwrap().to_owned()
    }
}

#[track_caller]
fn check_error(
    (status, body): &(u16, String),
    expected: u16,
    code: ErrorCode,
) -> serde_json::Value {
    let envelope: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((*status, envelope["errorCode"].as_str()), (expected, Some(code.word())), "{body}");
    envelope
}

#[tokio::test]
async fn values_are_documents_and_come_back_as_they_are() {
    let world = World::new();
    let saved = world.save(r#"[{"key":"a","value":{"b": [1.0]}},{"key":"c"}]"#).await;
    assert_eq!(saved, (204, String::new()));
    let found = world.send(request(Method::GET, "/v1.0/state/statestore/a", "")).await;
    assert_eq!((found.0, &*found.2), (200, r#"{"b": [1.0]}"#));
    assert_eq!(found.1["content-type"], "application/json");
    assert!(found.1.contains_key("etag") && !found.1.contains_key("metadata.ttlexpiretime"));
    assert_eq!(world.get("c").await, (200, "null".to_owned()));
    assert_eq!(world.get("missing").await, (204, String::new()));
    let stored = world.engine.get("cart||a", Consistency::Strong).await.unwrap();
    assert!(stored.is_some(), "the key is that of Dapr");
}

#[tokio::test]
async fn an_entry_with_a_time_to_live_is_read_with_its_end() {
    let world = World::new();
    let long = r#"[{"key":"a","value":1,"metadata":{"ttlInSeconds":"3600"}}]"#;
    assert_eq!(world.save(long).await.0, 204);
    let path = "/v1.0/state/statestore/a";
    let fields = world.send(request(Method::GET, path, "")).await.1;
    let end = humantime::parse_rfc3339(fields["metadata.ttlexpiretime"].to_str().unwrap()).unwrap();
    let left = end.duration_since(std::time::SystemTime::now()).unwrap().as_secs();
    assert!((3590..=3600).contains(&left), "{left}");
    let query = "statestore?metadata.ttlInSeconds=-1";
    assert_eq!(world.ask(Method::POST, query, long).await.0, 204);
    let fields = world.send(request(Method::GET, path, "")).await.1;
    assert!(!fields.contains_key("metadata.ttlexpiretime"), "the query wins");
    let bad = world.ask(Method::POST, "statestore?metadata.ttlInSeconds=soon", long).await;
    check_error(&bad, 500, ErrorCode::StateSave);
}

#[tokio::test]
async fn an_etag_that_is_not_that_of_the_entry_is_a_conflict() {
    let world = World::new();
    world.save(r#"[{"key":"a","value":1}]"#).await;
    let etag = world.etag("a").await;
    let with = |etag: &str| format!(r#"[{{"key":"a","value":2,"etag":"{etag}"}}]"#);
    assert_eq!(world.save(&with(&etag)).await.0, 204);
    let conflict = world.save(&with(&etag)).await;
    let envelope = check_error(&conflict, 409, ErrorCode::StateSave);
    assert!(envelope["message"].as_str().unwrap().contains("possible etag mismatch"));
    let first = r#"[{"key":"a","value":3,"options":{"concurrency":"first-write"}}]"#;
    check_error(&world.save(first).await, 409, ErrorCode::StateSave);
    let mut delete = request(Method::DELETE, "/v1.0/state/statestore/a", "");
    delete.headers_mut().insert("if-match", etag.parse().unwrap());
    assert_eq!(world.send(delete).await.0, 409);
    assert_eq!(world.get("a").await, (200, "2".to_owned()));
}

#[tokio::test]
async fn of_several_writes_those_that_can_be_made_are_made() {
    let world = World::new();
    let both = r#"[{"key":"a","value":1,"etag":"7"},{"key":"b","value":2}]"#;
    check_error(&world.save(both).await, 409, ErrorCode::StateSave);
    assert_eq!(world.get("a").await.0, 204);
    assert_eq!(world.get("b").await, (200, "2".to_owned()));
    let order = r#"[{"key":"c","value":1},{"key":"c","value":2},{"key":"c","value":3}]"#;
    assert_eq!(world.save(order).await.0, 204);
    assert_eq!(world.get("c").await.1, "3", "writes of one key keep their order");
}

#[tokio::test]
async fn requests_that_cannot_be_read_change_nothing() {
    let world = World::new();
    for body in ["{", "{}", r#"[{"value":1}]"#, r#"[{"key":"","value":1}]"#] {
        check_error(&world.save(body).await, 400, ErrorCode::MalformedRequest);
    }
    let unknown = r#"[{"key":"a","value":1,"options":{"consistency":"soon"}}]"#;
    let envelope = check_error(&world.save(unknown).await, 500, ErrorCode::StateSave);
    assert!(envelope["message"].as_str().unwrap().contains("unrecognized consistency model"));
    let large = format!(r#"[{{"key":"a","value":"{}"}}]"#, "x".repeat(LONGEST_MESSAGE));
    assert_eq!(world.save(&large).await.0, 413);
    assert_eq!(world.get("a").await.0, 204);
}

#[tokio::test]
async fn a_key_that_would_be_taken_for_several_is_refused_with_its_field() {
    let world = World::new();
    let refused = world.save(r#"[{"key":"a||b","value":1}]"#).await;
    let envelope = check_error(&refused, 400, ErrorCode::MalformedRequest);
    let details = envelope["details"].as_array().unwrap();
    assert_eq!(details[0]["field_violations"][0]["field"], "a||b");
    assert_eq!(details[1]["resource_name"], "statestore");
    assert_eq!(details[2]["reason"], "DAPR_STATE_ILLEGAL_KEY");
}

#[tokio::test]
async fn a_transaction_is_made_as_a_whole_or_not_at_all() {
    let world = World::new();
    let transact = |operations: String| {
        let body = format!(r#"{{"operations":[{operations}]}}"#);
        let world = &world;
        async move { world.ask(Method::POST, "statestore/transaction", &body).await }
    };
    let upsert = |key: &str, etag: &str| {
        format!(r#"{{"operation":"upsert","request":{{"key":"{key}","value":1,"etag":"{etag}"}}}}"#)
    };
    let failed = transact(format!("{},{}", upsert("a", ""), upsert("b", "7"))).await;
    check_error(&failed, 500, ErrorCode::StateTransaction);
    assert_eq!(world.get("a").await.0, 204);
    assert_eq!(transact(format!("{},{}", upsert("a", ""), upsert("b", ""))).await.0, 204);
    let delete = r#"{"operation":"delete","request":{"key":"a"}}"#.to_owned();
    assert_eq!(transact(delete).await.0, 204);
    assert_eq!((world.get("a").await.0, world.get("b").await.0), (204, 200));
    let unknown = transact(r#"{"operation":"rename","request":{"key":"a"}}"#.to_owned()).await;
    check_error(&unknown, 400, ErrorCode::StateOperationNotSupported);
    let many = vec![r#"{"operation":"delete","request":{"key":"a"}}"#; TRANSACTION_OPS + 1];
    let many = transact(many.join(",")).await;
    let envelope = check_error(&many, 400, ErrorCode::StateTooManyOps);
    let reason = "DAPR_STATE_TOO_MANY_TRANSACTIONS";
    assert!(envelope["details"].to_string().contains(reason), "{envelope}");
    let list = world.ask(Method::POST, "statestore/transaction", "[[]]").await;
    check_error(&list, 400, ErrorCode::MalformedRequest);
}

#[tokio::test]
async fn several_entries_come_in_the_order_of_their_keys() {
    let world = World::new();
    world.save(r#"[{"key":"a","value":1},{"key":"b","value":"x"}]"#).await;
    let body = r#"{"keys":["b","missing","a"]}"#;
    let (status, text) = world.ask(Method::POST, "statestore/bulk", body).await;
    assert_eq!(status, 200);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found: Vec<_> =
        found.as_array().unwrap().iter().map(|item| (&item["key"], &item["data"])).collect();
    let shown = format!("{found:?}");
    assert_eq!(found[0].1, "x", "{shown}");
    assert_eq!((found[1].0, found[1].1.is_null()), (&"missing".into(), true), "{shown}");
    assert_eq!(found[2].1, 1, "{shown}");
}

#[tokio::test]
async fn an_unknown_store_and_no_store_at_all_are_different_errors() {
    let world = World::new();
    let other = world.ask(Method::GET, "other/a", "").await;
    check_error(&other, 400, ErrorCode::StateStoreNotFound);
    let query = world.ask(Method::POST, "statestore/query", "").await;
    check_error(&query, 500, ErrorCode::StateStoreNotSupported);
    let none = AllOpened { opened: Vec::new(), unusable: Vec::new(), stands_in: false };
    let none = World { stores: Stores::new(none, service("cart"), None), ..world };
    let missing = none.get("a").await;
    check_error(&missing, 500, ErrorCode::StateStoreNotConfigured);
}

#[tokio::test]
async fn a_store_that_is_not_served_is_refused_at_its_use_with_the_reason() {
    let why = "unknown type `state.mongodb`".to_owned();
    let other = UnusableStore { name: "statestore".to_owned(), why, is_actor_store: true };
    let all = AllOpened { opened: Vec::new(), unusable: vec![other], stands_in: false };
    let world = World { stores: Stores::new(all, service("cart"), None), ..World::new() };
    let refused = world.get("a").await;
    check_error(&refused, 400, ErrorCode::StateStoreNotFound);
    assert!(refused.1.contains("unknown type `state.mongodb`"), "{}", refused.1);
}

#[tokio::test]
async fn other_paths_are_given_back() {
    let world = World::new();
    for (method, path) in [
        (Method::GET, "/v1.0/state"),
        (Method::GET, "/v1.0/states/a/b"),
        (Method::POST, "/v1.0/state/a/b/c"),
        (Method::GET, "/v1.0-alpha1/state/statestore/a"),
        (Method::PATCH, "/v1.0/state/statestore/a"),
        (Method::GET, "/v2.0/state/statestore/a"),
    ] {
        let asked = http::answer(&world.stores, &world.bodies, request(method, path, "")).await;
        assert!(asked.is_err(), "{path}");
    }
}

fn item(key: &str, value: &[u8]) -> StateItem {
    StateItem { key: key.to_owned(), value: value.to_vec(), ..StateItem::default() }
}

async fn save(world: &World, states: Vec<StateItem>) -> Result<(), Status> {
    let request = SaveStateRequest { store_name: "statestore".to_owned(), states };
    rpc::save(&world.stores, request).await.map_err(Problem::status)
}

async fn get(world: &World, key: &str) -> (Vec<u8>, String) {
    let request = GetStateRequest {
        store_name: "statestore".to_owned(),
        key: key.to_owned(),
        consistency: StateConsistency::ConsistencyStrong.into(),
        ..GetStateRequest::default()
    };
    let found = rpc::get(&world.stores, request).await.unwrap();
    (found.data, found.etag)
}

#[tokio::test]
async fn bytes_over_grpc_need_not_be_documents() {
    let world = World::new();
    save(&world, vec![item("a", &[0, 255])]).await.unwrap();
    assert_eq!(get(&world, "a").await.0, [0, 255]);
    assert!(get(&world, "missing").await.0.is_empty());
    let json = StateItem {
        metadata: [("contentType".to_owned(), "application/json".to_owned())].into(),
        ..item("b", b"{")
    };
    let status = save(&world, vec![json]).await.unwrap_err();
    assert!(status.message().contains("the value of b is no JSON"), "{status}");
    let bulk = world.ask(Method::POST, "statestore/bulk", r#"{"keys":["a"]}"#).await;
    assert!(bulk.1.contains("the value is no JSON"), "{}", bulk.1);
}

#[tokio::test]
async fn conflicts_and_mistakes_over_grpc_have_statuses_of_their_own() {
    let world = World::new();
    save(&world, vec![item("a", b"1")]).await.unwrap();
    let etag = |value: &str| Some(Etag { value: value.to_owned() });
    let stale = StateItem { etag: etag("99"), ..item("a", b"2") };
    let status = save(&world, vec![stale]).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    let options = StateOptions {
        concurrency: StateConcurrency::ConcurrencyFirstWrite.into(),
        ..StateOptions::default()
    };
    let first = StateItem { options: Some(options), ..item("a", b"2") };
    assert_eq!(save(&world, vec![first]).await.unwrap_err().code(), Code::Aborted);
    let nameless = save(&world, vec![item("", b"1")]).await.unwrap_err();
    assert_eq!(nameless.code(), Code::InvalidArgument);
    let illegal = save(&world, vec![item("a||b", b"1")]).await.unwrap_err();
    assert_eq!(illegal.get_details_bad_request().unwrap().field_violations[0].field, "a||b");
    assert_eq!(illegal.get_details_resource_info().unwrap().resource_name, "statestore");
}

#[tokio::test]
async fn entries_are_deleted_one_by_one_and_together() {
    let world = World::new();
    save(&world, vec![item("a", b"1"), item("b", b"2"), item("c", b"3")]).await.unwrap();
    let request = DeleteStateRequest {
        store_name: "statestore".to_owned(),
        key: "a".to_owned(),
        etag: Some(Etag { value: "99".to_owned() }),
        ..DeleteStateRequest::default()
    };
    let stale = rpc::delete(&world.stores, request.clone()).await.map_err(Problem::status);
    assert_eq!(stale.unwrap_err().code(), Code::Aborted);
    let (_, etag) = get(&world, "a").await;
    let fresh = DeleteStateRequest { etag: Some(Etag { value: etag }), ..request };
    rpc::delete(&world.stores, fresh).await.unwrap();
    let states = vec![item("b", b""), item("c", b""), item("missing", b"")];
    let all = DeleteBulkStateRequest { store_name: "statestore".to_owned(), states };
    rpc::bulk_delete(&world.stores, all).await.unwrap();
    let keys = ["a", "b", "c"].map(str::to_owned).to_vec();
    let request = GetBulkStateRequest {
        store_name: "statestore".to_owned(),
        keys,
        ..GetBulkStateRequest::default()
    };
    let found = rpc::bulk_get(&world.stores, request).await.unwrap();
    assert!(found.items.iter().all(|item| item.data.is_empty() && item.etag.is_empty()));
    assert_eq!(found.items.len(), 3);
}

#[tokio::test]
async fn a_transaction_over_grpc_is_that_over_http() {
    let world = World::new();
    let operation = |kind: &str, item: StateItem| TransactionalStateOperation {
        operation_type: kind.to_owned(),
        request: Some(item),
    };
    let transact = |operations| {
        let request = ExecuteStateTransactionRequest {
            store_name: "statestore".to_owned(),
            operations,
            ..ExecuteStateTransactionRequest::default()
        };
        let stores = &world.stores;
        async move { rpc::transact(stores, request).await.map_err(Problem::status) }
    };
    let stale = StateItem { etag: Some(Etag { value: "99".to_owned() }), ..item("b", b"1") };
    let failed = transact(vec![operation("upsert", item("a", b"1")), operation("upsert", stale)]);
    assert_eq!(failed.await.unwrap_err().code(), Code::Internal);
    assert!(get(&world, "a").await.0.is_empty());
    transact(vec![operation("upsert", item("a", b"1"))]).await.unwrap();
    assert_eq!(get(&world, "a").await.0, b"1");
    let unknown = transact(vec![operation("rename", item("a", b""))]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let query = rpc::query(&world.stores, "statestore").status();
    assert_eq!(query.code(), Code::Internal);
}
