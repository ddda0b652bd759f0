//! The log: to standard error, filtered by a setting that can change while the process runs.

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;

use thiserror::Error;
use tracing_subscriber::EnvFilter;

/// The environment variable with the filter of commands that have no setting for it.
pub(crate) const VARIABLE: &str = "TOLLWAY_LOG";
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// How lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged: a level, or `TARGET=LEVEL` for single parts, separated by commas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogFilter(String);

/// An empty filter.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LogFilterError {
    #[error("`{level}` is no level; use off, error, warn, info, debug or trace")]
    Level { level: String },
    #[error("not a filter; use a level, or levels for parts such as `info,tollway_proxy=debug`")]
    Syntax,
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let text = text.trim();
        for directive in text.split(',').filter(|directive| !directive.is_empty()) {
            let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level).trim();
            if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
                return Err(LogFilterError::Level { level: level.to_owned() });
            }
        }
        EnvFilter::try_new(text).map_err(|_| LogFilterError::Syntax)?;
        Ok(Self(if text.is_empty() { "info".to_owned() } else { text.to_owned() }))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LogFilter {
    fn to_env_filter(&self) -> EnvFilter {
        // It was read once, so it reads again.
        EnvFilter::try_new(&self.0).unwrap_or_else(|_| EnvFilter::new("info"))
    }
}

/// The log of this process, once started.
pub struct Log {
    set: Box<dyn Fn(EnvFilter) -> bool + Send + Sync>,
}

impl Log {
    /// Sets another filter of the log. Returns whether there is a log.
    pub fn set_filter(&self, filter: &LogFilter) -> bool {
        (self.set)(filter.to_env_filter())
    }
}

/// Starts the log of this process by the filter in the variable `TOLLWAY_LOG`, default `info`;
/// later calls change nothing.
pub fn init_log(format: LogFormat) {
    let filter = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
    start_log(format, &filter.unwrap_or_else(|| LogFilter("info".to_owned())));
}

/// Starts the log of this process; later calls change nothing.
pub fn start_log(format: LogFormat, filter: &LogFilter) -> Log {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter.to_env_filter());
    // Starting fails only when a log was started before, which then stays.
    match format {
        LogFormat::Text => {
            let builder = builder.with_target(false).with_filter_reloading();
            let handle = builder.reload_handle();
            let _ = builder.try_init();
            Log { set: Box::new(move |filter| handle.reload(filter).is_ok()) }
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            let _ = builder.try_init();
            Log { set: Box::new(move |filter| handle.reload(filter).is_ok()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_levels_that_exist() {
        for good in ["info", "DEBUG", "warn,tollway_proxy=trace", "off", "info,a::b=debug,", ""] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in ["inof", "info,tollway_proxy", "a=b=c", "tollway=verbose"] {
            let error = bad.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains("is no level"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_filter_changes_while_the_log_runs() {
        let log = start_log(LogFormat::Text, &"error".parse().unwrap());
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        assert!(log.set_filter(&"debug".parse().unwrap()));
        assert!(tracing::enabled!(tracing::Level::DEBUG));
    }
}
