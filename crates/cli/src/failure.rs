//! Errors on the terminal: what failed and its code on one line, then what to do.
//!
//! Each part classifies its errors (`code`). A text of the form `WHAT; WHAT TO DO` is split into
//! error and hint; an error without a remedy gets that of the catalogue.

pub(crate) mod port_holder;

use std::error::Error;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::panic::PanicHookInfo;

use tollway_config::{FileError, Mistakes, YamlError};
use tollway_control::{AdminError, StartError};
use tollway_dapr::DaprError;
use tollway_echo::EchoError;
use tollway_lab::LabError;
use tollway_launch::local_control::LocalError;
use tollway_launch::{AppPortTaken, CannotStart, LaunchError};
use tollway_model::{ErrorCode, NameError};
use tollway_proxy::DataPlaneError;
use tollway_proxy::mesh::MeshError;
use tollway_report::serve::ServeError;
use tollway_runtime::{OpenStoreError, SidecarError};
use tollway_store::OpenError;

/// The report of a command that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    /// One line without a full stop; several mistakes of one file are a line each.
    what: String,
    code: Option<ErrorCode>,
    hint: Option<String>,
}

/// A failure of the command line's own, with its code. The text may end in `; HINT`.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) what: String,
}

/// Options that exclude each other, which only the command can see; it ends with the exit code of
/// usage.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

impl Failure {
    pub(crate) fn new(code: ErrorCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into() }
    }
}

impl Report {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        Self::of_error(error.as_ref())
    }

    fn of_error(error: &(dyn Error + 'static)) -> Self {
        let code = chain(error).filter_map(code_of).last();
        let mut report = Self::of_texts(chain(error).map(ToString::to_string), code);
        if code == Some(ErrorCode::PortTaken) {
            report.name_the_holder(error);
        }
        if let Some(Mistakes(mistakes)) = chain(error).find_map(|error| error.downcast_ref()) {
            return Self::of_mistakes(mistakes, code);
        }
        report
    }

    /// The advice for one mistake is the hint; of several, each line keeps its own.
    fn of_mistakes(mistakes: &[YamlError], code: Option<ErrorCode>) -> Self {
        let texts = mistakes.iter().map(ToString::to_string);
        if let [_] = mistakes {
            return Self::of_texts(texts, code);
        }
        let what = texts.map(|text| one_line(&text)).collect::<Vec<_>>().join("\n");
        Self { what, ..Self::of_texts(std::iter::empty(), code) }
    }

    /// Joins the texts of an error and its causes, from the outermost inwards. The innermost
    /// hint is the most exact one.
    fn of_texts(texts: impl Iterator<Item = String>, code: Option<ErrorCode>) -> Self {
        let mut what = String::new();
        let mut hint = None;
        for text in texts {
            let text = without_os_numbers(&text);
            let statement = match text.split_once("; ") {
                Some((statement, advice)) => {
                    hint = Some(sentence_end_cut(advice).to_owned());
                    statement
                }
                None => &text,
            };
            let statement = sentence_end_cut(statement);
            // A cause that its effect quotes is printed once.
            if statement.is_empty() || what.ends_with(statement) {
                continue;
            }
            if !what.is_empty() {
                what.push_str(": ");
            }
            what.push_str(statement);
        }
        let hint =
            hint.or_else(|| code.map(|code| sentence_end_cut(code.entry().remedy).to_owned()));
        Self { what: one_line(&what), code, hint: hint.map(|hint| one_line(&hint)) }
    }

    fn name_the_holder(&mut self, error: &(dyn Error + 'static)) {
        let Some((address, option)) = chain(error).find_map(listening) else { return };
        let holder = port_holder::find(address);
        let who = match &holder {
            Some(holder) => format!("{} (pid {})", holder.program, holder.pid),
            None => "another process".to_owned(),
        };
        self.what = format!("cannot listen on {address}: {who} listens there");
        let stop = if holder.is_some() { "stop it, or choose" } else { "choose" };
        self.hint = Some(format!("{stop} another port with {option}; port 0 takes a free one"));
    }

    /// The same with daprd's names of options, for a sidecar that was started by them.
    pub(crate) fn in_daprds_words(mut self) -> Self {
        const NAMES: [(&str, &str); 5] = [
            ("--http-listen", "--dapr-http-port"),
            ("--grpc-listen", "--dapr-grpc-port"),
            ("--inbound-listen", "--dapr-internal-grpc-port"),
            ("--admin-listen", "--metrics-port"),
            ("--public-listen", "--dapr-public-port"),
        ];
        if let Some(hint) = &mut self.hint {
            for (ours, daprs) in NAMES {
                *hint = hint.replace(ours, daprs);
            }
        }
        self
    }

    /// What failed, its code, and what to do.
    pub(crate) fn into_parts(self) -> (String, Option<ErrorCode>, String) {
        (self.what, self.code, self.hint.unwrap_or_default())
    }

    /// Writes it to standard error, as text or as one JSON object.
    pub(crate) fn print(&self, as_json: bool) {
        if as_json {
            eprintln!("{}", self.json());
        } else {
            eprint!("{}", self.text());
        }
    }

    /// Its lines, each with its end.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("error: {}", self.what.replace('\n', "\nerror: "));
        // Writing to a string does not fail.
        let _ = match self.code {
            Some(code) => writeln!(text, " [{code}]"),
            None => writeln!(text),
        };
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "hint: {hint}");
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        if let Some(code) = self.code {
            object.insert("errorCode".to_owned(), code.word().into());
        }
        object.insert("message".to_owned(), self.what.as_str().into());
        if let Some(hint) = &self.hint {
            object.insert("hint".to_owned(), hint.as_str().into());
        }
        object.into()
    }
}

