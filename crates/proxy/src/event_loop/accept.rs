//! Accepting connections, as many as there is room for.

use std::net::SocketAddr;

use super::{ACCEPTS_PER_PASS, Composition, EventLoop};

use tollway_model::ErrorCode;
use tollway_net::{AcceptError, Conn, is_among_last_descriptors};

use crate::conn::{Connection, ListenerKind, access_log, eviction};
use crate::cx::Cx;

/// Descriptors that connections which do nothing do not keep: for those to apps and to the control
/// plane, and for the admin port.
const SPARE_DESCRIPTORS: u64 = 64;

impl<C: Composition> EventLoop<C> {
    /// Accepts what waits at a listener, as far as one pass may.
    pub(super) fn accept_pass(&mut self, slot: usize) {
        for _ in 0..ACCEPTS_PER_PASS {
            let Some((listener, via)) = self.listeners.get(slot) else { return };
            if self.listeners.accept_again.is_some_and(|at| self.cx.now < at) {
                return;
            }
            let via = via.clone();
            match listener.accept() {
                Ok(stream) => {
                    let remote = stream.peer_addr().ok();
                    self.take_connection(Conn::accepted(stream, None), remote, via);
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

    /// Takes an accepted connection if there is room for it, for which an idle one may be evicted.
    pub(super) fn take_connection(
        &mut self,
        io: Conn,
        remote: Option<SocketAddr>,
        via: ListenerKind,
    ) {
        let Self { cx, conns, .. } = self;
        let is_full = conns.len() >= cx.config.limits.connections;
        if is_full && !eviction::make_room(cx, conns, ErrorCode::Overloaded) {
            cx.metrics.connections_refused.add(1);
            access_log::log_unadmitted(cx, remote, &via);
            return;
        }
        if is_among_last_descriptors(&io, SPARE_DESCRIPTORS) {
            // This one is accepted; the eviction is for the next descriptor that is needed.
            eviction::make_room(cx, conns, ErrorCode::OutOfDescriptors);
        }
        self.register(io, remote, via);
    }

    /// Registers an accepted connection.
    fn register(&mut self, mut io: Conn, remote: Option<SocketAddr>, via: ListenerKind) {
        let (tls, role) = match self.plane.first_role(&self.cx, &via) {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "an accepted connection cannot start TLS");
                return;
            }
        };
        if let Some(tls) = tls {
            io.start_tls(tls);
        }
        let mut conn = Connection::new(io, role, self.cx.now);
        conn.remote = remote;
        conn.via = Some(via);
        if let Some(key) = self.conns.insert(&self.cx, conn) {
            self.plane.on_accepted(&mut self.cx, &mut self.conns, key);
        }
    }
}

fn log_exhausted(cx: &mut Cx, error: &std::io::Error) {
    if let Some(left_out) = cx.log.admit("accept", "", cx.now) {
        let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
        let hint = code.entry().remedy;
        tracing::warn!(%code, %error, limit, left_out, hint, "new connections wait: no descriptors are left");
    }
}
