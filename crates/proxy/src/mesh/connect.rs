//! A connection to the control plane.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, Error};
use tollway_dial::{DialError, Dialled, Missed, Targets, Tls, Unreached, channel, dial_any};
use tollway_identity::{TimeProvider, TlsError, span};
use tollway_identity::{code_of, explain};
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, warn};

use super::MeshError;
use super::control_at::ControlAt;

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

/// A channel to the control plane, and where it goes.
pub(super) struct Connected {
    pub(super) channel: Channel,
    address: SocketAddr,
}

/// As [`connect`], for the connection of which `control` notes what becomes of it. Where the control
/// plane's certificate has ended by this machine's clock, it is asked for its own, over a connection on
/// which nothing secret is sent: so clocks that differ are not taken for a certificate that was not
/// renewed, nor the other way round.
pub(super) async fn connect_by_clock(
    control: &ControlAt,
    name: ServerName<'static>,
    config: ConfigAt<'_>,
) -> Result<Channel, MeshError> {
    let now = Arc::new(rustls::time_provider::DefaultTimeProvider);
    let mut error = match connect(control, name.clone(), config(now)?).await {
        Ok(connected) => {
            control.note_connected(connected.address);
            return Ok(connected.channel);
        }
        Err(error) => error,
    };
    let ended = if let MeshError::Several { each, .. } = &mut error {
        each.iter_mut().map(|(_, error)| error).find(is_ended)
    } else {
        Some(&mut error)
    };
    if let Some(ended) = ended
        && let MeshError::ControlEnded { control, reason, not_after } = &*ended
    {
        let asked =
            tokio::time::timeout(CLOCK_TIMEOUT, clock_of(control, name, config, *not_after));
        let theirs = asked.await.ok().flatten();
        let ahead = theirs.and_then(|theirs| SystemTime::now().duration_since(theirs).ok());
        *ended = ended_or_apart(control.clone(), reason.clone(), *not_after, ahead);
    }
    Err(error)
}

fn is_ended(error: &&mut MeshError) -> bool {
    matches!(error, MeshError::ControlEnded { .. })
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
    let control = ControlAt::fixed(control.parse().ok()?);
    let channel = connect(&control, name, config).await.ok()?.channel;
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

/// Connects once, to the first address of the control plane that proves to be its; what others before it
/// are is logged. The channel does not dial again when it breaks: the caller sees it.
pub(super) async fn connect(
    control: &ControlAt,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<Connected, MeshError> {
    let targets = control.targets();
    let tls = Tls { config, name };
    let dialled = dial_any(&targets, &control.last(), Some(&tls), CONNECT_TIMEOUT).await;
    let Dialled { stream, address, missed } =
        dialled.map_err(|unreached| unreached_at(&targets, unreached))?;
    for Missed { at, error } in missed {
        report_missed(&at, error);
    }
    let endpoint = Endpoint::from_static("http://control.mesh")
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let channel = channel(endpoint, stream).await.map_err(|source| {
        control.note_connected(address);
        MeshError::Http { control: targets.to_string(), source }
    })?;
    Ok(Connected { channel, address })
}

/// Reports an address that was passed over while another one serves. One that does not answer may be that
/// of a control plane that stands by; one with another certificate is a mistake, or worse.
fn report_missed(at: &str, error: DialError) {
    let is_refused = matches!(error, DialError::Tls(_));
    let error = failed(at.to_owned(), error);
    let reason = error.reason();
    if is_refused {
        let code = error.code().unwrap_or(ErrorCode::ControlForeign);
        warn!(%code, address = at, reason, "an address of the control plane is passed over");
    } else {
        debug!(address = at, reason, "an address of the control plane does not serve");
    }
}

/// What it means that no address is that of the control plane.
fn unreached_at(targets: &Targets, unreached: Unreached) -> MeshError {
    let control = targets.to_string();
    let mut missed = unreached.missed;
    match (missed.pop(), missed.is_empty()) {
        (Some(only), true) => failed(control, only.error),
        (Some(last), false) => {
            missed.push(last);
            let each = missed.into_iter().map(|one| (one.at.clone(), failed(one.at, one.error)));
            MeshError::Several { control, each: each.collect() }
        }
        (None, _) => {
            let source = std::io::Error::other("there is no address");
            MeshError::Resolve { control, source }
        }
    }
}

/// What a failed dial means for a member of the mesh. A connection that broke is one error, a peer that
/// must not be trusted another.
fn failed(control: String, error: DialError) -> MeshError {
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
        let error = failed("g:1".to_owned(), DialError::Tls(alert));
        assert_eq!(error.code(), Some(ErrorCode::ControlForeign));
        assert!(error.to_string().contains("a gateway or a sidecar; check the address"), "{error}");
    }

    /// A control plane that is away may come back, whatever answers at another address; a peer that is
    /// none never will be one.
    #[test]
    fn of_several_addresses_each_has_its_reason_and_one_that_may_pass_is_waited_for() {
        let targets: Targets = "a:1,b:2".parse().unwrap();
        let away = || DialError::Connect(std::io::ErrorKind::ConnectionRefused.into());
        let foreign =
            || DialError::Tls(Error::AlertReceived(rustls::AlertDescription::UnrecognisedName));
        let unreached = |errors: Vec<DialError>| {
            let at = ["a:1", "b:2"].into_iter().map(str::to_owned);
            let missed = at.zip(errors).map(|(at, error)| Missed { at, error });
            unreached_at(&targets, Unreached { missed: missed.collect() })
        };
        let mixed = unreached(vec![away(), foreign()]);
        assert_eq!(mixed.code(), Some(ErrorCode::ControlForeign));
        assert!(mixed.may_pass() && !mixed.is_away() && !mixed.needs_renewal());
        let text = mixed.to_string();
        assert!(text.contains("a:1: connection refused"), "{text}");
        assert!(text.contains("b:2: ERR_CONTROL_FOREIGN what answers there"), "{text}");
        let all_away = unreached(vec![away(), away()]);
        assert_eq!(all_away.code(), Some(ErrorCode::ControlUnreachable));
        assert!(all_away.may_pass() && all_away.is_away());
        assert!(!unreached(vec![foreign(), foreign()]).may_pass());
        let one = unreached(vec![away()]).to_string();
        assert!(one.starts_with("cannot reach the control plane a:1,b:2;"), "{one}");
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
