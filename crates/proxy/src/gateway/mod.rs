//! A gateway's part: where a server name leads ([`route`]), the gateways of joined networks
//! ([`remote_gateways`]), and the guard against connections that go round in a circle
//! ([`loop_guard`]).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod loop_guard;
mod remote_gateways;
pub(crate) mod route;

use std::collections::HashMap;

use tollway_model::NetworkName;

use loop_guard::LoopGuard;
use remote_gateways::RemoteGateways;
pub(crate) use route::GatewayRoutes;

/// What a gateway remembers; empty elsewhere.
#[derive(Default)]
pub(crate) struct Gateway {
    networks: HashMap<NetworkName, RemoteGateways>,
    passed: LoopGuard,
}