/// Reports a panic in one line: a bug, and where to report it. A reader that went away (`tollway
/// get services | head -1`) is none: the process just ends.
pub(crate) fn on_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    if message.starts_with("failed printing to stdout") {
        std::process::exit(PIPE_CLOSED);
    }
    let location =
        panic.location().map(|location| format!("{}:{}", location.file(), location.line()));
    bug(message, location.as_deref()).print(false);
}

/// What a shell shows for a program that SIGPIPE ended.
const PIPE_CLOSED: i32 = 141;

fn bug(message: &str, location: Option<&str>) -> Report {
    let location = location.unwrap_or("an unknown place");
    Report {
        what: one_line(&format!("tollway failed at {location}: {message}")),
        code: Some(ErrorCode::Bug),
        hint: Some(format!(
            "this is a bug; please report this line and what led to it: {}/issues",
            env!("CARGO_PKG_REPOSITORY")
        )),
    }
}

/// An error and its causes, from the outermost inwards.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The lines that the terminal shows for an error.
pub(crate) fn error_text(error: &(dyn Error + 'static)) -> String {
    Report::of_error(error).text()
}

/// The failure of a part of a sidecar, as the error of that part.
pub(crate) fn failure_of(error: SidecarError) -> anyhow::Error {
    match error {
        SidecarError::Plane(error) => error.into(),
        SidecarError::Store(error) => error.into(),
        SidecarError::Endpoint(error) => {
            let code = ErrorCode::BadConfiguration;
            Failure::new(code, tollway_model::chain(&error)).into()
        }
        forced @ SidecarError::ForcedToEnd => forced.into(),
    }
}

/// The code of one error of a chain, by its type.
fn code_of(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    if let Some(error) = error.downcast_ref::<Failure>() {
        return Some(error.code);
    }
    if let Some(error) = error.downcast_ref::<DataPlaneError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<MeshError>() {
        return error.code();
    }
    if error.is::<OpenStoreError>() {
        return Some(ErrorCode::StateStoreUnusable);
    }
    if let Some(error) = error.downcast_ref::<OpenError>() {
        return Some(error.code());
    }
    if let Some(error) = error.downcast_ref::<StartError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<AdminError>() {
        return Some(error.code());
    }
    if let Some(EchoError::Bind { source, .. }) = error.downcast_ref() {
        return ErrorCode::of_io(source);
    }
    if let Some(error) = error.downcast_ref::<ServeError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<LabError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<FileError>() {
        return Some(error.code());
    }
    if error.is::<YamlError>() || error.is::<Mistakes>() {
        return Some(ErrorCode::BadConfiguration);
    }
    if let Some(error) = error.downcast_ref::<DaprError>() {
        return Some(error.code());
    }
    if let Some(error) = error.downcast_ref::<LocalError>() {
        return error.code();
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.code();
    }
    if error.is::<CannotStart>() {
        return Some(ErrorCode::AppNotStarted);
    }
    error.is::<NameError>().then_some(ErrorCode::BadName)
}

/// The address that could not be listened on, and the option that sets it.
fn listening(error: &(dyn Error + 'static)) -> Option<(SocketAddr, String)> {
    if let Some(DataPlaneError::Listen { address, listener, .. }) = error.downcast_ref() {
        return Some((*address, option_of_listener(listener)));
    }
    if let Some(StartError::Listen { address, .. }) = error.downcast_ref() {
        return Some((*address, "--listen".to_owned()));
    }
    if let Some(AppPortTaken { address }) = error.downcast_ref() {
        return Some((*address, "--app-port".to_owned()));
    }
    if let Some(EchoError::Bind { address, .. }) = error.downcast_ref() {
        return Some((*address, "--http, --grpc or --tcp".to_owned()));
    }
    if let Some(ServeError::Listen { listen, .. }) = error.downcast_ref() {
        return Some((*listen, "--listen".to_owned()));
    }
    if let Some(StartError::ListenAdmin { address, .. }) = error.downcast_ref() {
        return Some((*address, "--admin-listen".to_owned()));
    }
    None
}

fn option_of_listener(listener: &str) -> String {
    match listener {
        "gateway" | "front" => "--listen".to_owned(),
        listener => format!("--{listener}-listen"),
    }
}

/// `Connection refused (os error 111)` → `Connection refused`.
pub(crate) fn without_os_numbers(text: &str) -> String {
    let mut shortened = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        shortened.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    shortened + rest
}

fn sentence_end_cut(text: &str) -> &str {
    text.trim().trim_end_matches('.')
}

/// Errors of others may have several lines; a terminal's error has one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context as _, anyhow};

    fn text(error: anyhow::Error) -> String {
        Report::of(&error).text()
    }

    #[test]
    fn a_chain_is_one_line_and_its_innermost_hint_another() {
        let error = anyhow!("Connection refused (os error 111)")
            .context("cannot reach 127.0.0.1:1; is it running?")
            .context("cannot start; read the manual");
        assert_eq!(
            text(error),
            "error: cannot start: cannot reach 127.0.0.1:1: Connection refused\n\
             hint: is it running?\n"
        );
    }

    #[test]
    fn a_cause_that_is_quoted_already_is_not_said_twice() {
        let error = anyhow!("no such file").context("cannot read x: no such file");
        assert_eq!(text(error), "error: cannot read x: no such file\n");
    }

    #[test]
    fn each_mistake_of_a_file_is_advised_on_once() {
        let mistake = |line, what: &str| YamlError {
            source_name: "a.yaml".to_owned(),
            line,
            column: 1,
            what: what.to_owned(),
        };
        let check = |mistakes: Vec<YamlError>, expected: &str| {
            assert_eq!(text(Mistakes(mistakes).into()), expected);
        };
        let first = mistake(1, "unknown subject `tolway`; did you mean `tollway`?");
        check(
            vec![first.clone()],
            "error: a.yaml:1:1: unknown subject `tolway` [ERR_BAD_CONFIGURATION]\n\
             hint: did you mean `tollway`?\n",
        );
        check(
            vec![first, mistake(2, "two cases are called `a`")],
            "error: a.yaml:1:1: unknown subject `tolway`; did you mean `tollway`?\n\
             error: a.yaml:2:1: two cases are called `a` [ERR_BAD_CONFIGURATION]\n\
             hint: Correct what the message names\n",
        );
    }

    #[test]
    fn a_code_brings_the_hint_of_the_catalogue() {
        let wrong = Failure::new(ErrorCode::BadConfiguration, "a.yaml:3:1: unknown field `port`");
        let error = Err::<(), _>(wrong).context("cannot apply a.yaml").unwrap_err();
        assert_eq!(
            text(error),
            "error: cannot apply a.yaml: a.yaml:3:1: unknown field `port` [ERR_BAD_CONFIGURATION]\n\
             hint: Correct what the message names\n"
        );
    }

    #[test]
    fn an_error_is_also_one_json_object() {
        let error =
            anyhow::Error::from(Failure::new(ErrorCode::TokenMissing, "no token; make one"));
        assert_eq!(
            Report::of(&error).json().to_string(),
            r#"{"errorCode":"ERR_TOKEN_MISSING","hint":"make one","message":"no token"}"#
        );
    }

    #[test]
    fn a_panic_is_reported_in_two_lines() {
        let lines = bug("index out of\nbounds", Some("src/a.rs:7")).text();
        assert!(lines.starts_with("error: tollway failed at src/a.rs:7: index out of bounds [ERR_BUG]\nhint: this is a bug"), "{lines}");
        assert_eq!(lines.lines().count(), 2, "{lines}");
    }

    #[test]
    fn numbers_of_the_system_go_wherever_they_stand() {
        assert_eq!(without_os_numbers("a (os error 2): b (os error 13)"), "a: b");
        assert_eq!(without_os_numbers("plain"), "plain");
        assert_eq!(without_os_numbers("cut (os error 2"), "cut");
    }
}
