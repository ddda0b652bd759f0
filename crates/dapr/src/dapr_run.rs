//! The command line of `dapr run`, read as that reads it: one app, as a run file has it, or the name of
//! a run file.

use std::path::PathBuf;

use thiserror::Error;
use tollway_proxy::mesh::{Targets, TargetsError};

/// An option.
struct Flag {
    letter: Option<char>,
    name: &'static str,
    /// The key of a run file that means the same.
    key: Option<&'static str>,
    /// It needs no value.
    is_switch: bool,
}

const fn of_key(letter: Option<char>, name: &'static str, key: &'static str) -> Flag {
    Flag { letter, name, key: Some(key), is_switch: false }
}

const fn own(letter: Option<char>, name: &'static str) -> Flag {
    Flag { letter, name, key: None, is_switch: false }
}

const fn switch(flag: Flag) -> Flag {
    Flag { is_switch: true, ..flag }
}

/// Every option of `dapr run`, and Tollway's own `--control`.
const FLAGS: &[Flag] = &[
    of_key(Some('a'), "app-id", "appID"),
    of_key(Some('p'), "app-port", "appPort"),
    of_key(None, "app-channel-address", "appChannelAddress"),
    of_key(Some('P'), "app-protocol", "appProtocol"),
    of_key(None, "app-max-concurrency", "appMaxConcurrency"),
    switch(of_key(None, "app-ssl", "appSSL")),
    switch(of_key(None, "enable-app-health-check", "enableAppHealthCheck")),
    of_key(None, "app-health-check-path", "appHealthCheckPath"),
    of_key(None, "app-health-probe-interval", "appHealthProbeInterval"),
    of_key(None, "app-health-probe-timeout", "appHealthProbeTimeout"),
    of_key(None, "app-health-threshold", "appHealthThreshold"),
    of_key(Some('H'), "dapr-http-port", "daprHTTPPort"),
    of_key(Some('G'), "dapr-grpc-port", "daprGRPCPort"),
    of_key(Some('I'), "dapr-internal-grpc-port", "daprInternalGRPCPort"),
    of_key(Some('M'), "metrics-port", "metricsPort"),
    of_key(None, "profile-port", "profilePort"),
    switch(of_key(None, "enable-profiling", "enableProfiling")),
    of_key(None, "dapr-listen-addresses", "apiListenAddresses"),
    of_key(Some('u'), "unix-domain-socket", "unixDomainSocket"),
    of_key(Some('c'), "config", "configFilePath"),
    of_key(None, "resources-path", "resourcesPaths"),
    of_key(Some('d'), "components-path", "resourcesPath"),
    of_key(None, "runtime-path", "runtimePath"),
    of_key(None, "log-level", "logLevel"),
    switch(of_key(None, "enable-api-logging", "enableApiLogging")),
    of_key(None, "max-body-size", "maxBodySize"),
    of_key(None, "dapr-http-max-request-size", "daprHTTPMaxRequestSize"),
    of_key(None, "read-buffer-size", "readBufferSize"),
    of_key(None, "dapr-http-read-buffer-size", "daprHTTPReadBufferSize"),
    of_key(None, "placement-host-address", "placementHostAddress"),
    of_key(None, "scheduler-host-address", "schedulerHostAddress"),
    own(Some('f'), RUN_FILE),
    own(None, CONTROL),
    switch(own(None, LOG_AS_JSON)),
    switch(own(Some('k'), KUBERNETES)),
    switch(own(Some('h'), HELP)),
];
const RUN_FILE: &str = "run-file";
const CONTROL: &str = "control";
const LOG_AS_JSON: &str = "log-as-json";
const KUBERNETES: &str = "kubernetes";
const HELP: &str = "help";
/// Options that hold beside a run file.
const BESIDE_FILE: [&str; 2] = [CONTROL, LOG_AS_JSON];

