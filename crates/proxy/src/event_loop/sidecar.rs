//! A sidecar: requests of its app to the mesh, and of the mesh to its app.

use std::sync::Arc;

use tollway_http::RequestHead;
use tollway_identity::{Credentials, SYSTEM_NAMESPACE, TlsError};
use tollway_model::{ErrorCode, ServiceName};
use tollway_net::{Conn, ConnError, Tls};
use tollway_routing::intercept::Learned;

use super::composition::unexpected;
use super::http::Variant;
use super::{Command, Http, LoopConfig, ProcessServices};
use crate::cause::Cause;
use crate::conn::accepted::proven_identity;
use crate::conn::{ConnKey, Connection, Connections, ListenerKind, Role, accepted, retire};
use crate::cx::{Cx, Effect};
use crate::exchange::Exchanges;
use crate::inbound::{PolicyGate, policy, tcp};
use crate::outbound::{ExternalQueue, external, intercepted, route, tunnel};
use crate::protocol::{Arrival, actor_turns, trust};
use crate::tls::{Carried, MeshTls, alpn};
use crate::upstream::pools;

/// What a sidecar has beside the parts that serve requests.
pub(crate) struct Sidecar {
    policy: PolicyGate,
    tls: MeshTls,
    /// What services have declared to which intercepted connections went.
    learned: Learned,
    /// Connections out of the mesh that wait.
    external: ExternalQueue,
}

impl Http<Sidecar> {
    pub(crate) fn sidecar(
        config: &LoopConfig,
        credentials: Arc<Credentials>,
        services: Box<dyn ProcessServices>,
    ) -> Self {
        let policy = PolicyGate::new(config.access.clone(), config.dapr_metrics.clone());
        let (tls, learned) = (MeshTls::new(credentials), Learned::default());
        let external = ExternalQueue::default();
        Self::with(Sidecar { policy, tls, learned, external }, services)
    }

    fn on_credentials(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        credentials: Arc<Credentials>,
    ) {
        let former = self.variant.tls.credentials().bundles().clone();
        let present = credentials.bundles();
        trust::cut_untrusted(cx, conns, &mut self.exchanges, &former, present);
        cx.identity = credentials.spiffe_id().to_string();
        self.variant.tls = MeshTls::new(credentials);
        pools::renew_all(cx, conns, &mut self.upstreams);
    }
}

impl Variant for Sidecar {
    fn start(&mut self, cx: &mut Cx) {
        cx.identity = self.tls.credentials().spiffe_id().to_string();
    }

    fn server_tls(&mut self, cx: &Cx) -> Result<Tls, TlsError> {
        self.tls.server(&cx.ports)
    }

    fn why_refused(&self, error: &ConnError) -> Cause {
        Cause::from(error)
    }

