//! The gRPC client of Python, with stubs made from `echo.proto`.

use std::process::Command;

use tollway_testkit::skip;

use super::grpcio_python::{PROTO, python, script};
use super::mesh::AppProtocol;
use super::{Far, SERVICE, run};

#[test]
fn grpcio_makes_all_kinds_of_calls() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let far = Far::start(AppProtocol::Grpc);
    let printed = run(Command::new(python)
        .arg(script("clients/grpcio_client.py"))
        .args([&far.caller.grpc().to_string(), SERVICE])
        .env(PROTO.0, PROTO.1));
    assert_eq!(printed.trim(), "ok");
}
