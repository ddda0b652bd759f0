//! Timers of actors: when they fire, what the app gets, when they end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::app::{Log, Turn, turns_of};
use super::{CONFIG, Replica, call, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, PATIENCE};

/// Waits until an actor has had so many turns of a kind.
pub(crate) async fn until_turns(log: &Log, actor: &str, what: &str, count: usize) -> Vec<Turn> {
    let began = Instant::now();
    loop {
        let turns = turns_of(log, actor, what);
        if turns.len() >= count {
            return turns;
        }
        assert!(began.elapsed() < PATIENCE, "{actor} {what}: {} of {count}", turns.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a timer of the actor that is due in `due_ms` has fired: one that was to fire by then
/// has fired before.
pub(crate) async fn until_timer_due(host: SocketAddr, log: &Log, actor: &str, due_ms: u32) {
    let timer = format!(r#"POST /timers/due-{due_ms} {{"dueTime":"{due_ms}ms"}}"#);
    assert_eq!(invoke(host, actor, "api", &timer).await.1, "204 No Content ");
    until_turns(log, actor, &format!("timer/due-{due_ms}"), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timers_fire_as_turns_until_they_are_over() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let _host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let listener = caller.http();
    until_hosted(listener, "Cart/1").await;
    let began = Instant::now();
    let timer = r#"POST /timers/clock {"dueTime":"200ms","period":"R3/PT0.1S","callback":"onTick","data":{"n":[1]}}"#;
    assert_eq!(invoke(listener, "Cart/1", "api", timer).await.1, "204 No Content ");
    let ticks = until_turns(&log, "Cart/1", "timer/clock", 3).await;
    assert!(ticks[0].began - began >= Duration::from_millis(200), "never early");
    assert!(ticks[2].began - began >= Duration::from_millis(400), "never early");
    let reported: Value = serde_json::from_str(&ticks[0].body).unwrap();
    let expected =
        r#"{"callback":"onTick","data":{"n":[1]},"dueTime":"200ms","period":"R3/PT0.1S"}"#;
    assert_eq!(reported, serde_json::from_str::<Value>(expected).unwrap());
    until_timer_due(listener, &log, "Cart/1", 400).await;
    assert_eq!(turns_of(&log, "Cart/1", "timer/clock").len(), 3);
    // One that is deleted fires no more; one that is not there is as good.
    let timer = r#"POST /timers/a%20b {"dueTime":"0s","period":"50ms"}"#;
    assert_eq!(invoke(listener, "Cart/1", "api", timer).await.1, "204 No Content ");
    until_turns(&log, "Cart/1", "timer/a%20b", 2).await;
    for _ in 0..2 {
        let gone = invoke(listener, "Cart/1", "api", "DELETE /timers/a%20b ").await.1;
        assert_eq!(gone, "204 No Content ");
    }
    let count = turns_of(&log, "Cart/1", "timer/a%20b").len();
    until_timer_due(listener, &log, "Cart/1", 300).await;
    assert!(turns_of(&log, "Cart/1", "timer/a%20b").len() <= count + 1);
    let wrong = invoke(listener, "Cart/1", "api", r#"POST /timers/t {"dueTime":"soon"}"#).await.1;
    assert!(wrong.starts_with("500 ") && wrong.contains("ERR_ACTOR_TIMER_CREATE"), "{wrong}");
    assert!(wrong.contains("due time") && wrong.contains("soon"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_actor_is_let_go_and_its_timers_with_it() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let config = r#"{"entities":["Cart"],"actorIdleTimeout":"500ms"}"#;
    let host = Replica::start(&mesh.west, "cart", "one", config, &log).await;
    until_hosted(host.api(), "Cart/1").await;
    let timer = r#"POST /timers/late {"dueTime":"1h"}"#;
    assert_eq!(invoke(host.api(), "Cart/1", "api", timer).await.1, "204 No Content ");
    let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
    assert!(reported.contains(r#"{"count":1,"type":"Cart"}"#), "{reported}");
    until_turns(&log, "Cart/1", "", 1).await;
    let began = Instant::now();
    loop {
        let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
        if reported.contains(r#"{"count":0,"type":"Cart"}"#) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{reported}");
    }
}
