//! Accepting connections, as many as there is room for.

use super::{ACCEPTS_PER_PASS, Composition, EventLoop};

use tollway_model::ErrorCode;
use tollway_net::{AcceptError, is_among_last_descriptors};

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
        let (io, role) = match self.plane.accept(stream, &via) {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::error!(%error, "an accepted connection cannot start TLS");
                return;
            }
        };
        let mut conn = Connection::new(io, role, self.cx.now);
        conn.remote = remote;
        conn.via = Some(via);
        if let Some(key) = self.conns.insert(&self.cx, conn) {
            self.plane.on_accepted(&mut self.cx, &mut self.conns, key);
        }
    }
}

fn log_exhausted(cx: &mut Cx, error: &std::io::Error) {
    if cx.log.should_log("accept".to_owned(), cx.now) {
        let (code, limit) = (ErrorCode::OutOfDescriptors, tollway_net::descriptor_limit());
        let hint = code.entry().remedy;
        tracing::warn!(%code, %error, limit, hint, "new connections wait: no descriptors are left");
    }
}
