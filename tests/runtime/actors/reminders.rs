//! Reminders of actors: durable, readable, fired wherever the actor is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::app::{Log, turns, turns_of};
use super::timers::until_turns;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::Mesh;

const BELL: &str = "/v1.0/actors/Cart/1/reminders/bell";

#[tokio::test(flavor = "multi_thread")]
async fn reminders_are_registered_read_and_deleted() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let one = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let two = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(two.api(), "Cart/1").await;
    // From whichever host of the type, wherever the actor is.
    for (registers, asks) in [(&one, &two), (&two, &one)] {
        let body = r#"{"dueTime":"1h","period":"R5/PT2H","ttl":"100h","data":{"a":[1,"b"]}}"#;
        let (status, _, text) = call(registers.api(), "POST", BELL, &[], body).await;
        assert_eq!(status.as_u16(), 204, "{text}");
        let (status, fields, text) = call(asks.api(), "GET", BELL, &[], "").await;
        assert_eq!(
            (status.as_u16(), fields["content-type"].as_bytes()),
            (200, &b"application/json"[..])
        );
        let reported: Value = serde_json::from_str(&text).unwrap();
        let expected = r#"{"actorID":"1","actorType":"Cart","dueTime":"1h","period":"@every 2h0m0s","data":{"a":[1,"b"]}}"#;
        assert_eq!(reported, serde_json::from_str::<Value>(expected).unwrap());
        let again = r#"{"dueTime":"2h","overwrite":false}"#;
        let (status, _, text) = call(asks.api(), "PUT", BELL, &[], again).await;
        assert_eq!(
            (status.as_u16(), envelope(&text).0.as_str()),
            (409, "ERR_ACTOR_REMINDER_ALREADY_EXISTS")
        );
        for _ in 0..2 {
            let (status, _, text) = call(asks.api(), "DELETE", BELL, &[], "").await;
            assert_eq!(status.as_u16(), 204, "{text}");
        }
        let (status, _, text) = call(registers.api(), "GET", BELL, &[], "").await;
        assert_eq!(
            (status.as_u16(), envelope(&text).0.as_str()),
            (404, "ERR_ACTOR_REMINDER_NOT_FOUND")
        );
    }
    let (status, _, text) = call(caller.http(), "POST", BELL, &[], "{}").await;
    assert_eq!(
        (status.as_u16(), envelope(&text).0.as_str()),
        (403, "ERR_ACTOR_REMINDER_NON_HOSTED")
    );
    for (body, code) in
        [("{", "ERR_MALFORMED_REQUEST"), (r#"{"dueTime":"soon"}"#, "ERR_ACTOR_REMINDER_CREATE")]
    {
        let (_, _, text) = call(one.api(), "POST", BELL, &[], body).await;
        assert_eq!(envelope(&text).0, code, "{text}");
    }
}

/// Waits until a reminder of `Cart/1` that is due in `due_ms` has fired: one that was to fire by then
/// has fired before.
async fn until_reminder_due(host: SocketAddr, log: &Log, due_ms: u32) {
    let name = format!("due-{due_ms}-{}", turns(log).len());
    let path = format!("/v1.0/actors/Cart/1/reminders/{name}");
    let body = format!(r#"{{"dueTime":"{due_ms}ms"}}"#);
    assert_eq!(call(host, "POST", &path, &[], body).await.0.as_u16(), 204);
    until_turns(log, "Cart/1", &format!("remind/{name}"), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reminders_fire_until_they_are_over_or_the_app_ends_them() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let listener = host.api();
    until_hosted(listener, "Cart/1").await;
    let began = Instant::now();
    let body = r#"{"dueTime":"300ms","period":"R3/PT0.2S","data":"ding"}"#;
    assert_eq!(call(listener, "POST", BELL, &[], body).await.0.as_u16(), 204);
    let rung = until_turns(&log, "Cart/1", "remind/bell", 3).await;
    assert!(rung[0].began - began >= Duration::from_millis(300), "never early");
    assert!(rung[2].began - began >= Duration::from_millis(700), "never early");
    let reported: Value = serde_json::from_str(&rung[0].body).unwrap();
    let expected = r#"{"data":"ding","dueTime":"","period":""}"#;
    assert_eq!(reported, serde_json::from_str::<Value>(expected).unwrap());
    until_reminder_due(listener, &log, 600).await;
    assert_eq!(turns_of(&log, "Cart/1", "remind/bell").len(), 3);
    assert_eq!(call(listener, "GET", BELL, &[], "").await.0.as_u16(), 404, "it is over");
    // A failed firing is repeated, as the registration sets.
    let path = "/v1.0/actors/Cart/1/reminders/fail";
    let body =
        r#"{"dueTime":"0s","failurePolicy":{"constant":{"interval":"100ms","maxRetries":2}}}"#;
    assert_eq!(call(listener, "POST", path, &[], body).await.0.as_u16(), 204);
    until_turns(&log, "Cart/1", "remind/fail", 3).await;
    until_reminder_due(listener, &log, 400).await;
    assert_eq!(turns_of(&log, "Cart/1", "remind/fail").len(), 3);
    let path = "/v1.0/actors/Cart/1/reminders/enough";
    assert_eq!(call(listener, "POST", path, &[], r#"{"period":"100ms"}"#).await.0.as_u16(), 204);
    until_turns(&log, "Cart/1", "remind/enough", 1).await;
    until_reminder_due(listener, &log, 400).await;
    assert_eq!(turns_of(&log, "Cart/1", "remind/enough").len(), 1, "the app has ended it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reminders_outlive_hosts_and_the_control_plane() {
    const ACTORS: usize = 40;
    let mut mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let mut one = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(one.api(), "Cart/0").await;
    for id in 0..ACTORS {
        let path = format!("/v1.0/actors/Cart/{id}/reminders/bell");
        let body = r#"{"dueTime":"100ms","period":"500ms"}"#;
        assert_eq!(call(one.api(), "POST", &path, &[], body).await.0.as_u16(), 204);
    }
    until_turns(&log, "Cart/0", "remind/bell", 1).await;
    tokio::task::block_in_place(|| one.sidecar.process.kill().unwrap());
    tokio::task::block_in_place(|| {
        mesh.west.control.kill().unwrap();
        mesh.west.restart_control();
    });
    let _two = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    let began = Instant::now();
    for id in 0..ACTORS {
        let actor = format!("Cart/{id}");
        loop {
            let rung = turns(&log).iter().any(|turn| {
                turn.actor == actor && turn.what == "remind/bell" && turn.replica == "two"
            });
            if rung {
                break;
            }
            assert!(began.elapsed() < super::PATIENCE, "{actor} is not reminded any more");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let (status, text) = invoke(_two.api(), "Cart/0", "hello", "").await;
    assert_eq!((status, text.as_str()), (200, "two: "));
}
