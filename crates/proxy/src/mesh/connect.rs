//! A connection to the control plane.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tollway_dial::{DialError, Tls, channel, dial};
use tollway_identity::{code_of, explain};
use tollway_model::ErrorCode;
use tonic::transport::{Channel, Endpoint};

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
    let dialled = dial(control, Some(Tls { config, name }), CONNECT_TIMEOUT).await;
    let stream = dialled.map_err(|error| failed(control, error))?;
    let endpoint = Endpoint::from_static("http://control.mesh")
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    channel(endpoint, stream)
        .await
        .map_err(|source| MeshError::Http { control: control.to_owned(), source })
}

/// What a failed dial means for a member of the mesh. A connection that broke is one error, a peer that
/// must not be trusted another.
fn failed(control: &str, error: DialError) -> MeshError {
    let control = control.to_owned();
    let refusal = match error {
        DialError::Timeout { within } => return MeshError::Timeout { control, timeout: within },
        DialError::Resolve(source) => return MeshError::Resolve { control, source },
        DialError::Connect(source) => return MeshError::Connect { control, source },
        DialError::Tls(refusal) => refusal,
    };
    let (code, reason) = (code_of(&refusal), explain(&refusal));
    if matches!(code, ErrorCode::CertificateExpired | ErrorCode::CertificateNotYetValid) {
        return MeshError::Clock { control, reason };
    }
    let is_other = matches!(code, ErrorCode::ForeignAuthority | ErrorCode::WrongIdentity);
    let code = if is_other { ErrorCode::ControlForeign } else { code };
    MeshError::Tls { control, code, reason }
}
