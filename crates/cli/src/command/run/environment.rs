//! What the app finds in its environment: where its sidecar is, by the names that SDKs of Dapr
//! read.

use tollway_identity::SharedToken;
use tollway_runtime::Sidecar;

use super::plan::Plan;
use crate::command::api_tokens::{API_VARIABLE, APP_VARIABLE};

/// Changes to the environment of this process; `None` takes a variable away.
pub(super) type Changes = Vec<(&'static str, Option<String>)>;

pub(super) fn of_app(plan: &Plan, sidecar: &Sidecar) -> Changes {
    let port = |door| sidecar.port(door).map(|address| address.port().to_string());
    let tokens = &plan.sidecar.tokens;
    let shown = |token: &Option<SharedToken>| token.as_ref().map(|token| token.reveal().to_owned());
    let endpoint = |door| sidecar.port(door).map(|address| format!("http://{address}"));
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
        (API_VARIABLE, shown(&tokens.api)),
        (APP_VARIABLE, shown(&tokens.app)),
        ("TOLLWAY_OUTBOUND_PORT", port("outbound")),
        // The right to join is the sidecar's.
        ("TOLLWAY_TOKEN", None),
    ]
}
