//! The right to join a control plane: the one that is named, or this user's local one.

use std::time::Duration;

use tollway_model::{AppId, Label};
use tollway_proxy::mesh::{TOKEN_VARIABLE, Targets, TokenSource};

use crate::error::LaunchError;
use crate::local_control::{self, LocalControl, LocalError};

/// How often a local control plane that refuses is looked up again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// A control plane, and the right to join it.
pub struct Access {
    pub control: Targets,
    pub token: TokenSource,
    /// The local control plane, if it is this one.
    pub local: Option<LocalControl>,
}

/// What to do when no local control plane runs.
#[derive(Clone, Copy)]
pub enum WhenAbsent {
    Refuse,
    /// Start one, which ends `linger` after its last workload.
    Start {
        linger: Duration,
    },
}

impl Access {
    /// The control plane at `control`, with a token for it.
    pub fn named(control: Targets, token: TokenSource) -> Self {
        Self { control, token, local: None }
    }
}

/// The right to join the local control plane as `app`, by a token that is valid for `ttl`.
///
/// # Errors
/// When no control plane runs and none may be started, when it refuses, and when a token is set in
/// the environment, which `option` would have to say for which control plane it is.
pub async fn local_access(
    app: &AppId,
    namespace: &Label,
    ttl: Duration,
    absent: WhenAbsent,
    option: &'static str,
) -> Result<Access, LaunchError> {
    refuse_unused_token(option)?;
    let (local, token) = local_token(app, namespace, ttl, absent).await?;
    let token = TokenSource::Given(token.parse()?);
    Ok(Access { control: local.address().into(), token, local: Some(local) })
}

/// Refuses a token in the environment when no control plane is named: it is for another one than
/// the local control plane, which needs none. `option` names a control plane.
///
/// # Errors
/// [`LaunchError::UnusedToken`].
pub fn refuse_unused_token(option: &'static str) -> Result<(), LaunchError> {
    let is_set = std::env::var_os(TOKEN_VARIABLE).is_some_and(|token| !token.is_empty());
    if is_set {
        return Err(LaunchError::UnusedToken { variable: TOKEN_VARIABLE, option });
    }
    Ok(())
}

/// A control plane that was about to end when it was found is looked up again.
async fn local_token(
    app: &AppId,
    namespace: &Label,
    ttl: Duration,
    absent: WhenAbsent,
) -> Result<(LocalControl, String), LocalError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let local = match absent {
            WhenAbsent::Start { linger } => local_control::find_or_start(linger).await?,
            WhenAbsent::Refuse => local_control::find().await?.ok_or(LocalError::NotRunning)?,
        };
        match local.token(app, namespace, ttl).await {
            Ok(token) => return Ok((local, token)),
            Err(LocalError::Admin(_)) if tries < TRIES => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}
