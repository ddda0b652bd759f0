//! Dapr's files about an app, for commands that start a sidecar.

use anyhow::Result;
use tollway_dapr::{Configuration, Files};
use tollway_model::{AppId, Label};
use tollway_runtime::StateStores;
use tollway_settings::DaprFiles;

/// What the files have for an app, and its state stores. A warning in the log names what is not
/// served.
///
/// # Errors
/// As [`Files::read`].
pub(crate) fn read_dapr_files(
    files: &DaprFiles,
    app: &AppId,
    namespace: &Label,
) -> Result<(Configuration, StateStores)> {
    let (config, resources) = (&files.configurations, &files.resources_paths);
    let takes_all_namespaces = false;
    let in_daprds_place = false;
    read_files(Files { app, namespace, takes_all_namespaces, config, resources, in_daprds_place })
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
