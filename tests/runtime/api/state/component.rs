//! Component files: what a sidecar makes of them.

use serde_json::{Value, json};
use tollway_testkit::{RedisServer, TempDir, need_tool};

use super::{component, in_memory, refused, resources, sidecar};
use crate::api::call;
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{Mesh, tollway_try};

#[test]
fn metadata_list_the_components() {
    let mesh = Mesh::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("state.db").display().to_string();
    let metadata = [("connectionString", file.as_str()), ("actorStateStore", "true")];
    let both = [
        component("b-store", "state.sqlite", &metadata),
        component("a-store", "state.in-memory", &[]),
        component("others", "state.in-memory", &[]) + "scopes: [somebody-else]\n",
        component("bus", "pubsub.redis", &[("redisHost", "nowhere:1")]),
    ];
    let sidecar = sidecar(&mesh, &resources(&both));
    runtime().block_on(async {
        let (_, _, body) = call(sidecar.http(), "GET", "/v1.0/metadata", &[], "").await;
        let reported: Value = serde_json::from_str(&body).unwrap();
        // Each could be the store of actors.
        let in_memory =
            ["ETAG", "TRANSACTIONAL", "TTL", "DELETE_WITH_PREFIX", "KEYS_LIKE", "ACTOR"];
        let usual = ["ETAG", "TRANSACTIONAL", "TTL", "KEYS_LIKE", "ACTOR"];
        let expected = json!([
            {"name": "a-store", "type": "state.in-memory", "version": "v1", "capabilities": in_memory},
            {"name": "b-store", "type": "state.sqlite", "version": "v1", "capabilities": usual},
        ]);
        assert_eq!(reported["components"], expected);
        let mut client = crate::api::client(sidecar.grpc()).await;
        let request = tollway_wire::dapr::proto::runtime::v1::GetMetadataRequest {};
        let reported = client.get_metadata(request).await.unwrap().into_inner();
        let reported = &reported.registered_components[1];
        assert_eq!((reported.name.as_str(), reported.r#type.as_str()), ("b-store", "state.sqlite"));
        assert_eq!(reported.capabilities, usual);
        let others = "/v1.0/state/others/k";
        assert_eq!(refused(sidecar.http(), "GET", others, &[], "").await.0, 400);
    });
    assert!(sidecar.process.log().contains("Component `bus` of type pubsub.redis is not served"));
}

#[test]
fn keys_have_the_prefix_of_their_component() {
    let mesh = Mesh::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("state.db").display().to_string();
    let store = |name: &str, prefix: &str| {
        let metadata = [("connectionString", file.as_str()), ("keyPrefix", prefix)];
        component(name, "state.sqlite", &metadata)
    };
    let stores = [
        store("by-app", "appid"),
        store("by-name", "name"),
        store("by-namespace", "namespace"),
        store("bare", "none"),
        store("by-word", "shared"),
    ];
    let sidecar = sidecar(&mesh, &resources(&stores));
    runtime().block_on(async {
        for name in ["by-app", "by-name", "by-namespace", "bare", "by-word"] {
            let path = format!("/v1.0/state/{name}");
            let body = format!(r#"[{{"key":"k","value":"{name}"}}]"#);
            assert_eq!(call(sidecar.http(), "POST", &path, &[], body).await.0.as_u16(), 204);
        }
        // The bare store sees them all.
        for (key, value) in [("caller%7C%7Ck", ""), ("k", "\"bare\"")] {
            let path = format!("/v1.0/state/bare/{key}");
            let (status, _, body) = call(sidecar.http(), "GET", &path, &[], "").await;
            match value {
                "" => assert_eq!(status.as_u16(), 400),
                value => assert_eq!(body, value),
            }
        }
    });
    let database = rusqlite::Connection::open(&file).unwrap();
    let keys: String = database
        .query_row(
            "SELECT group_concat(key, ' ') FROM (SELECT key FROM state ORDER BY key)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(keys, "by-name||k caller||k default.caller||k k shared||k");
}

#[test]
fn a_sidecar_without_a_store_refuses_calls_for_state() {
    let mesh = Mesh::start();
    let others = component("statestore", "state.in-memory", &[]) + "scopes: [somebody-else]\n";
    let sidecar = sidecar(&mesh, &resources(&[others]));
    runtime().block_on(async {
        let path = "/v1.0/state/statestore/k";
        let (status, code, message, details) = refused(sidecar.http(), "GET", path, &[], "").await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_STORE_NOT_CONFIGURED"));
        assert_eq!(message, "state store statestore is not configured");
        assert_eq!(details[0]["reason"], "DAPR_STATE_NOT_CONFIGURED");
    });
}

#[test]
fn a_store_that_goes_away_is_reported_in_every_answer() {
    need_tool!("redis-server");
    let mut server = RedisServer::start(&[]).unwrap();
    let mesh = Mesh::start();
    let host = server.address().to_string();
    let metadata = [("redisHost", host.as_str()), ("redisPassword", RedisServer::PASSWORD)];
    let store = component("statestore", "state.redis", &metadata);
    let sidecar = sidecar(&mesh, &resources(&[store]));
    let listener = sidecar.http();
    runtime().block_on(async {
        let saved = call(
            listener,
            "POST",
            "/v1.0/state/statestore",
            &[],
            r#"[{"key":"k","value":{"n":1}}]"#,
        );
        assert_eq!(saved.await.0.as_u16(), 204);
        assert_eq!(server.command(&["HGET", "caller||k", "data"]).unwrap(), r#"{"n":1}"#);
        // What others wrote need not be a document.
        server.command(&["HSET", "caller||x", "data", "{not json", "version", "1"]).unwrap();
        let path = "/v1.0/state/statestore/bulk";
        let (_, _, body) = call(listener, "POST", path, &[], r#"{"keys":["x"]}"#).await;
        let reported: Value = serde_json::from_str(&body).unwrap();
        assert!(
            reported[0]["error"].as_str().unwrap().starts_with("the value is no JSON"),
            "{body}"
        );
        let wrong = r#"[{"key":"k","value":1,"etag":"no number"}]"#;
        let (status, code, ..) =
            refused(listener, "POST", "/v1.0/state/statestore", &[], wrong).await;
        assert_eq!((status, code.as_str()), (400, "ERR_STATE_SAVE"));
        server.kill().unwrap();
        for (method, path, body, expected) in [
            ("GET", "/v1.0/state/statestore/k", "", "ERR_STATE_GET"),
            ("POST", path, r#"{"keys":["k"]}"#, "ERR_STATE_BULK_GET"),
            ("DELETE", "/v1.0/state/statestore/k", "", "ERR_STATE_DELETE"),
        ] {
            let (status, code, message, _) = refused(listener, method, path, &[], body).await;
            assert_eq!((status, code.as_str()), (500, expected));
            assert!(message.contains(&host), "{message}");
        }
    });
}

#[test]
fn a_store_that_does_not_open_ends_the_start_unless_it_is_optional() {
    let mesh = Mesh::start();
    let metadata = [("connectionString", "/nowhere/at/all.db")];
    let broken = component("broken", "state.sqlite", &metadata);
    let folder = resources(std::slice::from_ref(&broken));
    let started = |folder: &TempDir| {
        let control = mesh.west.control_address.to_string();
        let path = folder.path().display().to_string();
        tollway_try([
            "sidecar",
            "--app-id",
            "web",
            "--control",
            &control,
            "--resources-path",
            &path,
        ])
    };
    let reported = started(&folder).unwrap_err();
    assert!(reported.contains("ERR_STATE_STORE_UNUSABLE"), "{reported}");
    assert!(reported.contains("the state store `broken` cannot be opened"), "{reported}");
    assert!(reported.contains("/nowhere/at/all.db"), "{reported}");
    let mistaken = resources(&[component("statestore", "state.redis", &[("redisHots", "a:1")])]);
    let reported = started(&mistaken).unwrap_err();
    assert!(reported.contains("the metadata `redisHost` are missing"), "{reported}");
    assert!(reported.contains("ERR_BAD_CONFIGURATION"), "{reported}");
    let ignored = broken.replace("  version: v1\n", "  version: v1\n  ignoreErrors: true\n");
    let good = component("good", "state.in-memory", &[]);
    let sidecar = sidecar(&mesh, &resources(&[ignored, good]));
    assert!(sidecar.process.log().contains("a state store is left out"));
    runtime().block_on(async {
        let path = "/v1.0/state/good/k";
        assert_eq!(call(sidecar.http(), "GET", path, &[], "").await.0.as_u16(), 204);
        assert_eq!(refused(sidecar.http(), "GET", "/v1.0/state/broken/k", &[], "").await.0, 400);
    });
    drop(in_memory(&mesh));
}
