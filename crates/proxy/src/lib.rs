//! The data plane: listeners, pools, balancing, the sidecar and the gateway.
//!
//! Decisions come from `routing`; this crate executes them on the data loop of `net`. The
//! control-plane client and the admin server run on a tokio thread beside the loop and reach it by
//! commands. So does the runtime API, which `runtime` serves: the loop hands it the far ends of
//! connections ([`ApiStream`]). A front is the same data plane without a mesh (`front`).

#![forbid(unsafe_code)]

mod actor_paths;
mod api_rules;
mod app_addresses;
mod as_daprd;
mod bind;
mod call_trace;
mod cause;
mod conn;
mod cx;
mod dataplane;
mod egress;
mod event_loop;
mod exchange;
mod facts;
mod fanout;
mod front;
mod gateway;
mod headers;
mod inbound;
mod interception;
mod limits;
mod live;
pub mod mesh;
mod observe;
mod outbound;
mod protocol;
mod upstream;

mod error_response;
mod plane;
mod probe;
mod request_error;
mod runtime_protocol;
mod served_ports;
mod tls;
mod tokens;
mod web_pages;

pub use actor_paths::ActorApp;
pub use api_rules::{ApiProtocol, ApiRule, ApiRules};
pub use as_daprd::{
    AsDaprd, Cors, DIRECT_INVOKE, status_of as daprd_status, text_of as daprd_text,
};
pub use dataplane::{
    Announcer, AppOptions, CommonOptions, DataPlaneError, GatewayOptions, HealthCheck,
    LoopbackClient, Sidecar, SidecarOptions, run_gateway,
};
pub use egress::{AppEgress, ExternalHost};
pub use event_loop::{ApiKind, ApiStream, MeshProtocol};
pub use facts::Facts;
pub use front::{
    CheckedPair, FRONT_LISTEN_LIMIT, FrontFiles, FrontFilesError, FrontOptions, FrontTarget,
    FrontTargetError, run_front,
};
pub use headers::{ERROR_FIELD, GRPC_DETAILS_FIELD, GRPC_STATUS_FIELD, OWN_FIELDS};
pub use interception::{Interception, NameAnswer, NameTable, Origins, RedirectedOrigins};
pub use limits::{Limits, NAMED_LIMITS, NamedLimit, Timeouts};
pub use live::{Live, LiveHandle, LiveOptions, live};
pub use observe::{TelemetryError, TelemetryOptions, TracingOptions};
pub use plane::{Drained, PlaneOptions};
pub use runtime_protocol::{
    ActorCaller, ActorLookup, RuntimeRequest, RuntimeTarget, RuntimeTask, TurnLease,
    UNPROCESSED_FIELD,
};
pub use tokens::Tokens;
pub use web_pages::WebPages;
