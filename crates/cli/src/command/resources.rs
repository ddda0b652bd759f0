//! The options that name Dapr's files, for commands that start a sidecar.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use tollway_dapr::{Configuration, Files};
use tollway_model::{AppId, Label};
use tollway_runtime::StateStores;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ResourcesArgs {
    /// A folder with Dapr's resource files: components, which describe state stores, and Resiliency;
    /// may be repeated.
    #[arg(long, value_name = "DIR", alias = "components-path")]
    resources_path: Vec<PathBuf>,
    /// A file with Dapr's Configuration: parts of the API that there are, who may call the app, a
    /// collector of spans; may be repeated.
    #[arg(long, value_name = "FILE")]
    configuration: Vec<PathBuf>,
}

impl ResourcesArgs {
    /// Reads the files for an app, and its state stores. A warning in the log names what is not
    /// served.
    ///
    /// # Errors
    /// As [`Files::read`].
    pub(crate) fn read(
        &self,
        app: &AppId,
        namespace: &Label,
    ) -> Result<(Configuration, StateStores)> {
        let (config, resources) = (&self.configuration, &self.resources_path);
        read_files(Files { app, namespace, config, resources, calls_out: false })
    }
}

/// Reads the files and logs what is not served.
///
/// # Errors
/// As [`Files::read`].
pub(crate) fn read_files(files: Files<'_>) -> Result<(Configuration, StateStores)> {
    let read = files.read()?;
    for note in &read.notes {
        tracing::warn!("{note}");
    }
    Ok((read.configuration, read.stores))
}
