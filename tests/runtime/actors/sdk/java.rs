//! The SDK for Java, `io.dapr:dapr-sdk-actors`, under Spring Boot, at the versions in `java/pom.xml`.

use tollway_testkit::{java_project, skip, slow};

use super::counters::Counters;
use super::script;
use tollway_tests::foreign_program::with_arguments;

#[test]
fn javas_actors_count() {
    slow!();
    let mut java = match java_project(&script("actors/java")) {
        Ok(java) => java,
        Err(reason) => skip!("{reason}"),
    };
    java.arg("Counting");
    let program = |arguments: &[&str]| with_arguments(&java, arguments);
    let counters = Counters::start(true, |port| program(&["host", port]));
    counters.check("java", |id| program(&["count", id]));
}
