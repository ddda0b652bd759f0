//! A Python with grpcio from its registry, which is C inside: a gRPC that nobody here wrote. It
//! makes its stubs from `echo.proto`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tollway_testkit::python_with;

/// Ready to run: to build it would take longer than all tests.
const PACKAGES: [&str; 4] = ["--only-binary", ":all:", "grpcio==1.85.1", "grpcio-tools==1.85.1"];

/// The variable by which its scripts find `echo.proto`.
pub(crate) const PROTO: (&str, &str) =
    ("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../echo/proto"));

/// Installed beside the build, by the first test that wants it, and kept; the reason if it cannot
/// be had.
pub(crate) fn python() -> Result<PathBuf, String> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("grpcio-1.85.1");
    PYTHON.get_or_init(|| python_with(&folder, &PACKAGES)).clone()
}

/// A script below `tests`.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
