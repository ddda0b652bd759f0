//! A front: clients over TLS, with a certificate or without, whose requests all go to the one app
//! behind.

use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use tollway_http::RequestHead;
use tollway_identity::TlsError;
use tollway_net::{ConnError, Tls};

use super::composition::unexpected;
use super::http::Variant;
use super::{AppTarget, Command, Http, LoopConfig, ProcessServices};
use crate::cause::Cause;
use crate::conn::{ConnKey, Connections, accepted};
use crate::cx::{Cx, Effect};
use crate::exchange::{Destination, Exchanges};
use crate::front::Served;
use crate::outbound::route;
use crate::protocol::{Arrival, http1_server};
use crate::request_error::RequestError;
use crate::tls::MeshTls;
use crate::upstream::pools;

/// What a front has beside the parts that serve requests.
pub(crate) struct Front {
    served: Served,
}

impl Http<Front> {
    pub(crate) fn front(served: Served, services: Box<dyn ProcessServices>) -> Self {
        Self::with(Front { served }, services)
    }

    /// New handshakes use these certificates. Connections stay open, unless the authorities that
    /// admit clients have changed: then each closes once its requests are answered, and its client
    /// has to authenticate again.
    fn on_certificates(&mut self, cx: &mut Cx, conns: &mut Connections, served: Served) {
        let before = std::mem::replace(&mut self.variant.served, served);
        if before.clients != self.variant.served.clients {
            accepted::retire_clients(cx, conns);
        }
    }

    /// The app is at another address: new requests go there.
    fn on_app(&mut self, cx: &mut Cx, conns: &mut Connections, app: AppTarget) {
        cx.config = Arc::new(LoopConfig { app: Some(app), ..(*cx.config).clone() });
        pools::renew(cx, conns, &mut self.upstreams, &Destination::App);
    }
}

impl Variant for Front {
    fn start(&mut self, cx: &mut Cx) {
        cx.is_front = true;
    }

    fn server_tls(&mut self, _: &Cx) -> Result<Tls, TlsError> {
        let config = Arc::clone(&self.served.config);
        Ok(UnbufferedServerConnection::new(config).map_err(TlsError::Library)?.into())
    }

    fn why_refused(&self, error: &ConnError) -> Cause {
        match error {
            ConnError::Tls(refusal) => {
                let reason = tollway_identity::front_explain(refusal);
                Cause::coded(tollway_identity::front_code_of(refusal), reason)
            }
            ConnError::Connect(_) | ConnError::Socket(_) => Cause::from(error),
        }
    }

    fn on_established(&mut self, cx: &mut Cx, conns: &mut Connections, key: ConnKey) -> bool {
        accepted::on_client_accepted(cx, conns, key)
    }

    fn mesh(&mut self) -> Option<&mut MeshTls> {
        None
    }

    fn begin(
        &mut self,
        cx: &mut Cx,
        conns: &mut Connections,
        exchanges: &mut Exchanges,
        arrival: Arrival,
    ) {
        route::begin_front(cx, conns, exchanges, arrival);
    }

    fn on_connect(
        _: &mut Http<Self>,
        cx: &mut Cx,
        conns: &mut Connections,
        key: ConnKey,
        _: &RequestHead,
    ) {
        let reason = "a front takes no tunnels; use the app's own protocol";
        let error = RequestError::Unsupported { method: "CONNECT", reason };
        http1_server::answer_error(cx, conns, key, &error);
    }

    fn carry_out(_: &mut Http<Self>, _: &mut Cx, _: &mut Connections, effect: Effect) {
        match effect {
            // A front has no policies.
            Effect::JudgeRelay(_) => {}
            effect => unexpected(&effect),
        }
    }

    fn on_command(http: &mut Http<Self>, cx: &mut Cx, conns: &mut Connections, command: Command) {
        match command {
            Command::Certificates(served) => http.on_certificates(cx, conns, served),
            Command::App(app) => http.on_app(cx, conns, app),
            _ => {}
        }
    }
}
