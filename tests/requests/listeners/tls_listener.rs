//! A network with every kind of listener at which TLS is spoken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tollway_identity::{Expected, client_config};
use tollway_testkit::{Process, retry_until};

use crate::listeners::forged::Forge;
use tollway_tests::network::{CONTROL, Network, PATIENCE, STOCK, label};
use tollway_tests::scripted_app::{App, Script};
use tollway_tests::tls_client::{call, dial, trusting};

pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const H2: &[u8] = b"h2";

/// A network with every kind of listener.
pub(crate) struct West {
    pub(crate) network: Network,
    pub(crate) app: App,
    pub(crate) stock: Process,
    pub(crate) gateway: Process,
}

/// Somewhere TLS can be spoken to.
pub(crate) struct TlsListener<'a> {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) server_name: &'static str,
    pub(crate) alpn: &'static [u8],
    /// Makes a server that accepts the caller answer something.
    pub(crate) request: Vec<u8>,
    /// The process that decides about callers, and logs its decision.
    pub(crate) judge: &'a Process,
}

impl West {
    pub(crate) fn start() -> Self {
        // A certificate that has ended would be let in to renew itself.
        Self::of(Network::start_with("west", &["--renewal-grace-s", "0"]), &[])
    }

    /// Of a network whose gateway has `options`.
    pub(crate) fn of(network: Network, options: &[&str]) -> Self {
        let app = App::start(Script::new());
        let stock = network.sidecar("stock", &["--app-port", &app.port()]);
        let gateway = network.gateway_with(options);
        let west = Self { network, app, stock, gateway };
        west.wait_for_routes();
        west
    }

    /// The gateway has discovered the service once a call through it is answered.
    fn wait_for_routes(&self) {
        let listener = &self.listeners()[1];
        let config = self.honest("web", listener);
        retry_until(PATIENCE, "a call through the gateway", || listener.call(config.clone()).ok())
            .unwrap();
    }

    pub(crate) fn listeners(&self) -> [TlsListener<'_>; 4] {
        let gateway = self.gateway.port("gateway").unwrap();
        let sidecar = |name, address| TlsListener {
            name,
            address,
            server_name: STOCK,
            alpn: HTTP1,
            request: format!("GET / HTTP/1.1\r\nhost: {STOCK}\r\n\r\n").into_bytes(),
            judge: &self.stock,
        };
        let control = |name, address| TlsListener {
            name,
            address,
            server_name: CONTROL,
            alpn: H2,
            // The preface and empty SETTINGS.
            request: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            judge: &self.network.control,
        };
        [
            sidecar("sidecar", self.stock.port("inbound").unwrap()),
            sidecar("gateway to sidecar", gateway),
            control("control plane", self.network.control_address()),
            control("gateway to control plane", gateway),
        ]
    }

    /// How an honest workload of this network comes.
    pub(crate) fn honest(&self, app: &str, listener: &TlsListener<'_>) -> Arc<ClientConfig> {
        client_config(&self.network.credentials(app), &self.expected(listener), &[listener.alpn])
            .unwrap()
    }

    /// An honest certificate of a caller that would trust any peer.
    pub(crate) fn honest_for_any(&self, listener: &TlsListener<'_>) -> Arc<ClientConfig> {
        let shown = Forge::workload("web", "west").sign(&self.network.authority());
        trusting(Some(shown), listener.alpn)
    }

    fn expected(&self, listener: &TlsListener<'_>) -> Expected {
        let domain = self.network.trust_domain();
        if listener.server_name == STOCK {
            Expected::service(&self.network.service("stock"), &domain)
        } else {
            Expected::control(&label(&self.network.name), &domain)
        }
    }
}

impl TlsListener<'_> {
    pub(crate) fn call(&self, config: Arc<ClientConfig>) -> Result<Vec<u8>, String> {
        self.call_as(self.server_name, config)
    }

    pub(crate) fn call_as(&self, name: &str, config: Arc<ClientConfig>) -> Result<Vec<u8>, String> {
        call(dial(self.address, PATIENCE), name, config, &self.request)
    }

    /// Waits until the judge's log has `reason` once more than `before`.
    #[track_caller]
    pub(crate) fn check_log(&self, who: &str, reason: &str, before: usize) {
        let said = retry_until(Duration::from_secs(5), "the reason", || {
            (count(&self.judge.log(), reason) > before).then_some(())
        });
        assert!(said.is_ok(), "{who} at the {}: no `{reason}` in\n{}", self.name, self.judge.log());
    }
}

/// How often `text` has `part`.
pub(crate) fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}
