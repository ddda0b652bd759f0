//! The SDK for Java, `io.dapr:dapr-sdk-actors`, under Spring Boot, at the versions in `java/pom.xml`.

use std::path::Path;

use tollway_testkit::{java_project, skip, slow};

use super::super::programs::with_arguments;
use super::counters::Counters;
use super::script;

#[test]
fn javas_actors_count() {
    slow!();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("java-actors");
    let mut java = match java_project(&script("actors/java"), &folder) {
        Ok(java) => java,
        Err(reason) => skip!("{reason}"),
    };
    java.arg("Counting");
    let program = |arguments: &[&str]| with_arguments(&java, arguments);
    let counters = Counters::start(true, |port| program(&["host", port]));
    counters.check("java", |id| program(&["count", id]));
}
