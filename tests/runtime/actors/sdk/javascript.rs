//! The SDK for JavaScript, `@dapr/dapr`, at the version that the tests of calls have, in
//! `runtime/javascript/package-lock.json`.

use tollway_testkit::{node_project, skip};

use super::counters::Counters;
use super::script;
use tollway_tests::foreign_program::with_arguments;

#[test]
fn javascripts_actors_count() {
    let mut node = match node_project(&script("api/javascript")) {
        Ok(node) => node,
        Err(reason) => skip!("{reason}"),
    };
    node.arg(script("actors/javascript/counter.js"));
    let program = |arguments: &[&str]| with_arguments(&node, arguments);
    let counters = Counters::start(true, |port| program(&["host", port]));
    for protocol in ["http", "grpc"] {
        counters.check(&format!("over {protocol}"), |id| program(&["count", protocol, id]));
    }
}
