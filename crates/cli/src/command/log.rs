//! The log of the long-running parts.

use tollway_settings::Log as LogSettings;
use tollway_telemetry::{Log, start_log};

/// Starts the log of this process.
pub(crate) fn start(settings: &LogSettings) -> Log {
    start_log(settings.log_format, &settings.log_level)
}