/// What a command line asks for.
#[derive(Debug, Default)]
pub struct DaprRun {
    /// The run file whose apps are to run, in place of one app.
    pub file: Option<PathBuf>,
    /// What is given of the one app: keys of a run file, each with all its values.
    pub app: Vec<(&'static str, Vec<String>)>,
    /// The command of the one app.
    pub command: Vec<String>,
    /// Options that have no effect beside a run file.
    pub idle: Vec<&'static str>,
    /// Tollway's control plane, in place of the user's local one.
    pub control: Option<Targets>,
    pub log_as_json: bool,
}

/// Why a command line is none of `dapr run`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DaprRunError {
    /// The options are to be listed; this is no mistake.
    #[error("{}", usage())]
    Help,
    #[error("unknown flag: {0}")]
    Unknown(String),
    #[error("flag needs an argument: --{0}")]
    NoValue(&'static str),
    #[error("--kubernetes is not served: the apps run on this machine; leave it out")]
    Kubernetes,
    #[error("--{CONTROL}: {0}")]
    Control(TargetsError),
}

/// Reads the words that follow `run`. Options may stand anywhere before `--`; the other words are the
/// command.
///
/// # Errors
/// [`DaprRunError`].
pub fn parse_dapr_run(words: &[String]) -> Result<DaprRun, DaprRunError> {
    let mut given: Vec<(&Flag, String)> = Vec::new();
    let mut command = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            command.extend(words.by_ref().cloned());
        } else if let Some(text) = word.strip_prefix("--") {
            let (name, value) = split(text);
            let flag = FLAGS.iter().find(|flag| flag.name == name);
            let flag = flag.ok_or_else(|| DaprRunError::Unknown(format!("--{name}")))?;
            given.push((flag, value_of(flag, value, &mut words)?));
        } else if let Some(letter) = word.strip_prefix('-').and_then(|text| text.chars().next()) {
            let flag = FLAGS.iter().find(|flag| flag.letter == Some(letter));
            let flag = flag.ok_or_else(|| DaprRunError::Unknown(word.clone()))?;
            let rest = word.get(1 + letter.len_utf8()..).unwrap_or_default();
            let value = match rest {
                "" => None,
                _ => Some(rest.strip_prefix('=').unwrap_or(rest).to_owned()),
            };
            given.push((flag, value_of(flag, value, &mut words)?));
        } else {
            command.push(word.clone());
        }
    }
    let own = |name: &str| -> Option<String> {
        let mut found = given.iter().filter(|(flag, _)| flag.name == name);
        found.next_back().map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    let is_on = |name: &str| own(name).is_some_and(|value| value != "false");
    if is_on(HELP) {
        return Err(DaprRunError::Help);
    }
    if is_on(KUBERNETES) {
        return Err(DaprRunError::Kubernetes);
    }
    let control = own(CONTROL).map(|text| text.parse().map_err(DaprRunError::Control));
    let (control, log_as_json) = (control.transpose()?, is_on(LOG_AS_JSON));
    let Some(file) = own(RUN_FILE) else {
        return Ok(DaprRun {
            app: values(&given),
            command,
            control,
            log_as_json,
            ..DaprRun::default()
        });
    };
    let names = given.iter().map(|(flag, _)| flag.name);
    let idle = names.filter(|name| *name != RUN_FILE && !BESIDE_FILE.contains(name)).collect();
    Ok(DaprRun { file: Some(file.into()), idle, control, log_as_json, ..DaprRun::default() })
}

/// The name of an option and the value behind `=`.
fn split(text: &str) -> (&str, Option<String>) {
    match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    }
}

/// The value of an option: behind `=`, or the next word; a switch alone is on.
fn value_of<'a>(
    flag: &Flag,
    value: Option<String>,
    words: &mut impl Iterator<Item = &'a String>,
) -> Result<String, DaprRunError> {
    match value {
        Some(value) => Ok(value),
        None if flag.is_switch => Ok("true".to_owned()),
        None => words.next().cloned().ok_or(DaprRunError::NoValue(flag.name)),
    }
}

