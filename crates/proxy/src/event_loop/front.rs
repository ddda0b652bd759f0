//! A front's listener: clients over TLS, with a certificate or without, whose requests all go to the
//! one app behind.

use super::EventLoop;

use crate::conn::accepted;
use crate::event_loop::{AppTarget, LoopConfig};
use crate::exchange::Destination;
use crate::front::Served;
use crate::tls::PlaneTls;
use crate::upstream::pools;

impl EventLoop {
    /// Other certificates are shown from now on. Who stands goes on, unless others vouch for
    /// clients now: then everybody proves anew who they are, when their requests are answered.
    pub(super) fn on_certificates(&mut self, served: Served) {
        let is_demanded_anew = match &self.tls {
            PlaneTls::Front(before) => before.clients != served.clients,
            PlaneTls::Mesh(_) => false,
        };
        self.tls = PlaneTls::Front(served);
        if is_demanded_anew {
            accepted::retire_clients(&mut self.cx, &mut self.conns);
        }
    }

    /// The app is at another address: new requests go there.
    pub(super) fn on_app(&mut self, app: AppTarget) {
        let config = LoopConfig { app: Some(app), ..(*self.cx.config).clone() };
        self.cx.config = std::sync::Arc::new(config);
        pools::renew(&mut self.cx, &mut self.conns, &mut self.upstreams, &Destination::App);
    }
}
