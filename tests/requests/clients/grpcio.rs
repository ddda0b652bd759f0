//! The gRPC client of Python, with stubs made from `echo.proto`.

use std::process::Command;

use tollway_testkit::skip;

use super::{Far, SERVICE, run};
use tollway_tests::grpcio::{PROTO, python, script};
use tollway_tests::mesh::AppProtocol;

#[test]
fn grpcio_makes_all_kinds_of_calls() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let far = Far::start(AppProtocol::Grpc);
    let printed = run(Command::new(python)
        .arg(script("requests/clients/grpcio_client.py"))
        .args([&far.caller.grpc().to_string(), SERVICE])
        .env(PROTO.0, PROTO.1));
    assert_eq!(printed.trim(), "ok");
}
