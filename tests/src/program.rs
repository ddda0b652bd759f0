//! The program under test.

use std::path::PathBuf;
use std::sync::OnceLock;

use tollway_testkit::binary;

/// The variable that names a former program to start in place of the one that was built last.
const FORMER: &str = "TOLLWAY_FORMER_PROGRAM";

/// The path of the `tollway` that was built last, or of the former one that is measured beside it.
///
/// # Panics
///
/// Where it was not built: `cargo test -p tollway-tests` does not build it, `cargo xtask test` does.
#[must_use]
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = std::env::var_os(FORMER).map_or_else(|| newest().into(), PathBuf::from);
        path.to_str().unwrap().to_owned()
    })
}

/// The path of the `tollway` that was built last: what sends load and answers it.
///
/// # Panics
///
/// As [`program`].
#[must_use]
pub fn newest() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| binary("tollway").unwrap().to_str().unwrap().to_owned())
}

/// Whether [`program`] is a former one.
#[must_use]
pub fn is_former() -> bool {
    std::env::var_os(FORMER).is_some()
}

/// Options that a former program has not: it gets none of them.
#[must_use]
pub fn new_options<'a>(options: &[&'a str]) -> Vec<&'a str> {
    if is_former() { Vec::new() } else { options.to_vec() }
}
