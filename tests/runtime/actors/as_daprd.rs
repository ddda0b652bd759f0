//! Actors in daprd's place: what Dapr 1.18.3 does is what its apps get here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_testkit::free_port;
use tollway_tests::user::User;
use tollway_wire::dapr::proto::runtime::v1::{
    InvokeActorRequest, RegisterActorReminderRequest, RegisterActorTimerRequest,
    UnregisterActorTimerRequest,
};
use tonic::Code;

use super::app::{ActorApp, Log, turns, turns_of};
use super::refusals::client;
use super::timers::until_turns;
use super::{CONFIG, PATIENCE, call, envelope, invoke};
use crate::api::daprd::Daprd;

/// An app that hosts actors beside a daprd.
struct Host {
    daprd: Daprd,
    app: ActorApp,
}

impl Host {
    async fn start(user: &User, id: &str, replica: &str, config: &str, log: &Log) -> Self {
        Self::beside(user, id, ActorApp::serve(replica, config, log).await)
    }

    fn beside(user: &User, id: &str, app: ActorApp) -> Self {
        let port = app.address.port().to_string();
        let start = || Daprd::listening(user, id, &["--app-port", &port]);
        let daprd = tokio::task::block_in_place(start);
        app.beside(daprd.http());
        Self { daprd, app }
    }

    fn api(&self) -> SocketAddr {
        self.daprd.http()
    }