/// All values by key.
fn values(given: &[(&Flag, String)]) -> Vec<(&'static str, Vec<String>)> {
    let mut values: Vec<(&'static str, Vec<String>)> = Vec::new();
    for (flag, value) in given {
        let Some(key) = flag.key else { continue };
        // Several resource folders stand in one option with commas between, or in several options.
        let parts = match key {
            "resourcesPaths" => value.split(',').map(str::to_owned).collect(),
            _ => vec![value.clone()],
        };
        match values.iter_mut().find(|(known, _)| *known == key) {
            Some((_, all)) => all.extend(parts),
            None => values.push((key, parts)),
        }
    }
    values
}

/// The option of `dapr run` for a key of a run file.
pub fn option_of_key(key: &str) -> Option<&'static str> {
    FLAGS.iter().find(|flag| flag.key == Some(key)).map(|flag| flag.name)
}

/// The keys of a run file that an option stands for.
pub fn keys_of_options() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().filter_map(|flag| flag.key)
}

/// What `--help` prints.
fn usage() -> String {
    let mut text = String::from(
        "Usage: tollway run --dapr [OPTIONS] [--] [COMMAND]...\n\nThe options are those of `dapr run`:\n",
    );
    for Flag { letter, name, is_switch, .. } in FLAGS {
        let letter = letter.map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
        let value = if *is_switch { "" } else { " VALUE" };
        text.push_str(&format!("  {letter}--{name}{value}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<DaprRun, DaprRunError> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        parse_dapr_run(&words)
    }

    fn one<'a>(run: &'a DaprRun, key: &str) -> Option<&'a str> {
        let (_, values) = run.app.iter().find(|(known, _)| *known == key)?;
        values.last().map(String::as_str)
    }

    #[test]
    fn a_command_line_of_dapr_run_means_the_same_here() {
        let run = read(
            "--app-id web -p 8001 -H=3501 -P grpc --app-ssl --metrics-port -1 \
                        --enable-api-logging=false -- python3 app.py --app-id other",
        )
        .unwrap();
        assert_eq!((one(&run, "appID"), one(&run, "appPort")), (Some("web"), Some("8001")));
        assert_eq!(
            (one(&run, "daprHTTPPort"), one(&run, "appProtocol")),
            (Some("3501"), Some("grpc"))
        );
        assert_eq!(
            (one(&run, "appSSL"), one(&run, "enableApiLogging")),
            (Some("true"), Some("false"))
        );
        assert_eq!(one(&run, "metricsPort"), Some("-1"));
        assert_eq!(run.command, ["python3", "app.py", "--app-id", "other"]);
    }

    #[test]
    fn a_command_needs_no_dashes_before_it() {
        let run = read("--app-id nodeapp node app.js -p3000").unwrap();
        assert_eq!(run.command, ["node", "app.js"]);
        assert_eq!(one(&run, "appPort"), Some("3000"));
    }

    #[test]
    fn folders_of_resources_may_be_several() {
        let run = read("--resources-path a,b --resources-path c x").unwrap();
        assert_eq!(run.app, [("resourcesPaths", ["a", "b", "c"].map(str::to_owned).to_vec())]);
    }

    #[test]
    fn a_run_file_comes_with_what_has_no_effect_beside_it() {
        let run = read("-f dapr.yaml --app-id web --log-as-json --control here:15010").unwrap();
        assert_eq!(
            (run.control.map(|at| at.to_string()), run.log_as_json),
            (Some("here:15010".to_owned()), true)
        );
        assert_eq!((run.file, run.idle), (Some(PathBuf::from("dapr.yaml")), vec!["app-id"]));
    }

    #[test]
    fn what_dapr_run_does_not_take_is_refused() {
        for (line, why) in [
            ("--no-such-flag", "unknown flag: --no-such-flag"),
            ("-x", "unknown flag: -x"),
            ("--app-id", "flag needs an argument: --app-id"),
            ("-f . -k", "--kubernetes is not served"),
        ] {
            let error = read(line).unwrap_err().to_string();
            assert!(error.starts_with(why), "{line}: {error}");
        }
        assert_eq!(read("--help").unwrap_err(), DaprRunError::Help);
        assert_eq!(read("-h").unwrap_err(), DaprRunError::Help);
    }
}
