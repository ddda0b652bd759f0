//! A gateway's part: where a server name leads ([`route`]), the services of the own network
//! ([`local_services`]), the gateways of joined networks ([`remote_gateways`]), reverse connections to and
//! from those that only dial out ([`reverse`]), the own control plane ([`control_addresses`]), the addresses
//! of the own network ([`insiders`]), and the guard against connections that go round in a circle
//! ([`loop_guard`]).

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

mod control_addresses;
pub(crate) mod greeting;
mod insiders;
mod local_services;
pub(crate) mod loop_guard;
mod remote_gateways;
pub(crate) mod reverse;
mod rotation;
pub(crate) mod route;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Instant;

use tollway_identity::{GatewayState, ProbeAnswer, ProbeHello, ProbeId};
use tollway_model::{NetworkName, ProbeSecret, ServiceUpdate};
use tollway_wire::{NetworkState, NetworkUpdate};

use crate::conn::RelayedTo;
use control_addresses::ControlAddresses;
pub(crate) use insiders::Insiders;
use local_services::LocalServices;
use loop_guard::LoopGuard;
use remote_gateways::RemoteGateways;
use reverse::{ReverseConnections, ReverseOptions};
pub(crate) use route::GatewayRoutes;

/// What a gateway knows, and remembers of its relays.
pub(crate) struct Gateway {
    routes: GatewayRoutes,
    services: LocalServices,
    networks: HashMap<NetworkName, RemoteGateways>,
    /// Where the own control plane is.
    control: ControlAddresses,
    /// With what the control planes of joined networks probe this gateway.
    probe_secrets: HashMap<ProbeId, (NetworkName, ProbeSecret)>,
    passed: LoopGuard,
    reverse: ReverseConnections,
}

impl Gateway {
    pub(crate) fn new(routes: GatewayRoutes, reverse: ReverseOptions) -> Self {
        Self {
            control: ControlAddresses::new(routes.control.clone()),
            routes,
            services: LocalServices::default(),
            networks: HashMap::new(),
            probe_secrets: HashMap::new(),
            passed: LoopGuard::default(),
            reverse: ReverseConnections::new(reverse),
        }
    }

    /// The control plane has sent the state of a service.
    pub(crate) fn on_service(&mut self, update: ServiceUpdate) {
        self.services.replace(update);
    }

    /// The own control plane is at these addresses now.
    pub(crate) fn on_control(&mut self, addresses: Vec<SocketAddr>) {
        self.control.replace(addresses);
    }

    /// The control plane has sent the state of a joined network.
    pub(crate) fn on_network(&mut self, update: NetworkUpdate) {
        self.reverse.on_network(&update.network, &update.state);
        self.probe_secrets.retain(|_, (network, _)| *network != update.network);
        match update.state {
            NetworkState::Joined { gateways, probe_secret, .. } => {
                if let Some(secret) = probe_secret {
                    let of = (update.network.clone(), secret);
                    self.probe_secrets.insert(ProbeId::of(&of.1), of);
                }
                self.networks.entry(update.network).or_default().replace(gateways.to_vec());
            }
            NetworkState::Removed => {
                self.networks.remove(&update.network);
            }
        }
    }

    /// The answer to a probe of a joined network's control plane; `None` for others.
    fn answer_probe(&self, hello: &[u8], state: GatewayState) -> Option<ProbeAnswer> {
        let hello = ProbeHello::read(hello)?;
        let (_, secret) = self.probe_secrets.get(&hello.id())?;
        hello.answer(secret, state)
    }

    /// The address that takes the next connection to `target`.
    fn pick(&mut self, target: &RelayedTo, now: Instant) -> Option<SocketAddr> {
        match target {
            RelayedTo::Service(service) => self.services.pick(service, now),
            RelayedTo::Network(network) => self.networks.get_mut(network)?.pick(now),
            RelayedTo::Control => self.control.pick(now),
        }
    }

    /// A relay begins; those to gateways are not counted.
    fn begin_relay(&mut self, target: &RelayedTo, address: SocketAddr) {
        if let RelayedTo::Service(service) = target {
            self.services.begin_relay(service, address);
        }
    }

    /// A relay has ended.
    pub(crate) fn end_relay(&mut self, target: &RelayedTo, address: SocketAddr) {
        if let RelayedTo::Service(service) = target {
            self.services.end_relay(service, address);
        }
    }

    /// Passes an address over until then, if another one can be chosen.
    pub(crate) fn back_off(&mut self, target: &RelayedTo, address: SocketAddr, until: Instant) {
        match target {
            RelayedTo::Service(service) => self.services.back_off(service, address, until),
            RelayedTo::Network(network) => {
                if let Some(gateways) = self.networks.get_mut(network) {
                    gateways.back_off(address, until);
                }
            }
            RelayedTo::Control => self.control.back_off(address, until),
        }
    }
}