    fn grpc(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.daprd.grpc))
    }

    /// Waits for the answer of the health check, and for nothing more.
    async fn until_healthy(&self) {
        let began = Instant::now();
        while call(self.api(), "GET", "/v1.0/healthz", &[], "").await.0.as_u16() != 204 {
            assert!(began.elapsed() < PATIENCE, "it is not healthy");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The harm: the first call after the health check failed in twelve of twelve starts.
#[tokio::test(flavor = "multi_thread")]
async fn a4_the_first_call_after_the_health_check_succeeds_in_every_start() {
    let user = User::new();
    for start in 0..6 {
        let log = Log::default();
        let config = format!(r#"{{"entities":["Cart{start}"]}}"#);
        let app = ActorApp::serve("one", &config, &log).await;
        app.delay_config(Duration::from_millis(start % 2 * 500));
        let id = format!("cart{start}");
        let host = Host::beside(&user, &id, app);
        host.until_healthy().await;
        let (status, text) = invoke(host.api(), &format!("Cart{start}/1"), "hello", "").await;
        assert_eq!((status, text.as_str()), (200, "one: "), "start {start}");
        let path = format!("/v1.0/invoke/{id}/method/healthz");
        let (status, _, text) = call(host.api(), "GET", &path, &[], "").await;
        assert_eq!(status.as_u16(), 200, "start {start}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_a_call_that_comes_before_the_app_has_offered_its_types_waits() {
    let (user, log) = (User::new(), Log::default());
    let app = ActorApp::serve("one", CONFIG, &log).await;
    app.delay_config(Duration::from_millis(1500));
    let host = Host::beside(&user, "cart", app);
    let began = Instant::now();
    while host.app.times_asked() == 0 {
        assert!(began.elapsed() < PATIENCE, "it is not asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (status, _, text) = call(host.api(), "GET", "/v1.0/healthz", &[], "").await;
    assert_eq!(status.as_u16(), 500);
    assert_eq!(envelope(&text).0, "ERR_HEALTH_NOT_READY");
    let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
    assert!(reported.contains(r#""runtimeStatus":"INITIALIZING""#), "{reported}");
    let timer = "/v1.0/actors/Cart/2/timers/t";
    let (called, timed) = tokio::join!(
        invoke(host.api(), "Cart/1", "hello", ""),
        call(host.api(), "POST", timer, &[], r#"{"dueTime":"0s"}"#),
    );
    assert_eq!(called, (200, "one: ".to_owned()));
    assert_eq!(timed.0.as_u16(), 204, "{}", timed.2);
    until_turns(&log, "Cart/2", "timer/t", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_timer_of_an_actor_that_is_not_active_fires() {
    let (user, log) = (User::new(), Log::default());
    let host = Host::start(&user, "cart", "one", CONFIG, &log).await;
    host.until_healthy().await;
    let timer = "/v1.0/actors/Cart/http/timers/t";
    let body = r#"{"dueTime":"0s","period":"10s","data":"hello","callback":"tick"}"#;
    assert_eq!(call(host.api(), "POST", timer, &[], body).await.0.as_u16(), 204);
    let fired = until_turns(&log, "Cart/http", "timer/t", 1).await;
    let expected = r#"{"data":"hello","callback":"tick","dueTime":"0s","period":"10s"}"#;
    assert_eq!(fired[0].body, expected);
    let mut dapr = client(host.grpc()).await;
    let register = |id: &str, period: &str| RegisterActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: id.to_owned(),
        name: "t".to_owned(),
        due_time: "0s".to_owned(),
        period: period.to_owned(),
        data: b"hello".to_vec(),
        ..RegisterActorTimerRequest::default()
    };
    dapr.register_actor_timer(register("grpc", "100ms")).await.unwrap();
    let fired = until_turns(&log, "Cart/grpc", "timer/t", 2).await;
    let expected = r#"{"data":"aGVsbG8=","callback":"","dueTime":"0s","period":"100ms"}"#;
    assert_eq!(fired[0].body, expected);
    // It ends when it is deleted, or replaced by one that ends.
    let gone = UnregisterActorTimerRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "grpc".to_owned(),
        name: "t".to_owned(),
    };
    dapr.unregister_actor_timer(gone).await.unwrap();
    dapr.register_actor_timer(register("counted", "1h")).await.unwrap();
    dapr.register_actor_timer(register("counted", "R3/PT0.1S")).await.unwrap();
    until_turns(&log, "Cart/counted", "timer/t", 3).await;
    let before = turns_of(&log, "Cart/grpc", "timer/t").len();
    dapr.register_actor_timer(register("last", "")).await.unwrap();
    let due =
        call(host.api(), "POST", "/v1.0/actors/Cart/due/timers/t", &[], r#"{"dueTime":"300ms"}"#);
    assert_eq!(due.await.0.as_u16(), 204);
    until_turns(&log, "Cart/due", "timer/t", 1).await;
    assert!(turns_of(&log, "Cart/grpc", "timer/t").len() <= before + 1);
    // One firing of the timer that was replaced may have begun.
    assert!((3..=4).contains(&turns_of(&log, "Cart/counted", "timer/t").len()));
    assert_eq!(turns_of(&log, "Cart/last", "timer/t").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_firing_that_fails_counts_and_one_at_work_holds_up_its_actor_alone() {
    let (user, log) = (User::new(), Log::default());
    let host = Host::start(&user, "cart", "one", CONFIG, &log).await;
    host.until_healthy().await;
    let put = |path: &'static str, body: &'static str| {
        let path = format!("/v1.0/actors/Cart/{path}");
        let api = host.api();
        async move { assert_eq!(call(api, "POST", &path, &[], body).await.0.as_u16(), 204) }
    };
    put("ill/timers/fail", r#"{"dueTime":"0s","period":"R3/PT0.1S"}"#).await;
    until_turns(&log, "Cart/ill", "timer/fail", 3).await;
    let held = tokio::spawn(invoke_owned(host.api(), "Cart/busy", "held"));
    until_turns(&log, "Cart/busy", "held", 1).await;
    put("busy/timers/t", r#"{"dueTime":"0s"}"#).await;
    put("idle/timers/t", r#"{"dueTime":"0s"}"#).await;
    until_turns(&log, "Cart/idle", "timer/t", 1).await;
    put("late/timers/t", r#"{"dueTime":"1200ms"}"#).await;
    until_turns(&log, "Cart/late", "timer/t", 1).await;
    assert!(turns_of(&log, "Cart/busy", "timer/t").is_empty());
    assert_eq!(turns_of(&log, "Cart/ill", "timer/fail").len(), 3, "no firing is repeated");
    host.app.let_go();
    assert_eq!(held.await.unwrap().0, 200);
    until_turns(&log, "Cart/busy", "timer/t", 1).await;
}

async fn invoke_owned(api: SocketAddr, actor: &'static str, method: &'static str) -> (u16, String) {
    invoke(api, actor, method, "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_timer_fires_at_the_host_of_its_actor_wherever_it_was_set() {
    let (user, log) = (User::new(), Log::default());
    let one = Host::start(&user, "cart", "one", CONFIG, &log).await;
    let two = Host::start(&user, "cart", "two", CONFIG, &log).await;
    one.until_healthy().await;
    two.until_healthy().await;
    let at = |replica: &str| {
        let turns = turns(&log);
        turns.iter().any(|turn| turn.replica == replica && turn.what == "timer/t")
    };
    let began = Instant::now();
    let mut id = 0;
    while !(at("one") && at("two")) {
        let path = format!("/v1.0/actors/Cart/{id}/timers/t");
        let (status, _, text) =
            call(one.api(), "POST", &path, &[], r#"{"dueTime":"0s","period":"1h"}"#).await;
        assert_eq!(status.as_u16(), 204, "{text}");
        until_turns(&log, &format!("Cart/{id}"), "timer/t", 1).await;
        // And it is deleted from anywhere.
        assert_eq!(call(two.api(), "DELETE", &path, &[], "").await.0.as_u16(), 204);
        assert!(began.elapsed() < PATIENCE, "no timer fires at both");
        id += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_refusals_are_in_daprs_words() {
    let (user, log) = (User::new(), Log::default());
    let host = Host::start(&user, "cart", "one", CONFIG, &log).await;
    host.until_healthy().await;
    let not_found = "did not find address for actor 'Nobody||1'";
    let not_found =
        format!("failed to lookup actor: api error: code = FailedPrecondition desc = {not_found}");
    let invoke_failed = format!("error invoke actor method: {not_found}");
    let put =
        call(host.api(), "POST", "/v1.0/actors/Cart/1/reminders/r", &[], r#"{"dueTime":"1h"}"#);
    assert_eq!(put.await.0.as_u16(), 204);
    for (method, path, body, status, code, message) in [
        ("POST", "Nobody/1/method/m", "", 500, "ERR_ACTOR_INVOKE_METHOD", invoke_failed.as_str()),
        (
            "GET",
            "Cart/1/reminders/x",
            "",
            404,
            "ERR_ACTOR_REMINDER_NOT_FOUND",
            "actor reminder not found: x",
        ),
        (
            "POST",
            "Cart/1/reminders/r",
            r#"{"dueTime":"2h","overwrite":false}"#,
            409,
            "ERR_ACTOR_REMINDER_ALREADY_EXISTS",
            "actor reminder already exists: r",
        ),
        (
            "GET",
            "Other/1/reminders/r",
            "",
            403,
            "ERR_ACTOR_REMINDER_NON_HOSTED",
            "operations on actor reminders are only possible on hosted actor types",
        ),
        (
            "POST",
            "Other/1/timers/t",
            "{}",
            500,
            "ERR_ACTOR_TIMER_CREATE",
            "error creating actor timer: can't create timer for actor Other||1: actor type not registered",
        ),
        (
            "POST",
            "Cart/1/state",
            "[]",
            400,
            "ERR_ACTOR_INSTANCE_MISSING",
            "actor instance is missing",
        ),
        (
            "POST",
            "Cart/1/timers/a%3Fb",
            "{}",
            400,
            "ERR_BAD_REQUEST",
            r#"invalid request: name contains forbidden character: "a?b""#,
        ),
    ] {
        let path = format!("/v1.0/actors/{path}");
        let (reported, _, text) = call(host.api(), method, &path, &[], body).await;
        let expected = (code.to_owned(), message.to_owned());
        assert_eq!((reported.as_u16(), envelope(&text)), (status, expected), "{path}");
    }
    let read = call(host.api(), "GET", "/v1.0/actors/Cart/1/reminders/r", &[], "").await;
    assert_eq!(read.2, r#"{"actorID":"1","actorType":"Cart","dueTime":"1h"}"#);
    let nobody = InvokeActorRequest {
        actor_type: "Nobody".to_owned(),
        actor_id: "1".to_owned(),
        method: "m".to_owned(),
        ..InvokeActorRequest::default()
    };
    let status = client(host.grpc()).await.invoke_actor(nobody).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, not_found.as_str()));
}

/// Data as they are sent, and what the app gets of them over HTTP: of a timer, and of a reminder.
const DATA: [(&str, &str, &str); 7] = [
    ("", "", ""),
    ("\"foo\"", "\"data\":\"foo\",", "ImZvbyI="),
    ("{  \"foo\": [ 12, 4 ] }", "\"data\":{\"foo\":[12,4]},", "eyAgImZvbyI6IFsgMTIsIDQgXSB9"),
    ("true", "\"data\":true,", "dHJ1ZQ=="),
    ("null", "\"data\":null,", "bnVsbA=="),
    ("[]", "\"data\":[],", "W10="),
    ("\"<a>&\"", "\"data\":\"\\u003ca\\u003e\\u0026\",", "IjxhPiYi"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a19_what_fires_is_written_as_dapr_writes_it() {
    let (user, log) = (User::new(), Log::default());
    let host = Host::start(&user, "cart", "one", CONFIG, &log).await;
    host.until_healthy().await;
    let mut dapr = client(host.grpc()).await;
    let mut expected = BTreeMap::new();
    for (id, (data, field, base64)) in DATA.into_iter().enumerate() {
        let given = if data.is_empty() { String::new() } else { format!(",\"data\":{data}") };
        let body = format!("{{\"dueTime\":\"0s\",\"period\":\"1000s\"{given}}}");
        for kind in ["timers", "reminders"] {
            let path = format!("/v1.0/actors/Cart/{id}/{kind}/http");
            let (status, _, text) = call(host.api(), "POST", &path, &[], body.clone()).await;
            assert_eq!(status.as_u16(), 204, "{text}");
        }
        let actor = format!("Cart/{id}");
        let terms = r#""dueTime":"0s","period":"1000s""#;
        let of_timer = format!("{{{field}\"callback\":\"\",{terms}}}");
        expected.insert((actor.clone(), "timer/http"), of_timer);
        let of_reminder = format!("{{{field}\"dueTime\":\"\",\"period\":\"\"}}");
        expected.insert((actor.clone(), "remind/http"), of_reminder);
        dapr.register_actor_reminder(RegisterActorReminderRequest {
            actor_type: "Cart".to_owned(),
            actor_id: id.to_string(),
            name: "grpc".to_owned(),
            due_time: "0s".to_owned(),
            ttl: "2000s".to_owned(),
            period: "1000s".to_owned(),
            data: data.as_bytes().to_vec(),
            ..RegisterActorReminderRequest::default()
        })
        .await
        .unwrap();
        let field = if data.is_empty() { String::new() } else { format!("\"data\":\"{base64}\",") };
        let of_grpc = format!("{{{field}\"dueTime\":\"\",\"period\":\"\"}}");
        expected.insert((actor, "remind/grpc"), of_grpc);
    }
    for ((actor, what), body) in expected {
        let fired = until_turns(&log, &actor, what, 1).await;
        assert_eq!(fired[0].body, body, "{actor} {what}");
    }
}

/// The harm: of sixty calls under way, twenty-six failed when a second host came.
#[tokio::test(flavor = "multi_thread")]
async fn a15_calls_that_a_rebalance_cuts_off_are_made_again_at_the_new_host() {
    const CALLS: usize = 30;
    let (user, log) = (User::new(), Log::default());
    let config = r#"{"entities":["Cart"],"drainOngoingCallTimeout":"200ms"}"#;
    let one = Host::start(&user, "cart", "one", config, &log).await;
    one.until_healthy().await;
    let api = one.api();
    let under_way: Vec<_> = (0..CALLS)
        .map(|id| tokio::spawn(async move { invoke(api, &format!("Cart/{id}"), "held", "").await }))
        .collect();
    let began = Instant::now();
    while turns(&log).iter().filter(|turn| turn.what == "held").count() < CALLS {
        assert!(began.elapsed() < PATIENCE, "not all calls are under way");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let two = ActorApp::serve("two", config, &log).await;
    two.let_go();
    let _two = Host::beside(&user, "cart", two);
    while !under_way.iter().any(tokio::task::JoinHandle::is_finished) {
        assert!(began.elapsed() < PATIENCE, "no call ends at the new host");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Those of actors that move are made again; the others go on.
    while turns(&log).iter().filter(|turn| turn.replica == "two" && turn.what == "held").count()
        == 0
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    one.app.let_go();
    let mut ended_at = BTreeMap::new();
    for call in under_way {
        let (status, text) = call.await.unwrap();
        assert_eq!(status, 200, "{text}");
        *ended_at.entry(text).or_insert(0) += 1;
    }
    assert!(ended_at["two"] > 0, "{ended_at:?}");
}

/// The harm: the second app that offers a type, which every app of a namespace may host in Dapr, gets
/// none of its actors; their calls, timers and reminders stay with the first.
#[tokio::test(flavor = "multi_thread")]
async fn apps_in_daprds_place_host_a_type_together() {
    let (user, log) = (User::new(), Log::default());
    let one = Host::start(&user, "cart", "one", CONFIG, &log).await;
    one.until_healthy().await;
    let two = Host::start(&user, "cart-next", "two", CONFIG, &log).await;
    two.until_healthy().await;
    let ran_at = |replica: &str, what: &str| {
        let turns = turns(&log);
        turns.iter().any(|turn| turn.replica == replica && turn.what == what)
    };
    let began = Instant::now();
    let due = r#"{"dueTime":"0s","period":"1h"}"#;
    let kinds = ["hello", "timer/t", "remind/r"];
    let mut id = 0;
    while !["one", "two"].iter().all(|replica| kinds.iter().all(|kind| ran_at(replica, kind))) {
        for host in [&one, &two] {
            let actor = format!("Cart/{id}");
            let (status, text) = invoke(host.api(), &actor, "hello", "").await;
            assert_eq!(status, 200, "{actor}: {text}");
            for (path, what) in [("timers/t", "timer/t"), ("reminders/r", "remind/r")] {
                let path = format!("/v1.0/actors/{actor}/{path}");
                let (status, _, text) = call(host.api(), "POST", &path, &[], due).await;
                assert_eq!(status.as_u16(), 204, "{path}: {text}");
                until_turns(&log, &actor, what, 1).await;
            }
            id += 1;
        }
        assert!(began.elapsed() < PATIENCE, "all actors are at one of them: {:?}", turns(&log));
    }
    for host in [&one, &two] {
        let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
        assert!(!reported.contains("refusedTypes"), "{reported}");
    }
}

/// The harm: a process of the user that is not in daprd's place, and shares nothing, loses its actors to
/// one that is.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_in_daprds_place_hosts_no_type_of_one_that_is_not() {
    let (user, log) = (User::new(), Log::default());
    let port = free_port().unwrap();
    // The port is free until the app starts.
    let started = user.path("started");
    let script = format!("touch '{}'; exec sleep 3600", started.display());
    let run = || user.run(&["--app-id", "cart", "--app-port", &port.to_string()], &script);
    let _run = tokio::task::block_in_place(run);
    let began = Instant::now();
    while !started.exists() {
        assert!(began.elapsed() < PATIENCE, "it does not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let own = ActorApp::serve_at(port, "own", CONFIG, &log).await;
    while own.times_asked() == 0 {
        assert!(began.elapsed() < PATIENCE, "it is not asked");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let intruder = Host::start(&user, "intruder", "two", CONFIG, &log).await;
    let began = Instant::now();
    loop {
        let (_, _, reported) = call(intruder.api(), "GET", "/v1.0/metadata", &[], "").await;
        if reported.contains("ERR_ACTOR_TYPE_TAKEN") {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{reported}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for id in 0..20 {
        let (status, text) = invoke(intruder.api(), &format!("Cart/{id}"), "hello", "").await;
        assert_eq!((status, text.as_str()), (200, "own: "), "it calls them as any app does");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a18_a_message_or_a_body_above_the_limit_is_refused_as_by_daprd() {
    let (user, log) = (User::new(), Log::default());
    let app = ActorApp::serve("one", CONFIG, &log).await;
    let port = app.address.port().to_string();
    let flags = ["--app-port", &port, "--max-body-size", "1k"];
    let start = || Daprd::listening(&user, "cart", &flags);
    let daprd = tokio::task::block_in_place(start);
    app.beside(daprd.http());
    let host = Host { daprd, app };
    host.until_healthy().await;
    let mut dapr = client(host.grpc()).await;
    let request = |bytes: usize| InvokeActorRequest {
        actor_type: "Cart".to_owned(),
        actor_id: "1".to_owned(),
        method: "hello".to_owned(),
        data: vec![b'x'; bytes],
        ..InvokeActorRequest::default()
    };
    dapr.invoke_actor(request(500)).await.unwrap();
    let refused = dapr.invoke_actor(request(2048)).await.unwrap_err();
    let length = prost::Message::encoded_len(&request(2048));
    let expected = format!("grpc: received message larger than max ({length} vs. 1000)");
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, expected.as_str()));
    let post = |path: &'static str, bytes: usize| {
        let api = host.api();
        async move { call(api, "POST", path, &[], "x".repeat(bytes)).await }
    };
    assert_eq!(post("/v1.0/actors/Cart/1/method/hello", 1000).await.0.as_u16(), 200);
    for (path, code, text) in [
        (
            "/v1.0/actors/Cart/1/method/hello",
            "ERR_BAD_REQUEST",
            "invalid request: failed to read body: stream too large",
        ),
        (
            "/v1.0/actors/Cart/1/timers/t",
            "ERR_MALFORMED_REQUEST",
            "failed deserializing HTTP body: stream too large",
        ),
    ] {
        let (status, _, answer) = post(path, 1001).await;
        let envelope = envelope(&answer);
        assert_eq!((status.as_u16(), envelope.0.as_str()), (400, code), "{path}");
        assert_eq!(envelope.1, text, "{path}");
    }
    // What the app answers has the limit of every app.
    let (status, text) = invoke(host.api(), "Cart/1", "large", "").await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(turns_of(&log, "Cart/1", "hello").len(), 2, "it has seen nothing of the others");
}
