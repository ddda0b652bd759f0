//! The state of actors: the right to use it, and its errors.

use super::app::Log;
use super::{CONFIG, Replica, call, envelope, invoke, until_hosted};
use tollway_tests::mesh::Mesh;

#[tokio::test(flavor = "multi_thread")]
async fn state_is_kept_from_turn_to_turn() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let _host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let listener = caller.http();
    until_hosted(listener, "Cart/1").await;
    let api = |what: &'static str| async move { invoke(listener, "Cart/1", "api", what).await };
    assert_eq!(api("GET /state/items ").await, (200, "204 No Content ".to_owned()));
    let save = r#"POST /state [
        {"operation":"upsert","request":{"key":"items","value":{"n":[1,2]}}},
        {"operation":"upsert","request":{"key":"late","value":1,"metadata":{"ttlInSeconds":"100"}}},
        {"operation":"delete","request":{"key":"nothing"}}]"#;
    assert_eq!(api(save).await, (200, "204 No Content ".to_owned()));
    assert_eq!(api("GET /state/items ").await, (200, r#"200 OK {"n":[1,2]}"#.to_owned()));
    assert_eq!(api("GET /state/late ").await.1, "200 OK 1");
    // Another actor has another state.
    let other = invoke(listener, "Cart/2", "api", "GET /state/items ").await;
    assert_eq!(other.1, "204 No Content ");
    let wrong = r#"POST /state [{"operation":"increment","request":{"key":"items"}}]"#;
    let (_, reported) = api(wrong).await;
    assert!(
        reported.starts_with("400 ") && reported.contains("ERR_MALFORMED_REQUEST"),
        "{reported}"
    );
    assert!(api("POST /state {}").await.1.contains("ERR_MALFORMED_REQUEST"));
}

/// The harm: an app, or who chooses the ids of its actors, writes what fences the state of every actor, so
/// that no host may write any more.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_look_like_the_fence_of_actors_stop_no_actor() {
    // As many as there are shards.
    const SHARDS: usize = 1024;
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let listener = host.api();
    until_hosted(listener, "Cart/anna").await;
    let api = async |actor: &str, what: String| invoke(listener, actor, "api", &what).await.1;
    let save = |key: &str, value: u64| {
        format!(r#"{{"operation":"upsert","request":{{"key":"{key}","value":{value}}}}}"#)
    };
    let count = async |actor: &str, value: u64| {
        let saved = api(actor, format!("POST /state [{}]", save("count", value))).await;
        assert_eq!(saved, "204 No Content ", "{actor}");
        assert_eq!(api(actor, "GET /state/count ".to_owned()).await, format!("200 OK {value}"));
    };
    count("Cart/anna", 1).await;
    // Larger than every epoch.
    const MOST: u64 = (1 << 53) - 1;
    let shards: Vec<usize> = (0..SHARDS).collect();
    for id in ["%7C%7Ctollway-fence", "tollway-fence"] {
        for shards in shards.chunks(500) {
            let saves: Vec<String> = shards.iter().map(|at| save(&at.to_string(), MOST)).collect();
            let what = format!("POST /state [{}]", saves.join(","));
            assert_eq!(api(&format!("Cart/{id}"), what).await, "204 No Content ");
        }
    }
    // The same by the state API, which takes no such keys.
    for at in [0, SHARDS - 1] {
        let body = format!(r#"[{{"key":"Cart||||tollway-fence||{at}","value":{MOST}}}]"#);
        let (status, _, text) = call(listener, "POST", "/v1.0/state/statestore", &[], body).await;
        assert!(status == 400 && text.contains("can't contain '||'"), "{status} {text}");
    }
    for actor in ["Cart/anna", "Cart/bob", "Cart/carol"] {
        count(actor, 2).await;
    }
    // Another host writes under a later epoch.
    drop(host);
    let next = Replica::start(&mesh.west, "cart", "two", CONFIG, &log).await;
    until_hosted(next.api(), "Cart/anna").await;
    let kept = invoke(next.api(), "Cart/anna", "api", "GET /state/count ").await.1;
    assert_eq!(kept, "200 OK 2");
    let what = format!("POST /state [{}]", save("count", 3));
    assert_eq!(invoke(next.api(), "Cart/anna", "api", &what).await.1, "204 No Content ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_state_is_written_at_the_host_of_an_active_actor_and_read_anywhere() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let host = Replica::start(&mesh.west, "cart", "one", CONFIG, &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/1").await;
    let path = "/v1.0/actors/Cart/1/state";
    for (listener, path) in [(caller.http(), path), (host.api(), "/v1.0/actors/Cart/9/state")] {
        let (status, _, text) = call(listener, "POST", path, &[], "[]").await;
        let (word, message) = envelope(&text);
        assert_eq!((status.as_u16(), word.as_str()), (400, "ERR_ACTOR_INSTANCE_MISSING"), "{text}");
        assert_eq!(message, "actor instance is missing");
        let (status, _, text) = call(listener, "GET", &format!("{path}/k"), &[], "").await;
        assert_eq!((status.as_u16(), text.as_str()), (204, ""));
    }
    let (status, _, _) = call(host.api(), "GET", "/v1.0/actors/Cart/1/state/k", &[], "").await;
    assert_eq!(status.as_u16(), 204);
}
