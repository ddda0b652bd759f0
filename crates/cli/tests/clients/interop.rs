//! gRPC's own interoperability tests (grpc-go's client against its server): through one sidecar,
//! through two, and through two gateways.
//!
//! Left out are the seven that need credentials of somebody's cloud (`compute_engine_…`,
//! `service_account_creds`, `jwt_token_creds`, `per_rpc_creds`, `oauth2_auth_token`,
//! `google_default_credentials`), and three that fail between these two programs without anything
//! between: the server tells no id (`pick_first_unary`) and no load (`orca_per_rpc`, `orca_oob`).

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use tollway_testkit::{Process, Start, free_port, need_tool, retry_until};

use super::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar};

const CASES: [&str; 16] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
];

#[test]
fn every_interoperability_case_passes_on_every_way() {
    let client = need_tool!("grpc-interop-client");
    let server = need_tool!("grpc-interop-server");
    let mesh = Mesh::with(&["--egress", "gateway"]);
    let app = App::start(&server, &mesh);
    let near = mesh.east.caller(&[]);
    let far = mesh.west.caller(&[]);
    let ways = [
        ("without us", SocketAddr::from(([127, 0, 0, 1], app.port)), None),
        ("one sidecar", app.sidecar.grpc(), Some("interop")),
        ("two sidecars", near.grpc(), Some("interop")),
        ("two sidecars and two gateways", far.grpc(), Some("interop.default.east")),
    ];
    for (way, address, app_id) in ways {
        let ask = |case| run(&client, address, app_id, case);
        retry_until(PATIENCE, way, || ask("empty_unary").status.success().then_some(())).unwrap();
        for case in CASES {
            let mut output = ask(case);
            if case == "cancel_after_begin" && !output.status.success() {
                // It ends the call and calls it off at once, and a client that stands still in
                // between can have its answer first.
                output = ask(case);
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{case} through {way}: {}: {said}", output.status);
        }
    }
}

struct App {
    port: u16,
    sidecar: Sidecar,
    _server: Process,
}

impl App {
    fn start(server: &Path, mesh: &Mesh) -> Self {
        let port = free_port().unwrap();
        let server = Start::new(server).args(["-port", &port.to_string()]).start().unwrap();
        let sidecar = mesh.east.sidecar_of("interop", port, AppProtocol::Grpc);
        Self { port, sidecar, _server: server }
    }
}

fn run(client: &Path, address: SocketAddr, app_id: Option<&str>, case: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(client);
    command.args(["-server_host", &address.ip().to_string()]);
    command.args(["-server_port", &address.port().to_string(), "-test_case", case]);
    if let Some(app_id) = app_id {
        command.args(["-additional_metadata", &format!("dapr-app-id:{app_id}")]);
    }
    command.output().unwrap()
}
