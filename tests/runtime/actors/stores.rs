//! The state of actors in each kind of store that a component file names for them: it is stored
//! under Dapr's keys, and a former host's writes are refused by the store itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rusqlite::OptionalExtension;
use serde_json::{Value, json};
use tollway_testkit::{PostgresServer, RedisServer, TempDir, need_tool};
use tollway_wire::dapr::proto::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorStateRequest,
};
use tonic::Code;

use super::app::{Log, turns, turns_of};
use super::faults::{one_of, paused_writes_nothing};
use super::refusals::client;
use super::relay::Relay;
use super::rows::check;
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::component_files::{component, resources};
use tollway_tests::mesh::{Mesh, PATIENCE};

/// Of a request to a server whose connection is cut for a while.
const PATIENT: &str = "60s";

/// Where the state is.
enum Store {
    Memory,
    Sqlite(TempDir),
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Store {
    fn sqlite() -> Self {
        Self::Sqlite(TempDir::new().unwrap())
    }

    fn redis() -> Self {
        Self::Redis(RedisServer::start(&[]).unwrap())
    }

    fn postgres() -> Self {
        Self::Postgres(PostgresServer::start(&[]).unwrap())
    }

    /// Where a server listens.
    fn address(&self) -> SocketAddr {
        match self {
            Self::Redis(server) => server.address(),
            Self::Postgres(server) => server.address(),
            Self::Memory | Self::Sqlite(_) => panic!("it is no server"),
        }
    }

    /// A folder with its component, which is for actors.
    fn resources(&self) -> TempDir {
        match self {
            Self::Redis(_) | Self::Postgres(_) => self.resources_by(self.address()),
            Self::Memory => actor_store("state.in-memory", &[]),
            Self::Sqlite(folder) => {
                let file = folder.path().join("state.db").display().to_string();
                actor_store("state.sqlite", &[("connectionString", &file)])
            }
        }
    }

    /// Resources for a server that is reached at another address.
    fn resources_by(&self, listener: SocketAddr) -> TempDir {
        match self {
            Self::Redis(_) => {
                let secret = ("redisPassword", RedisServer::PASSWORD);
                let host = listener.to_string();
                let metadata = [("redisHost", host.as_str()), secret, ("readTimeout", PATIENT)];
                actor_store("state.redis", &metadata)
            }
            Self::Postgres(server) => {
                let port = |address: SocketAddr| format!("port={}", address.port());
                let way =
                    server.connection_string().replace(&port(server.address()), &port(listener));
                let metadata = [("connectionString", way.as_str()), ("timeout", PATIENT)];
                actor_store("state.postgresql", &metadata)
            }
            Self::Memory | Self::Sqlite(_) => panic!("it is no server"),
        }
    }

    /// Value and etag under a key, as the store's own client sees them; `None` where it has nothing.
    fn found(&self, key: &str) -> Option<(Value, String)> {
        let (value, etag) = match self {
            Self::Memory => panic!("nobody can look into it"),
            Self::Sqlite(folder) => {
                let database = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
                let sql = "SELECT value, etag FROM state WHERE key = ?1";
                let read = database.query_row(sql, [key], |row| Ok((row.get(0)?, row.get(1)?)));
                read.optional().unwrap()?
            }
            Self::Redis(server) => {
                let field = |name| server.command(&["HGET", key, name]).unwrap();
                (field("data"), field("version"))
            }
            Self::Postgres(server) => {
                let sql = format!("SELECT value, xmin FROM state WHERE key = '{key}'");
                let reported = server.query(&sql).unwrap();
                let (value, etag) = reported.rsplit_once('|').unwrap_or_default();
                (value.to_owned(), etag.to_owned())
            }
        };
        (!value.is_empty()).then(|| (serde_json::from_str(&value).unwrap(), etag))
    }

    /// Ends a server.
    fn kill(&mut self) {
        match self {
            Self::Redis(server) => server.kill().unwrap(),
            Self::Postgres(server) => server.kill().unwrap(),
            Self::Memory | Self::Sqlite(_) => panic!("it is no server"),
        }
    }
}

fn actor_store(component_type: &str, metadata: &[(&str, &str)]) -> TempDir {
    let metadata = [metadata, &[("actorStateStore", "true")]].concat();
    resources(&[component("statestore", component_type, &metadata)])
}

fn options(resources: &TempDir) -> [&str; 2] {
    ["--resources-path", resources.path().to_str().unwrap()]
}

/// A document of changes to the state of an actor.
fn upsert(key: &str, value: &Value, more: &Value) -> Value {
    let mut request = json!({ "key": key, "value": value });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "operation": "upsert", "request": request })
}

