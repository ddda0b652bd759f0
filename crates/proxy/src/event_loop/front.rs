//! A front's listener: clients over TLS, with a certificate or without, whose requests all go to the
//! one app behind.

use std::time::SystemTime;

use tollway_identity::ClientCertificate;
use tollway_model::ErrorCode;
use tollway_net::Key;

use super::EventLoop;
use super::interface::{AppTarget, LoopConfig};
use crate::cause::Cause;
use crate::conn::{ListenerKind, Role};
use crate::exchange::Destination;
use crate::front::{Client, Served};
use crate::headers;
use crate::tls::{PlaneTls, alpn};

impl EventLoop {
    /// A client's handshake is over. Says whether its connection lives on.
    pub(super) fn on_client_accepted(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let Some(peer) = conn.io.peer() else { return false };
        let is_h2 = peer.alpn == Some(alpn::H2);
        match read_certificate(peer.certificates) {
            Ok(certificate) => conn.client = Some(Box::new(Client::new(conn.remote, certificate))),
            Err(cause) => {
                self.refuse_peer(key, &cause);
                return false;
            }
        }
        self.cx.metrics.handshakes.add(1);
        self.begin_server(key, is_h2);
        true
    }

    /// Every request goes to the app; what is said of its client is what was seen here.
    pub(super) fn decide_front(&mut self, key: Key) {
        self.cx.metrics.inbound_requests.add(1);
        let Some(exchange) = self.exchanges.get_mut(key) else { return };
        exchange.destination = Destination::App;
        let conn = self.conns.get(exchange.down.conn);
        if let Some(client) = conn.and_then(|conn| conn.client.as_ref()) {
            headers::front_request(&mut exchange.head, client);
        }
    }

    /// Other certificates are shown from now on. Who stands goes on, unless others vouch for
    /// clients now: then everybody proves anew who they are, when their requests are answered.
    pub(super) fn on_certificates(&mut self, served: Served) {
        let is_demanded_anew = match &self.tls {
            PlaneTls::Front(before) => before.clients != served.clients,
            PlaneTls::Mesh(_) => false,
        };
        self.tls = PlaneTls::Front(served);
        if is_demanded_anew {
            self.retire_clients();
        }
    }

    fn retire_clients(&mut self) {
        for key in self.conns.keys() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            if conn.draining || conn.via != Some(ListenerKind::Front) {
                continue;
            }
            match conn.role {
                Role::Http2Server(_) => self.retire_link(key),
                Role::Http1Server(_) => {
                    conn.draining = true;
                    self.conns.schedule(&self.cx, key);
                }
                // RuntimeFields by the configuration that they began with, and not let in yet.
                Role::Accepting => self.conns.close(&mut self.cx, key),
                _ => {}
            }
        }
    }

    /// The app is at another address: new requests go there.
    pub(super) fn on_app(&mut self, app: AppTarget) {
        let config = LoopConfig { app: Some(app), ..(*self.cx.config).clone() };
        self.cx.config = std::sync::Arc::new(config);
        self.renew(&Destination::App);
    }
}

/// What the client proved; a resumed session has skipped the check of the time.
fn read_certificate(
    shown: &[tollway_identity::CertificateDer<'_>],
) -> Result<Option<ClientCertificate>, Cause> {
    let read = ClientCertificate::read(shown)
        .map_err(|error| Cause::coded(ErrorCode::ClientCertificateRefused, error.to_string()))?;
    let is_over = |certificate: &ClientCertificate| !certificate.valid_at(SystemTime::now());
    if read.as_ref().is_some_and(is_over) {
        let reason = "the client's certificate has expired since its session began";
        return Err(Cause::coded(ErrorCode::CertificateExpired, reason));
    }
    Ok(read)
}
