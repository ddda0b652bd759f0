//! The settings of each part, and the groups that parts share.

mod app;
mod control;
mod front;
mod gateway;
mod location;
mod member;
mod plane;
mod run;
mod sidecar;
mod telemetry;

pub use app::{ApiTokens, App, AppHost, DaprFiles, WebAccess};
pub use control::{Control, Egress, Etcd, RemoteCalls, ReusedKeys};
pub use front::Front;
pub use gateway::Gateway;
pub use location::Location;
pub use member::Member;
pub use plane::{Log, Plane};
pub use run::{Access, Intercept, InterceptMode, Run};
pub use sidecar::Sidecar;
pub use telemetry::Telemetry;
