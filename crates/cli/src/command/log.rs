//! The log of the long-running parts: its settings, and its change while they run.

use clap::{Args, ValueEnum};
use tollway_telemetry::{Log, LogFilter, start_log};

#[derive(Args, Clone, Debug)]
pub(crate) struct LogArgs {
    /// What is logged: off, error, warn, info, debug, trace; `PART=LEVEL` for single parts.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "TOLLWAY_LOG",
        default_value = "info",
        help_heading = "Log"
    )]
    pub(crate) log_level: LogFilter,
    /// Format of log lines.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = "Log")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogArgs {
    pub(crate) fn start(&self) -> Log {
        let format = match self.log_format {
            LogFormat::Text => tollway_telemetry::LogFormat::Text,
            LogFormat::Json => tollway_telemetry::LogFormat::Json,
        };
        start_log(format, &self.log_level)
    }
}
