//! A Python with grpcio from its registry, a foreign gRPC in C. It makes its stubs from
//! `echo.proto`.

use std::path::{Path, PathBuf};

use tollway_testkit::python_with;

/// Ready to run: to build it would take longer than all tests.
const PACKAGES: [&str; 4] = ["--only-binary", ":all:", "grpcio==1.85.1", "grpcio-tools==1.85.1"];

/// The variable by which its scripts find `echo.proto`.
pub const PROTO: (&str, &str) =
    ("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/echo/proto"));

/// Installed by the first test that needs it, and cached; the error is the reason of a skip.
pub fn python() -> Result<PathBuf, String> {
    python_with(&PACKAGES)
}

/// A script of this crate.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}
