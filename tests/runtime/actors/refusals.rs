//! What is refused, and by which word.

use std::time::Duration;

use rustix::process::Signal;
use tollway_testkit::TempDir;
use tollway_wire::dapr::proto::runtime::v1::dapr_client::DaprClient;
use tollway_wire::dapr::proto::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorReminderRequest, GetActorStateRequest,
    InvokeActorRequest, ListActorRemindersRequest, RegisterActorReminderRequest,
    RegisterActorTimerRequest, UnregisterActorReminderRequest,
};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use super::app::{Log, turns};
use super::rows::check;
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, PATIENCE};

pub(crate) async fn client(listener: std::net::SocketAddr) -> DaprClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{listener}")).unwrap();
    DaprClient::new(endpoint.connect().await.unwrap())
}

/// What a request is refused with.
async fn refused(listener: std::net::SocketAddr, method: &str, path: &str) -> (u16, String) {
    let (status, fields, text) = call(listener, method, path, &[], "{}").await;
    let (word, _) = envelope(&text);
    assert_eq!(fields["x-tollway-error"], word.as_str());
    (status.as_u16(), word)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_cannot_be_are_refused_on_both_apis() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let bad = (400, "ERR_BAD_REQUEST".to_owned());
    for path in
        ["Cart/%2e%2e/method/m", "Cart/a%2Fb/method/m", "Cart/7/timers/a%3Fb", "%23/7/state"]
    {
        assert_eq!(
            refused(caller.http(), "POST", &format!("/v1.0/actors/{path}")).await,
            bad,
            "{path}"
        );
    }
    let reserved = refused(caller.http(), "POST", "/v1.0/actors/dapr.internal.x/7/method/m").await;
    assert_eq!(reserved, (403, "ERR_ACTOR_TYPE_RESERVED".to_owned()));
    // It has no app that could run actors.
    let timer = refused(caller.http(), "POST", "/v1.0/actors/Cart/7/timers/t").await;
    assert_eq!(timer, (500, "ERR_ACTOR_TIMER_CREATE".to_owned()));
    let mut dapr = client(caller.grpc()).await;
    let request = InvokeActorRequest {
        actor_type: "Cart".into(),
        actor_id: "..".into(),
        method: "m".into(),
        ..InvokeActorRequest::default()
    };
    let status = dapr.invoke_actor(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_details_error_info().unwrap().reason, "ERR_BAD_REQUEST");
    let request = InvokeActorRequest { actor_id: "7".into(), ..request };
    let status = dapr.invoke_actor(request).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    assert_eq!(status.get_details_error_info().unwrap().reason, "ERR_ACTOR_NO_ADDRESS");
    let timer = RegisterActorTimerRequest {
        actor_type: "Cart".into(),
        actor_id: "7".into(),
        name: "t".into(),
        ..RegisterActorTimerRequest::default()
    };
    let status = dapr.register_actor_timer(timer).await.unwrap_err();
    assert_eq!(status.get_details_error_info().unwrap().reason, "ERR_ACTOR_TIMER_CREATE");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_without_a_store_for_actors_has_no_state_of_them() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let folder = TempDir::new().unwrap();
    let component = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: memory\nspec:\n  type: state.in-memory\n  version: v1\n";
    std::fs::write(folder.path().join("memory.yaml"), component).unwrap();
    let options = ["--resources-path", folder.path().to_str().unwrap()];
    let host = Replica::with(&mesh.west, "cart", "one", CONFIG, &log, &options).await;
    until_hosted(host.api(), "Cart/1").await;
    for path in ["GET /state/k ", "POST /state []"] {
        let (_, text) = invoke(host.api(), "Cart/1", "api", path).await;
        assert!(text.starts_with("500 ") && text.contains("ERR_ACTOR_RUNTIME_NOT_FOUND"), "{text}");
    }
    let mut dapr = client(host.sidecar.grpc()).await;
    let (actor_type, actor_id) = ("Cart".to_owned(), "1".to_owned());
    let transaction = ExecuteActorStateTransactionRequest {
        actor_type: actor_type.clone(),
        actor_id: actor_id.clone(),
        operations: Vec::new(),
    };
    let one = GetActorStateRequest { actor_type, actor_id, key: "k".to_owned() };
    let none = "ERR_ACTOR_RUNTIME_NOT_FOUND";
    check(&dapr.get_actor_state(one).await.unwrap_err(), Code::Internal, none);
    let refused = dapr.execute_actor_state_transaction(transaction).await.unwrap_err();
    check(&refused, Code::Internal, none);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_control_plane_what_it_keeps_and_places_is_refused() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let mut host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let knows = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(knows.http(), "Cart/1").await;
    let other = tokio::task::block_in_place(|| mesh.west.sidecar("other", &[]));
    mesh.west.control.signal(Signal::STOP).unwrap();
    // The lease lasts for a while, and so do turns; their writes are refused.
    let (listener, listener_of_grpc) = (host.api(), host.sidecar.grpc());
    let asked = ["GET /state/k ", "POST /state []", "POST /reminders/r {}", "DELETE /reminders/r "];
    let codes = [
        "ERR_ACTOR_STATE_GET",
        "ERR_ACTOR_STATE_TRANSACTION_SAVE",
        "ERR_ACTOR_REMINDER_CREATE",
        "ERR_ACTOR_REMINDER_DELETE",
    ];
    let calls: Vec<_> = (0..4)
        .map(|nth| {
            let what = asked[nth];
            tokio::spawn(async move { invoke(listener, &format!("Cart/{nth}"), "api", what).await })
        })
        .collect();
    let mut dapr = client(listener_of_grpc).await;
    let (actor_type, actor_id, name) = ("Cart".to_owned(), "5".to_owned(), "r".to_owned());
    let gone = UnregisterActorReminderRequest { actor_type, actor_id, name };
    let not_deleted = tokio::spawn(async move { dapr.unregister_actor_reminder(gone).await });
    let unknown = refused(other.http(), "POST", "/v1.0/actors/Cart/1/method/m").await;
    assert_eq!(unknown, (400, "ERR_ACTOR_NO_PLACEMENT".to_owned()));
    let call = InvokeActorRequest {
        actor_type: "Cart".into(),
        actor_id: "1".into(),
        method: "m".into(),
        ..InvokeActorRequest::default()
    };
    let unknown = client(other.grpc()).await.invoke_actor(call).await.unwrap_err();
    check(&unknown, Code::Unavailable, "ERR_ACTOR_NO_PLACEMENT");
    for (answered, code) in calls.into_iter().zip(codes) {
        // The caller gets its error when the lease ends, the turn when the time for an answer is
        // over.
        let _ = answered.await.unwrap();
        let began = std::time::Instant::now();
        let is_told = |answer: &str| answer.starts_with("500 ") && answer.contains(code);
        while !turns(&log).iter().any(|turn| is_told(&turn.answer)) {
            assert!(began.elapsed() < PATIENCE, "{code}: {:?}", turns(&log));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let refused_by_grpc = not_deleted.await.unwrap().unwrap_err();
    check(&refused_by_grpc, Code::Internal, "ERR_ACTOR_REMINDER_DELETE");
    // Once the lease is over no host has the reminders.
    check_reminders_out_of_reach(&host).await;
    tokio::task::block_in_place(|| host.sidecar.process.kill().unwrap());
    let gone = refused(knows.http(), "POST", "/v1.0/actors/Cart/1/method/m").await;
    assert_eq!(gone, (503, "ERR_ACTOR_UNPLACED".to_owned()));
    mesh.west.control.signal(Signal::CONT).unwrap();
}

/// Errors about reminders whose actor has no host for the moment, on both APIs.
async fn check_reminders_out_of_reach(host: &Replica) {
    let (listener, path) = (host.api(), "/v1.0/actors/Cart/7/reminders/r");
    let (of_type, of_id, name) = (|| "Cart".to_owned(), || "7".to_owned(), || "r".to_owned());
    let mut dapr = client(host.sidecar.grpc()).await;
    let (mut getting, mut making, mut deleting) = (dapr.clone(), dapr.clone(), dapr.clone());
    let get = GetActorReminderRequest { actor_type: of_type(), actor_id: of_id(), name: name() };
    let make = RegisterActorReminderRequest {
        actor_type: of_type(),
        actor_id: of_id(),
        name: name(),
        ..RegisterActorReminderRequest::default()
    };
    let delete =
        UnregisterActorReminderRequest { actor_type: of_type(), actor_id: of_id(), name: name() };
    let list = ListActorRemindersRequest { actor_type: of_type(), actor_id: Some(of_id()) };
    let (got, made, deleted, by_get, by_make, by_delete, by_list) = tokio::join!(
        refused(listener, "GET", path),
        refused(listener, "POST", path),
        refused(listener, "DELETE", path),
        getting.get_actor_reminder(get),
        making.register_actor_reminder(make),
        deleting.unregister_actor_reminder(delete),
        dapr.list_actor_reminders(list),
    );
    let codes = ["GET", "CREATE", "DELETE"].map(|what| format!("ERR_ACTOR_REMINDER_{what}"));
    for (reported, code) in [got, made, deleted].into_iter().zip(&codes) {
        assert_eq!(reported, (500, code.clone()));
    }
    check(&by_get.unwrap_err(), Code::Internal, &codes[0]);
    check(&by_list.unwrap_err(), Code::Internal, &codes[0]);
    check(&by_make.unwrap_err(), Code::Internal, &codes[1]);
    check(&by_delete.unwrap_err(), Code::Internal, &codes[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reminders_of_a_type_are_listed_by_all_of_its_hosts_or_not_at_all() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let one = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let mut two = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    until_hosted(one.api(), "Cart/0").await;
    until_hosted(two.api(), "Cart/0").await;
    for id in 0..20 {
        let path = format!("/v1.0/actors/Cart/{id}/reminders/late");
        let (status, _, text) = call(one.api(), "POST", &path, &[], r#"{"dueTime":"1h"}"#).await;
        assert_eq!(status.as_u16(), 204, "{text}");
    }
    let mut dapr = client(one.sidecar.grpc()).await;
    let of_type = ListActorRemindersRequest { actor_type: "Cart".into(), actor_id: None };
    let reported = dapr.list_actor_reminders(of_type.clone()).await.unwrap().into_inner();
    assert_eq!(reported.reminders.len(), 20);
    tokio::task::block_in_place(|| two.sidecar.process.kill().unwrap());
    let status = dapr.list_actor_reminders(of_type).await.unwrap_err();
    check(&status, Code::Internal, "ERR_ACTOR_REMINDER_GET");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sidecar_that_ends_begins_nothing_new() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let config = r#"{"entities":["Cart"],"drainOngoingCallTimeout":"20s"}"#;
    let host = Replica::start(&mesh.west, "cart", "one", config, &log).await;
    let listener = host.api();
    until_hosted(listener, "Cart/1").await;
    // It does not end before the request.
    let held = tokio::spawn(async move { invoke(listener, "Cart/2", "held", "").await });
    until_turns(&log, "Cart/2", "held", 1).await;
    let mut dapr = client(host.sidecar.grpc()).await;
    let call = tokio::spawn(async move { invoke(listener, "Cart/1", "timer-later", "500").await });
    until_turns(&log, "Cart/1", "timer-later", 1).await;
    host.sidecar.process.signal(Signal::TERM).unwrap();
    let timer = || RegisterActorTimerRequest {
        actor_type: "Cart".into(),
        actor_id: "1".into(),
        name: "by-grpc".into(),
        due_time: "1h".into(),
        ..RegisterActorTimerRequest::default()
    };
    let closed = loop {
        match dapr.register_actor_timer(timer()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(closed) => break closed,
        }
    };
    check(&closed, Code::Unavailable, "ERR_ACTOR_RUNTIME_CLOSED");
    let (status, text) = call.await.unwrap();
    assert_eq!(status, 200, "a turn under way ends: {text}");
    assert!(text.starts_with("503 ") && text.contains("ERR_ACTOR_RUNTIME_CLOSED"), "{text}");
    host.app.let_go();
    assert_eq!(held.await.unwrap(), (200, "one".to_owned()));
}
