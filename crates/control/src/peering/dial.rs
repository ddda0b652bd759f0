//! A connection to another network's control plane, through a gateway: the gateway sees the
//! server name `control.<network>.mesh` and passes bytes, TLS ends at the control plane.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tollway_dial::Tls;
use tollway_identity::explain;
use tonic::transport::{Channel, Endpoint};

/// Time for the connection to one gateway, TLS included.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Why no gateway led to the other control plane.
#[derive(Debug, Error)]
pub enum DialError {
    #[error("no gateway is known")]
    NoGateway,
    #[error("cannot reach the gateway {gateway}")]
    Connect { gateway: SocketAddr, source: std::io::Error },
    #[error("the gateway {gateway} led to no control plane that can be trusted: {reason}")]
    Tls { gateway: SocketAddr, reason: String },
    #[error("the gateway {gateway} does not answer within {} s", DIAL_TIMEOUT.as_secs())]
    Timeout { gateway: SocketAddr },
    #[error("the control plane behind the gateway {gateway} does not speak HTTP/2")]
    Http { gateway: SocketAddr, source: tonic::transport::Error },
}

impl DialError {
    fn of(gateway: SocketAddr, error: tollway_dial::DialError) -> Self {
        match error {
            tollway_dial::DialError::Timeout { .. } => Self::Timeout { gateway },
            tollway_dial::DialError::Resolve(source) | tollway_dial::DialError::Connect(source) => {
                Self::Connect { gateway, source }
            }
            tollway_dial::DialError::Tls(refusal) => {
                Self::Tls { gateway, reason: explain(&refusal) }
            }
        }
    }
}

/// Tries the gateways from the `first`-th on, each once.
pub(crate) async fn dial(
    gateways: &[SocketAddr],
    first: usize,
    name: &ServerName<'static>,
    config: &Arc<ClientConfig>,
) -> Result<Channel, DialError> {
    let mut failure = DialError::NoGateway;
    for gateway in gateways.iter().cycle().skip(first % gateways.len().max(1)).take(gateways.len())
    {
        match dial_one(*gateway, name.clone(), config.clone()).await {
            Ok(channel) => return Ok(channel),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn dial_one(
    gateway: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<Channel, DialError> {
    let dialled = tollway_dial::dial(gateway, Some(Tls { config, name }), DIAL_TIMEOUT).await;
    let stream = dialled.map_err(|error| DialError::of(gateway, error))?;
    tollway_dial::channel(Endpoint::from_static("http://control.mesh"), stream)
        .await
        .map_err(|source| DialError::Http { gateway, source })
}
