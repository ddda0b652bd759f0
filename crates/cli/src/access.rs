//! How a command finds its control plane: the one it is told of, or this user's local one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_control::AdminClient;
use tollway_model::{AppId, ErrorCode, Label};
use tollway_proxy::mesh::{TOKEN_VARIABLE, TokenSource};

use crate::failure::Failure;
use crate::local::{self, LocalControl, LocalError};

/// How often a local control plane that does not do as it is asked is looked for again.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// For commands that take part in the mesh.
#[derive(Args, Clone, Default)]
pub(crate) struct AccessArgs {
    /// The control plane [default: this user's local one].
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE", requires = "control")]
    token_file: Option<PathBuf>,
}

/// For commands that speak to the operator's side of a control plane.
#[derive(Args, Clone)]
pub(crate) struct StoreArg {
    /// Directory of the control plane's store [default: the local control plane's].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

/// A control plane, and the right to join.
pub(crate) struct Access {
    /// As `host:port`.
    pub(crate) control: String,
    pub(crate) token: TokenSource,
    /// Where it is the local one.
    pub(crate) local: Option<LocalControl>,
}

/// What to do where no local control plane runs.
#[derive(Clone, Copy)]
pub(crate) enum Absent {
    Refuse,
    /// Start one, that stays for so long after its last workload.
    Start {
        linger: Duration,
    },
}

impl AccessArgs {
    /// The control plane that is named, as `HOST:PORT`.
    pub(crate) fn control(&self) -> Option<&str> {
        self.control.as_deref()
    }

    /// The right to join as `app`, which a token of the local control plane gives for `ttl`.
    pub(crate) async fn access(
        self,
        app: &AppId,
        namespace: &Label,
        ttl: Duration,
        absent: Absent,
    ) -> Result<Access> {
        if let Some(control) = self.control {
            let token = self.token_file.map_or(TokenSource::Environment, TokenSource::File);
            return Ok(Access { control, token, local: None });
        }
        refuse_unused_token()?;
        let (local, token) = local_token(app, namespace, ttl, absent).await?;
        let token = token.parse().context("the local control plane gave an unusable token")?;
        Ok(Access {
            control: local.address(),
            token: TokenSource::Given(token),
            local: Some(local),
        })
    }
}

/// A token that was made ready is for another control plane than the local one, which needs none:
/// whoever set it would end up in another mesh than they mean.
///
/// # Errors
/// [`Failure`].
pub(crate) fn refuse_unused_token() -> Result<(), Failure> {
    let is_set = std::env::var_os(TOKEN_VARIABLE).is_some_and(|token| !token.is_empty());
    if !is_set {
        return Ok(());
    }
    let what = format!(
        "{TOKEN_VARIABLE} is set, and no control plane is named that it is for; name it with \
         --control HOST:PORT, or unset {TOKEN_VARIABLE} to use the local one"
    );
    Err(Failure::new(ErrorCode::BadConfiguration, what))
}

/// A control plane that was about to end when it was found is looked for again.
async fn local_token(
    app: &AppId,
    namespace: &Label,
    ttl: Duration,
    absent: Absent,
) -> Result<(LocalControl, String), LocalError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let local = match absent {
            Absent::Start { linger } => local::find_or_start(linger).await?,
            Absent::Refuse => local::find().await?.ok_or(LocalError::NotRunning)?,
        };
        match local.token(app, namespace, ttl).await {
            Ok(token) => return Ok((local, token)),
            Err(LocalError::Admin(_)) if tries < TRIES => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(error),
        }
    }
}

impl StoreArg {
    pub(crate) fn is_given(&self) -> bool {
        self.store.is_some()
    }

    /// A connection to the control plane's admin socket.
    pub(crate) async fn admin(&self) -> Result<AdminClient> {
        let store = match &self.store {
            Some(store) => store.clone(),
            None => local::find().await?.ok_or(LocalError::NotRunning)?.store(),
        };
        Ok(AdminClient::connect(&store).await?)
    }
}
