//! The fuzzer around one target, which `TOLLWAY_FUZZ_TARGET` names. `cargo xtask fuzz` builds and
//! runs it; its arguments are libFuzzer's.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tollway_fuzz::{Target, find};

/// What chooses the target.
const VARIABLE: &str = "TOLLWAY_FUZZ_TARGET";

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var(VARIABLE).unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("{VARIABLE}=`{name}` is not a target"))
});

fuzz_target!(
    // What a target does once, such as loading programs, is not counted to an input.
    init: (TARGET.run)(&[]),
    |data: &[u8]| (TARGET.run)(data)
);
