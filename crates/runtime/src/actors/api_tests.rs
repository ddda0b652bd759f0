//! The API of actors over HTTP and gRPC, on a host whose app, stores and clock are the tests' own.

use std::sync::Arc;

use hyper::{Method, Response};
use tollway_actors::placement::{Actor, Shard};
use tollway_model::ErrorCode;
use tollway_proxy::ERROR_FIELD;
use tollway_state::{Fence, MemoryStore, Op, Set, StateStore, Transaction, Value, actor_fence_key};
use tollway_wire::dapr::proto::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorStateRequest, GetActorTimerRequest,
    InvokeActorRequest, ListActorTimersRequest, RegisterActorTimerRequest,
    TransactionalActorStateOperation,
};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::testing::{
    MemoryReminders, ScriptedApp, TestHost, actor, actors_with, give_back, host, owners, run_here,
    types,
};
use super::{ActorStore, Actors};
use crate::body_collector::BodyCollector;
use crate::testing::{ScriptedLoopback, read, request, response};

pub(super) struct World {
    pub(super) actors: Arc<Actors>,
    pub(super) test: TestHost,
    state: Arc<MemoryStore>,
    pub(super) reminders: Arc<MemoryReminders>,
}

impl World {
    /// A sidecar whose app runs the actors of the type `Cart`, in all shards.
    pub(super) fn new() -> Self {
        Self::with(|_| response(500, &[], ""))
    }

    pub(super) fn with(
        respond: impl Fn(&crate::testing::Received) -> Response<Body> + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(MemoryStore::default());
        let store = Arc::clone(&state) as Arc<dyn StateStore>;
        let loopback = Arc::new(ScriptedLoopback::new(move |received| Ok(respond(received))));
        let actors = actors_with(loopback, |mut config| {
            config.store = Some(ActorStore::new(store, "cart".to_owned()));
            config
        });
        let test = TestHost::granted(types(None));
        let reminders = Arc::new(MemoryReminders::default());
        run_here(&actors, &test, Arc::new(ScriptedApp::echo()), Arc::clone(&reminders));
        actors.directory.set("Cart", owners(Some(host("me"))));
        Self { actors, test, state, reminders }
    }

    /// Makes the actor active by a turn.
    async fn activate(&self, id: &str) {
        self.test.host.turn(&actor(id), None, |_| async { Ok(()) }).await.unwrap();
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: &str) -> (u16, String) {
        let bodies = BodyCollector::new(10_000, 1_000);
        let request = request(method, &format!("/v1.0/actors/Cart/7/{path}"), body);
        let Ok(answer) = self.actors.answer(&bodies, request).await else {
            panic!("{path} is not about actors")
        };
        read(answer).await
    }

    pub(super) async fn put(&self, path: &str, body: &str) -> (u16, String) {
        self.ask(Method::PUT, path, body).await
    }

    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        self.ask(Method::GET, path, "").await
    }
}

#[track_caller]
pub(super) fn check_error(
    (status, body): (u16, String),
    expected: u16,
    code: ErrorCode,
    text: &str,
) {
    let envelope: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, envelope["errorCode"].as_str()), (expected, Some(code.word())), "{body}");
    assert!(envelope["message"].as_str().unwrap().contains(text), "{body}");
}

const UPSERT: &str = r#"[{"operation":"upsert","request":{"key":"k","value":{"a":1}}}]"#;

