//! Ways to a TCP service: a port that stands for it, and CONNECT on the outbound port.

use tollway_http::{Method, RequestHead};
use tollway_model::{AppProtocol, ErrorCode, ServiceName, ServiceState};
use tollway_net::Key;

use super::EventLoop;
use crate::connection::{ListenerKind, Purpose, Relay, Role};
use crate::exchange::Destination;
use crate::observe::Kind;
use crate::request_error::RequestError;
use crate::tls::alpn;

impl EventLoop {
    /// Opens a stream of bytes to a TCP service for an accepted connection.
    pub(super) fn open_tcp(&mut self, down: Key, service: ServiceName) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(down) else { return };
        conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
        self.queue_read(down);
        self.begin_line(down, Kind::Tcp, Some(service.clone()));
        self.dispatch_tcp(down, service);
    }

    /// Sends an accepted connection on once its service is known.
    pub(super) fn dispatch_tcp(&mut self, down: Key, service: ServiceName) {
        let Some(conn) = self.conns.get_mut(down) else { return };
        conn.raw_target = Some(service.clone());
        let destination = Destination::Service(service.clone());
        let state = match self.service_state(&service) {
            Ok(Some(state)) => state,
            Ok(None) => return self.wait_for_service_raw(down, service),
            Err(error) => return self.fail_raw(down, &error),
        };
        match state {
            ServiceState::Unavailable(reason) => {
                let error = RequestError::unavailable(reason, &service);
                tracing::info!(%error, "TCP call refused");
                self.refuse_tcp(down, error.code());
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. }
                if protocol != AppProtocol::Tcp =>
            {
                let code = ErrorCode::NotTcp;
                tracing::info!(%code, %service, %protocol, "TCP call refused");
                self.refuse_tcp(down, code);
            }
            ServiceState::Local { .. } | ServiceState::Remote { .. } => {
                match self.dial_for(&destination, Purpose::Relay(down), alpn::TCP) {
                    Ok(up) => self.attach_relay(down, up),
                    Err(RequestError::Unreachable { .. }) if self.may_dial_again(down) => {
                        self.dispatch_tcp(down, service);
                    }
                    Err(error) => {
                        tracing::info!(%error, "TCP call failed");
                        self.refuse_tcp(down, error.code());
                    }
                }
            }
        }
    }

    /// Plain TCP has no words: the caller is told by a reset.
    pub(super) fn refuse_tcp(&mut self, down: Key, code: ErrorCode) {
        self.metrics.faults.add(1);
        self.mark_line(down, |told| {
            // What had come was not passed on.
            told.request_bytes = 0;
            told.fail(code);
        });
        if let Some(conn) = self.conns.get_mut(down) {
            conn.io.abort_on_close();
        }
        self.remove(down);
    }

    /// CONNECT on the outbound port: a tunnel to one service of the mesh.
    pub(super) fn on_connect(&mut self, key: Key, head: &RequestHead) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.via != Some(ListenerKind::Outbound) {
            let reason = match self.tls.is_front() {
                true => "a front takes no tunnels; use the app's own protocol",
                false => "only the outbound port takes it",
            };
            let error = RequestError::Unsupported { method: "CONNECT", reason };
            return self.answer_http1_error(key, &error);
        }
        self.begin_line(key, Kind::Connect, None);
        self.mark_line(key, |told| told.method = Method::Connect);
        let host = String::from_utf8_lossy(&head.authority).into_owned();
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
        match ServiceName::parse_host(host, &self.config.home) {
            Ok(service) => {
                self.mark_line(key, |told| told.service = Some(service.clone()));
                self.open_tunnel(key, service);
            }
            Err(error) => self.answer_http1_error(key, &RequestError::Target(error.into())),
        }
    }

    /// Answers CONNECT when the service is known: bytes for a TCP service, HTTP for others.
    pub(super) fn open_tunnel(&mut self, key: Key, service: ServiceName) {
        let state = match self.service_state(&service) {
            Ok(Some(state)) => state,
            Ok(None) => return self.wait_for_service_raw(key, service),
            Err(error) => return self.fail_raw(key, &error),
        };
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http1Server(server) = &mut conn.role else { return };
        let is_tcp = match state {
            ServiceState::Unavailable(reason) => {
                let error = RequestError::unavailable(reason, &service);
                return self.answer_http1_error(key, &error);
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
                protocol == AppProtocol::Tcp
            }
        };
        let early = std::mem::take(&mut server.input);
        conn.io.out().extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        self.mark_dirty(key);
        if is_tcp {
            self.mark_line(key, |told| told.status = 200);
            self.open_tcp(key, service);
            return self.on_relay_bytes(key, &early);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.via = Some(ListenerKind::Tunnel(service));
        // Each request inside has a line.
        conn.told = None;
        conn.role = Role::Detect { input: early };
        self.look_in_time(key);
        self.resume(key);
    }
}
