//! Apps of the SDK for Python that take calls over HTTP, under FastAPI and under Flask.

use std::path::PathBuf;
use std::process::Command;

use tollway_testkit::{Process, Start, free_port, python_with, skip};

use super::script;
use tollway_tests::foreign_program::{beside, printed};
use tollway_tests::mesh::{AppProtocol, Mesh};

/// Ready to run, as those of `actors` are.
const PACKAGES: [&str; 4] =
    ["--only-binary", ":all:", "dapr[grpc,fastapi,flask]==1.19.0", "uvicorn==0.54.0"];

fn python() -> Result<PathBuf, String> {
    python_with(&PACKAGES)
}

#[test]
fn pythons_hosts_over_http_are_called_from_another_network() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let mesh = Mesh::start();
    let _hosts = ["fastapi", "flask"].map(|host| {
        let port = free_port().unwrap();
        let app: Process = Start::new(&python)
            .arg(script("web_app.py"))
            .args([host, &port.to_string()])
            .start()
            .unwrap();
        (app, mesh.east.sidecar_of(host, port, AppProtocol::Http))
    });
    let caller = mesh.west.caller(&[]);
    let ids = ["fastapi.default.east", "flask.default.east"];
    for id in ids {
        caller.until_served(id);
    }
    let order = r#"{"body": {"id": 1}, "caller": "caller", "kind": "application/json", "order": "7", "query": "day=2"}"#;
    for (protocol, failed) in [("http", r#"{"detail":"sold out"}"#), ("grpc", "ALREADY_EXISTS")] {
        let mut client = Command::new(&python);
        client.arg(script("web_client.py")).args(ids);
        client.env("DAPR_API_METHOD_INVOCATION_PROTOCOL", protocol);
        let reported = printed(beside(&caller, &mut client));
        let expected = ids.map(|id| format!("{id} order: {order}\n{id} fail: failed: {failed}\n"));
        assert_eq!(reported, expected.concat(), "{protocol}");
    }
}
