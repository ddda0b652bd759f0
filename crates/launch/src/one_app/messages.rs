//! The lines that the console shows about an app and its sidecar.

use tollway_model::AppProtocol;
use tollway_runtime::Sidecar;

use super::plan::Plan;
use crate::console::Console;

pub(super) fn sidecar_ready(console: Console, plan: &Plan, sidecar: &Sidecar) {
    let port = |listener| sidecar.port(listener).map_or(0, |address| address.port());
    let (http, grpc) = (port("http"), port("grpc"));
    console.note(&format!("sidecar of {} ready: HTTP {http}, gRPC {grpc}", plan.app_id));
}

pub(super) fn app_ready(console: Console, plan: &Plan) {
    let name = called_name(plan);
    match plan.app.map(|(_, scheme)| scheme.protocol) {
        Some(AppProtocol::Http | AppProtocol::H2c) => {
            console.note(&format!("{name} takes calls; try: tollway call {name}/"));
        }
        Some(AppProtocol::Grpc | AppProtocol::Tcp) | None => {
            console.note(&format!("{name} takes calls"));
        }
    }
}

pub(super) fn app_not_ready(console: Console, plan: &Plan) {
    let name = called_name(plan);
    console.note(&format!("{name} takes no calls any more: its port is closed"));
}

/// The app does not listen after some time, or listens on `::1`.
pub(super) fn app_late(console: Console, plan: &Plan, seconds: u64, on_ipv6: bool) {
    let Some((address, _)) = plan.app else { return };
    let hint = if on_ipv6 {
        "it listens on [::1]; add --app-address ::1"
    } else {
        "give the port that it listens on with --app-port"
    };
    let name = called_name(plan);
    console.error(&format!("{name} does not listen on {address} after {seconds} s\nhint: {hint}"));
}

/// As short as a caller in the default namespace may write it.
fn called_name(plan: &Plan) -> String {
    if plan.namespace.as_str().eq_ignore_ascii_case("default") {
        plan.app_id.to_string()
    } else {
        format!("{}.{}", plan.app_id, plan.namespace)
    }
}
