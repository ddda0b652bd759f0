//! The program under test.

use std::sync::OnceLock;

use tollway_testkit::binary;

/// The path of the `tollway` that was built last.
///
/// # Panics
///
/// Where it was not built: `cargo test -p tollway-tests` does not build it, `cargo xtask test` does.
#[must_use]
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| binary("tollway").unwrap().to_str().unwrap().to_owned())
}
