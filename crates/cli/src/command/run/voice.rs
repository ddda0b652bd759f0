//! What `tollway run` says: few lines on standard error, that are told from the app's by how
//! they begin.

use tollway_model::AppProtocol;
use tollway_runtime::Sidecar;

use super::plan::Plan;
use crate::local::LocalControl;

#[derive(Clone, Copy, Debug)]
pub(super) struct Voice {
    quiet: bool,
}

impl Voice {
    pub(super) fn new(quiet: bool) -> Self {
        Self { quiet }
    }

    pub(super) fn note(self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    pub(super) fn error(self, text: &str) {
        for line in text.lines() {
            eprintln!("tollway: {line}");
        }
    }

    pub(super) fn control_plane(self, local: &LocalControl) {
        if local.started {
            self.note(&format!("local control plane started at {}", local.address()));
        }
        if let Some(skew) = local.version_skew() {
            self.error(&skew);
        }
    }

    pub(super) fn sidecar_ready(self, plan: &Plan, sidecar: &Sidecar) {
        let port = |door| sidecar.port(door).map_or(0, |address| address.port());
        let (http, grpc) = (port("http"), port("grpc"));
        self.note(&format!("sidecar of {} ready: HTTP {http}, gRPC {grpc}", plan.app_id));
    }

    pub(super) fn app_ready(self, plan: &Plan) {
        let name = called_name(plan);
        match plan.app.map(|(_, speech)| speech.protocol) {
            Some(AppProtocol::Http | AppProtocol::H2c) => {
                self.note(&format!("{name} takes calls; try: tollway call {name}/"));
            }
            Some(AppProtocol::Grpc | AppProtocol::Tcp) | None => {
                self.note(&format!("{name} takes calls"));
            }
        }
    }

    pub(super) fn app_not_ready(self, plan: &Plan) {
        let name = called_name(plan);
        self.note(&format!("{name} takes no calls any more: its port is closed"));
    }

    /// It has not listened yet, after some time; or it listens on `::1`.
    pub(super) fn app_late(self, plan: &Plan, seconds: u64, on_ipv6: bool) {
        let Some((address, _)) = plan.app else { return };
        let hint = if on_ipv6 {
            "it listens on [::1]; add --app-address ::1"
        } else {
            "give the port that it listens on with --app-port"
        };
        let name = called_name(plan);
        self.error(&format!("{name} does not listen on {address} after {seconds} s\nhint: {hint}"));
    }
}

/// As short as a caller in the default namespace may write it.
fn called_name(plan: &Plan) -> String {
    if plan.namespace.as_str().eq_ignore_ascii_case("default") {
        plan.app_id.to_string()
    } else {
        format!("{}.{}", plan.app_id, plan.namespace)
    }
}
