//! Go's own gRPC client, as `xtask/tools/grpcgo` uses it.

use std::process::Command;

use tollway_testkit::need_tool;

use super::{Far, SERVICE, run};
use tollway_tests::mesh::AppProtocol;

/// Each answer makes the client ping: it estimates what the connection can carry.
#[test]
fn grpc_go_pings_for_every_message_and_is_no_flood() {
    let client = need_tool!("grpcgo");
    let far = Far::start(AppProtocol::Grpc);
    let mut command = Command::new(client);
    command.args([&far.caller.grpc().to_string(), SERVICE, "4", "2500"]);
    assert_eq!(run(&mut command).trim(), "10000");
}
