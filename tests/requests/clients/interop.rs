//! gRPC's own interoperability tests (grpc-go's client against its server): through one sidecar,
//! through two, and through two gateways.
//!
//! docs/guide/dapr.md lists the omitted cases, and why.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use tollway_testkit::{Process, Start, free_port, need_tool, retry_until};

use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar};

const CASES: [&str; 18] = [
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
    "orca_per_rpc",
    BY_HOST,
];

/// The server reports its load on a stream that the client opens in addition to its calls, without
/// the metadata that names the app: the host must name it.
const BY_HOST: &str = "orca_oob";
const HOST: &str = "interop.default.east.mesh:80";

/// Balances by the load that servers report, for the cases of ORCA.
const BY_LOAD: &str = r#"{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}"#;

#[test]
fn every_interoperability_case_passes_on_every_way() {
    let client = need_tool!("grpc-interop-client");
    let server = need_tool!("grpc-interop-server");
    let mesh = Mesh::with(&["--remote-calls", "gateway"]);
    let app = App::start(&server, &mesh);
    let near = mesh.east.caller(&[]);
    let far = mesh.west.caller(&[]);
    let direct = SocketAddr::from(([127, 0, 0, 1], app.port));
    let ways = [
        Route { name: "without us", address: direct, mesh: None },
        Route::by("one sidecar", &app.sidecar, "interop"),
        Route::by("two sidecars", &near, "interop"),
        Route::by("two sidecars and two gateways", &far, "interop.default.east"),
    ];
    for way in ways {
        let ask = |case| run(&client, &way, case);
        let way = way.name;
        retry_until(PATIENCE, way, || ask("empty_unary").status.success().then_some(())).unwrap();
        for case in CASES {
            let mut output = ask(case);
            if case == "cancel_after_begin" && !output.status.success() {
                // It ends the call and cancels it at once, and a client that is suspended in
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

/// How the client reaches the server.
struct Route<'a> {
    name: &'static str,
    address: SocketAddr,
    /// The sidecar's outbound port, and how the app is called in metadata.
    mesh: Option<(SocketAddr, &'a str)>,
}

impl<'a> Route<'a> {
    fn by(name: &'static str, caller: &Sidecar, app_id: &'a str) -> Self {
        Self { name, address: caller.grpc(), mesh: Some((caller.outbound(), app_id)) }
    }
}

fn run(client: &Path, way: &Route<'_>, case: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).arg(client).args(["-test_case", case]);
    if case.starts_with("orca_") {
        command.args(["-service_config_json", BY_LOAD]);
    }
    if let Some((outbound, _)) = way.mesh.filter(|_| case == BY_HOST) {
        command.env("https_proxy", format!("http://{outbound}"));
        command.args(["-server_host", &format!("passthrough:///{HOST}"), "-server_port", "0"]);
        return command.output().unwrap();
    }
    command.args(["-server_host", &way.address.ip().to_string()]);
    command.args(["-server_port", &way.address.port().to_string()]);
    if let Some((_, app_id)) = way.mesh {
        command.args(["-additional_metadata", &format!("dapr-app-id:{app_id}")]);
    }
    command.output().unwrap()
}
