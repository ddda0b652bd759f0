//! The log: to standard error, filtered by a setting that can change while the process runs. In daprd's
//! place it goes to standard output, in daprd's form.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use thiserror::Error;
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, reload};

use crate::daprd_lines::DaprdLines;
use crate::log_limiter::LineBudgets;

/// The environment variable with the filter of commands that have no setting for it.
pub(crate) const VARIABLE: &str = "TOLLWAY_LOG";
/// How the targets of our own crates begin.
const OWN: &str = "tollway";
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

/// What is logged: a level, or `TARGET=LEVEL` for single parts, separated by commas. The level is that of
/// Tollway's own parts: of other libraries only errors are logged, unless one is named. Peers can have
/// libraries warn as often as they like.
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
        let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
        let directives: Vec<&str> = directives.collect();
        for directive in &directives {
            let level = directive.rsplit_once('=').map_or(*directive, |(_, level)| level).trim();
            if !LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
                return Err(LogFilterError::Level { level: level.to_owned() });
            }
        }
        let text = if directives.is_empty() { "info".to_owned() } else { directives.join(",") };
        text.parse::<Targets>().map_err(|_| LogFilterError::Syntax)?;
        Ok(Self(text))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LogFilter {
    pub(crate) fn targets(&self) -> Targets {
        // It was read once, so it reads again.
        let named: Targets = self.0.parse().unwrap_or_default();
        let level = named.default_level().unwrap_or(LevelFilter::OFF);
        let of_libraries = level.min(LevelFilter::ERROR);
        Targets::new().with_default(of_libraries).with_target(OWN, level).with_targets(named)
    }

    /// The filter in the variable `TOLLWAY_LOG`, or `level` and above.
    pub(crate) fn of_environment(level: &str) -> Self {
        let filter = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        filter.unwrap_or_else(|| Self(level.to_owned()))
    }
}

/// The log of this process, once started.
pub struct Log {
    set: Box<dyn Fn(Targets) -> bool + Send + Sync>,
}

impl Log {
    /// Sets another filter of the log. Returns whether there is a log.
    pub fn set_filter(&self, filter: &LogFilter) -> bool {
        (self.set)(filter.targets())
    }
}

/// Starts the log of this process by the filter in the variable `TOLLWAY_LOG`, default `info`;
/// later calls change nothing.
pub fn init_log(format: LogFormat) {
    start_log(format, &LogFilter::of_environment("info"));
}

