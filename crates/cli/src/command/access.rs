//! The options by which a command finds its control plane: one that is named, or this user's local
//! one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_control::AdminClient;
use tollway_launch::{Access, LaunchError, LocalError, WhenAbsent, local_access, local_control};
use tollway_model::{AppId, Label};
use tollway_proxy::mesh::TokenSource;
use tollway_settings::Access as AccessSettings;

/// The option that names a control plane.
pub(crate) const CONTROL_OPTION: &str = "--control";

/// For commands that use the admin socket of a control plane.
#[derive(Args, Clone)]
pub(crate) struct StoreArg {
    /// Directory of the control plane's store [default: the local control plane's].
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

/// The right to join as `app`. A token of the local control plane is valid for `ttl`.
///
/// # Errors
/// As [`local_access`].
pub(crate) async fn access(
    settings: AccessSettings,
    app: &AppId,
    namespace: &Label,
    ttl: Duration,
) -> Result<Access, LaunchError> {
    match settings.control {
        Some(control) => {
            let token = TokenSource::of(settings.token_file, settings.allow_open_files);
            Ok(Access::named(control, token))
        }
        None => local_access(app, namespace, ttl, WhenAbsent::Refuse, CONTROL_OPTION).await,
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
