//! Rows of Dapr's tables of actors, each for itself: routes over HTTP, calls over gRPC and what they
//! are refused with.

use tollway_wire::dapr::proto::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorReminderRequest, GetActorStateRequest,
    GetActorTimerRequest, InvokeActorRequest, ListActorRemindersRequest, ListActorTimersRequest,
    RegisterActorReminderRequest, RegisterActorTimerRequest, TransactionalActorStateOperation,
    UnregisterActorReminderRequest, UnregisterActorRemindersByTypeRequest,
    UnregisterActorTimerRequest,
};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::app::{Log, turns_of};
use super::refusals::client;
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, until_hosted};
use tollway_tests::mesh::Mesh;

/// Characters that are allowed in an id, and their form in a path.
const ID: &str = "7|a@b c";
const IN_PATH: &str = "7%7Ca%40b%20c";

#[tokio::test(flavor = "multi_thread")]
async fn each_route_answers_with_its_status() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(host.api(), &format!("Cart/{IN_PATH}")).await;
    let save = |key: &str, metadata: &str| {
        format!(
            r#"[{{"operation":"upsert","request":{{"key":"{key}","value":{{"n":1}}{metadata}}}}}]"#
        )
    };
    let (late, ever) = (save("k", r#","metadata":{"ttlInSeconds":"100"}"#), save("l", ""));
    let none = "ERR_NOT_SERVED";
    for (method, path, body, status, reported) in [
        ("GET", "method/hello", "", 200, "one: "),
        ("POST", "method/hello", "x", 200, "one: x"),
        ("PUT", "method/hello", "x", 200, "one: x"),
        ("DELETE", "method/hello", "", 200, "one: "),
        ("POST", "state", &late, 204, ""),
        ("PUT", "state", &ever, 204, ""),
        ("GET", "state/k", "", 200, r#"{"n":1}"#),
        ("GET", "state/l", "", 200, r#"{"n":1}"#),
        ("GET", "state/absent", "", 204, ""),
        ("POST", "reminders/r", r#"{"dueTime":"1h"}"#, 204, ""),
        ("PUT", "reminders/r", r#"{"dueTime":"2h"}"#, 204, ""),
        ("GET", "reminders/r", "", 200, r#""dueTime":"2h""#),
        ("DELETE", "reminders/r", "", 204, ""),
        ("GET", "reminders/r", "", 404, "ERR_ACTOR_REMINDER_NOT_FOUND"),
        ("POST", "timers/t", r#"{"dueTime":"1h"}"#, 204, ""),
        ("PUT", "timers/t", r#"{"dueTime":"2h"}"#, 204, ""),
        ("DELETE", "timers/t", "", 204, ""),
        ("PATCH", "method/hello", "", 404, none),
        ("DELETE", "state", "", 404, none),
        ("GET", "reminders", "", 404, none),
        ("DELETE", "reminders", "", 404, none),
        ("GET", "timers", "", 404, none),
        ("GET", "timers/t", "", 404, none),
        ("GET", "", "", 404, none),
    ] {
        let path = format!("/v1.0/actors/Cart/{IN_PATH}/{path}");
        let (got, fields, text) = call(host.api(), method, &path, &[], body.to_owned()).await;
        assert_eq!(got.as_u16(), status, "{method} {path}: {text}");
        assert!(text.contains(reported), "{method} {path}: {text}");
        assert!(status != 204 || text.is_empty(), "{method} {path}: {text}");
        let end = fields.get("metadata.ttlexpiretime");
        assert_eq!(end.is_some(), path.ends_with("state/k"), "{method} {path}: {fields:?}");
        if let Some(end) = end {
            let end = end.to_str().unwrap();
            let format = &time::format_description::well_known::Rfc3339;
            let left =
                time::OffsetDateTime::parse(end, format).unwrap() - time::OffsetDateTime::now_utc();
            assert!((0..=100).contains(&left.whole_seconds()), "{end}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_with_their_codes() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(host.api(), "Cart/1").await;
    let malformed = "ERR_MALFORMED_REQUEST";
    let upsert = r#"[{"operation":"upsert","request":{"key":"k"#;
    let ttl =
        |ttl: &str| format!(r#"{upsert}","value":1,"metadata":{{"ttlInSeconds":"{ttl}"}}}}}}]"#);
    let policy = |policy: &str| format!(r#"{{"dueTime":"1h","failurePolicy":{policy}}}"#);
    for (path, body, status, code) in [
        ("state", "".to_owned(), 400, malformed),
        ("state", "{}".to_owned(), 400, malformed),
        ("state", r#"[{"operation":"add","request":{"key":"k"}}]"#.to_owned(), 400, malformed),
        ("state", r#"[{"request":{"key":"k"}}]"#.to_owned(), 400, malformed),
        ("state", ttl("soon"), 400, malformed),
        ("state", ttl("-7"), 400, malformed),
        ("timers/t", "[".to_owned(), 400, malformed),
        ("timers/t", r#"{"dueTime":7}"#.to_owned(), 400, malformed),
        ("timers/t", r#"{"period":"-1s"}"#.to_owned(), 500, "ERR_ACTOR_TIMER_CREATE"),
        ("timers/t", r#"{"ttl":"P"}"#.to_owned(), 500, "ERR_ACTOR_TIMER_CREATE"),
        ("reminders/r", "7".to_owned(), 400, malformed),
        ("reminders/r", policy("7"), 400, malformed),
        ("reminders/r", policy(r#"{"constant":{"interval":"x"}}"#), 400, malformed),
        ("reminders/r", r#"{"period":"R0/PT1S"}"#.to_owned(), 500, "ERR_ACTOR_REMINDER_CREATE"),
        ("reminders/r", r#"{"dueTime":"1x"}"#.to_owned(), 500, "ERR_ACTOR_REMINDER_CREATE"),
    ] {
        let path = format!("/v1.0/actors/Cart/1/{path}");
        let (got, _, text) = call(host.api(), "POST", &path, &[], body.clone()).await;
        assert_eq!((got.as_u16(), envelope(&text).0.as_str()), (status, code), "{body}: {text}");
    }
    let too_large = "x".repeat(4_200_000);
    let path = "/v1.0/actors/Cart/1/method/hello";
    let (status, _, text) = call(host.api(), "POST", path, &[], too_large).await;
    assert_eq!((status.as_u16(), envelope(&text).0.as_str()), (413, malformed), "{text}");
}

fn cart() -> String {
    "Cart".to_owned()
}

fn id() -> String {
    ID.to_owned()
}

fn operation(operation_type: &str, key: &str, value: &[u8]) -> TransactionalActorStateOperation {
    let value = prost_types::Any { value: value.to_vec(), ..Default::default() };
    TransactionalActorStateOperation {
        operation_type: operation_type.to_owned(),
        key: key.to_owned(),
        value: Some(value),
        metadata: [("ttlInSeconds".to_owned(), "100".to_owned())].into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_grpc_does_what_its_route_does() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(host.api(), &format!("Cart/{IN_PATH}")).await;
    let mut dapr = client(host.sidecar.grpc()).await;
    let (actor_type, actor_id, data) = (cart(), id(), b"bytes \x00\xff".to_vec());
    let invoke = InvokeActorRequest {
        actor_type: cart(),
        actor_id: id(),
        method: "hello".to_owned(),
        data: b"x".to_vec(),
        metadata: [("x-order".to_owned(), "7".to_owned())].into(),
    };
    assert_eq!(dapr.invoke_actor(invoke).await.unwrap().into_inner().data, b"one: x");
    let seen = turns_of(&log, &format!("Cart/{IN_PATH}"), "hello").pop().unwrap();
    for (name, value) in [("content-type", "application/json"), ("x-order", "7")] {
        assert_eq!(seen.fields[name], value);
    }

    let operations = vec![operation("upsert", "k", b"\x01"), operation("delete", "l", b"")];
    let transaction = ExecuteActorStateTransactionRequest { actor_type, actor_id, operations };
    dapr.execute_actor_state_transaction(transaction).await.unwrap();
    let state = |key: &str| GetActorStateRequest {
        actor_type: cart(),
        actor_id: id(),
        key: key.to_owned(),
    };
    let found = dapr.get_actor_state(state("k")).await.unwrap().into_inner();
    assert_eq!(found.data, b"\x01");
    assert!(found.metadata.contains_key("ttlExpireTime"), "{found:?}");
    assert!(dapr.get_actor_state(state("l")).await.unwrap().into_inner().data.is_empty());

    let timer = RegisterActorTimerRequest {
        actor_type: cart(),
        actor_id: id(),
        name: "t".to_owned(),
        period: "1h".to_owned(),
        callback: "tick".to_owned(),
        data: data.clone(),
        ..Default::default()
    };
    dapr.register_actor_timer(timer).await.unwrap();
    let of_actor = ListActorTimersRequest { actor_type: cart(), actor_id: id() };
    let timers = dapr.list_actor_timers(of_actor).await.unwrap().into_inner().timers;
    assert_eq!(timers.iter().map(|timer| timer.name.as_str()).collect::<Vec<_>>(), ["t"]);
    let name = || "t".to_owned();
    let one = GetActorTimerRequest { actor_type: cart(), actor_id: id(), name: name() };
    assert_eq!(dapr.get_actor_timer(one).await.unwrap().into_inner().callback(), "tick");
    let gone = UnregisterActorTimerRequest { actor_type: cart(), actor_id: id(), name: name() };
    dapr.unregister_actor_timer(gone).await.unwrap();

    let reminder = |name: &str| RegisterActorReminderRequest {
        actor_type: cart(),
        actor_id: id(),
        name: name.to_owned(),
        period: "1h".to_owned(),
        data: data.clone(),
        ..Default::default()
    };
    for name in ["r", "s"] {
        dapr.register_actor_reminder(reminder(name)).await.unwrap();
    }
    let one = |name: &str| GetActorReminderRequest {
        actor_type: cart(),
        actor_id: id(),
        name: name.to_owned(),
    };
    assert_eq!(
        dapr.get_actor_reminder(one("r")).await.unwrap().into_inner().period(),
        "@every 1h0m0s"
    );
    let name = || "r".to_owned();
    let gone = UnregisterActorReminderRequest { actor_type: cart(), actor_id: id(), name: name() };
    dapr.unregister_actor_reminder(gone).await.unwrap();
    let listed = || ListActorRemindersRequest { actor_type: cart(), actor_id: Some(id()) };
    let left = dapr.list_actor_reminders(listed()).await.unwrap().into_inner().reminders;
    assert_eq!(left.iter().map(|reminder| reminder.name.as_str()).collect::<Vec<_>>(), ["s"]);
    let all = UnregisterActorRemindersByTypeRequest { actor_type: cart(), actor_id: None };
    dapr.unregister_actor_reminders_by_type(all).await.unwrap();
    assert!(dapr.list_actor_reminders(listed()).await.unwrap().into_inner().reminders.is_empty());

    // Bytes are text of base 64 to an app over HTTP.
    for what in ["timer/t", "remind/r"] {
        let reported = &until_turns(&log, &format!("Cart/{IN_PATH}"), what, 1).await[0].body;
        let reported: serde_json::Value = serde_json::from_str(reported).unwrap();
        assert_eq!(reported["data"], "Ynl0ZXMgAP8=", "{what}");
    }
}

/// Code and word of a refusal.
#[track_caller]
pub(crate) fn check(refused: &Status, code: Code, word: &str) {
    let info = refused.get_details_error_info().unwrap();
    let reported = (refused.code(), info.reason.as_str(), info.domain.as_str());
    assert_eq!(reported, (code, word, "dapr.io"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_of_grpc_has_its_code() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/1").await;
    let (mut dapr, mut elsewhere) =
        (client(host.sidecar.grpc()).await, client(caller.grpc()).await);
    let invoke = |actor_type: &str, method: &str| InvokeActorRequest {
        actor_type: actor_type.to_owned(),
        actor_id: "1".to_owned(),
        method: method.to_owned(),
        ..Default::default()
    };
    for (actor_type, method, code, word) in [
        ("Cart", "fail", Code::Internal, "ERR_ACTOR_INVOKE_METHOD"),
        ("Cart", "missing", Code::Internal, "ERR_ACTOR_INVOKE_METHOD"),
        ("Cart", "", Code::InvalidArgument, "ERR_BAD_REQUEST"),
        ("Cart", "a?b", Code::InvalidArgument, "ERR_BAD_REQUEST"),
        ("", "hello", Code::InvalidArgument, "ERR_BAD_REQUEST"),
        ("a/b", "hello", Code::InvalidArgument, "ERR_BAD_REQUEST"),
        ("Nobody", "hello", Code::NotFound, "ERR_ACTOR_NO_ADDRESS"),
        ("dapr.internal.x", "hello", Code::PermissionDenied, "ERR_ACTOR_TYPE_RESERVED"),
    ] {
        for dapr in [&mut dapr, &mut elsewhere] {
            check(&dapr.invoke_actor(invoke(actor_type, method)).await.unwrap_err(), code, word);
        }
    }

    let state = |id: &str| GetActorStateRequest {
        actor_type: cart(),
        actor_id: id.to_owned(),
        key: "k".to_owned(),
    };
    let missing = (Code::Internal, "ERR_ACTOR_INSTANCE_MISSING");
    for (dapr, id) in [(&mut dapr, "idle"), (&mut elsewhere, "1")] {
        let read = dapr.get_actor_state(state(id)).await.unwrap().into_inner();
        assert!(read.data.is_empty());
    }
    let transaction = |kind: &str, actor_id: &str| ExecuteActorStateTransactionRequest {
        actor_type: cart(),
        actor_id: actor_id.to_owned(),
        operations: vec![operation(kind, "k", b"1")],
    };
    let refused = dapr.execute_actor_state_transaction(transaction("upsert", "idle")).await;
    check(&refused.unwrap_err(), missing.0, missing.1);
    let refused = dapr.execute_actor_state_transaction(transaction("add", "1")).await;
    check(&refused.unwrap_err(), Code::InvalidArgument, "ERR_MALFORMED_REQUEST");

    let timer = |actor_id: &str, due_time: &str| RegisterActorTimerRequest {
        actor_type: cart(),
        actor_id: actor_id.to_owned(),
        name: "t".to_owned(),
        due_time: due_time.to_owned(),
        ..Default::default()
    };
    for (dapr, refused) in [(&mut dapr, timer("1", "soon")), (&mut elsewhere, timer("1", "1h"))] {
        let refused = dapr.register_actor_timer(refused).await.unwrap_err();
        check(&refused, Code::Internal, "ERR_ACTOR_TIMER_CREATE");
    }
    let one =
        GetActorTimerRequest { actor_type: cart(), actor_id: "1".to_owned(), name: "t".to_owned() };
    let refused = elsewhere.get_actor_timer(one).await.unwrap_err();
    check(&refused, Code::Unavailable, "ERR_ACTOR_NO_APP_CHANNEL");

    let reminder = |due_time: &str, overwrite: bool| RegisterActorReminderRequest {
        actor_type: cart(),
        actor_id: "1".to_owned(),
        name: "r".to_owned(),
        due_time: due_time.to_owned(),
        overwrite: Some(overwrite),
        ..Default::default()
    };
    let refused = dapr.register_actor_reminder(reminder("soon", true)).await.unwrap_err();
    check(&refused, Code::Internal, "ERR_ACTOR_REMINDER_CREATE");
    let refused = elsewhere.register_actor_reminder(reminder("1h", true)).await.unwrap_err();
    check(&refused, Code::PermissionDenied, "ERR_ACTOR_REMINDER_NON_HOSTED");
    let one = GetActorReminderRequest {
        actor_type: cart(),
        actor_id: "1".to_owned(),
        name: "r".to_owned(),
    };
    let refused = dapr.get_actor_reminder(one).await.unwrap_err();
    check(&refused, Code::NotFound, "ERR_ACTOR_REMINDER_NOT_FOUND");
    dapr.register_actor_reminder(reminder("1h", false)).await.unwrap();
    let refused = dapr.register_actor_reminder(reminder("1h", false)).await.unwrap_err();
    check(&refused, Code::AlreadyExists, "ERR_ACTOR_REMINDER_ALREADY_EXISTS");
}
