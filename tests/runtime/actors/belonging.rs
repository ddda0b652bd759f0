//! To which app an actor type belongs, as apps, their logs and the operator see it.

use serde_json::Value;

use super::app::{Log, turns, turns_of};
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, Network, PATIENCE};

/// What the metadata of a sidecar have about actors, once `is_it` is true of that.
async fn until_actor_runtime(host: &Replica, is_it: impl Fn(&Value) -> bool) -> Value {
    let began = std::time::Instant::now();
    loop {
        let (_, _, reported) = call(host.api(), "GET", "/v1.0/metadata", &[], "").await;
        let reported = serde_json::from_str::<Value>(&reported).unwrap()["actorRuntime"].clone();
        if is_it(&reported) {
            return reported;
        }
        assert!(began.elapsed() < PATIENCE, "{reported}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn command(network: &Network, arguments: &[&str]) -> String {
    tokio::task::block_in_place(|| network.done(arguments, ""))
}

/// The harm: an app of the namespace offers a type of another app, and gets its calls, its state and its
/// reminders.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_app_that_offers_the_type_of_another_gets_neither_its_calls_nor_its_reminders() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let (log, of_intruder) = (Log::default(), Log::default());
    let cart = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(cart.api(), "Cart/0").await;
    for id in 0..40 {
        let path = format!("/v1.0/actors/Cart/u{id}/reminders/pay");
        let (status, _, text) = call(cart.api(), "POST", &path, &[], r#"{"dueTime":"1h"}"#).await;
        assert_eq!(status.as_u16(), 204, "{text}");
    }
    let both = r#"{"entities":["Cart","Own"]}"#;
    let intruder = Replica::start(&mesh.west, "intruder", "two", both, &of_intruder).await;
    until_hosted(intruder.api(), "Own/1").await;
    // Its own API and log name the reason; its own type is hosted.
    let runtime = until_actor_runtime(&intruder, |it| it["refusedTypes"].is_array());
    let runtime = runtime.await;
    let refused = &runtime["refusedTypes"][0];
    assert_eq!(
        (&refused["type"], &refused["errorCode"]),
        (&"Cart".into(), &"ERR_ACTOR_TYPE_TAKEN".into())
    );
    assert_eq!(runtime["activeActors"].as_array().unwrap().len(), 1, "{runtime}");
    let told = intruder.sidecar.process.log();
    assert!(
        told.contains("belongs to the app cart") && told.contains("ERR_ACTOR_TYPE_TAKEN"),
        "{told}"
    );
    for method in ["GET", "POST", "DELETE"] {
        let path = "/v1.0/actors/Cart/u1/reminders/pay";
        let (status, _, text) = call(intruder.api(), method, path, &[], "{}").await;
        let code = envelope(&text).0;
        assert_eq!((status.as_u16(), code.as_str()), (403, "ERR_ACTOR_TYPE_TAKEN"), "{text}");
    }
    // Calls, from the intruder too, reach the app that the type belongs to.
    for id in 0..40 {
        let (status, text) = invoke(intruder.api(), &format!("Cart/u{id}"), "Add", "x").await;
        assert_eq!((status, text.as_str()), (200, "one: x"));
    }
    assert!(turns(&of_intruder).iter().all(|turn| turn.actor.starts_with("Own/")));
    let listed: Value =
        serde_json::from_str(&command(&mesh.west, &["actors", "list", "--json"])).unwrap();
    let of_cart = &listed["types"][0];
    assert_eq!(of_cart["apps"], serde_json::json!(["cart"]), "{listed}");
    assert_eq!(of_cart["refused"], serde_json::json!(["intruder"]), "{listed}");
    let table = command(&mesh.west, &["actors", "list", "-n", "default"]);
    assert!(
        table.lines().any(|line| line.starts_with("default/Cart ") && line.ends_with(" intruder")),
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_operator_moves_a_type_to_another_app_while_both_run() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let cart = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    until_hosted(cart.api(), "Cart/0").await;
    let next = Replica::start(&mesh.west, "next", "two", CONFIG, &log).await;
    until_actor_runtime(&next, |it| it["refusedTypes"].is_array()).await;
    let said = command(&mesh.west, &["actors", "allow", "Cart", "next"]);
    assert_eq!(said.trim(), "default/Cart is for next");
    let began = std::time::Instant::now();
    while turns_of(&log, "Cart/7", "hello").iter().all(|turn| turn.replica != "two") {
        assert!(began.elapsed() < PATIENCE, "{:?}", turns(&log));
        invoke(cart.api(), "Cart/7", "hello", "").await;
    }
    until_actor_runtime(&next, |it| it["refusedTypes"].is_null()).await;
    until_actor_runtime(&cart, |it| it["refusedTypes"][0]["type"] == "Cart").await;
    super::app::check_around_a_lost_lease(&log, "one");
    // Both again; without hosts it can be released.
    command(&mesh.west, &["actors", "allow", "default/Cart", "cart", "next"]);
    until_actor_runtime(&cart, |it| it["refusedTypes"].is_null()).await;
    let refused =
        tokio::task::block_in_place(|| mesh.west.command(&["actors", "release", "Cart"], ""));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("default/Cart has hosts"), "{text}");
}
