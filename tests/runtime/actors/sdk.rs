//! Dapr's own SDKs, unmodified: hosts of actors and clients. Here all hosts that the one for Python
//! has, below the others.

mod counters;
mod go;
mod java;
mod javascript;

use std::path::{Path, PathBuf};
use std::process::Command;

use counters::Counters;
use tollway_testkit::{python_with, skip};

/// Ready to run: to build grpcio would take longer than all tests.
const PACKAGES: [&str; 4] =
    ["--only-binary", ":all:", "dapr[grpc,fastapi,flask]==1.19.0", "uvicorn==0.54.0"];

fn python() -> Result<PathBuf, String> {
    python_with(&PACKAGES)
}

/// A file among those of the tests.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime").join(name)
}

/// Has a host of the SDK run the counters: `fastapi`, `flask`, or `stream`, which needs no port.
fn check_python(kind: &str) {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let program = |name: &str, arguments: &[&str]| {
        let mut program = Command::new(&python);
        program.arg(script("actors/python").join(name)).args(arguments);
        program
    };
    let counters = Counters::start(kind != "stream", |port| program("host.py", &[kind, port]));
    counters.check(kind, |id| program("client.py", &[id]));
}

#[test]
fn pythons_actors_under_fastapi_count() {
    check_python("fastapi");
}

#[test]
fn pythons_actors_under_flask_count() {
    check_python("flask");
}

#[test]
fn pythons_actors_over_a_stream_count() {
    check_python("stream");
}
