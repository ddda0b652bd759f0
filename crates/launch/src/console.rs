//! The lines of `tollway run` on standard error. They begin with `tollway: `, which tells them from
//! the lines of the app.

use std::error::Error;

use tollway_model::AppProtocol;
use tollway_runtime::Sidecar;

use crate::local_control::LocalControl;
use crate::one_app::Plan;

/// Prints notes and errors.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    quiet: bool,
    /// Words an error: lines with what failed and what to do.
    words: fn(&(dyn Error + 'static)) -> String,
}

impl Console {
    /// Prints errors in the words of `words`; prints nothing else if `quiet`.
    pub fn new(quiet: bool, words: fn(&(dyn Error + 'static)) -> String) -> Self {
        Self { quiet, words }
    }

    /// Prints why something failed.
    pub(crate) fn failure(self, error: &(dyn Error + 'static)) {
        self.error((self.words)(error).trim_end());
    }

    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    pub(crate) fn error(self, text: &str) {
        for line in text.lines() {
            eprintln!("tollway: {line}");
        }
    }

    pub(crate) fn control_plane(self, local: &LocalControl) {
        if local.started {
            self.note(&format!("local control plane started at {}", local.address()));
        }
        if let Some(skew) = local.version_skew() {
            self.error(&skew);
        }
    }

    pub(crate) fn sidecar_ready(self, plan: &Plan, sidecar: &Sidecar) {
        let port = |listener| sidecar.port(listener).map_or(0, |address| address.port());
        let (http, grpc) = (port("http"), port("grpc"));
        self.note(&format!("sidecar of {} ready: HTTP {http}, gRPC {grpc}", plan.app_id));
    }

    pub(crate) fn app_ready(self, plan: &Plan) {
        let name = called_name(plan);
        match plan.app.map(|(_, scheme)| scheme.protocol) {
            Some(AppProtocol::Http | AppProtocol::H2c) => {
                self.note(&format!("{name} takes calls; try: tollway call {name}/"));
            }
            Some(AppProtocol::Grpc | AppProtocol::Tcp) | None => {
                self.note(&format!("{name} takes calls"));
            }
        }
    }

    pub(crate) fn app_not_ready(self, plan: &Plan) {
        let name = called_name(plan);
        self.note(&format!("{name} takes no calls any more: its port is closed"));
    }

    /// The app does not listen after some time, or listens on `::1`.
    pub(crate) fn app_late(self, plan: &Plan, seconds: u64, on_ipv6: bool) {
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
