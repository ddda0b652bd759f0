//! A connection to the control plane.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollway_identity::{code_of, explain};
use tollway_model::ErrorCode;
use tonic::transport::{Channel, Endpoint, Uri};

use super::MeshError;

/// What both sides speak inside TLS.
pub(super) const ALPN: &[&[u8]] = &[b"h2"];
/// Time for name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose other end does not answer a ping is given up after both.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects once. The channel does not dial again when it breaks: the caller sees it.
pub(super) async fn connect(
    control: &str,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<Channel, MeshError> {
    let stream =
        tokio::time::timeout(CONNECT_TIMEOUT, open(control, name, config)).await.map_err(
            |_| MeshError::Timeout { control: control.to_owned(), timeout: CONNECT_TIMEOUT },
        )??;
    let mut stream = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take();
        async move { stream.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)) }
    });
    Endpoint::from_static("http://control.mesh")
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .connect_with_connector(connector)
        .await
        .map_err(|source| MeshError::Http { control: control.to_owned(), source })
}

async fn open(
    control: &str,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, MeshError> {
    let addresses: Vec<_> = tokio::net::lookup_host(control)
        .await
        .map_err(|source| MeshError::Resolve { control: control.to_owned(), source })?
        .collect();
    let connect = |source| MeshError::Connect { control: control.to_owned(), source };
    let tcp = TcpStream::connect(&addresses[..]).await.map_err(connect)?;
    tcp.set_nodelay(true).map_err(connect)?;
    TlsConnector::from(config).connect(name, tcp).await.map_err(|error| tls(control, error))
}

/// Tells a connection that broke from one whose other end is not to be trusted.
fn tls(control: &str, error: std::io::Error) -> MeshError {
    let control = control.to_owned();
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(refusal) => {
            let (code, reason) = (code_of(refusal), explain(refusal));
            if matches!(code, ErrorCode::CertificateExpired | ErrorCode::CertificateNotYetValid) {
                return MeshError::Clock { control, reason };
            }
            let is_other = matches!(code, ErrorCode::ForeignAuthority | ErrorCode::WrongIdentity);
            let code = if is_other { ErrorCode::ControlForeign } else { code };
            MeshError::Tls { control, code, reason }
        }
        None => MeshError::Connect { control, source: error },
    }
}
