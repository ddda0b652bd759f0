//! The SDK for Go, `github.com/dapr/go-sdk`, at the version in `xtask/tools/daprgo/go.mod`.

use std::process::Command;

use tollway_testkit::need_tool;

use super::shop::{GRPC, HTTP, NOBODY, Shop, UNKNOWN};
use tollway_tests::foreign_program::with_arguments;

#[test]
fn gos_client_calls_its_apps_in_another_network() {
    let daprgo = need_tool!("daprgo");
    let program = |arguments: &[&str]| with_arguments(&Command::new(&daprgo), arguments);
    let shop = Shop::open(|protocol, port| program(&[protocol, port]));
    let reported = shop.printed_by(&mut program(&["client", HTTP, GRPC, NOBODY]));
    let order = r#"{"order":"7","caller":"caller","verb":"POST","query":"day=2","body":{"id":1}}"#;
    let refused = format!("failed to invoke, id: {NOBODY}, err: {UNKNOWN}");
    let expected = [
        format!("{HTTP}: {order}"),
        format!("{GRPC}: {order}"),
        format!("{NOBODY} failed: rpc error: code = NotFound desc = {refused}"),
    ];
    // Its first line has the sidecar's address.
    assert_eq!(reported.lines().skip(1).collect::<Vec<_>>(), expected);
    let health = shop.printed_by(&mut program(&["health", GRPC]));
    let expected = ["check: SERVING", "watch: SERVING", "watch: NOT_SERVING"];
    assert_eq!(health.lines().skip(1).collect::<Vec<_>>(), expected);
}