#[tokio::test(start_paused = true)]
async fn a7_state_is_written_by_an_active_actor_and_read_by_every_one() {
    let world = World::new();
    assert_eq!(world.get("state/k").await, (204, String::new()));
    let missing = world.put("state", UPSERT).await;
    check_error(missing, 400, ErrorCode::ActorInstanceMissing, "actor instance is missing");
    world.activate("7").await;
    assert_eq!(world.put("state", UPSERT).await, (204, String::new()));
    assert_eq!(world.get("state/k").await, (200, r#"{"a":1}"#.to_owned()));
    assert_eq!(world.get("state/other").await, (204, String::new()));
    let delete = r#"[{"operation":"delete","request":{"key":"k"}}]"#;
    assert_eq!(world.put("state", delete).await.0, 204);
    assert_eq!(world.get("state/k").await.0, 204);
    // Also where the actor is not here any more, or its type never was.
    assert_eq!(world.put("state", UPSERT).await.0, 204);
    world.test.host.obey(&give_back());
    assert_eq!(world.get("state/k").await, (200, r#"{"a":1}"#.to_owned()));
    let other = Actor { actor_type: "Other".into(), id: "7".into() };
    assert!(world.actors.get_state(&other, "k").await.unwrap().is_none());
    let get = GetActorStateRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        key: "k".to_owned(),
    };
    let read = world.actors.rpc_get_state(get).await.unwrap().into_inner();
    assert_eq!(read.data, br#"{"a":1}"#);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_the_state_of_an_inactive_actor_raises_no_fence() {
    let world = World::new();
    assert_eq!(world.get("state/k").await.0, 204);
    let key = actor_fence_key("cart", "Cart", Shard::of("7").number());
    let former = Transaction { ops: Vec::new(), fence: Some(Fence { key, number: 0 }) };
    assert!(world.state.transact(former).await.is_ok(), "the shard has no fence yet");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_refused_as_a_whole() {
    let world = World::new();
    world.activate("7").await;
    let both = r#"[{"operation":"upsert","request":{"key":"k","value":1}},
        {"operation":"rename","request":{"key":"k"}}]"#;
    let refused = world.put("state", both).await;
    check_error(refused, 400, ErrorCode::MalformedRequest, "neither upsert nor delete");
    assert_eq!(world.get("state/k").await.0, 204);
    let ttl = r#"[{"operation":"upsert","request":{"key":"k","value":1,"metadata":{"ttlInSeconds":"x"}}}]"#;
    assert_eq!(world.put("state", ttl).await.0, 400);
    assert_eq!(world.put("state", "{").await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_former_host_can_neither_write_nor_read_state() {
    let world = World::new();
    world.activate("7").await;
    assert_eq!(world.put("state", UPSERT).await.0, 204);
    let shard = Shard::of("7").number();
    let fence = Some(Fence { key: actor_fence_key("cart", "Cart", shard), number: 2 });
    world.state.transact(Transaction { ops: Vec::new(), fence }).await.unwrap();
    let refused = world.put("state", UPSERT).await;
    check_error(refused, 500, ErrorCode::ActorStateSave, "another host runs this actor now");
}

#[tokio::test(start_paused = true)]
async fn a_new_host_raises_the_fence_before_it_reads() {
    let world = World::new();
    world.activate("7").await;
    assert_eq!(world.get("state/k").await.0, 204);
    let shard = Shard::of("7").number();
    let key = actor_fence_key("cart", "Cart", shard);
    let value = Value::Bytes(bytes::Bytes::from_static(b"1"));
    let older = Transaction {
        ops: vec![Op::Set(Set::new("x".to_owned(), value))],
        fence: Some(Fence { key, number: 0 }),
    };
    assert!(world.state.transact(older).await.is_err(), "a former host is fenced");
}

#[tokio::test(start_paused = true)]
async fn without_a_store_of_actors_state_is_not_configured() {
    let loopback = Arc::new(ScriptedLoopback::new(|_| Ok(response(500, &[], ""))));
    let actors = super::testing::actors(loopback);
    let problem = actors.get_state(&actor("7"), "k").await.unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorRuntimeNotFound);
    assert!(problem.text.contains("actorStateStore value: \"true\""), "{}", problem.text);
}

#[tokio::test(start_paused = true)]
async fn a5_a_timer_is_registered_whether_its_actor_is_active_or_not() {
    let world = World::new();
    assert_eq!(world.put("timers/t", r#"{"dueTime":"1h","data":[1]}"#).await.0, 204);
    let name = || "t".to_owned();
    let get = || GetActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: name(),
    };
    let timer = world.actors.rpc_get_timer(get()).unwrap().into_inner();
    assert_eq!((timer.due_time.as_deref(), timer.period), (Some("1h"), None));
    assert!(timer.data.is_some());
    let list = ListActorTimersRequest { actor_type: "Cart".to_owned(), actor_id: "7".to_owned() };
    let timers = world.actors.rpc_list_timers(list).unwrap().into_inner().timers;
    assert_eq!(timers.iter().map(|timer| timer.name.as_str()).collect::<Vec<_>>(), ["t"]);
    assert_eq!(world.ask(Method::DELETE, "timers/t", "").await.0, 204);
    assert_eq!(world.ask(Method::DELETE, "timers/t", "").await.0, 204, "one that is gone is fine");
    assert_eq!(world.actors.rpc_get_timer(get()).unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a13_a_timer_that_cannot_be_is_refused_in_daprs_words() {
    let world = World::new();
    for (terms, text) in [
        (
            r#"{"dueTime":"soon"}"#,
            "error parsing timer due time: unsupported time/duration format: soon",
        ),
        (r#"{"dueTime":"R2/PT1S"}"#, "error parsing timer due time: repetitions are not allowed"),
        (
            r#"{"period":"often"}"#,
            "invalid timer period: parse error: unsupported duration format: often",
        ),
        (r#"{"period":"R0/PT1S"}"#, "invalid timer period: has zero repetitions"),
        (
            r#"{"ttl":"late","period":"1s"}"#,
            "error parsing timer TTL: unsupported time/duration format: late",
        ),
        (r#"{"ttl":"0s","period":"1s"}"#, "timer has already expired: "),
    ] {
        let refused = world.put("timers/t", terms).await;
        let text = format!("error creating actor timer: {text}");
        check_error(refused, 500, ErrorCode::ActorTimerCreate, &text);
    }
    let bodies = BodyCollector::new(10_000, 1_000);
    for (method, expected) in [(Method::PUT, 500), (Method::DELETE, 204)] {
        let of_other = request(method, "/v1.0/actors/Other/7/timers/t", "");
        let Ok(answer) = world.actors.answer(&bodies, of_other).await else {
            panic!("about actors")
        };
        let (status, body) = read(answer).await;
        assert_eq!(status, expected);
        let text = "can't create timer for actor Other||7: actor type not registered";
        assert_eq!(body.contains(text), status == 500, "{body}");
    }
    let broken = world.put("timers/t", "{").await;
    check_error(broken, 400, ErrorCode::MalformedRequest, "failed deserializing HTTP body");
    for no_object in ["[]", "[\"1h\"]", "\"1h\"", "7", "true"] {
        let refused = world.put("timers/t", no_object).await;
        check_error(refused, 400, ErrorCode::MalformedRequest, "failed deserializing HTTP body");
    }
    let register = RegisterActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: "a/b".to_owned(),
        ..RegisterActorTimerRequest::default()
    };
    let status = world.actors.rpc_register_timer(register).await.unwrap_err();
    let text = "invalid request: name contains forbidden character: \"a/b\"";
    assert_eq!(status.message(), text);
}

#[tokio::test(start_paused = true)]
async fn a5_a_timer_goes_to_the_host_of_its_actor() {
    let world = World::with(|received| {
        let answer = format!("{} {}", received.method, String::from_utf8_lossy(&received.body));
        assert_eq!(received.path, "/v1.0/actors/Cart/7/timers/t", "{answer}");
        assert_eq!(received.field("x-tollway-instance"), "a");
        response(204, &[], "")
    });
    world.actors.directory.set("Cart", owners(Some(host("a"))));
    world.test.host.obey(&give_back());
    assert_eq!(world.put("timers/t", r#"{"dueTime":"1h"}"#).await.0, 204);
    assert_eq!(world.ask(Method::DELETE, "timers/t", "").await.0, 204);
    let register = RegisterActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: "t".to_owned(),
        ..RegisterActorTimerRequest::default()
    };
    world.actors.rpc_register_timer(register).await.unwrap();
    let get = GetActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: "t".to_owned(),
    };
    assert_eq!(world.actors.rpc_get_timer(get).unwrap_err().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_ends_takes_no_timer() {
    let world = World::new();
    world.activate("7").await;
    world.actors.end().await;
    let refused = world.put("timers/t", "").await;
    check_error(refused, 503, ErrorCode::ActorRuntimeClosed, "actor runtime is closed");
}

#[tokio::test(start_paused = true)]
async fn a_call_over_grpc_has_the_answer_or_the_status_of_its_error() {
    let world = World::new();
    let invoke = |method: &str| InvokeActorRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        method: method.to_owned(),
        data: b"hello".to_vec(),
        metadata: std::collections::HashMap::from([("x-a".to_owned(), "1".to_owned())]),
    };
    let answer = world.actors.rpc_invoke(invoke("add")).await.unwrap().into_inner();
    assert_eq!(answer.data, b"add hello");
    let status: Status = world.actors.rpc_invoke(invoke("..")).await.unwrap_err();
    let details = status.get_details_error_info().unwrap();
    assert_eq!(details.reason, ErrorCode::ActorBadName.word());
    world.test.host.obey(&give_back());
    let envelope = r#"{"errorCode":"ERR_ACTOR_STACK_DEPTH","message":"too deep"}"#;
    let word = ErrorCode::ActorStackDepth.word();
    let world = World::with(move |_| response(500, &[(ERROR_FIELD, word)], envelope));
    world.actors.directory.set("Cart", owners(Some(host("a"))));
    world.test.host.obey(&give_back());
    let status = world.actors.rpc_invoke(invoke("add")).await.unwrap_err();
    assert_eq!(status.message(), "too deep");
    assert_eq!(status.get_details_error_info().unwrap().reason, word);
}

#[tokio::test(start_paused = true)]
async fn state_over_grpc_is_that_over_http() {
    let world = World::new();
    world.activate("7").await;
    let operation = |kind: &str, value: &[u8]| TransactionalActorStateOperation {
        operation_type: kind.to_owned(),
        key: "k".to_owned(),
        value: Some(prost_types::Any { type_url: String::new(), value: value.to_vec() }),
        metadata: std::collections::HashMap::default(),
    };
    let transact = |operations| ExecuteActorStateTransactionRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        operations,
    };
    world.actors.rpc_transact(transact(vec![operation("upsert", b"[1]")])).await.unwrap();
    assert_eq!(world.get("state/k").await, (200, "[1]".to_owned()));
    let get = || GetActorStateRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        key: "k".to_owned(),
    };
    assert_eq!(world.actors.rpc_get_state(get()).await.unwrap().into_inner().data, b"[1]");
    let unknown = world.actors.rpc_transact(transact(vec![operation("rename", b"")])).await;
    assert_eq!(unknown.unwrap_err().code(), Code::InvalidArgument);
    world.actors.rpc_transact(transact(vec![operation("delete", b"")])).await.unwrap();
    assert!(world.actors.rpc_get_state(get()).await.unwrap().into_inner().data.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_metadata_show_the_state_of_actors() {
    let world = World::new();
    let status = world.actors.status(true);
    assert_eq!((status.status_word(), status.placement()), ("RUNNING", "placement: disconnected"));
    assert!(!status.is_ready());
    world.actors.connected.send_replace(true);
    world.activate("7").await;
    let status = world.actors.status(true);
    assert!(status.is_ready());
    assert_eq!(status.placement(), "placement: connected");
    assert_eq!(status.counts, [("Cart".to_owned(), 1)]);
    world.actors.set_hosting(None);
    let status = world.actors.status(true);
    assert_eq!((status.status_word(), status.placement()), ("DISABLED", ""));
    let call = super::call::Call {
        actor: actor("7"),
        work: super::names::Work::Method { name: "m".to_owned(), query: None },
        fields: hyper::HeaderMap::new(),
        body: bytes::Bytes::new(),
        caller: None,
    };
    assert!(matches!(world.actors.invoke_here(&call).await, super::call::Attempt::Elsewhere));
}

#[tokio::test(start_paused = true)]
async fn a11_in_daprds_place_an_app_without_types_is_a_client_that_runs() {
    let client = |has_placement| {
        let loopback = Arc::new(ScriptedLoopback::new(|_| Ok(response(500, &[], ""))));
        actors_with(loopback, |mut config| {
            (config.in_daprds_place, config.has_placement) = (true, has_placement);
            config
        })
    };
    let status = client(false).status(true);
    assert_eq!(
        (status.status_word(), status.is_ready(), status.placement()),
        ("DISABLED", false, "placement: disconnected")
    );
    let actors = client(true);
    actors.types_known.send_replace(false);
    let status = actors.status(true);
    assert_eq!(
        (status.status_word(), status.is_ready(), status.placement()),
        ("INITIALIZING", false, "")
    );
    actors.types_known.send_replace(true);
    for (is_connected, placement) in
        [(true, "placement: connected"), (false, "placement: disconnected")]
    {
        let status = actors.status(is_connected);
        assert_eq!((status.status_word(), status.is_ready()), ("RUNNING", is_connected));
        assert_eq!((status.placement(), status.counts.len()), (placement, 0));
    }
}
