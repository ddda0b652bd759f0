//! When an app is a host of actors: by its configuration and its health; and how long turns under
//! way may continue when their actors move.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::app::{Log, check_one_at_a_time, turns, turns_of};
use super::faults::one_of;
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, PATIENCE};

/// Actors with a turn under way.
const BUSY: usize = 16;
/// Longer than turns get to end if the app sets no time.
const LONGER_THAN_A_DRAIN: Duration = Duration::from_millis(2500);

/// Actors in the metadata.
async fn actor_runtime(host: &Replica) -> Value {
    let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
    serde_json::from_str::<Value>(&reported).unwrap()["actorRuntime"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_knows_nothing_of_actors_hosts_none() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let app = Replica::start(&mesh.west, "cart", "one", "", &Log::default()).await;
    let began = Instant::now();
    loop {
        let (status, _, text) = call(app.api(), "GET", "/v1.0/healthz", &[], "").await;
        if status.as_u16() == 204 && app.app.times_asked() > 0 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it is not well, or not asked: {status} {text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reported = actor_runtime(&app).await;
    assert_eq!(
        (&reported["runtimeStatus"], &reported["hostReady"]),
        (&"DISABLED".into(), &false.into())
    );
    for (path, status, code) in [
        ("method/hello", 404, "ERR_ACTOR_NO_ADDRESS"),
        ("reminders/r", 403, "ERR_ACTOR_REMINDER_NON_HOSTED"),
    ] {
        let path = format!("/v1.0/actors/Cart/1/{path}");
        let (got, _, text) = call(app.api(), "POST", &path, &[], "{}").await;
        assert_eq!((got.as_u16(), envelope(&text).0.as_str()), (status, code), "{text}");
    }
    let log = app.sidecar.process.log();
    assert!(!log.contains("of its actors cannot be used"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_ill_app_hosts_no_actors_until_it_is_well() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    // It is ill by its answer, not by the time a busy machine needs.
    let checked = [
        "--enable-app-health-check",
        "--app-health-probe-interval-ms",
        "50",
        "--app-health-probe-timeout-ms",
        "10000",
    ];
    let one = Replica::with(&mesh.west, "cart", "one", CONFIG, &log, &checked).await;
    let two = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let listener = caller.http();
    until_hosted(listener, "Cart/0").await;
    let there = one_of(listener, "one: ").await;
    one_of(listener, "two: ").await;
    one.app.be_ill(true);
    until_turns(&log, &there, "", 1).await;
    let began = Instant::now();
    while actor_runtime(&one).await["runtimeStatus"] != "DISABLED" {
        assert!(began.elapsed() < PATIENCE, "an ill app is still a host");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for id in 0..50 {
        let answer = invoke(listener, &format!("Cart/{id}"), "hello", "").await;
        assert_eq!(answer, (200, "two: ".to_owned()), "Cart/{id}");
    }
    let asked = one.app.times_asked();
    one.app.be_ill(false);
    one_of(two.api(), "one: ").await;
    assert_eq!(one.app.times_asked(), asked + 1, "it is asked anew what it offers");
    check_one_at_a_time(&log);
}

type Calls = Vec<JoinHandle<(u16, String)>>;

/// Turns of actors of a type that end when the test lets the app.
async fn begin_turns(host: &Replica, log: &Log, actor_type: &str) -> Calls {
    let listener = host.api();
    until_hosted(listener, &format!("{actor_type}/0")).await;
    let actors = (0..BUSY).map(|nth| format!("{actor_type}/busy-{nth}")).collect::<Vec<_>>();
    let call = |actor: &String| {
        let actor = actor.clone();
        tokio::spawn(async move { invoke(listener, &actor, "held", "").await })
    };
    let calls = actors.iter().map(call).collect();
    for actor in actors {
        until_turns(log, &actor, "held", 1).await;
    }
    calls
}

/// A second host of the configuration, once actors have moved to it.
async fn another(mesh: &Mesh, log: &Log, config: &str) -> Replica {
    let two = Replica::start(&mesh.west, "cart", "two", config, log).await;
    one_of(two.api(), "two: ").await;
    two
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_that_exceed_the_drain_time_of_the_app_are_called_off() {
    for wish in [r#""drainOngoingCallTimeout":"200ms""#, r#""drainRebalancedActors":false"#] {
        let mesh = tokio::task::block_in_place(Mesh::start);
        let log = Log::default();
        let config = format!(
            r#"{{"entities":["Cart","Shop"],"drainOngoingCallTimeout":"50s",
                "entitiesConfig":[{{"entities":["Cart"],{wish}}}]}}"#
        );
        let one = Replica::start(&mesh.west, "cart", "one", &config, &log).await;
        let calls = begin_turns(&one, &log, "Cart").await;
        let patient = begin_turns(&one, &log, "Shop").await;
        let _two = another(&mesh, &log, &config).await;
        let began = Instant::now();
        while !calls.iter().any(JoinHandle::is_finished) {
            assert!(began.elapsed() < PATIENCE, "no turn is called off");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let is_under_way = |turn: &super::app::Turn| turn.what == "held" && turn.ended.is_none();
        assert_eq!(turns(&log).iter().filter(|turn| is_under_way(turn)).count(), 2 * BUSY);
        one.app.let_go();
        let mut called_off = 0;
        for call in calls {
            let (status, text) = call.await.unwrap();
            if status != 200 {
                let (word, message) = envelope(&text);
                assert_eq!((status, word.as_str()), (500, "ERR_ACTOR_CUT_OFF"), "{text}");
                assert!(message.contains("had to move before the call had ended"), "{message}");
                called_off += 1;
            }
        }
        assert!((1..BUSY).contains(&called_off), "{wish}: {called_off} of {BUSY}");
        for call in patient {
            assert_eq!(call.await.unwrap(), (200, "one".to_owned()), "{wish}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_have_the_drain_time_of_the_app_to_end() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let config = r#"{"entities":["Cart"],"drainOngoingCallTimeout":"50s"}"#;
    let one = Replica::start(&mesh.west, "cart", "one", config, &log).await;
    let calls = begin_turns(&one, &log, "Cart").await;
    let two = another(&mesh, &log, config).await;
    tokio::time::sleep(LONGER_THAN_A_DRAIN).await;
    one.app.let_go();
    for call in calls {
        assert_eq!(call.await.unwrap(), (200, "one".to_owned()));
    }
    two.app.let_go();
    let mut moved = 0;
    for nth in 0..BUSY {
        let actor = format!("Cart/busy-{nth}");
        let (status, text) = invoke(two.api(), &actor, "held", "").await;
        assert_eq!(status, 200, "{text}");
        moved += usize::from(text == "two");
        assert_eq!(turns_of(&log, &actor, "held").len(), 2);
    }
    assert!((1..BUSY).contains(&moved), "{moved} of {BUSY}");
    check_one_at_a_time(&log);
}
