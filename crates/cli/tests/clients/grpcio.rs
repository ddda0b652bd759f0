//! The gRPC client of Python, from its registry, with stubs made from `echo.proto`.

use std::path::Path;
use std::process::Command;

use tollway_testkit::{python_with, skip};

use super::mesh::AppProtocol;
use super::{Far, SERVICE, run};

/// Ready to run: to build it would take longer than all tests.
const PACKAGES: [&str; 4] = ["--only-binary", ":all:", "grpcio==1.85.1", "grpcio-tools==1.85.1"];

#[test]
fn grpcio_makes_all_kinds_of_calls() {
    // Installed beside the build, where it stays for the next time.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpcio-1.85.1");
    let python = match python_with(&folder, &PACKAGES) {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let far = Far::start(AppProtocol::Grpc);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let printed = run(Command::new(python)
        .arg(here.join("tests/clients/grpcio_client.py"))
        .args([&far.caller.grpc().to_string(), SERVICE])
        // Where it finds echo.proto.
        .env("PYTHONPATH", here.join("../load/proto")));
    assert_eq!(printed.trim(), "ok");
}
