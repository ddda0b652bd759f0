//! The SDK for JavaScript, `@dapr/dapr`, at the version in `javascript/package-lock.json`.

use tollway_testkit::{node_project, skip};

use super::script;
use super::shop::{GRPC, HTTP, NOBODY, Shop, UNKNOWN};
use tollway_tests::foreign_program::with_arguments;

#[test]
fn javascripts_clients_call_its_apps_in_another_network() {
    let mut node = match node_project(&script("javascript")) {
        Ok(node) => node,
        Err(reason) => skip!("{reason}"),
    };
    node.arg(script("javascript/shop.js"));
    let program = |arguments: &[&str]| with_arguments(&node, arguments);
    let shop = Shop::open(|protocol, port| program(&["app", protocol, port]));
    let reported = shop.printed_by(&mut program(&["client", HTTP, GRPC, NOBODY]));
    let order = r#""kind":"application/json","body":{"id":1}}"#;
    // The SDK passes metadata on over HTTP alone.
    let over_http = format!(r#"{{"order":"7","caller":"caller","query":"/order",{order}"#);
    let to_http = format!(r#"{{"caller":"caller","query":"/order",{order}"#);
    let to_grpc = format!(r#"{{"query":"",{order}"#);
    let envelope = format!(r#"{{"errorCode":"ERR_UNKNOWN_SERVICE","message":"{UNKNOWN}"}}"#);
    let envelope = serde_json::to_string(&envelope).unwrap();
    let expected = [
        format!("http {HTTP}: {over_http}"),
        format!("http {GRPC}: {to_grpc}"),
        format!(
            r#"http {NOBODY}: failed: {{"error":"Not Found","error_msg":{envelope},"status":404}}"#
        ),
        format!("grpc {HTTP}: {to_http}"),
        format!("grpc {GRPC}: {to_grpc}"),
        format!(
            "grpc {NOBODY}: failed: [not_found] failed to invoke, id: {NOBODY}, err: {UNKNOWN}"
        ),
    ];
    assert_eq!(reported.lines().collect::<Vec<_>>(), expected);
}
