//! Lines of the log as daprd writes them, since programs read its log: `time="…" level=info msg="…" …`, or
//! the same fields as one JSON object.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::log::LogFormat;

/// The field of an event that ends the process.
const FATAL: &str = "fatal";

/// Writes events of one app's sidecar.
pub(crate) struct DaprdLines {
    format: LogFormat,
    app: String,
    /// The name of this machine.
    instance: String,
}

impl DaprdLines {
    pub(crate) fn new(format: LogFormat, app: &str) -> Self {
        let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { format, app: app.to_owned(), instance }
    }

    fn line(&self, time: String, of: &tracing::Metadata<'_>, event: Read) -> String {
        let Read { message, mut fields } = event;
        let level = match *of.level() {
            Level::ERROR if fields.remove(FATAL).is_some() => "fatal",
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let own = [
            ("time", time),
            ("level", level.to_owned()),
            ("msg", message),
            ("app_id", self.app.clone()),
            ("instance", self.instance.clone()),
            ("scope", of.target().replace("::", ".")),
            ("type", "log".to_owned()),
            ("ver", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let of_event = fields.into_iter().map(|(name, value)| {
            let is_own = own.iter().any(|(known, _)| *known == name);
            (if is_own { format!("fields.{name}") } else { name.to_owned() }, value)
        });
        let mut all: BTreeMap<String, String> = of_event.collect();
        all.extend(own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        match self.format {
            LogFormat::Json => json(&all),
            LogFormat::Text => text(all),
        }
    }
}

impl<S, N> FormatEvent<S, N> for DaprdLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut read = Read::default();
        event.record(&mut read);
        writeln!(writer, "{}", self.line(time, event.metadata(), read))
    }
}

/// What an event has.
#[derive(Default)]
struct Read {
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Read {
    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            name => drop(self.fields.insert(name, value)),
        }
    }
}

impl Visit for Read {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
}

fn json(fields: &BTreeMap<String, String>) -> String {
    let mut line = String::from("{");
    for (name, value) in fields {
        let comma = if line.len() > 1 { "," } else { "" };
        let _ = write!(line, "{comma}{}:{}", Quoted(name), Quoted(value));
    }
    line.push('}');
    line
}

/// The time, the level and the text come first.
fn text(mut fields: BTreeMap<String, String>) -> String {
    let first = ["time", "level", "msg"].map(|name| fields.remove_entry(name));
    let mut line = String::new();
    for (name, value) in first.into_iter().flatten().chain(fields) {
        let space = if line.is_empty() { "" } else { " " };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
        let _ = match value.chars().all(is_plain) {
            true => write!(line, "{space}{name}={value}"),
            false => write!(line, "{space}{name}={}", Quoted(&value)),
        };
    }
    line
}

/// A text in quotation marks, on one line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::written::Written;

    fn lines(format: LogFormat, log: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let out = written.clone();
        let mut of = DaprdLines::new(format, "web");
        of.instance = "here".to_owned();
        let layer = tracing_subscriber::fmt::layer().event_format(of).with_ansi(false);
        let layer = layer.with_writer(move || out.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn log_three() {
        tracing::info!("dapr initialized. Status: Running. Init Elapsed 6ms");
        tracing::warn!(left_out = 3, peer = "a \"b\"", ver = "7", "gone");
        tracing::error!(fatal = true, "Fatal error from runtime: one\ntwo\u{1}");
    }

    /// The harm: Dapr's Sidekick and other programs that start daprd wait for its lines for good.
    #[test]
    fn programs_that_read_the_log_of_daprd_find_its_fields() {
        let rest = concat!(
            "app_id=web instance=here scope=tollway_telemetry.daprd_lines.tests type=log ver=",
            env!("CARGO_PKG_VERSION")
        );
        let text = lines(LogFormat::Text, log_three);
        let expected = [
            format!(
                "level=info msg=\"dapr initialized. Status: Running. Init Elapsed 6ms\" {rest}"
            ),
            format!("level=warning msg=gone {rest}").replace(
                "instance=here",
                "fields.ver=7 instance=here left_out=3 peer=\"a \\\"b\\\"\"",
            ),
            format!("level=fatal msg=\"Fatal error from runtime: one\\ntwo\\u0001\" {rest}"),
        ];
        for (line, expected) in text.iter().zip(expected) {
            let (time, after) = line.split_once(' ').unwrap();
            assert!(time.starts_with("time=\"2") && time.ends_with("Z\""), "{line}");
            assert_eq!(after, expected);
        }
        let json = lines(LogFormat::Json, log_three);
        assert_eq!((text.len(), json.len()), (3, 3));
        let start = "{\"app_id\":\"web\",\"instance\":\"here\",\"level\":\"info\",\"msg\":\"dapr initialized. \
                     Status: Running. Init Elapsed 6ms\",\"scope\":\"tollway_telemetry.daprd_lines.tests\",\
                     \"time\":\"2";
        assert!(json[0].starts_with(start), "{}", json[0]);
        let end = format!("Z\",\"type\":\"log\",\"ver\":\"{}\"}}", env!("CARGO_PKG_VERSION"));
        assert!(json[0].ends_with(&end), "{}", json[0]);
        assert!(json[2].contains("\"msg\":\"Fatal error from runtime: one\\ntwo\\u0001\""));
    }
}
