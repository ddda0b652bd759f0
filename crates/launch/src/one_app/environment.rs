//! The environment of the app: the addresses of its sidecar, under the names that SDKs of Dapr
//! read.

use std::path::PathBuf;

use tollway_identity::SharedToken;
use tollway_runtime::Sidecar;

use super::plan::Plan;

/// The variable with the token that an app shows to its sidecar.
pub const API_TOKEN_VARIABLE: &str = "DAPR_API_TOKEN";
/// The variable with the token that a sidecar shows to its app.
pub const APP_TOKEN_VARIABLE: &str = "APP_API_TOKEN";
/// The variable that [`state_folder`] reads.
pub(crate) const STATE_VARIABLE: &str = "TOLLWAY_STATE_DIR";

/// The folder in which a sidecar in daprd's place keeps its identity, or a run file those of all its
/// apps, as the variable `TOLLWAY_STATE_DIR` names it; an empty one counts as none.
#[must_use]
pub fn state_folder() -> Option<PathBuf> {
    std::env::var_os(STATE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Changes to the environment of this process; `None` removes a variable.
pub(super) type EnvironmentChanges = Vec<(&'static str, Option<String>)>;

pub(super) fn of_app(plan: &Plan, sidecar: &Sidecar) -> EnvironmentChanges {
    let port = |listener| sidecar.port(listener).map(|address| address.port().to_string());
    let tokens = &plan.sidecar.tokens;
    let shown = |token: &Option<SharedToken>| token.as_ref().map(|token| token.reveal().to_owned());
    let endpoint = |listener| sidecar.port(listener).map(|address| format!("http://{address}"));
    vec![
        ("APP_ID", Some(plan.app_id.to_string())),
        ("APP_PORT", plan.app.map(|(address, _)| address.port().to_string())),
        ("APP_PROTOCOL", plan.app.map(|(_, protocol)| protocol.to_string())),
        ("APP_CHANNEL_ADDRESS", plan.app.map(|(address, _)| address.ip().to_string())),
        ("DAPR_HTTP_PORT", port("http")),
        ("DAPR_GRPC_PORT", port("grpc")),
        ("DAPR_HTTP_ENDPOINT", endpoint("http")),
        ("DAPR_GRPC_ENDPOINT", endpoint("grpc")),
        ("DAPR_METRICS_PORT", port("admin")),
        (API_TOKEN_VARIABLE, shown(&tokens.api)),
        (APP_TOKEN_VARIABLE, shown(&tokens.app)),
        ("TOLLWAY_OUTBOUND_PORT", port("outbound")),
        // Only the sidecar has the right to join.
        ("TOLLWAY_TOKEN", None),
        (STATE_VARIABLE, None),
    ]
}
