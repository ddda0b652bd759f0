//! Calls of actors against a scripted data loop: where they go, and when they are repeated.

use std::sync::Arc;

use hyper::StatusCode;
use tollway_actors::placement::Refusal;
use tollway_model::{Label, SpiffeId};
use tollway_routing::{Pauses, Resiliency, RetryRule, Rules};

use super::super::testing::{
    MemoryReminders, ScriptedApp, TestHost, actor, actors, actors_with, fields, host, owners,
    run_here, service, types,
};
use super::*;
use crate::resiliency::ResiliencyState;
use crate::testing::{Received, ScriptedLoopback, read, response};

fn call_of(work: Work, fields: HeaderMap) -> Call {
    Call { actor: actor("7"), work, fields, body: Bytes::from_static(b"hello"), caller: None }
}

fn call() -> Call {
    call_of(Work::Method { name: "add".to_owned(), query: None }, HeaderMap::new())
}

/// The response to another sidecar.
async fn answer_of(actors: &Actors, lookup: ActorLookup, call: Call) -> Response<Body> {
    match actors.admit_call(lookup, &call).await {
        Ok(()) => actors.answer_call(lookup, call).await,
        Err(refused) => refused,
    }
}

fn scripted(
    respond: impl Fn(&Received) -> Response<Body> + Send + Sync + 'static,
) -> Arc<ScriptedLoopback> {
    Arc::new(ScriptedLoopback::new(move |received| Ok(respond(received))))
}

