//! The SDK for Go, `github.com/dapr/go-sdk`, at the version in `xtask/tools/daprgoactors/go.mod`.

use std::process::Command;

use tollway_testkit::need_tool;

use super::counters::Counters;
use tollway_tests::foreign_program::with_arguments;

#[test]
fn gos_actors_count() {
    let daprgo = need_tool!("daprgoactors");
    let program = |arguments: &[&str]| with_arguments(&Command::new(&daprgo), arguments);
    let counters = Counters::start(true, |port| program(&["host", port]));
    counters.check("go", |id| program(&["count", id]));
}
