//! Dapr's own SDKs, unmodified: clients and apps of their examples' kind. Here for Python, below for
//! others.

mod go;
mod java;
mod javascript;
mod shop;
mod web;

use std::path::{Path, PathBuf};
use std::process::Command;

use tollway_testkit::{Process, Start, free_port, python_with, skip};

use super::tokens;
use tollway_tests::foreign_program::{beside, printed};
use tollway_tests::mesh::{AppProtocol, Mesh, Sidecar};

/// Ready to run: to build grpcio would take longer than all tests.
const PACKAGES: [&str; 4] =
    ["--only-binary", ":all:", "dapr[grpc]==1.19.0", "grpcio-reflection==1.85.1"];

pub(crate) fn python() -> Result<PathBuf, String> {
    python_with(&PACKAGES)
}

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime/api").join(name)
}

/// A client of the SDK that is to call `id`, by the API that the SDK calls so.
fn client(python: &Path, caller: &Sidecar, protocol: &str, id: &str) -> Command {
    let mut client = Command::new(python);
    client.arg(script("client.py")).arg(id).env("DAPR_API_METHOD_INVOCATION_PROTOCOL", protocol);
    beside(caller, &mut client);
    client
}

/// What it prints.
fn called(python: &Path, caller: &Sidecar, protocol: &str, id: &str) -> String {
    printed(&mut client(python, caller, protocol, id))
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

#[test]
fn pythons_clients_show_the_token_and_its_apps_are_shown_theirs() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let mesh = Mesh::start();
    let port = free_port().unwrap();
    let _app: Process =
        Start::new(&python).arg(script("greeter.py")).arg(port.to_string()).start().unwrap();
    let _greeter = tokens::shown(&mesh, "greeter", port, "grpc");
    let caller = tokens::guarded(&mesh);
    let id = "greeter.default.east";
    tokens::until_served(&caller, id);
    for protocol in ["http", "grpc"] {
        let mut reported = client(&python, &caller, protocol, id);
        reported.env("DAPR_API_TOKEN", tokens::API);
        let greeter = printed(&mut reported);
        assert_eq!(greeter, "text/plain; charset=UTF-8: order 7 of caller: {\"id\": 1}\n");
        let shown = printed(reported.env("METHOD", "token"));
        assert!(shown.ends_with(&format!(": {}\n", tokens::APP)), "{protocol}: {shown}");
        let refused = reported.env("DAPR_API_TOKEN", "guess").output().unwrap();
        assert!(!refused.status.success(), "{protocol}");
    }
}
