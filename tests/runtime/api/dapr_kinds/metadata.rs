//! A11: the metadata.

use std::collections::HashMap;

use serde_json::{Value, json};
use tollway_testkit::retry_until;
use tollway_tests::component_files::component;
use tollway_tests::scripted_app::{App, Reply, Then};
use tollway_tests::user::{PATIENCE, User};

use super::ask;
use crate::api::daprd::{Daprd, file};

fn metadata(daprd: &Daprd) -> Value {
    ask(daprd.http(), "GET", "/v1.0/metadata", &[]).json()
}

/// Waits until the actors are shown so.
#[track_caller]
fn until_actors(daprd: &Daprd, shown: &Value) {
    let found = retry_until(PATIENCE, "actors", || {
        (&metadata(daprd)["actorRuntime"] == shown).then_some(())
    });
    assert!(found.is_ok(), "{} and not {shown}", metadata(daprd)["actorRuntime"]);
}

fn reply(body: &str) -> Reply {
    let bytes = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    Reply { bytes: bytes.into_bytes(), then: Then::GoOn }
}

#[test]
fn a11_actors_are_shown_as_daprd_shows_them() {
    let user = User::new();
    let placed = ["--placement-host-address", "localhost:50005"];
    let alone = Daprd::listening(&user, "alone", &placed);
    let running = json!({
        "runtimeStatus": "RUNNING", "hostReady": true, "placement": "placement: connected",
    });
    until_actors(&alone, &running);
    let unplaced = Daprd::listening(&user, "unplaced", &["--placement-host-address", ""]);
    until_actors(
        &unplaced,
        &json!({
            "runtimeStatus": "DISABLED", "hostReady": false, "placement": "placement: disconnected",
        }),
    );
    // What the app has is not known before it has answered.
    let silent = Reply { bytes: Vec::new(), then: Then::Hang };
    let silent = App::start(HashMap::from([("/dapr/config", silent)]));
    let port = silent.port();
    let flags = [&placed[..], &["--app-port", &port]].concat();
    let waiting = Daprd::listening(&user, "waiting", &flags);
    retry_until(PATIENCE, "the question", || silent.was_sent("GET /dapr/config").then_some(()))
        .unwrap();
    until_actors(&waiting, &json!({ "runtimeStatus": "INITIALIZING", "hostReady": false }));
    let host = App::start(HashMap::from([("/dapr/config", reply(r#"{"entities":["Cart"]}"#))]));
    let port = host.port();
    let flags = [&placed[..], &["--app-port", &port]].concat();
    let hosting = Daprd::listening(&user, "hosting", &flags);
    let mut hosts = running.clone();
    hosts["activeActors"] = json!([{ "type": "Cart", "count": 0 }]);
    until_actors(&hosting, &hosts);
    let guest = App::start(HashMap::from([("/dapr/config", reply(r#"{"entities":[]}"#))]));
    let port = guest.port();
    let flags = [&placed[..], &["--app-port", &port]].concat();
    until_actors(&Daprd::listening(&user, "guest", &flags), &running);
}

#[test]
fn a11_versions_and_capabilities_are_shown_as_daprd_shows_them() {
    let user = User::new();
    file(&user, "stores/a.yaml", &component("plain", "state.in-memory", &[]));
    let path = user.path("state.db").display().to_string();
    let kept = component("kept", "state.sqlite", &[("connectionString", path.as_str())]);
    let folder = file(&user, "stores/b.yaml", &kept);
    let folder = std::path::Path::new(&folder).parent().unwrap().to_str().unwrap();
    let daprd = Daprd::listening(&user, "web", &["--resources-path", folder]);
    let shown = metadata(&daprd);
    assert_eq!(shown["extended"]["daprRuntimeVersion"], shown["runtimeVersion"]);
    let in_memory = ["ETAG", "TRANSACTIONAL", "TTL", "DELETE_WITH_PREFIX", "KEYS_LIKE", "ACTOR"];
    assert_eq!(shown["components"][1]["capabilities"], json!(in_memory));
    let usual = ["ETAG", "TRANSACTIONAL", "TTL", "KEYS_LIKE", "ACTOR"];
    assert_eq!(shown["components"][0]["capabilities"], json!(usual));
    for empty in ["actors", "subscriptions", "httpEndpoints", "enabledFeatures"] {
        assert!(shown.get(empty).is_none(), "{shown}");
    }
}
