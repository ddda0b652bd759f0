//! Dapr's own SDK for Python, unmodified: clients and an app of its examples' kind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tollway_testkit::{Process, Start, free_port, python_with, skip};

use super::mesh::{AppProtocol, Mesh, Sidecar};

/// Ready to run: to build grpcio would take longer than all tests.
const PACKAGES: [&str; 3] = ["--only-binary", ":all:", "dapr[grpc]==1.19.0"];

fn python() -> Result<PathBuf, String> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dapr-1.19.0");
    PYTHON.get_or_init(|| python_with(&folder, &PACKAGES)).clone()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtime").join(name)
}

/// What a client of the SDK prints when it calls `id`, by the API that the SDK calls so.
fn called(python: &Path, caller: &Sidecar, protocol: &str, id: &str) -> String {
    let output = Command::new(python)
        .arg(script("client.py"))
        .arg(id)
        .env("DAPR_HTTP_PORT", caller.http().port().to_string())
        .env("DAPR_GRPC_PORT", caller.grpc().port().to_string())
        .env("DAPR_API_METHOD_INVOCATION_PROTOCOL", protocol)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{protocol} to {id}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn pythons_clients_call_its_app_and_others_in_another_network() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let mesh = Mesh::start();
    let port = free_port().unwrap();
    let _app: Process =
        Start::new(&python).arg(script("greeter.py")).arg(port.to_string()).start().unwrap();
    let _greeter = mesh.east.sidecar_of("greeter", port, AppProtocol::Grpc);
    let _echo = mesh.east.app("echo", "east-1", AppProtocol::Http);
    let caller = mesh.west.caller(&[]);
    for id in ["greeter.default.east", "echo.default.east"] {
        caller.until_served(id);
    }
    for protocol in ["http", "grpc"] {
        let greeter = called(&python, &caller, protocol, "greeter.default.east");
        assert_eq!(greeter, "text/plain; charset=UTF-8: order 7 of caller: {\"id\": 1}\n");
        let echo = called(&python, &caller, protocol, "echo.default.east");
        assert_eq!(echo, "application/json: {\"id\": 1}\n");
    }
}
