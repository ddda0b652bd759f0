//! The file of this program, which starts further processes of itself.

use std::path::PathBuf;
use std::process::Command;

use tollway_net::process::{Guard, Process};

use crate::error::LaunchError;

/// The name of the hidden command that calls [`tollway_net::process::run_guard`].
const GUARD_COMMAND: &str = "run-guard";

/// The program as it runs, also when its file was replaced since it was started.
pub(crate) fn own_program() -> PathBuf {
    let by_name = std::env::current_exe().ok().filter(|path| path.exists());
    by_name.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Starts the guard of an app: it kills what the app has started when this process is killed.
pub(crate) fn start_guard() -> Result<Guard, LaunchError> {
    let mut command = Command::new(own_program());
    command.arg(GUARD_COMMAND);
    Guard::start(command).map_err(LaunchError::system("cannot start the guard of the app"))
}

/// Puts `app` under `guard`.
pub(crate) fn guard_app(app: &mut Process, guard: Guard) {
    // Without its guard the app is still ended by the kernel, only not what it starts.
    if let Err(error) = app.set_guard(guard) {
        tracing::debug!(%error, "the app has no guard");
    }
}
