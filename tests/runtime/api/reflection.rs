//! Reflection of gRPC: of the app that a call names, and of the sidecar's own API, by grpcio's
//! client, which has no definitions before.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tollway_testkit::{Process, Start, free_port, skip};

use super::daprd::Daprd;
use super::sdk::{python, script};
use tollway_tests::foreign_program::printed;
use tollway_tests::user::User;

/// The client's output from the sidecar, or from the app, and the method's answer.
fn reflected(python: &Path, at: &Daprd, (method, question): (&str, Value), app: &[&str]) -> Value {
    let mut client = Command::new(python);
    client.arg(script("reflected.py")).arg(method).arg(question.to_string()).args(app);
    client.env("DAPR_GRPC_PORT", at.grpc.to_string());
    serde_json::from_str(&printed(&mut client)).unwrap()
}

#[test]
fn a_client_that_knows_no_service_asks_the_app_or_the_sidecar() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let user = User::new();
    let port = free_port().unwrap();
    let _app: Process =
        Start::new(&python).arg(script("reflecting_app.py")).arg(port.to_string()).start().unwrap();
    let beside = ["--app-port", &port.to_string(), "--app-protocol", "grpc"];
    let _callee = Daprd::listening(&user, "greeter", &beside);
    let caller = Daprd::listening(&user, "caller", &[]);
    caller.until_served("greeter");

    // Of the app, in whose words a call of it is written.
    let callback = "dapr.proto.runtime.v1.AppCallback";
    let question = json!({"method": "order"});
    let reported =
        reflected(&python, &caller, (&format!("{callback}/OnInvoke"), question), &["greeter"]);
    assert_eq!(reported["services"], json!([callback, "grpc.reflection.v1alpha.ServerReflection"]));
    assert_eq!(reported["answer"]["contentType"], "answer of order");

    // Without a name, of the sidecar.
    let dapr = "dapr.proto.runtime.v1.Dapr";
    let reported = reflected(&python, &caller, (&format!("{dapr}/GetMetadata"), json!({})), &[]);
    let services = reported["services"].as_array().unwrap();
    assert!(services.contains(&json!(dapr)), "{services:?}");
    assert!(!services.contains(&json!(callback)), "{services:?}");
    let methods = reported["methods"].as_array().unwrap();
    for method in ["InvokeService", "InvokeActor", "GetState", "Shutdown"] {
        assert!(methods.contains(&json!(method)), "{method}: {methods:?}");
    }
    assert_eq!(reported["answer"]["id"], "caller");
}
