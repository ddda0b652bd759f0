//! A connection to the control plane.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, Error};
use tollway_dial::{DialError, Tls, channel, dial};
use tollway_identity::{TimeProvider, TlsError, span};
use tollway_identity::{code_of, explain};
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::transport::{Channel, Endpoint};

use super::MeshError;

/// What both sides speak inside TLS.
pub(super) const ALPN: &[&[u8]] = &[b"h2"];
/// Time for name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection whose other end does not answer a ping is given up after both.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a control plane to answer what its clock reads.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Difference of two clocks from which on a certificate that has ended is laid to them.
const CLOCKS_APART: Duration = Duration::from_secs(60);

/// The TLS configuration for a connection that judges certificates by a clock.
pub(super) type ConfigAt<'a> =
    &'a (dyn Fn(Arc<dyn TimeProvider>) -> Result<Arc<ClientConfig>, TlsError> + Sync);

/// As [`connect`]. Where the control plane's certificate has ended by this machine's clock, it is asked
/// for its own, over a connection on which nothing secret is sent: so clocks that differ are not taken
/// for a certificate that was not renewed, nor the other way round.
pub(super) async fn connect_by_clock(
    control: &str,
    name: ServerName<'static>,
    config: ConfigAt<'_>,
) -> Result<Channel, MeshError> {
    let now = Arc::new(rustls::time_provider::DefaultTimeProvider);
    let error = match connect(control, name.clone(), config(now)?).await {
        Ok(channel) => return Ok(channel),
        Err(error) => error,
    };
    let MeshError::ControlEnded { control, reason, not_after } = error else { return Err(error) };
    let asked = tokio::time::timeout(CLOCK_TIMEOUT, clock_of(&control, name, config, not_after));
    let theirs = asked.await.ok().flatten();
    let ahead = theirs.and_then(|theirs| SystemTime::now().duration_since(theirs).ok());
    Err(ended_or_apart(control, reason, not_after, ahead))
}

/// Why a certificate is not valid that has ended by this machine's clock. `ahead` is how far this clock
/// is ahead of the control plane's, if that is known.
fn ended_or_apart(
    control: String,
    reason: String,
    not_after: SystemTime,
    ahead: Option<Duration>,
) -> MeshError {
    match ahead.filter(|ahead| *ahead > CLOCKS_APART) {
        Some(ahead) => {
            let reason = format!("{reason}; this machine's is {} ahead of the other", span(ahead));
            MeshError::Clock { control, reason }
        }
        None => MeshError::ControlEnded { control, reason, not_after },
    }
}

/// What the clock of a control plane reads whose certificate was valid at `at`.
async fn clock_of(
    control: &str,
    name: ServerName<'static>,
    config: ConfigAt<'_>,
    at: SystemTime,
) -> Option<SystemTime> {
    let config = config(Arc::new(Stopped(at))).ok()?;
    let channel = connect(control, name, config).await.ok()?;
    // Without a token it is refused, with the time.
    let refused = IdentityClient::new(channel).check(v1::CheckRequest::default()).await.err()?;
    let since = Duration::from_millis(tollway_wire::clock_unix_ms_of(&refused)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// A clock that stands.
#[derive(Debug)]
struct Stopped(SystemTime);

impl TimeProvider for Stopped {
    fn current_time(&self) -> Option<UnixTime> {
        self.0.duration_since(SystemTime::UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}

/// What answers refuses the name of the control plane.
const OTHER: &str = "what answers there is not the control plane of this network, but for instance a gateway or a sidecar; check the address given with --control";

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
    if let Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) = refusal {
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(not_after.as_secs());
        return MeshError::ControlEnded { control, reason, not_after };
    }
    if code == ErrorCode::CertificateNotYetValid {
        return MeshError::Clock { control, reason };
    }
    let is_other = matches!(code, ErrorCode::ForeignAuthority | ErrorCode::WrongIdentity);
    let reason = if code == ErrorCode::WrongIdentity { OTHER.to_owned() } else { reason };
    let code = if is_other { ErrorCode::ControlForeign } else { code };
    MeshError::Tls { control, code, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_in_the_control_planes_place_is_named() {
        let alert = Error::AlertReceived(rustls::AlertDescription::UnrecognisedName);
        let error = failed("g:1", DialError::Tls(alert));
        assert_eq!(error.code(), Some(ErrorCode::ControlForeign));
        assert!(error.to_string().contains("a gateway or a sidecar; check the address"), "{error}");
    }

    /// The harm: an operator sets clocks that agree, while a certificate was not renewed.
    #[test]
    fn an_ended_certificate_is_laid_to_the_clocks_only_if_they_differ() {
        let check = |ahead_s: Option<u64>, word| {
            let ahead = ahead_s.map(Duration::from_secs);
            let reason = "the peer's certificate expired 2 d ago".to_owned();
            let error = ended_or_apart("c:1".to_owned(), reason, SystemTime::UNIX_EPOCH, ahead);
            assert_eq!(error.code().map(ErrorCode::word), Some(word), "{error}");
            assert_eq!(error.to_string().contains("clock"), word == "ERR_CLOCK_OFF", "{error}");
        };
        check(None, "ERR_CERTIFICATE_EXPIRED");
        check(Some(1), "ERR_CERTIFICATE_EXPIRED");
        check(Some(60), "ERR_CERTIFICATE_EXPIRED");
        check(Some(61), "ERR_CLOCK_OFF");
        check(Some(30 * 86_400), "ERR_CLOCK_OFF");
    }
}