/// The response to a call that was not begun.
fn unprocessed() -> Response<Body> {
    response(503, &[(UNPROCESSED_FIELD, "1")], "")
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_is_here_is_called_without_a_lookup() {
    let loopback = scripted(|_| response(500, &[], ""));
    let actors = actors(Arc::clone(&loopback));
    let test = TestHost::granted(types(None));
    let app = Arc::new(ScriptedApp::echo());
    run_here(&actors, &test, Arc::clone(&app), Arc::default());
    let answer = actors.invoke(call()).await.unwrap();
    assert_eq!(read(answer).await, (200, "add hello".to_owned()));
    assert!(loopback.received().is_empty());
    assert_eq!(app.turns().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_to_the_replica_that_has_the_actor() {
    let loopback = scripted(|_| response(201, &[("x-own", "1")], "done"));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let work = Work::Method { name: "add/one more".to_owned(), query: Some("n=1".to_owned()) };
    let given = fields(&[("host", "x"), ("content-length", "99"), ("x-mine", "1")]);
    let answer = actors.invoke(call_of(work, given)).await.unwrap();
    assert_eq!(answer.headers()["x-own"], "1");
    assert_eq!(read(answer).await, (201, "done".to_owned()));
    let [received] = &loopback.received()[..] else { panic!("one call") };
    assert_eq!(received.method, Method::PUT);
    assert_eq!(received.path, "/v1.0/actors/Cart/7/method/add/one%20more?n=1");
    assert_eq!(received.field("dapr-app-id"), "cart.default.west");
    assert_eq!(received.field("x-tollway-instance"), "a");
    assert_eq!(received.field("x-tollway-actor"), "host");
    assert_eq!(received.field("x-tollway-call"), "0");
    assert_eq!(received.field("x-mine"), "1");
    assert_eq!((received.field("host"), received.field("content-length")), ("", ""));
    assert_eq!(&received.body[..], b"hello");
}

#[tokio::test(start_paused = true)]
async fn reminders_are_asked_of_the_host_by_their_routes() {
    let loopback = scripted(|_| response(204, &[], ""));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let name = || "a/b".to_owned();
    for (work, method, path) in [
        (Work::PutReminder(name()), Method::PUT, "/a%2Fb"),
        (Work::GetReminder(name()), Method::GET, "/a%2Fb"),
        (Work::DeleteReminder(name()), Method::DELETE, "/a%2Fb"),
        (Work::ListReminders, Method::GET, ""),
        (Work::DeleteReminders, Method::DELETE, ""),
    ] {
        actors.invoke(call_of(work, HeaderMap::new())).await.unwrap();
        let received = loopback.received().pop().unwrap();
        let expected = format!("/v1.0/actors/Cart/7/reminders{path}");
        assert_eq!((received.method, received.path), (method, expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_type_that_no_host_offers_fails_at_once() {
    let actors = actors(scripted(|_| response(200, &[], "")));
    actors.directory.set("Cart", KnownOwners::NotOffered);
    let began = Instant::now();
    let problem = actors.invoke(call()).await.unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorNoAddress);
    assert_eq!(problem.text, "did not find address for actor 'Cart||7'");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a4_a_call_waits_for_a_type_that_the_own_app_has_not_offered_yet() {
    let actors = actors(scripted(|_| response(200, &[], "")));
    actors.directory.set("Cart", KnownOwners::NotOffered);
    actors.types_known.send_replace(false);
    let calling = Arc::clone(&actors);
    let calling = tokio::spawn(async move { calling.invoke(call()).await });
    tokio::time::sleep(PLACED_WITHIN - Duration::from_secs(1)).await;
    assert!(!calling.is_finished());
    actors.directory.set("Cart", owners(Some(host("a"))));
    assert_eq!(read(calling.await.unwrap().unwrap()).await.0, 200);
    // It is bounded, and ends when the types are known.
    actors.directory.set("Cart", KnownOwners::NotOffered);
    let began = Instant::now();
    assert_eq!(actors.invoke(call()).await.unwrap_err().code, ErrorCode::ActorNoAddress);
    let took = began.elapsed();
    assert!(took >= PLACED_WITHIN && took < PLACED_WITHIN + LONGEST_ATTEMPT, "{took:?}");
    actors.types_known.send_replace(true);
    let began = Instant::now();
    assert_eq!(actors.invoke(call()).await.unwrap_err().code, ErrorCode::ActorNoAddress);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a4_in_daprds_place_a_call_waits_for_a_host_that_offers_the_type() {
    let loopback = scripted(|_| response(200, &[], ""));
    let actors = actors_with(loopback, |mut config| {
        config.in_daprds_place = true;
        config
    });
    actors.directory.set("Cart", KnownOwners::NotOffered);
    let began = Instant::now();
    assert_eq!(actors.invoke(call()).await.unwrap_err().code, ErrorCode::ActorNoAddress);
    let took = began.elapsed();
    assert!(took >= OFFERED_WITHIN && took < OFFERED_WITHIN + LONGEST_ATTEMPT, "{took:?}");
    let calling = Arc::clone(&actors);
    let calling = tokio::spawn(async move { calling.invoke(call()).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    actors.directory.set("Cart", owners(Some(host("a"))));
    assert_eq!(read(calling.await.unwrap().unwrap()).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_five_seconds_for_a_control_plane_that_does_not_answer() {
    let actors = actors(scripted(|_| response(200, &[], "")));
    let began = Instant::now();
    let problem = actors.invoke(call()).await.unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorNoPlacement);
    let took = began.elapsed();
    assert!(took >= OWNERS_WITHIN && took < OWNERS_WITHIN + LONGEST_ATTEMPT, "{took:?}");
}

/// More than the longest wait between two attempts.
const LONGEST_ATTEMPT: Duration = Duration::from_millis(150);

#[tokio::test(start_paused = true)]
async fn a_call_that_was_not_begun_is_made_again_where_the_actor_is_by_then() {
    let loopback = scripted(|received| match received.field("x-tollway-instance") {
        "a" => unprocessed(),
        other => response(200, &[], other),
    });
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let calling = Arc::clone(&actors);
    let calling = tokio::spawn(async move { calling.invoke(call()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!calling.is_finished());
    actors.directory.set("Cart", owners(None));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = loopback.received().len();
    let began = Instant::now();
    actors.directory.set("Cart", owners(Some(host("b"))));
    assert_eq!(read(calling.await.unwrap().unwrap()).await.1, "b");
    assert_eq!(began.elapsed(), Duration::ZERO, "a new owner ends the wait");
    assert_eq!(loopback.received().len(), asked + 1);
    let numbers: Vec<_> =
        loopback.received().iter().map(|call| call.field("x-tollway-call").to_owned()).collect();
    let expected: Vec<_> = (0..numbers.len()).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected, "each attempt has a number of its own");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_no_host_takes_fails_after_ten_seconds() {
    let actors = actors(scripted(|_| unprocessed()));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let began = Instant::now();
    let problem = actors.invoke(call()).await.unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorUnplaced);
    assert!(problem.text.ends_with("its host is workload a of cart.default.west"));
    let took = began.elapsed();
    assert!(took >= PLACED_WITHIN && took < PLACED_WITHIN + LONGEST_ATTEMPT, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_even_if_nothing_was_begun() {
    let refused = |_: &Received| response(403, &[(UNPROCESSED_FIELD, "1")], "no");
    let loopback = scripted(refused);
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let answer = actors.invoke(call()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(loopback.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_former_host_is_called_off_a_moment_after_another_has_the_actor() {
    let silent = ErrorCode::Silent.word();
    let loopback =
        scripted(move |_| response(504, &[(ERROR_FIELD, silent), ("x-test-wait", "60000")], ""));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let calling = Arc::clone(&actors);
    let calling = tokio::spawn(async move { calling.invoke(call()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(loopback.called_off().is_empty());
    actors.directory.set("Cart", owners(Some(host("b"))));
    tokio::time::sleep(LATE_ANSWER - Duration::from_millis(1)).await;
    assert!(loopback.called_off().is_empty(), "a late answer is waited for");
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(loopback.called_off(), [0]);
    let problem = calling.await.unwrap().unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorCutOff);
    assert!(problem.text.contains("workload a of cart.default.west has not answered"));
    assert_eq!(loopback.received().len(), 1, "it may have been carried out: it is not repeated");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_right_after_the_actor_has_moved_counts() {
    let loopback = scripted(|_| response(200, &[("x-test-wait", "1050")], "late"));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let calling = Arc::clone(&actors);
    let calling = tokio::spawn(async move { calling.invoke(call()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    actors.directory.set("Cart", owners(Some(host("b"))));
    assert_eq!(read(calling.await.unwrap().unwrap()).await.1, "late");
    assert!(loopback.called_off().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_to_the_data_loop_is_an_error_of_the_call() {
    let broken = |_: &Received| Err(std::io::Error::other("gone"));
    let actors = actors(Arc::new(ScriptedLoopback::new(broken)));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let problem = actors.invoke(call()).await.unwrap_err();
    assert_eq!(problem, Problem::invoke("gone"));
}

#[tokio::test(start_paused = true)]
async fn a_type_of_another_app_is_called_there_without_a_lookup() {
    let loopback = scripted(|received| {
        assert_eq!(received.field("x-tollway-instance"), "");
        response(200, &[], received.field("dapr-app-id"))
    });
    let actors = actors(Arc::clone(&loopback));
    let mut remote = call();
    remote.actor.actor_type = "Cart@stock.shop.east".into();
    let answer = actors.invoke(remote.clone()).await.unwrap();
    assert_eq!(read(answer).await.1, "stock.shop.east");
    let [received] = &loopback.received()[..] else { panic!("one call") };
    assert_eq!(received.path, "/v1.0/actors/Cart/7/method/add");
    assert_eq!(received.field("x-tollway-actor"), "lookup");
    let nowhere = super::super::testing::actors(scripted(|_| unprocessed()));
    let problem = nowhere.invoke(remote).await.unwrap_err();
    assert_eq!(problem.code, ErrorCode::ActorUnplaced);
    assert!(problem.text.contains("of stock.shop.east within 10 s"), "{}", problem.text);
}

#[tokio::test(start_paused = true)]
async fn the_call_of_another_sidecar_is_sent_on_only_if_it_asks_for_that() {
    let loopback = scripted(|_| response(200, &[], "from a"));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("a"))));
    let answer = answer_of(&actors, ActorLookup::Done, call()).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers().contains_key(UNPROCESSED_FIELD));
    assert!(loopback.received().is_empty());
    let test = TestHost::idle(types(None));
    run_here(&actors, &test, Arc::new(ScriptedApp::echo()), Arc::default());
    let answer = answer_of(&actors, ActorLookup::ByCallee, call()).await;
    assert_eq!(read(answer).await.1, "from a");
    assert_eq!(loopback.received()[0].field("x-tollway-actor"), "host");
}

#[tokio::test(start_paused = true)]
async fn the_app_gets_the_callers_fields_but_not_those_of_the_mesh() {
    let actors = actors(scripted(|_| response(500, &[], "")));
    let test = TestHost::granted(types(Some(32)));
    let app = Arc::new(ScriptedApp::echo());
    run_here(&actors, &test, Arc::clone(&app), Arc::new(MemoryReminders::default()));
    let given = fields(&[
        ("x-mine", "1"),
        ("x-tollway-caller", "spiffe://west/web"),
        ("x-tollway-lease", "9"),
        ("dapr-app-id", "other"),
        ("dapr-api-token", "secret"),
        ("te", "trailers"),
        ("connection", "close"),
        ("dapr-reentrancy-id", "chain"),
    ]);
    let work = Work::Method { name: "m".to_owned(), query: Some("a=b".to_owned()) };
    actors.invoke(call_of(work, given)).await.unwrap();
    let turn = app.turns().pop().unwrap();
    let mut names: Vec<_> = turn.fields.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["dapr-reentrancy-id", "x-mine", "x-tollway-caller"]);
    assert_eq!(turn.fields["dapr-reentrancy-id"], "chain");
    let method = TurnKind::Method { name: "m".to_owned(), query: Some("a=b".to_owned()) };
    assert_eq!(turn.what, method);
}

#[tokio::test(start_paused = true)]
async fn rules_about_failures_hold_for_methods_and_not_for_reminders() {
    let loopback = scripted(|_| response(500, &[], "no"));
    let retry = RetryRule {
        pause: Pauses::Constant(Duration::from_secs(1)),
        retries: Some(2),
        http: Vec::new(),
        grpc: Vec::new(),
    };
    let rules = Rules { retry: Some(retry), ..Rules::default() };
    let rules = Resiliency { other_actors: Some(rules), ..Resiliency::default() };
    let actors = actors_with(Arc::clone(&loopback), |mut config| {
        config.resiliency = Some(ResiliencyState::new(Arc::new(rules), None));
        config
    });
    actors.directory.set("Cart", owners(Some(host("a"))));
    let began = Instant::now();
    let answer = actors.invoke(call()).await.unwrap();
    assert_eq!(read(answer).await, (500, "no".to_owned()));
    assert_eq!(loopback.received().len(), 3);
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    let reminder = call_of(Work::GetReminder("n".to_owned()), HeaderMap::new());
    actors.invoke(reminder).await.unwrap();
    assert_eq!(loopback.received().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a15_in_daprds_place_a_call_that_a_rebalance_cuts_off_is_made_again() {
    for (in_daprds_place, made) in [(true, CUT_OFF_REPEATS as usize + 1), (false, 1)] {
        let cut_off = ErrorCode::ActorCutOff.word();
        let loopback = scripted(move |received| match received.field("x-tollway-instance") {
            "a" => response(500, &[(ERROR_FIELD, cut_off)], ""),
            _ => response(200, &[], "b"),
        });
        let actors = actors_with(Arc::clone(&loopback), |mut config| {
            config.in_daprds_place = in_daprds_place;
            config
        });
        // Each time: bounded.
        actors.directory.set("Cart", owners(Some(host("a"))));
        let answer = actors.invoke(call()).await.unwrap();
        assert_eq!(answer.headers()[ERROR_FIELD], cut_off);
        assert_eq!(loopback.received().len(), made);
        // Once, and then at the new host.
        let calling = Arc::clone(&actors);
        let calling = tokio::spawn(async move { calling.invoke(call()).await });
        tokio::task::yield_now().await;
        actors.directory.set("Cart", owners(Some(host("b"))));
        let (status, _) = read(calling.await.unwrap().unwrap()).await;
        assert_eq!(status, if in_daprds_place { 200 } else { 500 });
    }
}

#[tokio::test(start_paused = true)]
async fn a15_another_sidecar_leaves_it_to_the_caller_to_make_a_call_again() {
    let word = ErrorCode::ActorCutOff.word();
    let loopback = scripted(move |_| response(500, &[(ERROR_FIELD, word)], ""));
    let actors = actors_with(Arc::clone(&loopback), |mut config| {
        config.in_daprds_place = true;
        config
    });
    let caller = looked_up(method());
    actors.directory.set("Cart", owners(Some(host("a"))));
    let answer = actors.invoke_near(caller).await.unwrap();
    assert_eq!(
        (answer.headers()[ERROR_FIELD].clone(), loopback.received().len()),
        (HeaderValue::from_static(word), 1)
    );
}

#[test]
fn a_turn_that_did_not_run_is_an_error_unless_the_actor_is_elsewhere() {
    let problem = |why| not_run(why).map(|problem| (problem.code, problem.text));
    for refusal in [Refusal::NotHere, Refusal::Leaving, Refusal::LeaseEnded] {
        assert_eq!(problem(NotRun::No(NoTurn::Elsewhere(refusal))), None);
    }
    let (code, text) = problem(NotRun::No(NoTurn::Crowded { limit: 9 })).unwrap();
    assert_eq!(code, ErrorCode::Overloaded);
    assert!(text.starts_with("9 calls wait"), "{text}");
    let (code, text) = problem(NotRun::No(NoTurn::TooDeep { limit: 3 })).unwrap();
    assert_eq!((code, &*text), (ErrorCode::ActorStackDepth, "maximum stack depth exceeded"));
    assert_eq!(problem(NotRun::CalledOff).unwrap().0, ErrorCode::ActorCutOff);
    let failure = Problem::invoke("broken");
    assert_eq!(not_run(NotRun::Failed(failure.clone())), Some(failure));
}

/// A call of another app, which asks this sidecar to look the actor's host up.
fn looked_up(work: Work) -> Call {
    let spiffe = SpiffeId::parse("spiffe://east.tollway/ns/lowly/evil").unwrap();
    let caller = ActorCaller { spiffe, network: Label::new("east").unwrap() };
    Call { caller: Some(caller), ..call_of(work, HeaderMap::new()) }
}

fn method() -> Work {
    Work::Method { name: "add".to_owned(), query: None }
}

/// The harm: any sidecar calls actors of other apps under its own identity.
#[tokio::test(start_paused = true)]
async fn a_sidecar_looks_up_no_actors_but_those_of_its_own_app() {
    let loopback = scripted(|_| response(200, &[], "done"));
    let actors = actors(Arc::clone(&loopback));
    actors.directory.set("Cart", owners(Some(host("b"))));
    let (status, text) =
        read(answer_of(&actors, ActorLookup::ByCallee, looked_up(method())).await).await;
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("ERR_ACTOR_NO_ADDRESS"), "{text}");
    let test = TestHost::granted(types(None));
    run_here(&actors, &test, Arc::new(ScriptedApp::echo()), Arc::default());
    let mut other = looked_up(method());
    other.actor.actor_type = "Till".into();
    let (_, text) = read(answer_of(&actors, ActorLookup::ByCallee, other).await).await;
    assert!(text.contains("ERR_ACTOR_NO_ADDRESS"), "{text}");
    // No lookup has types followed that a stranger has made up.
    for lookup in [ActorLookup::ByCallee, ActorLookup::Done] {
        for number in 0..20 {
            let mut other = looked_up(method());
            other.actor.actor_type = format!("Till{number}").into();
            assert!(actors.admit_call(lookup, &other).await.is_err());
        }
    }
    for work in [
        Work::PutReminder("r".to_owned()),
        Work::GetReminder("r".to_owned()),
        Work::DeleteReminder("r".to_owned()),
        Work::ListReminders,
        Work::DeleteReminders,
    ] {
        let (status, text) =
            read(answer_of(&actors, ActorLookup::ByCallee, looked_up(work)).await).await;
        assert!(status == 403 && text.contains("ERR_ACTOR_REMINDER_NON_HOSTED"), "{text}");
    }
    assert!(loopback.received().is_empty(), "nothing is passed on");
    assert_eq!(actors.directory.followed(), 1, "Cart alone, which was followed before");
}

/// The harm: a caller has bodies held for actors that this host does not run.
#[tokio::test(start_paused = true)]
async fn a_call_of_a_type_that_is_not_hosted_is_refused_before_its_body_is_read() {
    let actors = actors(scripted(|_| response(200, &[], "done")));
    let (mut other, own) = (looked_up(method()), looked_up(method()));
    other.actor.actor_type = "Till".into();
    let refused = async |call: &Call| {
        let refused = actors.admit_call(ActorLookup::Done, call).await.err()?;
        Some((refused.status().as_u16(), refused.headers().contains_key("x-tollway-unprocessed")))
    };
    assert_eq!(refused(&own).await, Some((503, true)), "it runs none");
    let test = TestHost::granted(types(None));
    run_here(&actors, &test, Arc::new(ScriptedApp::echo()), Arc::default());
    assert_eq!((refused(&other).await, refused(&own).await), (Some((503, true)), None));
}

/// The harm: the app sees a wrong caller, and its policies judge the wrong one.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_passed_on_names_its_caller_and_stays_in_the_own_service() {
    let loopback = scripted(|_| response(200, &[], "done"));
    let actors = actors(Arc::clone(&loopback));
    let test = TestHost::idle(types(None));
    run_here(&actors, &test, Arc::new(ScriptedApp::echo()), Arc::default());
    actors.directory.set("Cart", owners(Some(host("b"))));
    let answer = answer_of(&actors, ActorLookup::ByCallee, looked_up(method())).await;
    assert_eq!(read(answer).await, (200, "done".to_owned()));
    let [received] = &loopback.received()[..] else { panic!("one call") };
    assert_eq!(received.field("x-tollway-caller-of"), "east spiffe://east.tollway/ns/lowly/evil");
    assert_eq!(received.field("x-tollway-actor"), "host");
    let of_other = ActorHost { service: service("till"), instance: Label::new("t-0").unwrap() };
    actors.directory.set("Cart", owners(Some(of_other)));
    let (status, text) =
        read(answer_of(&actors, ActorLookup::ByCallee, looked_up(method())).await).await;
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("is hosted by till.default.west: call type 'Cart@till.default.west'"));
    assert_eq!(loopback.received().len(), 1, "its policies would judge the call as one of cart");
    // The own app calls it as itself.
    assert_eq!(read(actors.invoke(call()).await.unwrap()).await.1, "done");
    let received = loopback.received();
    assert_eq!(received[1].field("x-tollway-caller-of"), "");
}