/// An actor keeps its state in the store, changes it, and is reminded.
async fn check_actors(mesh: &Mesh, store: &Store) -> Replica {
    let log = Log::default();
    let resources = store.resources();
    let host = Replica::with(&mesh.west, "cart", "one", CONFIG, &log, &options(&resources)).await;
    let listener = host.api();
    until_hosted(listener, "Cart/7").await;
    let state = "/v1.0/actors/Cart/7/state";
    let save = |changes: Value| async move {
        let (status, _, text) = call(listener, "POST", state, &[], changes.to_string()).await;
        (status.as_u16(), text)
    };
    let done = (204, String::new());
    let get = |key: &'static str| async move {
        let (status, fields, text) =
            call(listener, "GET", &format!("{state}/{key}"), &[], "").await;
        let value: Option<Value> = serde_json::from_str(&text).ok();
        (status.as_u16(), value, fields.contains_key("metadata.ttlexpiretime"))
    };
    let nothing = (204, None, false);
    let (none, ttl) = (json!({}), |seconds| json!({ "metadata": { "ttlInSeconds": seconds } }));
    let first = json!([
        upsert("items", &json!({ "n": [1, 2] }), &none),
        upsert("gone", &json!("x"), &none),
        upsert("late", &json!(1), &ttl("100")),
        upsert("soon", &json!(1), &ttl("1")),
    ]);
    assert_eq!(save(first).await, done);
    assert_eq!(get("items").await, (200, Some(json!({ "n": [1, 2] })), false));
    assert_eq!(get("late").await, (200, Some(json!(1)), true));
    let second = json!([
        { "operation": "delete", "request": { "key": "gone" } },
        upsert("items", &json!("all"), &none),
    ]);
    assert_eq!(save(second).await, done);
    assert_eq!(get("gone").await, nothing);
    assert_eq!(get("items").await, (200, Some(json!("all")), false));
    let began = Instant::now();
    while get("soon").await != nothing {
        assert!(began.elapsed() < PATIENCE, "what lives for a second is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let bell = "/v1.0/actors/Cart/7/reminders/bell";
    let (status, _, text) = call(listener, "POST", bell, &[], r#"{"dueTime":"100ms"}"#).await;
    assert_eq!(status.as_u16(), 204, "{text}");
    until_turns(&log, "Cart/7", "remind/bell", 1).await;

    if !matches!(store, Store::Memory) {
        let items = "cart||Cart||7||items";
        let (value, etag) = store.found(items).unwrap();
        assert_eq!(value, json!("all"));
        assert_eq!(store.found("cart||Cart||7||gone"), None);
        assert_eq!(store.found("cart||Cart||8||items"), None);
        // Of a transaction in which one etag is not that of the store nothing is done.
        let known = json!({ "etag": etag });
        let by_etag = |value: i32| {
            json!([upsert("other", &json!(value), &none), upsert("items", &json!(value), &known)])
        };
        assert_eq!(save(by_etag(1)).await, done);
        let (status, text) = save(by_etag(2)).await;
        let saving = "ERR_ACTOR_STATE_TRANSACTION_SAVE";
        assert_eq!((status, envelope(&text).0.as_str()), (500, saving), "{text}");
        for key in [items, "cart||Cart||7||other"] {
            assert_eq!(store.found(key).unwrap().0, json!(1), "{key}");
        }
    }
    host
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_keep_their_state_in_memory() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    check_actors(&mesh, &Store::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_keep_their_state_in_sqlite() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    check_actors(&mesh, &Store::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_keep_their_state_in_redis() {
    need_tool!("redis-server");
    let (mesh, store) = tokio::task::block_in_place(|| (Mesh::start(), Store::redis()));
    let host = check_actors(&mesh, &store).await;
    check_without_store(&host, store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_keep_their_state_in_postgresql() {
    need_tool!("initdb");
    let (mesh, store) = tokio::task::block_in_place(|| (Mesh::start(), Store::postgres()));
    let host = check_actors(&mesh, &store).await;
    check_without_store(&host, store).await;
}

/// Errors about state that cannot be reached.
async fn check_without_store(host: &Replica, mut store: Store) {
    tokio::task::block_in_place(|| store.kill());
    let path = "/v1.0/actors/Cart/7/state";
    let changes = r#"[{"operation":"delete","request":{"key":"items"}}]"#;
    let (reading, saving) = ("ERR_ACTOR_STATE_GET", "ERR_ACTOR_STATE_TRANSACTION_SAVE");
    let read = ("GET", format!("{path}/items"), "", reading);
    for (method, path, body, code) in [read, ("POST", path.to_owned(), changes, saving)] {
        let (status, _, text) = call(host.api(), method, &path, &[], body).await;
        assert_eq!((status.as_u16(), envelope(&text).0.as_str()), (500, code), "{text}");
    }
    let mut dapr = client(host.sidecar.grpc()).await;
    let (actor_type, actor_id) = ("Cart".to_owned(), "7".to_owned());
    let transaction = ExecuteActorStateTransactionRequest {
        actor_type: actor_type.clone(),
        actor_id: actor_id.clone(),
        operations: Vec::new(),
    };
    let refused = dapr.execute_actor_state_transaction(transaction).await.unwrap_err();
    check(&refused, Code::Internal, saving);
    let one = GetActorStateRequest { actor_type, actor_id, key: "items".to_owned() };
    let refused = dapr.get_actor_state(one).await.unwrap_err();
    check(&refused, Code::Internal, reading);
}

/// A host has sent a change to the store, which gets it only when another host runs the actor.
async fn check_fence(mesh: &Mesh, store: &Store) {
    let log = Log::default();
    let to_control = Relay::start(mesh.west.control_address).await;
    let to_store = Relay::start(store.address()).await;
    let (resources, far) = (store.resources(), store.resources_by(to_store.address));
    let (control, network) = (to_control.address, &mesh.west);
    let one = Replica::behind(network, control, "cart", "one", CONFIG, &log, &options(&far)).await;
    let two = Replica::with(network, "cart", "two", CONFIG, &log, &options(&resources)).await;
    until_hosted(one.api(), "Cart/0").await;
    one_of(one.api(), "two: ").await;
    let actor = one_of(two.api(), "one: ").await;
    to_store.cut(true);
    let (listener, called) = (one.api(), actor.clone());
    let late = tokio::spawn(async move { invoke(listener, &called, "late", "0 1").await });
    while turns(&log).iter().all(|turn| turn.what != "late") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    to_control.cut(true);
    let (status, text) = invoke(two.api(), &actor, "late", "0 2").await;
    assert_eq!((status, text.as_str()), (200, "204 No Content "));
    to_store.cut(false);
    let began = Instant::now();
    let refused = loop {
        let late = turns_of(&log, &actor, "late");
        if let Some(turn) = late.iter().find(|turn| turn.body == "0 1" && turn.ended.is_some()) {
            break turn.answer.clone();
        }
        assert!(began.elapsed() < PATIENCE, "the turn of the former host has not ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(refused.starts_with("500 "), "{refused}");
    assert!(refused.contains("ERR_ACTOR_STATE_TRANSACTION_SAVE"), "{refused}");
    assert!(refused.contains("another host runs this actor now"), "{refused}");
    let (_, text) = invoke(two.api(), &actor, "api", "GET /state/value ").await;
    assert_eq!(text, "200 OK 2");
    assert!(late.await.unwrap().0 >= 500, "its caller is told that it has not ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_refuses_what_a_former_host_writes() {
    need_tool!("redis-server");
    let (mesh, store) = tokio::task::block_in_place(|| (Mesh::start(), Store::redis()));
    check_fence(&mesh, &store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgresql_refuses_what_a_former_host_writes() {
    need_tool!("initdb");
    let (mesh, store) = tokio::task::block_in_place(|| (Mesh::start(), Store::postgres()));
    check_fence(&mesh, &store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_that_was_paused_writes_nothing_to_sqlite() {
    let store = Store::sqlite();
    paused_writes_nothing(&options(&store.resources())).await;
}