    fn on_established(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool {
        let Some(conn) = conns.get_mut(key) else { return false };
        let Some(peer) = conn.io.peer() else { return false };
        let agreed = peer.alpn.and_then(Carried::read);
        let identity = match proven_identity(&peer, (cx.clocks.wall)()) {
            Ok(identity) => identity,
            Err(reason) => {
                let cause = Cause::coded(ErrorCode::TlsFailed, reason);
                accepted::refuse_peer(cx, conns, key, &cause);
                return false;
            }
        };
        // The handshake may have begun under an older trust.
        if let Err(distrust) = self.tls.credentials().bundles().judge(&identity) {
            let reason = format!("{}: {distrust}", identity.spiffe);
            accepted::refuse_peer(cx, conns, key, &Cause::coded(distrust.code(), reason));
            return false;
        }
        if is_of_mesh(&identity.service) {
            let reason = format!("{} is a part of the mesh, which calls no apps", identity.spiffe);
            cx.metrics.policy_denials.add(1);
            accepted::refuse_peer(cx, conns, key, &Cause::coded(ErrorCode::PolicyDenied, reason));
            return false;
        }
        conn.peer = Some(Arc::new(identity));
        conn.app_port = agreed.and_then(|agreed| agreed.port);
        cx.metrics.tls_handshakes.add(1);
        match agreed.map(|agreed| agreed.protocol) {
            Some(alpn::TCP) => return tcp::open_app_tcp(cx, conns, &mut self.policy, key),
            protocol => accepted::begin_server(cx, conns, key, protocol == Some(alpn::H2)),
        }
        true
    }

    fn mesh(&mut self) -> Option<&mut MeshTls> {
        Some(&mut self.tls)
    }

    fn begin(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        exchanges: &mut Exchanges,
        arrival: Arrival,
    ) {
        route::begin(cx, conns, exchanges, &mut self.policy, arrival);
    }

    fn on_accepted(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, key: ConnKey) {
        let Some(conn) = conns.get(key) else { return };
        let Http { upstreams, variant: Self { tls, learned, external, .. }, .. } = http;
        match &conn.via {
            Some(ListenerKind::Tcp(service)) => {
                let service = service.clone();
                tunnel::open_tcp(cx, conns, upstreams, tls, key, service);
            }
            Some(ListenerKind::Intercepted) => {
                intercepted::open(cx, conns, upstreams, tls, (learned, external), key);
            }
            _ => conns.queue_read(key),
        }
    }

    fn on_connect(
        http: &mut Http<Self>,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        head: &RequestHead,
    ) {
        let Http { upstreams, variant: Self { tls, external, .. }, .. } = http;
        tunnel::on_connect(cx, conns, upstreams, tls, external, key, head);
    }

    fn carry_out(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, effect: Effect) {
        let Http { upstreams, variant, .. } = http;
        match effect {
            Effect::DispatchRaw(conn) => {
                let Self { tls, learned, external, .. } = variant;
                tunnel::dispatch_raw(cx, conns, upstreams, tls, (learned, external), conn);
            }
            Effect::RetireCallers(port) => retire::retire_callers(cx, conns, &port),
            Effect::LeaveUnanswered(conn) => {
                intercepted::leave_unanswered(cx, conns, upstreams, &mut variant.external, conn);
            }
            Effect::DispatchTcp { down, service } => {
                tunnel::dispatch_tcp(cx, conns, upstreams, &mut variant.tls, down, service);
            }
            Effect::BackOffDialled { down, address, until } => {
                tunnel::back_off_dialled(cx, conns, upstreams, down, address, until);
            }
            Effect::HeldBytes(conn) => external::on_held_bytes(cx, conns, conn),
            Effect::DialExternal(conn) => external::dial_next(cx, conns, conn),
            Effect::JudgeRelay(conn) => policy::judge_relay(cx, conns, &mut variant.policy, conn),
            effect => unexpected(&effect),
        }
    }

    fn on_command(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, command: Command) {
        match command {
            Command::Services(updates) => {
                let Http { upstreams, variant, .. } = http;
                let caller = variant.tls.credentials().spiffe_id();
                for update in updates {
                    pools::on_service(cx, conns, upstreams, caller, update);
                }
            }
            Command::Applied(applied) => drop(applied),
            Command::Routes(updates) => {
                for update in updates {
                    pools::on_routes(cx, &mut http.upstreams, update);
                }
            }
            Command::Credentials(credentials) => http.on_credentials(cx, conns, credentials),
            Command::Policies(update) => {
                policy::on_policies(cx, conns, &mut http.variant.policy, &update);
            }
            Command::Traffic(update) => {
                http.app_queue.set_shedding(update.shedding, cx.now);
                http.variant.policy.rates.replace(update.limits, update.shadow);
            }
            Command::Egress(update) => {
                cx.config.egress.replace(Arc::clone(&update.present));
                external::on_rules(cx, conns, &mut http.variant.external);
            }
            Command::Ports(ports) => {
                cx.ports = ports;
                http.variant.tls.renew_server();
            }
            Command::Addresses(name, found) => {
                external::on_addresses(cx, conns, &mut http.variant.external, &name, &found);
            }
            Command::LeaseRenewed(lease) => http.app_queue.renew(lease),
            Command::CallOff(number) => {
                actor_turns::call_off(cx, conns, &mut http.exchanges, number);
            }
            Command::AppUnready => retire::retire_inbound(cx, conns),
            Command::Adopt(stream) => {
                let role = Role::Detect { input: Vec::new() };
                let mut conn = Connection::new(Conn::local(stream), role, cx.now);
                conn.via = Some(ListenerKind::Loopback);
                // Without a descriptor left it is closed, which its other end sees.
                let _ = conns.insert(cx, conn);
            }
            _ => {}
        }
    }
}

/// Whether a service is a gateway, an agent or a control plane.
fn is_of_mesh(service: &ServiceName) -> bool {
    service.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE)
}
