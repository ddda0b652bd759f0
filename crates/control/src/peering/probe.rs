//! Whether a joined network can be reached although its control plane is silent: its gateways
//! answer a TLS greeting to `gateway.<network>.mesh` with an alert of their own, over the route
//! that calls use. Nothing is trusted because of it: calls authenticate their callee as always.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use thiserror::Error;
use tokio::task::JoinSet;
use tollway_dial::{DialError, Tls};

/// Time for one gateway to answer: two round trips of a slow link.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why no gateway answered.
#[derive(Debug, Error)]
pub(super) enum ProbeError {
    #[error("no gateway is known")]
    NoGateway,
    #[error("cannot reach the gateway {gateway}: {source}")]
    Connect { gateway: SocketAddr, source: std::io::Error },
    #[error("the gateway {gateway} does not answer within {} s", PROBE_TIMEOUT.as_secs())]
    Timeout { gateway: SocketAddr },
    #[error("what answers at {gateway} is no gateway of that network")]
    WrongNetwork { gateway: SocketAddr },
}

/// Returns when the first of `gateways` has answered, or with the failure of the last.
pub(super) async fn any_answers(
    gateways: &[SocketAddr],
    name: &ServerName<'static>,
    config: &Arc<ClientConfig>,
) -> Result<(), ProbeError> {
    let mut probes = JoinSet::new();
    for gateway in gateways {
        probes.spawn(answers(*gateway, name.clone(), config.clone()));
    }
    let mut failure = ProbeError::NoGateway;
    while let Some(ended) = probes.join_next().await {
        match ended {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => failure = error,
            // Only a cancelled probe ends so, and none is cancelled before this returns.
            Err(_) => {}
        }
    }
    Err(failure)
}

async fn answers(
    gateway: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<(), ProbeError> {
    let alert = rustls::Error::AlertReceived(AlertDescription::AccessDenied);
    match tollway_dial::dial(gateway, Some(Tls { config, name }), PROBE_TIMEOUT).await {
        Err(DialError::Tls(refusal)) if refusal == alert => Ok(()),
        Ok(_) | Err(DialError::Tls(_)) => Err(ProbeError::WrongNetwork { gateway }),
        Err(DialError::Resolve(source) | DialError::Connect(source)) => {
            Err(ProbeError::Connect { gateway, source })
        }
        Err(DialError::Timeout { .. }) => Err(ProbeError::Timeout { gateway }),
    }
}
