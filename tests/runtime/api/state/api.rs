//! Over HTTP.

use serde_json::{Value, json};

use super::{in_memory, refused};
use crate::api::call;
use tollway_tests::mesh::Mesh;
use tollway_tests::mesh::http::runtime;

const STORE: &str = "/v1.0/state/statestore";

#[test]
fn entries_are_saved_read_and_deleted_over_http() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    let listener = sidecar.http();
    runtime().block_on(async {
        let of = |key: &str| format!("{STORE}/{key}");
        let get = async |key: &str| call(listener, "GET", &of(key), &[], "").await;
        let two = r#"[{"key":"a b/c","value":{"n": 1.50}},{"key":"b","value":"text"}]"#;
        let (status, _, body) = call(listener, "POST", STORE, &[], two).await;
        assert_eq!((status.as_u16(), body.as_str()), (204, ""));
        let (status, fields, body) = get("a%20b%2Fc").await;
        assert_eq!((status.as_u16(), body.as_str()), (200, r#"{"n": 1.50}"#));
        assert_eq!(fields["content-type"], "application/json");
        let etag = fields["etag"].to_str().unwrap().to_owned();
        assert!(!fields.contains_key("metadata.ttlexpiretime"));
        assert_eq!(get("nothing").await.0.as_u16(), 204);
        assert_eq!(call(listener, "POST", STORE, &[], "[]").await.0.as_u16(), 204);

        let own = format!(r#"[{{"key":"a b/c","value":2,"etag":"{etag}"}}]"#);
        assert_eq!(call(listener, "PUT", STORE, &[], own.clone()).await.0.as_u16(), 204);
        let (status, code, message, details) = refused(listener, "POST", STORE, &[], &own).await;
        assert_eq!((status, code.as_str()), (409, "ERR_STATE_SAVE"));
        let words = "failed saving state in state store statestore: possible etag mismatch. error \
                     from state store";
        assert!(message.starts_with(words), "{message}");
        assert_eq!(details, Value::Null);
        let stale = [("if-match", etag.as_str())];
        let path = of("a%20b%2Fc");
        let (status, code, message, _) = refused(listener, "DELETE", &path, &stale, "").await;
        assert_eq!((status, code.as_str()), (409, "ERR_STATE_DELETE"));
        assert!(message.starts_with("failed deleting state with key a b/c: possible"), "{message}");
        let now = get("a%20b%2Fc").await.1["etag"].to_str().unwrap().to_owned();
        let (status, ..) = call(listener, "DELETE", &path, &[("if-match", &now)], "").await;
        assert_eq!(status.as_u16(), 204);
        assert_eq!(get("a%20b%2Fc").await.0.as_u16(), 204);
        assert_eq!(call(listener, "DELETE", &of("b"), &[], "").await.0.as_u16(), 204);

        let first = r#"[{"key":"f","value":1,"options":{"concurrency":"first-write"}}]"#;
        assert_eq!(call(listener, "POST", STORE, &[], first).await.0.as_u16(), 204);
        assert_eq!(refused(listener, "POST", STORE, &[], first).await.0, 409);
        // Of several, each is written by itself.
        let mixed = r#"[{"key":"f","value":2,"options":{"concurrency":"first-write"}},
                        {"key":"g","value":2}]"#;
        assert_eq!(refused(listener, "POST", STORE, &[], mixed).await.0, 409);
        assert_eq!(get("g").await.2, "2");
        let twice = r#"[{"key":"g","value":3},{"key":"g","value":4}]"#;
        assert_eq!(call(listener, "POST", STORE, &[], twice).await.0.as_u16(), 204);
        assert_eq!(get("g").await.2, "4");
        assert_eq!(call(listener, "POST", STORE, &[], r#"[{"key":"n"}]"#).await.0.as_u16(), 204);
        assert_eq!(get("n").await.2, "null");
    });
}

#[test]
fn the_end_of_an_entry_with_a_time_to_live_is_read() {
    let mesh = Mesh::start();
    let listener = in_memory(&mesh);
    let listener = listener.http();
    runtime().block_on(async {
        let saved = r#"[{"key":"a","value":1,"metadata":{"ttlInSeconds":"1000"}}]"#;
        assert_eq!(call(listener, "POST", STORE, &[], saved).await.0.as_u16(), 204);
        let (_, fields, _) = call(listener, "GET", &format!("{STORE}/a"), &[], "").await;
        let end = humantime::parse_rfc3339(fields["metadata.ttlExpireTime"].to_str().unwrap());
        let left = end.unwrap().duration_since(std::time::SystemTime::now()).unwrap();
        assert!((990..=1000).contains(&left.as_secs()), "{left:?}");
        // The query wins over the entry.
        let path = format!("{STORE}?metadata.ttlInSeconds=-1");
        assert_eq!(call(listener, "POST", &path, &[], saved).await.0.as_u16(), 204);
        let (_, fields, _) = call(listener, "GET", &format!("{STORE}/a"), &[], "").await;
        assert!(!fields.contains_key("metadata.ttlExpireTime"));
        let wrong = r#"[{"key":"a","value":1,"metadata":{"ttlInSeconds":"soon"}}]"#;
        let (status, code, message, _) = refused(listener, "POST", STORE, &[], wrong).await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_SAVE"));
        assert!(message.contains("ttlInSeconds is \"soon\""), "{message}");
    });
}

#[test]
fn many_entries_are_read_at_once() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    let listener = sidecar.http();
    runtime().block_on(async {
        let saved = r#"[{"key":"a","value":[1]},
                        {"key":"b","value":2,"metadata":{"ttlInSeconds":"60"}}]"#;
        call(listener, "POST", STORE, &[], saved).await;
        let path = format!("{STORE}/bulk");
        let asked = r#"{"keys":["b","none","a"],"parallelism":10}"#;
        let (status, fields, body) = call(listener, "POST", &path, &[], asked).await;
        assert_eq!(
            (status.as_u16(), &fields["content-type"]),
            (200, &"application/json".parse().unwrap())
        );
        let found: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&found[0]["key"], &found[0]["data"]), (&json!("b"), &json!(2)));
        assert!(found[0]["metadata"]["ttlExpireTime"].is_string() && found[0]["etag"].is_string());
        assert_eq!(found[1], json!({"key": "none"}));
        assert_eq!((&found[2]["data"], found.as_array().unwrap().len()), (&json!([1]), 3));
        assert_eq!(call(listener, "PUT", &path, &[], r#"{"keys":[]}"#).await.2, "[]");
        // A key of that name is a key.
        call(listener, "POST", STORE, &[], r#"[{"key":"bulk","value":7}]"#).await;
        assert_eq!(call(listener, "GET", &path, &[], "").await.2, "7");
    });
}

#[test]
fn a_transaction_happens_whole_over_http() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    let listener = sidecar.http();
    runtime().block_on(async {
        let path = format!("{STORE}/transaction");
        call(listener, "POST", STORE, &[], r#"[{"key":"gone","value":1}]"#).await;
        let steps = json!({"operations": [
            {"operation": "upsert", "request": {"key": "a", "value": 1}},
            {"operation": "delete", "request": {"key": "gone"}},
        ]});
        assert_eq!(call(listener, "POST", &path, &[], steps.to_string()).await.0.as_u16(), 204);
        assert_eq!(call(listener, "GET", &format!("{STORE}/a"), &[], "").await.2, "1");
        assert_eq!(call(listener, "GET", &format!("{STORE}/gone"), &[], "").await.0.as_u16(), 204);
        assert_eq!(call(listener, "POST", &path, &[], "{}").await.0.as_u16(), 204);

        let steps = json!({"operations": [
            {"operation": "upsert", "request": {"key": "b", "value": 1}},
            {"operation": "upsert", "request": {"key": "a", "value": 2, "etag": "4711"}},
        ]});
        let (status, code, message, _) =
            refused(listener, "PUT", &path, &[], &steps.to_string()).await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_TRANSACTION"));
        let words = "error while executing state transaction: possible etag mismatch";
        assert!(message.starts_with(words), "{message}");
        assert_eq!(call(listener, "GET", &format!("{STORE}/b"), &[], "").await.0.as_u16(), 204);

        let unknown = r#"{"operations":[{"operation":"increase","request":{"key":"a"}}]}"#;
        let (status, code, message, _) = refused(listener, "POST", &path, &[], unknown).await;
        assert_eq!((status, code.as_str()), (400, "ERR_NOT_SUPPORTED_STATE_OPERATION"));
        assert_eq!(message, "operation type increase not supported");
        let step = json!({"operation": "delete", "request": {"key": "a"}});
        let many = json!({"operations": vec![step; 1001]}).to_string();
        let (status, code, message, details) = refused(listener, "POST", &path, &[], &many).await;
        assert_eq!((status, code.as_str()), (400, "ERR_STATE_STORE_TOO_MANY_TRANSACTIONS"));
        assert!(message.contains("contains 1001 operations"), "{message}");
        assert_eq!(details[1]["metadata"]["maxOpsPerTransaction"], "1000");
    });
}

#[test]
fn refusals_of_the_state_api_are_those_of_dapr() {
    let mesh = Mesh::start();
    let sidecar = in_memory(&mesh);
    let listener = sidecar.http();
    runtime().block_on(async {
        for (method, path) in [
            ("POST", "/v1.0/state/other"),
            ("GET", "/v1.0/state/other/k"),
            ("DELETE", "/v1.0/state/other/k"),
            ("POST", "/v1.0/state/other/bulk"),
            ("POST", "/v1.0/state/other/transaction"),
        ] {
            let (status, code, message, details) = refused(listener, method, path, &[], "").await;
            assert_eq!((status, code.as_str()), (400, "ERR_STATE_STORE_NOT_FOUND"), "{path}");
            assert_eq!(message, "state store other is not found");
            let detail = json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "domain": "dapr.io",
                "metadata": {"appID": "caller"},
                "reason": "DAPR_STATE_NOT_FOUND",
            }]);
            assert_eq!(details, detail);
        }
        for (path, body) in [
            (STORE.to_owned(), "{not json"),
            (STORE.to_owned(), r#"{"key":"a"}"#),
            (STORE.to_owned(), r#"[{"key":7}]"#),
            (STORE.to_owned(), r#"[{"value":7}]"#),
            (format!("{STORE}/bulk"), "[]"),
            (format!("{STORE}/transaction"), r#"{"operations":[{"operation":"upsert"}]}"#),
        ] {
            let (status, code, ..) = refused(listener, "POST", &path, &[], body).await;
            assert_eq!((status, code.as_str()), (400, "ERR_MALFORMED_REQUEST"), "{path} {body}");
        }
        let key = r#"[{"key":"ke||y1","value":1}]"#;
        let (status, code, message, details) = refused(listener, "POST", STORE, &[], key).await;
        assert_eq!((status, code.as_str()), (400, "ERR_MALFORMED_REQUEST"));
        assert_eq!(message, "input key/keyPrefix 'ke||y1' can't contain '||'");
        assert_eq!(details.as_array().unwrap().len(), 3);
        assert_eq!(details[0]["field_violations"][0]["field"], "ke||y1");
        assert_eq!(details[1]["resource_name"], "statestore");
        assert_eq!(details[2]["reason"], "DAPR_STATE_ILLEGAL_KEY");
        for method in ["GET", "DELETE"] {
            let path = format!("{STORE}/ke%7C%7Cy");
            assert_eq!(refused(listener, method, &path, &[], "").await.0, 400);
        }
        let query = "/v1.0-alpha1/state/statestore/query";
        let (status, code, message, details) = refused(listener, "POST", query, &[], "{}").await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_STORE_NOT_SUPPORTED"));
        assert_eq!(message, "state store does not support querying");
        assert_eq!(details[1]["reason"], "DAPR_STATE_QUERYING_NOT_SUPPORTED");
        let model = r#"[{"key":"a","options":{"consistency":"some"}}]"#;
        let (status, code, message, _) = refused(listener, "POST", STORE, &[], model).await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_SAVE"));
        assert!(message.ends_with("unrecognized consistency model 'some'"), "{message}");
        let path = format!("{STORE}/a?consistency=some");
        let (status, code, ..) = refused(listener, "GET", &path, &[], "").await;
        assert_eq!((status, code.as_str()), (500, "ERR_STATE_GET"));

        let large = format!(r#"[{{"key":"a","value":"{}"}}]"#, "x".repeat(4 << 20));
        let (status, code, ..) = refused(listener, "POST", STORE, &[], &large).await;
        assert_eq!((status, code.as_str()), (413, "ERR_MALFORMED_REQUEST"));
        for (method, path) in [
            ("PATCH", STORE.to_owned()),
            ("GET", STORE.to_owned()),
            ("GET", format!("{STORE}/a/b")),
        ] {
            let (status, code, ..) = refused(listener, method, &path, &[], "").await;
            assert_eq!((status, code.as_str()), (404, "ERR_NOT_SERVED"), "{method} {path}");
        }
    });
}
