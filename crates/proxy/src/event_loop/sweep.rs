//! The rounds made ten times a second: connections that are due, exchanges that took too long,
//! pools, held credit, the drain. What a round costs does not grow with idle connections.

use std::time::Duration;

use tollway_model::ServiceName;

use super::{Composition, EventLoop, Load};
use crate::conn::{Connection, Expired, Role, access_log, retire};
use crate::cx::{Cx, Effect};
use crate::protocol::relay;

/// Rounds after which memory of a peak that is over is given back: five seconds.
const GIVE_BACK_ROUNDS: u64 = 50;
/// So much less than at the peak is in use where it is over.
const GIVE_BACK_BYTES: usize = 8 << 20;
/// About what a connection or an exchange takes besides the bytes that wait.
const PLACE_BYTES: usize = 16 << 10;

/// The most memory that was in use: since it was given back, and lately.
#[derive(Default)]
pub(super) struct Peak {
    highest: usize,
    lately: usize,
}

impl Peak {
    fn note(&mut self, bytes: usize) {
        self.lately = self.lately.max(bytes);
    }

    /// Whether much less was in use all the time since this was asked last.
    fn is_over(&mut self) -> bool {
        let lately = std::mem::take(&mut self.lately);
        let is_over = self.highest.saturating_sub(lately) > GIVE_BACK_BYTES;
        self.highest = if is_over { lately } else { self.highest.max(lately) };
        is_over
    }
}

impl<C: Composition> EventLoop<C> {
    pub(super) fn sweep(&mut self) {
        self.sweeps += 1;
        self.listeners.resume(self.conns.poller(), self.cx.now);
        self.sweep_connections();
        self.plane.sweep(&mut self.cx, &mut self.conns);
        self.sweep_drain();
        self.settle();
        self.plane.serve_queues(&mut self.cx, &mut self.conns);
        self.give_memory_back();
    }

    /// Looks at the connections that are due, and at nothing else.
    fn sweep_connections(&mut self) {
        let Self { cx, conns, plane, .. } = self;
        let wall = (cx.clocks.wall)();
        for key in conns.due(cx.now) {
            match conns.expired(cx, key, wall) {
                Expired::No => {}
                Expired::Close => conns.close(cx, key),
                Expired::Relay(code) => {
                    cx.metrics.request_failures.add(1);
                    access_log::fail_line(conns, key, code);
                    relay::on_failed(cx, conns, key);
                }
                Expired::NoRequest(service) => {
                    log_no_request(cx, &service);
                    conns.close(cx, key);
                }
                Expired::Refuse(code) => relay::refuse_tcp(cx, conns, key, code),
                Expired::Unanswered => cx.effects.push(Effect::LeaveUnanswered(key)),
                Expired::Retire => retire::retire_http2(cx, conns, key),
                expired => plane.on_expired(cx, conns, key, expired),
            }
            plane.settle(cx, conns);
            conns.schedule(cx, key);
        }
    }

    fn give_memory_back(&mut self) {
        let Load { requests, buffered_bytes } = self.plane.load();
        self.peak.note(buffered_bytes + (self.conns.len() + requests) * PLACE_BYTES);
        if self.sweeps.is_multiple_of(GIVE_BACK_ROUNDS)
            && (self.conns.shrink() | self.plane.shrink() | self.peak.is_over())
        {
            tollway_net::let_free_memory_go();
        }
    }

    /// Goes on with a drain: closes the listeners and idle connections; busy ones close when they are
    /// done.
    fn sweep_drain(&mut self) {
        let Some(since) = self.cx.draining else { return };
        let waited = self.cx.now.saturating_duration_since(since);
        if waited < self.leaves_in() {
            return;
        }
        if !self.listeners.is_empty() {
            tracing::info!("draining: no new connections");
            self.listeners.clear();
        }
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            let leads_to_control = conn.leads_to_control;
            if !conn.draining && !is_upstream(&conn.role) {
                conn.draining = true;
                self.conns.schedule(&self.cx, key);
            }
            if leads_to_control {
                // It would not end by itself, and control planes come back where they can.
                relay::on_failed(&mut self.cx, &mut self.conns, key);
            }
        }
        if waited > self.cx.config.timeouts.drain {
            let cut = self.plane.load().requests;
            if cut > 0 {
                self.cut_off += cut;
                tracing::warn!(requests = cut, "drain time is over; requests are cut off");
            }
            for key in self.conns.keys() {
                self.conns.close(&mut self.cx, key);
            }
        }
    }

    /// From the beginning of a drain to the moment at which no connection is taken any more.
    fn leaves_in(&self) -> Duration {
        self.cx.config.timeouts.withdraw.max(C::LEAVES_IN)
    }

    /// Whether a drain has nothing left to wait for.
    pub(super) fn is_drained(&self) -> bool {
        let Some(since) = self.cx.draining else { return false };
        let waited = self.cx.now.saturating_duration_since(since);
        waited >= self.leaves_in()
            && self.listeners.is_empty()
            && self.conns.iter().all(|(_, conn)| is_expendable(conn))
    }
}

/// Whether a connection carries requests onward: those that still come need it to the last.
fn is_upstream(role: &Role) -> bool {
    match role {
        Role::Http1Client(_) | Role::Http2Client(_) | Role::Dialling(_) => true,
        Role::Http1Server(_)
        | Role::Http2Server(_)
        | Role::Relay(_)
        | Role::Hello(_)
        | Role::Reverse(_)
        | Role::Detect { .. }
        | Role::Accepting
        | Role::Lingering(_) => false,
    }
}

/// Whether a connection need not be waited for at the end.
fn is_expendable(conn: &Connection) -> bool {
    match &conn.role {
        Role::Http2Client(link) => link.streams.is_empty(),
        Role::Http1Client(client) => client.exchange.is_none(),
        Role::Dialling(_)
        | Role::Hello(_)
        | Role::Reverse(_)
        | Role::Detect { .. }
        | Role::Accepting => true,
        Role::Lingering(_) => conn.io.pending() == 0,
        Role::Http1Server(_) | Role::Http2Server(_) | Role::Relay(_) => false,
    }
}

/// What a client waits for whose server speaks first, if that is declared as HTTP.
fn log_no_request(cx: &mut Cx, service: &ServiceName) {
    let service = service.to_string();
    if let Some(left_out) = cx.log.admit("no-request", service.as_str(), cx.now) {
        let hint = "if its server speaks first, declare it with --app-protocol tcp";
        tracing::warn!(
            service,
            left_out,
            hint,
            "a connection to a service of HTTP has sent nothing"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_over_once_when_much_less_was_in_use_for_a_while() {
        let mut peak = Peak::default();
        let mut was_in_use = |most: usize| {
            peak.note(most);
            peak.note(most / 2);
            peak.is_over()
        };
        let large = 2 * GIVE_BACK_BYTES;
        assert!(!was_in_use(1000), "nothing was");
        assert!(!was_in_use(large), "it grows");
        assert!(!was_in_use(large - GIVE_BACK_BYTES / 2), "it is much still");
        assert!(was_in_use(1000));
        assert!(!was_in_use(0), "it was given back");
    }
}
