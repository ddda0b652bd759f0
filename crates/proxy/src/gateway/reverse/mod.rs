//! Reverse connections: the way into a network that only dials out. Its gateways open them to those of
//! joined networks ([`opened`]), which hold them and send one connection into each ([`held`]).
//!
//! A reverse connection is TLS between two gateways, by their own certificates; what it carries is
//! TLS from end to end and stays closed to both. It carries one connection and is never used again, so
//! nothing waits behind something else on it. [`admission`] decides who may open one, [`demand`] how many
//! wait, [`message`] has what is sent before one carries something, and [`board`] has of
//! which networks some are held.

mod admission;
pub(crate) mod board;
mod demand;
pub(crate) mod held;
mod message;
pub(crate) mod opened;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_identity::{Credentials, PeerIdentity};
use tollway_model::{NetworkName, ServiceName, TrustDomain};
use tollway_wire::NetworkState;

use super::Gateway;
use crate::conn::{ConnKey, Connections, ReverseSide, Role};
use crate::cx::Cx;
use crate::protocol::relay;
use crate::tls::MeshTls;
use board::Board;
use held::Held;
use opened::Opened;

/// How often keepalives, silence and demand are looked at.
const ROUND: Duration = Duration::from_secs(1);

/// What a gateway does with reverse connections.
#[derive(Clone)]
pub(crate) struct ReverseOptions {
    /// The gateway's own.
    pub(crate) credentials: Arc<Credentials>,
    /// The gateway's name in the mesh.
    pub(crate) own: ServiceName,
    /// It holds those of networks that only dial out: its own network can call them through it.
    pub(crate) holds: bool,
    /// It opens them, since its own network only dials out.
    pub(crate) dials_out: bool,
    /// The number of the data thread.
    pub(crate) thread: usize,
    pub(crate) board: Board,
}

/// The reverse connections of a data thread.
pub(crate) struct ReverseConnections {
    own: ServiceName,
    tls: MeshTls,
    holds: bool,
    dials_out: bool,
    thread: usize,
    board: Board,
    networks: HashMap<NetworkName, Known>,
    held: Held,
    opened: Opened,
    carrying: Vec<Carrying>,
    next_round: Option<Instant>,
    next_pulse: Option<Instant>,
}

/// What matters here of a joined network.
struct Known {
    trust_domain: TrustDomain,
    dials_out: bool,
    reverse_to: Arc<[SocketAddr]>,
}

/// A reverse connection that carries another one. The certificate of the gateway at its other end may
/// end meanwhile, but is not revoked.
struct Carrying {
    conn: ConnKey,
    network: NetworkName,
    peer: Arc<PeerIdentity>,
    since: Instant,
}

impl ReverseConnections {
    pub(crate) fn new(options: ReverseOptions) -> Self {
        let ReverseOptions { credentials, own, holds, dials_out, thread, board } = options;
        Self {
            own,
            tls: MeshTls::new(credentials),
            holds,
            dials_out,
            thread,
            board,
            networks: HashMap::new(),
            held: Held::default(),
            opened: Opened::default(),
            carrying: Vec::new(),
            next_round: None,
            next_pulse: None,
        }
    }

    /// The control plane has sent the state of a joined network.
    pub(super) fn on_network(&mut self, network: &NetworkName, state: &NetworkState) {
        match state {
            NetworkState::Joined { trust_domain, dials_out, reverse_to, .. } => {
                let known = Known {
                    trust_domain: trust_domain.clone(),
                    dials_out: *dials_out,
                    reverse_to: reverse_to.clone(),
                };
                self.networks.insert(network.clone(), known);
            }
            NetworkState::Removed => {
                self.networks.remove(network);
            }
        }
    }

    /// Whether a server name is that of this gateway itself, for those who open reverse connections.
    pub(super) fn is_meant(&self, server_name: &str) -> bool {
        self.holds && server_name.eq_ignore_ascii_case(&self.own.dns_san())
    }

    /// Whether a joined network is reached by reverse connections.
    pub(super) fn lead_to(&self, network: &NetworkName) -> bool {
        self.networks.get(network).is_some_and(|known| known.dials_out)
    }

