//! The data plane: listeners, pools, balancing, the sidecar and the gateway.
//!
//! Decisions come from `routing`; this crate executes them on the data loop of `net`. The
//! control-plane client and the admin server run on a tokio thread beside the loop and reach it by
//! commands. So does the runtime API, which `runtime` serves: the loop hands it the far ends of
//! connections ([`ApiStream`]). A front is the same data plane without a mesh (`front`).

#![forbid(unsafe_code)]

mod actors;
mod api_rules;
mod connection;
mod dataplane;
mod doors;
mod edit;
mod exchange;
mod explain;
mod facts;
mod fanout;
mod fault;
mod front;
mod hellos;
mod limits;
mod live;
pub mod mesh;
mod observe;
mod pipe;
mod plane;
mod probe;
mod respond;
mod tls;
mod tokens;
mod told;
mod why;
mod worker;

pub use actors::{
    ACTOR_FIELD, BEGIN_BY_FIELD, CALL_FIELD, INSTANCE_FIELD, LEASE_FIELD, OUTSIDE_FIELD,
    TARGET_FIELD, TO_APP, TO_FIELD, TurnLease, UNPROCESSED_FIELD,
};
pub use api_rules::{ApiProtocol, ApiRule, ApiRules};
pub use dataplane::{
    Announcer, AppOptions, CommonOptions, DataPlaneError, GatewayOptions, HealthCheck, Inside,
    Sidecar, SidecarOptions, run_gateway,
};
pub use edit::{ERROR_FIELD, GRPC_DETAILS_FIELD, GRPC_STATUS_FIELD, OWN_FIELDS};
pub use facts::Facts;
pub use front::{
    CheckedPair, FRONT_LISTEN_LIMIT, FrontFiles, FrontFilesError, FrontOptions, FrontTarget,
    FrontTargetError, run_front,
};
pub use limits::{Limits, NAMED_LIMITS, NamedLimit, Timeouts};
pub use live::{Live, LiveHandle, LiveOptions, live};
pub use observe::{TelemetryError, TelemetryOptions, TracingOptions};
pub use plane::PlaneOptions;
pub use tokens::Tokens;
pub use worker::{ApiKind, ApiStream, MeshProtocol};