/// Starts the log of this process; later calls change nothing.
pub fn start_log(format: LogFormat, filter: &LogFilter) -> Log {
    let (filter, handle) = reload::Layer::new(filter.targets());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(LimitedLines::new(format, io::stderr))
        .with_ansi(io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // Starting fails only when a log was started before, which then stays.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Log { set: Box::new(move |filter| handle.reload(filter).is_ok()) }
}

/// Starts the log of the sidecar of `app` in daprd's place; later calls change nothing.
pub fn start_daprd_log(format: LogFormat, filter: &LogFilter, app: &str) {
    let lines = tracing_subscriber::fmt::layer()
        .event_format(DaprdLines::new(format, app))
        .with_writer(LimitedLines::new(format, io::stdout))
        .with_ansi(false);
    // As above.
    let _ = tracing_subscriber::registry().with(filter.targets()).with(lines).try_init();
}

/// Writes lines of the levels that are usual, and of each kind only so many: whatever a peer does, it does
/// not fill the disk. The kind of a line is the place in the code that it comes from.
pub(crate) struct LimitedLines<M> {
    format: LogFormat,
    out: M,
    budgets: Mutex<LineBudgets<Identifier>>,
}

impl<M> LimitedLines<M> {
    pub(crate) fn new(format: LogFormat, out: M) -> Self {
        Self { format, out, budgets: Mutex::default() }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for LimitedLines<M> {
    type Writer = Line<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { format: self.format, out: Some(self.out.make_writer()), left_out: 0 }
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> Self::Writer {
        // Lines for those who look for a fault are wanted, all of them.
        if *of.level() > Level::INFO {
            return self.make_writer();
        }
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        match budgets.admit(of.callsite(), Instant::now()) {
            Some(left_out) => Line { left_out, ..self.make_writer() },
            None => Line { format: self.format, out: None, left_out: 0 },
        }
    }
}

/// One line, or none.
pub(crate) struct Line<W> {
    format: LogFormat,
    out: Option<W>,
    /// Lines of its kind that were left out before it.
    left_out: u64,
}

impl<W: Write> Write for Line<W> {
    /// Takes a line with its end.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(out) = &mut self.out else { return Ok(line.len()) };
        let left_out = std::mem::take(&mut self.left_out);
        let (end, more) = match self.format {
            LogFormat::Text => (&b"\n"[..], format!(" lines_left_out={left_out}\n")),
            LogFormat::Json => (&b"}\n"[..], format!(",\"lines_left_out\":{left_out}}}\n")),
        };
        match line.strip_suffix(end).filter(|_| left_out > 0) {
            Some(text) => out.write_all(&[text, more.as_bytes()].concat())?,
            None => out.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::written::Written;

    #[test]
    fn a_filter_names_levels_that_exist() {
        for good in [
            "info",
            "DEBUG",
            "warn,tollway_proxy=trace",
            "off",
            "info,a::b=debug,",
            "",
            " info , a=warn",
        ] {
            assert!(good.parse::<LogFilter>().is_ok(), "{good}");
        }
        for bad in ["inof", "info,tollway_proxy", "a=b=c", "tollway=verbose"] {
            let error = bad.parse::<LogFilter>().unwrap_err().to_string();
            assert!(error.contains("is no level"), "{bad}: {error}");
        }
    }

    /// The harm: one client fills the disk with what the TLS library warns of its handshakes.
    #[test]
    fn libraries_log_errors_alone_unless_they_are_named() {
        let targets = |text: &str| text.parse::<LogFilter>().unwrap().targets();
        let cases = [
            ("info", "tollway_proxy::conn", Level::INFO, true),
            ("info", "tollway", Level::DEBUG, false),
            ("info", "rustls::msgs::handshake", Level::WARN, false),
            ("debug", "h2::codec", Level::DEBUG, false),
            ("info", "rustls::msgs::handshake", Level::ERROR, true),
            ("info,rustls=warn", "rustls::msgs::handshake", Level::WARN, true),
            ("off", "rustls", Level::ERROR, false),
            ("tollway_proxy=debug", "tollway_proxy::conn", Level::DEBUG, true),
            ("tollway_proxy=debug", "tollway_net", Level::ERROR, false),
            ("warn,tollway_proxy=off", "tollway_proxy", Level::ERROR, false),
        ];
        for (filter, target, level, is_logged) in cases {
            assert_eq!(
                targets(filter).would_enable(target, &level),
                is_logged,
                "{filter} {target}"
            );
        }
    }

    /// The harm: a peer comes again and again, and has a line of ours written each time.
    #[test]
    fn no_line_of_ours_fills_the_disk() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let written = Written::default();
            let out = written.clone();
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(LimitedLines::new(format, move || out.clone()));
            let lines = match format {
                LogFormat::Text => lines.with_ansi(false).boxed(),
                LogFormat::Json => lines.json().boxed(),
            };
            let log = tracing_subscriber::registry().with(lines);
            tracing::subscriber::with_default(log, || {
                for peer in 0..20_000 {
                    tracing::warn!(peer, "a peer was refused");
                    tracing::debug!("looked for");
                }
                tracing::error!("of another kind");
            });
            let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
            // Those at once, and one for each second that the loop takes.
            assert!((100..200).contains(&count("a peer was refused")), "{}", text.len());
            assert_eq!((count("looked for"), count("of another kind")), (20_000, 1));
        }
    }

    #[test]
    fn a_line_counts_those_that_were_left_out_before_it() {
        let write = |format, left_out, line: &str| {
            let mut written = Written::default();
            let line =
                Line { format, out: Some(written.clone()), left_out }.write_all(line.as_bytes());
            line.and_then(|()| written.flush()).unwrap();
            let bytes = written.0.lock().unwrap().clone();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(write(LogFormat::Text, 0, "a b\n"), "a b\n");
        assert_eq!(write(LogFormat::Text, 7, "a b\n"), "a b lines_left_out=7\n");
        let json = write(LogFormat::Json, 7, "{\"a\":{}}\n");
        assert_eq!(json, "{\"a\":{},\"lines_left_out\":7}\n");
    }

    #[test]
    fn the_filter_changes_while_the_log_runs() {
        let log = start_log(LogFormat::Text, &"error".parse().unwrap());
        assert!(!tracing::enabled!(Level::DEBUG));
        assert!(log.set_filter(&"debug".parse().unwrap()));
        assert!(tracing::enabled!(Level::DEBUG));
    }
}