    /// The joined network whose trust domain a peer has proven, and whether it only dials out.
    fn joined_by_trust_domain(&self, peer: &PeerIdentity) -> Option<(&NetworkName, bool)> {
        let is_it = |known: &Known| known.trust_domain == peer.spiffe.trust_domain;
        let mut networks = self.networks.iter();
        networks.find(|(_, known)| is_it(known)).map(|(network, known)| (network, known.dials_out))
    }

    /// Whether one of a network carries a connection now, and when bytes came the last time by one that
    /// carries it only since `after` or later.
    fn carries(
        &self,
        conns: &Connections,
        network: &NetworkName,
        after: Option<Instant>,
    ) -> (bool, Option<Instant>) {
        let of_network = self.carrying.iter().filter(|carrying| carrying.network == *network);
        let stand = of_network.filter_map(|carrying| Some((carrying, conns.get(carrying.conn)?)));
        let (mut is_carrying, mut heard) = (false, None);
        for (carrying, conn) in stand {
            is_carrying = true;
            if let Role::Relay(relay) = &conn.role
                && after.is_none_or(|after| carrying.since >= after)
            {
                heard = heard.max(Some(relay.heard));
            }
        }
        (is_carrying, heard)
    }
}

/// Bytes on a reverse connection that carries nothing yet.
pub(crate) fn on_bytes(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    key: ConnKey,
    data: &[u8],
) {
    let Some(conn) = conns.get_mut(key).filter(|_| !data.is_empty()) else { return };
    let Role::Reverse(reverse) = &mut conn.role else { return };
    reverse.heard = cx.now;
    let message = message::read(data);
    match reverse.side {
        ReverseSide::Opened { .. } => opened::on_message(cx, conns, gateway, key, message),
        ReverseSide::Held | ReverseSide::Offered { .. } => {
            held::on_message(cx, conns, gateway, key, message);
        }
    }
}

/// A reverse connection that carries nothing yet has ended or broken.
pub(crate) fn on_over(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway, key: ConnKey) {
    let Some(Role::Reverse(reverse)) = conns.get(key).map(|conn| &conn.role) else { return };
    match reverse.side {
        ReverseSide::Opened { .. } => opened::on_over(cx, conns, gateway, key),
        ReverseSide::Held | ReverseSide::Offered { .. } => {
            held::on_over(cx, conns, gateway, key);
        }
    }
}

/// The work that is done ten times a second.
pub(crate) fn sweep(cx: &mut Cx, conns: &mut Connections, gateway: &mut Gateway) {
    held::sweep(cx, conns, gateway);
    if gateway.reverse.next_round.is_none_or(|at| cx.now >= at) {
        gateway.reverse.next_round = Some(cx.now + ROUND);
        held::round(cx, conns, gateway);
        opened::round(cx, conns, gateway);
        gateway.reverse.carrying.retain(|carrying| conns.get(carrying.conn).is_some());
    }
    if gateway.reverse.next_pulse.is_none_or(|at| cx.now >= at) {
        gateway.reverse.next_pulse = Some(cx.now + opened::PULSE);
        opened::pulse(cx, conns, gateway);
    }
    opened::fill(cx, conns, &mut gateway.reverse);
    let reverse = &gateway.reverse;
    let waiting = reverse.held.count() + reverse.opened.count(conns);
    cx.metrics.gateway_reverse_connections.set(waiting as u64);
}

/// The gateway has new credentials, or other peers are trusted: what is trusted no more ends.
pub(crate) fn on_credentials(
    cx: &mut Cx,
    conns: &mut Connections,
    gateway: &mut Gateway,
    credentials: Arc<Credentials>,
) {
    gateway.reverse.tls = MeshTls::new(credentials);
    let bundles = gateway.reverse.tls.credentials().bundles().clone();
    for key in conns.keys() {
        let Some(peer) = conns.get(key).and_then(|conn| conn.peer.as_ref()) else { continue };
        if bundles.judge(peer).is_err() {
            on_over(cx, conns, gateway, key);
        }
    }
    let mut ended = Vec::new();
    gateway.reverse.carrying.retain(|carrying| {
        let judged = bundles.judge(&carrying.peer);
        if let Err(distrust) = judged {
            ended.push((carrying.conn, carrying.peer.spiffe.clone(), distrust));
        }
        judged.is_ok()
    });
    for (key, peer, distrust) in ended {
        let code = distrust.code();
        tracing::warn!(%code, %peer, reason = %distrust, "a reverse connection was ended");
        relay::on_failed(cx, conns, key);
    }
}
