//! Accepting connections, and telling HTTP/1.1 from HTTP/2 on plain kinds.

use std::os::unix::net::UnixStream;
use std::time::{Duration, SystemTime};

use tollway_http::{h1, h2};
use tollway_identity::PeerIdentity;
use tollway_model::ErrorCode;
use tollway_net::{AcceptError, Conn, Key, Peer, is_among_last_descriptors};

use super::{ACCEPTS_PER_TURN, EventLoop};
use crate::cause::Cause;
use crate::conn::{Connection, Http2Link, ListenerKind, Role};
use crate::exchange::access_log;
use crate::request_error::Within;
use crate::tls::alpn;

/// How long accepting rests when no descriptor is left and nobody gives way.
pub(super) const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Descriptors that connections which do nothing do not keep: for those to apps and to the control
/// plane, and for whoever reads the metrics.
const SPARE_DESCRIPTORS: u64 = 64;

impl EventLoop {
    pub(super) fn accept_turn(&mut self, slot: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((listener, via)) = self.listeners.get(slot) else { return };
            if self.accept_again.is_some_and(|at| self.cx.now < at) {
                return;
            }
            let via = via.clone();
            match listener.accept() {
                Ok(stream) => {
                    let is_full = self.conns.len() >= self.cx.config.limits.connections;
                    if is_full && !self.make_room(ErrorCode::Overloaded) {
                        self.cx.metrics.connections_refused.add(1);
                        access_log::log_unadmitted(&mut self.cx, &stream, &via);
                        continue;
                    }
                    if is_among_last_descriptors(&stream, SPARE_DESCRIPTORS) {
                        // This one comes in, whoever gives way for what is opened next.
                        self.make_room(ErrorCode::OutOfDescriptors);
                    }
                    let remote = stream.peer_addr().ok();
                    self.admit(stream, remote, via);
                }
                Err(AcceptError::Empty) => return,
                Err(AcceptError::Exhausted(error)) => {
                    self.tell_exhausted(&error);
                    if self.make_room(ErrorCode::OutOfDescriptors) {
                        continue;
                    }
                    self.cx.metrics.connections_refused.add(1);
                    self.pause_accepting();
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
            Some(service) => self.open_tcp(key, service),
            None => self.conns.queue_read(key),
        }
    }

    /// Takes a connection from within this process for one of the app to the HTTP API.
    pub(super) fn adopt(&mut self, stream: UnixStream) {
        let role = Role::Detect { input: Vec::new() };
        let mut conn = Connection::new(Conn::local(stream), role, self.cx.now);
        conn.via = Some(ListenerKind::Loopback);
        // Without a descriptor left it is closed: whoever made it sees that.
        let _ = self.conns.insert(&self.cx, conn);
    }

    fn tell_exhausted(&mut self, error: &std::io::Error) {
        if self.cx.log.should_log("accept".to_owned(), self.cx.now) {
            let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
            let hint = code.entry().remedy;
            tracing::warn!(%code, %error, limit, hint, "new connections wait: no descriptors are left");
        }
    }

    /// A handshake did not end in time.
    pub(super) fn refuse_slow_handshake(&mut self, key: Key) {
        let within = Within(self.cx.config.timeouts.handshake);
        let reason = format!("the TLS handshake did not end within {within}");
        self.refuse_peer(key, &Cause::coded(ErrorCode::HandshakeTimedOut, reason));
    }

    /// A peer that cannot be trusted ends here; the log has each once in a while.
    pub(super) fn refuse_peer(&mut self, key: Key, cause: &Cause) {
        self.cx.metrics.handshakes_failed.add(1);
        let remote = self.conns.get(key).and_then(|conn| conn.remote).map(|remote| remote.ip());
        let Cause { code, reason } = cause;
        access_log::log_refused_connection(
            &mut self.cx,
            &mut self.conns,
            key,
            code.unwrap_or(ErrorCode::TlsFailed),
        );
        let code = code.map_or("", ErrorCode::word);
        let who = if self.tls.is_front() { "a client" } else { "a mesh connection" };
        if self.cx.log.should_log(format!("{remote:?} {code}"), self.cx.now) {
            tracing::info!(?remote, code, reason, "{who} was refused");
        } else {
            tracing::debug!(?remote, code, reason, "{who} was refused");
        }
        self.conns.close(&mut self.cx, key);
    }

    /// Takes the listeners out of the poller for a moment: they are level-triggered and would
    /// spin.
    fn pause_accepting(&mut self) {
        self.accept_again = Some(self.cx.now + ACCEPT_REST);
        for (_, listener) in self.listeners.iter() {
            // It was registered; if that failed there is nothing to take out.
            let _ = self.conns.poller().remove(listener);
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        if self.accept_again.is_none_or(|at| self.cx.now < at) {
            return;
        }
        self.accept_again = None;
        for (token, listener) in self.listeners.iter() {
            if let Err(error) = self.conns.poller().add_listener(listener, token) {
                tracing::error!(%error, "a listener could not be registered again");
            }
        }
    }

    /// A plain downstream: the first bytes tell the protocol.
    pub(super) fn on_detect_bytes(&mut self, key: Key, data: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Detect { input } = &mut conn.role else { return };
        input.extend_from_slice(data);
        if input.is_empty() {
            return;
        }
        let Some(is_h2) = h1::looks_like_http2(input) else { return };
        let input = std::mem::take(input);
        self.begin_server(key, is_h2);
        self.on_bytes(key, &input);
    }

    /// Gives a downstream connection its protocol.
    pub(super) fn begin_server(&mut self, key: Key, is_h2: bool) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.since = self.cx.now;
        conn.role = if is_h2 {
            let codec = h2::Connection::server(self.cx.config.limits.h2.clone(), conn.io.out());
            Role::Http2Server(Box::new(Http2Link::new(codec, self.cx.now)))
        } else {
            Role::Http1Server(Box::default())
        };
        self.conns.schedule(&self.cx, key);
        self.conns.mark_dirty(key);
    }

    /// A TLS handshake is over: checks who it is and gives the connection its role. Says
    /// whether it lives on.
    pub(super) fn on_established(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        match conn.role {
            Role::Accepting if conn.via == Some(ListenerKind::Front) => {
                self.on_client_accepted(key)
            }
            Role::Accepting => self.on_accepted(key),
            _ => self.on_dialled(key),
        }
    }

    fn on_accepted(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Some(peer) = conn.io.peer() else { return false };
        let agreed = peer.alpn.map(<[u8]>::to_vec);
        let identity = match proven_identity(&peer) {
            Ok(identity) => identity,
            Err(reason) => {
                self.refuse_peer(key, &Cause::coded(ErrorCode::TlsFailed, reason));
                return false;
            }
        };
        conn.peer = Some(std::sync::Arc::new(identity));
        self.cx.metrics.handshakes.add(1);
        match agreed.as_deref() {
            Some(alpn::H2) => self.begin_server(key, true),
            Some(alpn::TCP) => return self.open_app_tcp(key),
            _ => self.begin_server(key, false),
        }
        true
    }
}

/// Who is at the other end, valid now: a resumed session has skipped the check of the time.
pub(super) fn proven_identity(peer: &Peer<'_>) -> Result<PeerIdentity, String> {
    let identity =
        tollway_identity::peer_identity(peer.certificates).map_err(|error| error.to_string())?;
    if identity.valid_at(SystemTime::now()) {
        Ok(identity)
    } else {
        Err(format!("the certificate of {} is not valid now", identity.spiffe))
    }
}
