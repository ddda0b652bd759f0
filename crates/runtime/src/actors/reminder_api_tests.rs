//! The API of reminders over HTTP and gRPC, of apps and between sidecars.

use std::sync::Arc;

use hyper::Method;
use hyper::header::HeaderValue;
use tollway_actors::placement::{Owners, SHARDS};
use tollway_model::{ErrorCode, Label};
use tollway_wire::ActorHost;
use tollway_wire::dapr::proto::runtime::v1::{
    GetActorReminderRequest, ListActorRemindersRequest, RegisterActorReminderRequest,
    UnregisterActorRemindersByTypeRequest,
};
use tonic::Code;
use tonic_types::StatusExt;

use super::api_tests::{World, check_error};
use super::owners::KnownOwners;
use super::testing::{give_back, host, owners, service};
use crate::body_collector::BodyCollector;
use crate::testing::{read, request, response};

#[tokio::test(start_paused = true)]
async fn a13_reminders_are_registered_read_and_deleted_in_daprs_words() {
    let world = World::new();
    let body = r#"{"dueTime":"1h","period":"R2/PT1H","ttl":"3h","data":{"a": 1}}"#;
    assert_eq!(world.put("reminders/n", body).await, (204, String::new()));
    let document = r#"{"actorID":"7","actorType":"Cart","data":{"a":1},"dueTime":"1h","period":"@every 1h0m0s"}"#;
    assert_eq!(world.get("reminders/n").await, (200, document.to_owned()));
    let again = world.put("reminders/n", r#"{"dueTime":"2h","overwrite":false}"#).await;
    check_error(again, 409, ErrorCode::ActorReminderExists, "actor reminder already exists: n");
    assert_eq!(world.ask(Method::DELETE, "reminders/n", "").await.0, 204);
    let gone = world.get("reminders/n").await;
    check_error(gone, 404, ErrorCode::ActorReminderNotFound, "actor reminder not found: n");
    assert_eq!(world.reminders.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_no_object_is_malformed() {
    let world = World::new();
    for no_object in ["[]", "[\"1h\"]", "\"1h\"", "7", "true"] {
        let refused = world.put("reminders/n", no_object).await;
        check_error(refused, 400, ErrorCode::MalformedRequest, "failed deserializing HTTP body");
    }
    assert_eq!(world.reminders.len(), 0);
    assert_eq!(world.put("reminders/n", "").await, (204, String::new()));
}

const NOT_HOSTED: &str = "operations on actor reminders are only possible on hosted actor types";

#[tokio::test(start_paused = true)]
async fn reminders_are_for_types_that_the_app_offers() {
    let world = World::new();
    let bodies = BodyCollector::new(10_000, 1_000);
    let put = request(Method::PUT, "/v1.0/actors/Other/7/reminders/n", "{}");
    let Ok(answer) = world.actors.answer(&bodies, put).await else { panic!("about actors") };
    let refused = read(answer).await;
    check_error(refused, 403, ErrorCode::ActorReminderNotHosted, NOT_HOSTED);
    let of_type =
        UnregisterActorRemindersByTypeRequest { actor_type: "Other".to_owned(), actor_id: None };
    let status = world.actors.rpc_unregister_reminders_by_type(of_type).await.unwrap_err();
    assert_eq!(status.message(), NOT_HOSTED);
}

#[tokio::test(start_paused = true)]
async fn a_reminder_whose_host_is_away_fails_as_that_operation() {
    let world = World::new();
    world.test.host.obey(&give_back());
    for (method, code) in [
        (Method::PUT, ErrorCode::ActorReminderCreate),
        (Method::GET, ErrorCode::ActorReminderGet),
        (Method::DELETE, ErrorCode::ActorReminderDelete),
    ] {
        let failed = world.ask(method, "reminders/n", "").await;
        check_error(failed, 500, code, "actor reminder: no host took the call");
    }
}

#[tokio::test(start_paused = true)]
async fn reminders_over_grpc_are_those_over_http() {
    let world = World::new();
    let register = RegisterActorReminderRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: "n".to_owned(),
        due_time: "1h".to_owned(),
        data: b"hello".to_vec(),
        ..RegisterActorReminderRequest::default()
    };
    world.actors.rpc_register_reminder(register.clone()).await.unwrap();
    let again = RegisterActorReminderRequest { overwrite: Some(false), ..register };
    let status = world.actors.rpc_register_reminder(again).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    let reason = status.get_details_error_info().unwrap().reason;
    assert_eq!(reason, ErrorCode::ActorReminderExists.word());
    let get = GetActorReminderRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "7".to_owned(),
        name: "n".to_owned(),
    };
    let found = world.actors.rpc_get_reminder(get).await.unwrap().into_inner();
    assert_eq!((found.due_time.as_deref(), found.ttl), (Some("1h"), None));
    for actor_id in [Some("7".to_owned()), None] {
        let list = ListActorRemindersRequest { actor_type: "Cart".to_owned(), actor_id };
        let listed = world.actors.rpc_list_reminders(list).await.unwrap().into_inner();
        let names: Vec<_> = listed.reminders.into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["n"]);
    }
    let all =
        UnregisterActorRemindersByTypeRequest { actor_type: "Cart".to_owned(), actor_id: None };
    world.actors.rpc_unregister_reminders_by_type(all).await.unwrap();
    assert_eq!(world.reminders.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_reminders_of_a_type_are_asked_of_all_its_hosts() {
    let world = World::with(|received| {
        assert_eq!(received.path, "/v1.0/actor-reminders/Cart");
        let reminder = r#"[{"name":"far","actorID":"9","actorType":"Cart","dueTime":"1h"}]"#;
        response(200, &[], reminder)
    });
    assert_eq!(world.put("reminders/near", r#"{"dueTime":"1h"}"#).await.0, 204);
    let KnownOwners::Owners(mut owned) = owners(Some(host("me"))) else { unreachable!() };
    Arc::make_mut(&mut owned).shards[5] = Some(host("a"));
    world.actors.directory.set("Cart", KnownOwners::Owners(owned));
    let list = ListActorRemindersRequest { actor_type: "Cart".to_owned(), actor_id: None };
    let listed = world.actors.rpc_list_reminders(list).await.unwrap().into_inner();
    let names: Vec<_> = listed.reminders.into_iter().map(|found| found.name).collect();
    assert_eq!(names, ["far", "near"]);
}

#[tokio::test(start_paused = true)]
async fn sidecars_ask_each_other_for_what_apps_may_not() {
    let world = World::new();
    world.put("reminders/n", r#"{"dueTime":"1h"}"#).await;
    let bodies = BodyCollector::new(10_000, 1_000);
    for (method, path) in [
        (Method::GET, "/v1.0/actors/Cart/7/reminders"),
        (Method::DELETE, "/v1.0/actors/Cart/7/reminders"),
        (Method::GET, "/v1.0/actor-reminders/Cart"),
        (Method::GET, "/v1.0/other"),
    ] {
        let of_app = world.actors.answer(&bodies, request(method, path, "")).await;
        assert!(of_app.is_err(), "{path} is not for apps");
    }
    let inbound = |method, path| {
        let (actors, bodies) = (Arc::clone(&world.actors), bodies.clone());
        let mut request = request(method, path, "");
        let fields = request.headers_mut();
        fields.insert("x-tollway-caller-of", HeaderValue::from_static(REPLICA));
        async move { read(actors.answer_inbound(&bodies, request).await).await }
    };
    let listed = inbound(Method::GET, "/v1.0/actor-reminders/Cart").await;
    assert!(listed.0 == 200 && listed.1.contains("\"name\":\"n\""), "{listed:?}");
    let listed = inbound(Method::GET, "/v1.0/actors/Cart/7/reminders").await;
    assert!(listed.0 == 200 && listed.1.contains("\"name\":\"n\""), "{listed:?}");
    let turn = inbound(Method::PUT, "/v1.0/actors/Cart/7/method/add").await;
    assert_eq!(turn, (200, "add ".to_owned()));
    let state = inbound(Method::GET, "/v1.0/actors/Cart/7/state/k").await;
    assert_eq!(state.0, 503, "state is the host's own");
}

/// Another replica of the app.
const REPLICA: &str = "west spiffe://west.tollway/ns/default/cart";

/// The harm: a stranger reads, forges and deletes reminders through the sidecar of a host.
#[tokio::test(start_paused = true)]
async fn only_hosts_of_a_type_are_answered_about_its_reminders() {
    let world = World::new();
    world.put("reminders/pay", r#"{"dueTime":"1h","data":"secret"}"#).await;
    let bodies = BodyCollector::new(10_000, 1_000);
    let ask = |caller: &'static str, method: Method, path: &'static str| {
        let (actors, bodies) = (Arc::clone(&world.actors), bodies.clone());
        let mut request = request(method, path, r#"{"dueTime":"1h"}"#);
        if !caller.is_empty() {
            let fields = request.headers_mut();
            fields.insert("x-tollway-caller-of", HeaderValue::from_static(caller));
        }
        async move { read(actors.answer_inbound(&bodies, request).await).await }
    };
    let requests = || {
        [
            (Method::GET, "/v1.0/actors/Cart/7/reminders/pay"),
            (Method::GET, "/v1.0/actors/Cart/7/reminders"),
            (Method::PUT, "/v1.0/actors/Cart/7/reminders/evil"),
            (Method::DELETE, "/v1.0/actors/Cart/7/reminders/pay"),
            (Method::DELETE, "/v1.0/actors/Cart/7/reminders"),
            (Method::GET, "/v1.0/actor-reminders/Cart"),
            (Method::DELETE, "/v1.0/actor-reminders/Cart"),
        ]
    };
    let till = ActorHost { service: service("till"), instance: Label::new("t-0").unwrap() };
    let mut shards = vec![Some(host("a")); SHARDS];
    shards[0] = Some(till);
    let owners = KnownOwners::Owners(Arc::new(Owners { version: 1, shards }));
    world.actors.directory.set("Cart", owners);
    let strangers = [
        "west spiffe://west.tollway/ns/lowly/evil",
        "west spiffe://west.tollway/ns/default/web",
        // A name of ours in another network or namespace.
        "east spiffe://east.tollway/ns/default/cart",
        "west spiffe://west.tollway/ns/lowly/cart",
        "east spiffe://east.tollway/ns/default/till",
        "",
    ];
    for stranger in strangers {
        for (method, path) in requests() {
            let (status, text) = ask(stranger, method.clone(), path).await;
            assert_eq!(status, 403, "{stranger} {method} {path}: {text}");
            assert!(text.contains("ERR_ACTOR_REMINDER_NON_HOSTED"), "{text}");
        }
    }
    let till = "west spiffe://west.tollway/ns/default/till";
    for host in [REPLICA, till] {
        let (status, text) = ask(host, Method::GET, "/v1.0/actors/Cart/7/reminders/pay").await;
        assert!(status == 200 && text.contains("secret"), "{host}: {status} {text}");
    }
    let (status, text) = ask(REPLICA, Method::GET, "/v1.0/actor-reminders/Cart").await;
    assert!(status == 200 && !text.contains("evil"), "{text}");
}

/// The harm: a stranger fills the list of followed types, so that the own app calls no others.
#[tokio::test(start_paused = true)]
async fn no_type_is_followed_for_an_app_that_asks_about_reminders() {
    let world = World::new();
    let before = world.actors.directory.followed();
    let bodies = BodyCollector::new(10_000, 1_000);
    for nth in 0..20 {
        for caller in ["west spiffe://west.tollway/ns/default/web", "east spiffe://e.t/ns/a/b"] {
            let path = format!("/v1.0/actor-reminders/J{nth}");
            let mut request = request(Method::GET, &path, "");
            let fields = request.headers_mut();
            fields.insert("x-tollway-caller-of", HeaderValue::from_static(caller));
            let (status, text) = read(world.actors.answer_inbound(&bodies, request).await).await;
            assert_eq!(status, 403, "{text}");
        }
    }
    assert_eq!(world.actors.directory.followed(), before);
}
