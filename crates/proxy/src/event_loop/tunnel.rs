//! Ways to a TCP service: a port that stands for it, and CONNECT on the outbound port.

use tollway_http::{Method, RequestHead};
use tollway_model::{AppProtocol, ErrorCode, ServiceName, ServiceState};
use tollway_net::Key;

use super::EventLoop;
use crate::conn::{ListenerKind, Purpose, Relay, Role};
use crate::exchange::Destination;
use crate::exchange::access_log;
use crate::observe::Kind;
use crate::protocol::{http1_server, relay};
use crate::request_error::RequestError;
use crate::tls::alpn;

impl EventLoop {
    /// Opens a stream of bytes to a TCP service for an accepted connection.
    pub(super) fn open_tcp(&mut self, down: Key, service: ServiceName) {
        let now = self.cx.now;
        let Some(conn) = self.conns.get_mut(down) else { return };
        conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
        self.conns.queue_read(down);
        access_log::begin_line(
            &mut self.cx,
            &mut self.conns,
            down,
            Kind::Tcp,
            Some(service.clone()),
        );
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
                relay::refuse_tcp(&mut self.cx, &mut self.conns, down, error.code());
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. }
                if protocol != AppProtocol::Tcp =>
            {
                let code = ErrorCode::NotTcp;
                tracing::info!(%code, %service, %protocol, "TCP call refused");
                relay::refuse_tcp(&mut self.cx, &mut self.conns, down, code);
            }
            ServiceState::Local { .. } | ServiceState::Remote { .. } => {
                match self.dial_for(&destination, Purpose::Relay(down), alpn::TCP) {
                    Ok(up) => relay::attach(&mut self.conns, down, up),
                    Err(RequestError::Unreachable { .. })
                        if relay::may_dial_again(&mut self.conns, down) =>
                    {
                        self.dispatch_tcp(down, service);
                    }
                    Err(error) => {
                        tracing::info!(%error, "TCP call failed");
                        relay::refuse_tcp(&mut self.cx, &mut self.conns, down, error.code());
                    }
                }
            }
        }
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
            return http1_server::answer_error(&mut self.cx, &mut self.conns, key, &error);
        }
        access_log::begin_line(&mut self.cx, &mut self.conns, key, Kind::Connect, None);
        access_log::mark_line(&mut self.conns, key, |entry| entry.method = Method::Connect);
        let host = String::from_utf8_lossy(&head.authority).into_owned();
        let host = host.rsplit_once(':').map_or(host.as_str(), |(host, _)| host);
        match ServiceName::parse_host(host, &self.cx.config.home) {
            Ok(service) => {
                access_log::mark_line(&mut self.conns, key, |entry| {
                    entry.service = Some(service.clone())
                });
                self.open_tunnel(key, service);
            }
            Err(error) => http1_server::answer_error(
                &mut self.cx,
                &mut self.conns,
                key,
                &RequestError::Target(error.into()),
            ),
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
                return http1_server::answer_error(&mut self.cx, &mut self.conns, key, &error);
            }
            ServiceState::Local { protocol, .. } | ServiceState::Remote { protocol, .. } => {
                protocol == AppProtocol::Tcp
            }
        };
        let early = std::mem::take(&mut server.input);
        conn.io.out().extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
        self.conns.mark_dirty(key);
        if is_tcp {
            access_log::mark_line(&mut self.conns, key, |entry| entry.status = 200);
            self.open_tcp(key, service);
            return relay::on_bytes(&mut self.cx, &mut self.conns, key, &early);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.via = Some(ListenerKind::Tunnel(service));
        // Each request inside has a line.
        conn.access_log = None;
        conn.role = Role::Detect { input: early };
        self.conns.schedule(&self.cx, key);
        self.conns.resume(key);
    }
}
