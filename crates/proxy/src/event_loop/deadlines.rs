//! What follows when something expires for a connection.

use super::EventLoop;
use crate::upstream::dial::DialFailure;

use std::time::SystemTime;
use tollway_model::ErrorCode;

use crate::conn::{ConnKey, Expired, Role, accepted, access_log, retire};
use crate::protocol::{http1_server, http2, relay};
use crate::upstream::scale;

impl EventLoop {
    /// Looks at the connections that are due, and at nothing else.
    pub(super) fn sweep_connections(&mut self) {
        let wall = SystemTime::now();
        for key in self.conns.due(self.cx.now) {
            match self.conns.expired(&self.cx, key, wall) {
                Expired::No => {}
                Expired::Close => self.conns.close(&mut self.cx, key),
                Expired::Relay => {
                    self.cx.metrics.request_failures.add(1);
                    access_log::fail_line(&mut self.conns, key, ErrorCode::TimedOut);
                    relay::on_failed(&mut self.cx, &mut self.conns, key);
                }
                Expired::Handshake => {
                    accepted::refuse_slow_handshake(&mut self.cx, &mut self.conns, key)
                }
                Expired::Hello => {
                    self.cx.metrics.gateway_connections_refused.add(1);
                    self.conns.close(&mut self.cx, key);
                }
                Expired::Head => http1_server::refuse_slow_head(&mut self.cx, &mut self.conns, key),
                Expired::Dial => self.on_dial_failed(key, &DialFailure::TimedOut),
                Expired::Retire => retire::retire_http2(&mut self.cx, &mut self.conns, key),
                Expired::Apart => self.end_bulk_pause(key),
                Expired::Codec(reason) => http2::refuse_connection(
                    &mut self.cx,
                    &mut self.conns,
                    &mut self.exchanges,
                    key,
                    &reason,
                ),
            }
            self.settle();
            self.conns.schedule(&self.cx, key);
        }
    }

    /// Bulk has ended: the connection is one like others, and one of them may be too many.
    fn end_bulk_pause(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Role::Http2Client(link) = &mut conn.role else { return };
        link.end_bulk_pause();
        if let Some(destination) = link.destination.clone() {
            scale::scale(
                &mut self.cx,
                &mut self.conns,
                &mut self.upstreams,
                &mut self.tls,
                &destination,
            );
        }
    }
}
