//! The SDK for Java, `io.dapr:dapr-sdk`, at the version in `java/pom.xml`.

use tollway_testkit::{java_project, skip, slow};

use super::script;
use super::shop::{GRPC, HTTP, NOBODY, Shop, UNKNOWN};
use tollway_tests::foreign_program::with_arguments;

#[test]
fn javas_client_calls_its_apps_in_another_network() {
    slow!();
    let mut java = match java_project(&script("java")) {
        Ok(java) => java,
        Err(reason) => skip!("{reason}"),
    };
    java.arg("Shop");
    let program = |arguments: &[&str]| with_arguments(&java, arguments);
    let shop = Shop::open(|protocol, port| program(&["app", protocol, port]));
    let asked = ["client", "call", HTTP, "call", GRPC, "call", NOBODY, "health", GRPC];
    let reported = shop.printed_by(&mut program(&asked));
    let order = r#"{"order":"7","caller":"caller","verb":"POST","body":{"id":1}}"#;
    let expected = [
        format!("{HTTP}: {order}"),
        format!("{GRPC}: {order}"),
        format!("{NOBODY}: failed: ERR_UNKNOWN_SERVICE: {UNKNOWN} (HTTP status code: 404)"),
        format!("{GRPC}: well"),
    ];
    assert_eq!(reported.lines().collect::<Vec<_>>(), expected);
}
