//! The options by which a command finds its control plane: one that is named, or this user's local
//! one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_control::AdminClient;
use tollway_launch::{Access, LaunchError, LocalError, WhenAbsent, local_access, local_control};
use tollway_model::{AppId, Label};

/// The option that names a control plane.
pub(crate) const CONTROL_OPTION: &str = "--control";

/// For commands that join the mesh.
#[derive(Args, Clone, Default)]
pub(crate) struct AccessArgs {
    /// The control plane [default: this user's local one].
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE", requires = "control")]
    token_file: Option<PathBuf>,
}

/// For commands that use the admin socket of a control plane.
#[derive(Args, Clone)]
pub(crate) struct StoreArg {
    /// Directory of the control plane's store [default: the local control plane's].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

impl AccessArgs {
    /// The control plane that is named, as `HOST:PORT`.
    pub(crate) fn control(&self) -> Option<&str> {
        self.control.as_deref()
    }

    /// The control plane that is named, and the file with its token.
    pub(crate) fn into_parts(self) -> (Option<String>, Option<PathBuf>) {
        (self.control, self.token_file)
    }

    /// The right to join as `app`. A token of the local control plane is valid for `ttl`.
    ///
    /// # Errors
    /// As [`local_access`].
    pub(crate) async fn access(
        self,
        app: &AppId,
        namespace: &Label,
        ttl: Duration,
    ) -> Result<Access, LaunchError> {
        match self.control {
            Some(control) => Ok(Access::named(control, self.token_file)),
            None => local_access(app, namespace, ttl, WhenAbsent::Refuse, CONTROL_OPTION).await,
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
            None => local_control::find().await?.ok_or(LocalError::NotRunning)?.store(),
        };
        Ok(AdminClient::connect(&store).await?)
    }
}
