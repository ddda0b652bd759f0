//! Calls of actors: their host, what the app sees, and the errors that callers get.

use std::time::Duration;

use tollway_wire::dapr::proto::runtime::v1::InvokeActorRequest;
use tonic::Code;

use super::app::{Log, check_one_at_a_time, turns_of};
use super::refusals::client;
use super::rows::check;
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::{AppProtocol, Mesh};

#[tokio::test(flavor = "multi_thread")]
async fn actors_are_called_where_they_are() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let one = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let two = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/0").await;
    // Both have their part once the second has been granted it.
    let mut seen = std::collections::BTreeSet::new();
    for round in 0.. {
        let (status, text) =
            invoke(caller.http(), &format!("Cart/{}", round % 40), "hello", "x").await;
        assert_eq!(status, 200, "{text}");
        seen.insert(text);
        if seen.len() == 2 {
            break;
        }
        assert!(round < 2000, "{seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // An actor answers every caller from its present host.
    for id in 0..20 {
        let actor = format!("Cart/{id}");
        let mut answers = Vec::new();
        for listener in [caller.http(), one.api(), two.api()] {
            answers.push(invoke(listener, &actor, "hello", "y").await);
        }
        assert!(
            answers.iter().all(|answer| *answer == answers[0] && answer.0 == 200),
            "{answers:?}"
        );
    }
    check_one_at_a_time(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn apps_see_the_call_and_callers_the_answer() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let _host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/7").await;
    for method in ["GET", "POST", "PUT", "DELETE"] {
        let fields =
            [("content-type", "text/x-cart"), ("x-order", "7"), ("dapr-caller-app-id", "root")];
        let path = "/v1.0/actors/Cart/7/method/a/b%20c?n=1";
        let (status, _, text) = call(caller.http(), method, path, &fields, "body").await;
        assert_eq!((status.as_u16(), text.as_str()), (200, "one: body"), "{method}");
    }
    let seen = turns_of(&log, "Cart/7", "a/b%20c");
    assert_eq!(seen.len(), 4);
    for turn in seen {
        let field = |name: &str| turn.fields.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(field("content-type"), Some("text/x-cart"));
        assert_eq!(field("x-order"), Some("7"));
        assert_eq!(field("dapr-caller-app-id"), Some("caller"));
        assert_eq!(field("dapr-reentrancy-id"), None);
        assert!(
            turn.fields.keys().all(|name| {
                !name.as_str().starts_with("x-tollway-") || name == "x-tollway-caller"
            }),
            "{:?}",
            turn.fields
        );
    }
    let cases = [
        ("fail", 500, "ERR_ACTOR_INVOKE_METHOD", "error from actor service: (500) broken"),
        (
            "missing",
            500,
            "ERR_ACTOR_INVOKE_METHOD",
            "actor method not found: actors/Cart/7/method/missing",
        ),
    ];
    for (method, status, code, words) in cases {
        let (reported, text) = invoke(caller.http(), "Cart/7", method, "").await;
        let (word, message) = envelope(&text);
        assert_eq!((reported, word.as_str()), (status, code), "{text}");
        assert!(message.contains(words), "{message}");
    }
    let path = "/v1.0/actors/Cart/7/method/soft";
    let (status, fields, text) = call(caller.http(), "PUT", path, &[], "").await;
    assert_eq!((status.as_u16(), text.as_str()), (200, "not now"));
    assert_eq!(fields["x-daprerrorresponseheader"], "true");
    let (status, text) = invoke(caller.http(), "Nobody/7", "hello", "").await;
    let (word, message) = envelope(&text);
    assert_eq!((status, word.as_str()), (404, "ERR_ACTOR_NO_ADDRESS"), "{text}");
    assert_eq!(message, "did not find address for actor 'Nobody||7'");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_actor_has_one_turn_at_a_time() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/1").await;
    let listeners = [caller.http(), host.api()];
    let calls = (0..40).map(|nth| {
        let (listener, actor) = (listeners[nth % 2], format!("Cart/{}", nth % 4));
        tokio::spawn(async move { invoke(listener, &actor, "slow", "5").await })
    });
    for answered in calls.collect::<Vec<_>>() {
        assert_eq!(answered.await.unwrap(), (200, "one".to_owned()));
    }
    check_one_at_a_time(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_come_back_to_an_actor_as_deep_as_its_type_allows() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let config = r#"{"entities":["Cart","Deep","Flat"],"entitiesConfig":[
        {"entities":["Deep"],"reentrancy":{"enabled":true,"maxStackDepth":3}},
        {"entities":["Flat"],"reentrancy":{"enabled":true,"maxStackDepth":1}}]}"#;
    let host = Replica::start(&mesh.west, "cart", "one", config, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Deep/1").await;
    let once = "PUT /method/hello x";
    let (status, text) = invoke(caller.http(), "Deep/1", "api", once).await;
    assert_eq!((status, text.as_str()), (200, "200 OK one: x"));
    let too_deep = "PUT /method/api PUT /method/api PUT /method/hello x";
    let (status, text) = invoke(caller.http(), "Deep/1", "api", too_deep).await;
    assert_eq!(status, 200);
    assert!(
        text.starts_with("200 OK 200 OK 500 ") && text.contains("ERR_ACTOR_STACK_DEPTH"),
        "{text}"
    );
    let id = |turn: &super::app::Turn| turn.fields["dapr-reentrancy-id"].clone();
    let chain = turns_of(&log, "Deep/1", "api");
    assert_eq!(id(&chain[1]), id(&chain[2]));
    assert_ne!(id(&chain[0]), id(&chain[1]));
    // A call of the chain that has come as deep as it may, from elsewhere and on both APIs.
    let (listener, in_chain) = (caller.http(), [("dapr-reentrancy-id", "c")]);
    let path = |method: &str| format!("/v1.0/actors/Flat/1/method/{method}");
    let held = path("held");
    let held = tokio::spawn(async move { call(listener, "PUT", &held, &in_chain, "").await });
    until_turns(&log, "Flat/1", "held", 1).await;
    let (status, _, text) = call(listener, "PUT", &path("hello"), &in_chain, "").await;
    let (word, message) = envelope(&text);
    assert_eq!((status.as_u16(), word.as_str()), (500, "ERR_ACTOR_STACK_DEPTH"), "{text}");
    assert!(message.starts_with("maximum stack depth exceeded"), "{message}");
    let request = InvokeActorRequest {
        actor_type: "Flat".to_owned(),
        actor_id: "1".to_owned(),
        method: "hello".to_owned(),
        metadata: in_chain.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..InvokeActorRequest::default()
    };
    let refused = client(caller.grpc()).await.invoke_actor(request).await.unwrap_err();
    check(&refused, Code::ResourceExhausted, "ERR_ACTOR_STACK_DEPTH");
    host.app.let_go();
    assert_eq!(held.await.unwrap().0.as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_of_another_network_are_called_where_its_policies_allow() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let one = Replica::start(&mesh.east, "cart", "one", CONFIG, &log).await;
    let two = Replica::start(&mesh.east, "cart", "two", CONFIG, &log).await;
    until_hosted(one.api(), "Cart/0").await;
    until_hosted(two.api(), "Cart/0").await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let began = std::time::Instant::now();
    while invoke(caller.http(), "Cart@cart.default.east/0", "hello", "").await.0 != 200 {
        assert!(began.elapsed() < super::PATIENCE, "the other network is not reached");
    }
    for id in 0..20 {
        let there = invoke(one.api(), &format!("Cart/{id}"), "hello", "x").await;
        let path = format!("/v1.0/actors/Cart@cart.default.east/{id}/method/hello");
        let (status, _, text) = call(caller.http(), "POST", &path, &[], "x").await;
        assert_eq!((status.as_u16(), text), there, "{id}");
    }
    // Some were at the other replica: the app of each host sees the app that calls.
    for id in 0..20 {
        let path = format!("/v1.0/actors/Cart@cart.default.east/{id}/method/seen");
        assert_eq!(call(caller.http(), "POST", &path, &[], "").await.0.as_u16(), 200);
        let turns = turns_of(&log, &format!("Cart/{id}"), "seen");
        assert_eq!(turns.len(), 1);
        let shown = &turns[0].fields["x-tollway-caller"];
        assert_eq!(shown, "spiffe://west.tollway/ns/default/caller", "{id}");
    }
    // An app that hosts nothing looks up nothing.
    let web = tokio::task::block_in_place(|| mesh.east.app("web", "one", AppProtocol::Http));
    let began = std::time::Instant::now();
    let (status, code) = loop {
        let (status, text) = invoke(caller.http(), "Cart@web.default.east/0", "hello", "").await;
        let code = envelope(&text).0;
        if code != "ERR_UNKNOWN_SERVICE" {
            break (status, code);
        }
        assert!(began.elapsed() < super::PATIENCE, "the app is not known");
    };
    assert_eq!((status, code.as_str()), (404, "ERR_ACTOR_NO_ADDRESS"));
    let own = invoke(web.sidecar.http(), "Cart/0", "hello", "").await;
    assert_eq!(own.0, 200, "it calls as itself");
    // A name that is no app's is that of a type.
    let (_, text) = invoke(caller.http(), "Cart@home/0", "hello", "").await;
    assert_eq!(envelope(&text).1, "did not find address for actor 'Cart@home||0'");
    check_one_at_a_time(&log);
    let policy = "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata: {name: cart}\nspec:\n  target: {app: cart}\n  \
                  deny:\n    - {from: [caller.default.west], paths: [/v1.0/actors/Cart/*/method/hello]}\n";
    tokio::task::block_in_place(|| mesh.east.apply(policy));
    let (status, text) = invoke(caller.http(), "Cart@cart.default.east/0", "hello", "").await;
    assert_eq!((status, envelope(&text).0.as_str()), (403, "ERR_POLICY_DENIED"), "{text}");
    let (status, _) = invoke(caller.http(), "Cart@cart.default.east/0", "other", "").await;
    assert_eq!(status, 200);
}
