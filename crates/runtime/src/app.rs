//! Connections to this sidecar's app, plain or over TLS. The app's certificate is not verified.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tollway_dial::{Stream, Tls};
use tollway_identity::{SharedToken, TlsError, app_config};
use tollway_model::AppProtocol;
use tollway_proxy::AppOptions;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Time for TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The field with the app's token.
pub(crate) const TOKEN: &str = "dapr-api-token";

/// Address and protocol of the app.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    /// Further addresses, tried in turn.
    others: Vec<SocketAddr>,
    pub(crate) protocol: AppProtocol,
    /// Set if the app's server has TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) token: Option<SharedToken>,
}

impl App {
    /// # Errors
    /// When the TLS library refuses.
    pub(crate) fn new(options: &AppOptions, token: Option<SharedToken>) -> Result<Self, TlsError> {
        let alpn: &[u8] = if options.protocol == AppProtocol::Http { b"http/1.1" } else { b"h2" };
        let tls = if options.is_tls { Some(app_config(&[alpn])?) } else { None };
        let others = options.other_addresses.clone();
        Ok(Self { address: options.address, others, protocol: options.protocol, tls, token })
    }
}

impl App {
    /// # Errors
    /// When the app does not accept the connection or the TLS handshake in time.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let name = ServerName::IpAddress(self.address.ip().into());
        let tls = self.tls.clone().map(|config| Tls { config, name });
        let all = [&[self.address], &self.others[..]].concat();
        Ok(tollway_dial::dial(&all[..], tls, CONNECT_TIMEOUT).await?)
    }

    /// Scheme and host, as the app reads them in calls. An address with a zone is no host.
    pub(crate) fn origin(&self) -> Uri {
        let named = Uri::try_from(format!("http://{}", self.address));
        named.unwrap_or_else(|_| Uri::from_static("http://app"))
    }

    /// A gRPC connection. It is opened when it is first used, and again after it has ended.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Endpoint::from(self.origin());
        let app = self.clone();
        endpoint.connect_with_connector_lazy(service_fn(move |_| {
            let app = app.clone();
            async move { app.connect().await.map(TokioIo::new) }
        }))
    }
}
