//! Accepting connections, and telling HTTP/1.1 from HTTP/2 on plain listeners.

use super::{ACCEPTS_PER_TURN, EventLoop};

use std::os::unix::net::UnixStream;
use tollway_http::h1;
use tollway_model::ErrorCode;
use tollway_net::{AcceptError, Conn, is_among_last_descriptors};

use crate::cause::Cause;
use crate::conn::accepted::proven_identity;
use crate::conn::{ConnKey, Connection, ListenerKind, Role, accepted, access_log, eviction};
use crate::cx::Cx;
use crate::inbound::tcp;
use crate::outbound::tunnel;
use crate::tls::alpn;

/// Descriptors that connections which do nothing do not keep: for those to apps and to the control
/// plane, and for the admin port.
const SPARE_DESCRIPTORS: u64 = 64;

impl EventLoop {
    pub(super) fn accept_turn(&mut self, slot: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((listener, via)) = self.listeners.get(slot) else { return };
            if self.listeners.accept_again.is_some_and(|at| self.cx.now < at) {
                return;
            }
            let via = via.clone();
            match listener.accept() {
                Ok(stream) => {
                    let is_full = self.conns.len() >= self.cx.config.limits.connections;
                    if is_full
                        && !eviction::make_room(
                            &mut self.cx,
                            &mut self.conns,
                            ErrorCode::Overloaded,
                        )
                    {
                        self.cx.metrics.connections_refused.add(1);
                        access_log::log_unadmitted(&mut self.cx, &stream, &via);
                        continue;
                    }
                    if is_among_last_descriptors(&stream, SPARE_DESCRIPTORS) {
                        // This one is accepted; the eviction is for the next descriptor that is needed.
                        eviction::make_room(
                            &mut self.cx,
                            &mut self.conns,
                            ErrorCode::OutOfDescriptors,
                        );
                    }
                    let remote = stream.peer_addr().ok();
                    self.admit(stream, remote, via);
                }
                Err(AcceptError::Empty) => return,
                Err(AcceptError::Exhausted(error)) => {
                    log_exhausted(&mut self.cx, &error);
                    if eviction::make_room(
                        &mut self.cx,
                        &mut self.conns,
                        ErrorCode::OutOfDescriptors,
                    ) {
                        continue;
                    }
                    self.cx.metrics.connections_refused.add(1);
                    self.listeners.pause(self.conns.poller(), self.cx.now);
                    return;
                }
                Err(AcceptError::Lost(_)) => {}
            }
        }
    }

    fn admit(
        &mut self,
        stream: std::net::TcpStream,
        remote: Option<std::net::SocketAddr>,
        via: ListenerKind,
    ) {
        let (io, role) = match &via {
            ListenerKind::Inbound | ListenerKind::Front => match self.tls.server() {
                Ok(tls) => (Conn::accepted(stream, Some(tls)), Role::Accepting),
                Err(error) => {
                    tracing::error!(%error, "an accepted connection cannot start TLS");
                    return;
                }
            },
            ListenerKind::Gateway => (Conn::accepted(stream, None), Role::Hello(Box::default())),
            ListenerKind::HttpApi
            | ListenerKind::GrpcApi
            | ListenerKind::Loopback
            | ListenerKind::Public
            | ListenerKind::Outbound
            | ListenerKind::Tunnel(_)
            | ListenerKind::Tcp(_) => {
                (Conn::accepted(stream, None), Role::Detect { input: Vec::new() })
            }
        };
        let mut conn = Connection::new(io, role, self.cx.now);
        conn.remote = remote;
        let tcp = match &via {
            ListenerKind::Tcp(service) => Some(service.clone()),
            _ => None,
        };
        conn.via = Some(via);
        let Some(key) = self.conns.insert(&self.cx, conn) else { return };
        match tcp {
            Some(service) => tunnel::open_tcp(
                &mut self.cx,
                &mut self.conns,
                &mut self.upstreams,
                &mut self.tls,
                key,
                service,
            ),
            None => self.conns.queue_read(key),
        }
    }

    /// Takes a connection from within this process for one of the app to the HTTP API.
    pub(super) fn adopt(&mut self, stream: UnixStream) {
        let role = Role::Detect { input: Vec::new() };
        let mut conn = Connection::new(Conn::local(stream), role, self.cx.now);
        conn.via = Some(ListenerKind::Loopback);
        // Without a descriptor left it is closed, which its other end sees.
        let _ = self.conns.insert(&self.cx, conn);
    }

    /// A plain downstream: its first bytes show the protocol.
    pub(super) fn on_detect_bytes(&mut self, key: ConnKey, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Detect { input } = &mut conn.role else { return };
        input.extend_from_slice(data);
        if input.is_empty() {
            return;
        }
        let Some(is_h2) = h1::looks_like_http2(input) else { return };
        let input = std::mem::take(input);
        accepted::begin_server(&mut self.cx, &mut self.conns, key, is_h2);
        self.on_bytes(key, &input);
    }

    /// A TLS handshake is over: checks who it is and gives the connection its role. Says
    /// whether it lives on.
    pub(super) fn on_established(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        match conn.role {
            Role::Accepting if conn.via == Some(ListenerKind::Front) => {
                accepted::on_client_accepted(&mut self.cx, &mut self.conns, key)
            }
            Role::Accepting => self.on_accepted(key),
            _ => self.on_dialled(key),
        }
    }

    fn on_accepted(&mut self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Some(peer) = conn.io.peer() else { return false };
        let agreed = peer.alpn.map(<[u8]>::to_vec);
        let identity = match proven_identity(&peer) {
            Ok(identity) => identity,
            Err(reason) => {
                accepted::refuse_peer(
                    &mut self.cx,
                    &mut self.conns,
                    key,
                    &Cause::coded(ErrorCode::TlsFailed, reason),
                );
                return false;
            }
        };
        conn.peer = Some(std::sync::Arc::new(identity));
        self.cx.metrics.tls_handshakes.add(1);
        match agreed.as_deref() {
            Some(alpn::H2) => accepted::begin_server(&mut self.cx, &mut self.conns, key, true),
            Some(alpn::TCP) => {
                return tcp::open_app_tcp(&mut self.cx, &mut self.conns, &mut self.inbound, key);
            }
            _ => accepted::begin_server(&mut self.cx, &mut self.conns, key, false),
        }
        true
    }
}

fn log_exhausted(cx: &mut Cx, error: &std::io::Error) {
    if cx.log.should_log("accept".to_owned(), cx.now) {
        let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
        let hint = code.entry().remedy;
        tracing::warn!(%code, %error, limit, hint, "new connections wait: no descriptors are left");
    }
}
