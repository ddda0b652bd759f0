//! A look at the control plane that changes nothing: for `tollway check`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_dial::Targets;
use tollway_identity::{Expected, KeyExchange, bootstrap_config_at};
use tollway_model::TrustDomain;
use tollway_wire::v1;
use tollway_wire::v1::identity_client::IdentityClient;

use super::config::{FirstProof, TokenSource};
use super::connect::{ALPN, connect_by_clock};
use super::control_at::ControlAt;
use super::enroll::texts;
use super::error::MeshError;

/// Time for the answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// What the control plane reports of itself and of the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlCheck {
    pub network: String,
    /// Empty for one that is too old to report it.
    pub version: String,
    /// How far its clock is ahead of this machine's, or behind, in milliseconds, to within the
    /// time of the round trip.
    pub clock_ahead_ms: i64,
    /// Until the token ends; `None` where it is not reported.
    pub token_left: Option<Duration>,
}

/// Asks the control plane whether it would take the token.
///
/// # Errors
/// [`MeshError`] for what a part with this token would meet when it starts.
pub async fn check_control(
    control: &Targets,
    token: &TokenSource,
) -> Result<ControlCheck, MeshError> {
    let proof = token.read()?;
    let root = proof.root();
    let any = TrustDomain::default_for(root.network());
    let name = Expected::control(root.network(), &any).server_name()?;
    let config = |clock| bootstrap_config_at(root, ALPN, KeyExchange::default(), clock);
    let control = ControlAt::fixed(control.clone());
    let channel = connect_by_clock(&control, name, &config).await?;
    let mut client = IdentityClient::new(channel);
    let (token, pod_token) = texts(Some(&proof));
    let request = v1::CheckRequest { token, pod_token };
    let before = unix_ms();
    let answer = tokio::time::timeout(CHECK_TIMEOUT, client.check(request)).await;
    let after = unix_ms();
    let answer = match answer.map_err(|_| MeshError::Silent(CHECK_TIMEOUT))? {
        Ok(answer) => answer.into_inner(),
        // Before there was this question.
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            return Ok(ControlCheck {
                network: root.network().to_string(),
                version: String::new(),
                clock_ahead_ms: 0,
                token_left: None,
            });
        }
        Err(status) => return Err(status.into()),
    };
    let theirs = i64::try_from(answer.now_unix_ms).unwrap_or(i64::MAX);
    let left_ms = answer.token_expires_at_unix_ms.saturating_sub(answer.now_unix_ms);
    Ok(ControlCheck {
        network: answer.network,
        version: answer.version,
        clock_ahead_ms: theirs.saturating_sub(before.midpoint(after)),
        // The kubelet renews that of a pod.
        token_left: matches!(proof, FirstProof::Join(_)).then(|| Duration::from_millis(left_ms)),
    })
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
