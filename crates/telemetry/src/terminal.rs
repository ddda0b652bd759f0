//! The log of a command that shares its terminal with another program's output.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log::{LimitedLines, LogFilter, LogFormat};

/// Starts the log: one line `tollway: level: message` for what is at least as grave as `level`,
/// which `TOLLWAY_LOG` replaces. Later calls change nothing.
pub fn init_terminal_log(level: &str) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(LimitedLines::new(LogFormat::Text, std::io::stderr))
        .with_ansi(false)
        .event_format(Prefixed);
    let filter = LogFilter::of_environment(level).targets();
    // Fails only when a log was started before, which then stays.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
}

/// Lines with a prefix that distinguishes them from those of another program.
struct Prefixed;

impl<S, N> FormatEvent<S, N> for Prefixed
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        write!(writer, "tollway: {level}: ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
