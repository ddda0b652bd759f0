//! Dapr's run file as it is written: the keys, what each takes, and the position of each mistake.
//! `app_plan` decides what they mean.

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use tollway_config::entries::{Entries, Entry, Value};
use tollway_config::yaml::{self, YamlError};
use tollway_config::{Mistake, Mistakes, suggest};

/// Most apps of one file.
const APPS_LIMIT: usize = 100;

/// What a key takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Takes {
    Value,
    /// A file or folder.
    Path,
    /// Files or folders.
    Paths,
    /// A command and its arguments.
    Words,
    /// Lines of `NAME: value`.
    Section,
}

/// A key of the file.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: &'static str,
    pub(super) takes: Takes,
    /// The key belongs to an app, not to `common`.
    is_of_app: bool,
    /// The flag of daprd that means the same.
    pub(super) flag: Option<&'static str>,
}

const fn shared(key: &'static str, flag: &'static str) -> Field {
    Field { key, takes: Takes::Value, is_of_app: false, flag: Some(flag) }
}

const fn of_app(key: &'static str, flag: &'static str) -> Field {
    Field { key, takes: Takes::Value, is_of_app: true, flag: Some(flag) }
}

/// A key that no flag stands for.
const fn own(key: &'static str, takes: Takes, is_of_app: bool) -> Field {
    Field { key, takes, is_of_app, flag: None }
}

/// Every key of `common` and of an app.
pub(super) const FIELDS: &[Field] = &[
    of_app("appID", "app-id"),
    own("appDirPath", Takes::Path, true),
    own("command", Takes::Words, true),
    of_app("appPort", "app-port"),
    of_app("appChannelAddress", "app-channel-address"),
    of_app("daprHTTPPort", "dapr-http-port"),
    of_app("daprGRPCPort", "dapr-grpc-port"),
    of_app("daprInternalGRPCPort", "dapr-internal-grpc-port"),
    of_app("metricsPort", "metrics-port"),
    of_app("profilePort", "profile-port"),
    of_app("unixDomainSocket", "unix-domain-socket"),
    own("containerImage", Takes::Value, true),
    own("containerImagePullPolicy", Takes::Value, true),
    own("createService", Takes::Value, true),
    shared("appProtocol", "app-protocol"),
    shared("appMaxConcurrency", "app-max-concurrency"),
    shared("appSSL", "app-ssl"),
    shared("enableAppHealthCheck", "enable-app-health-check"),
    shared("appHealthCheckPath", "app-health-check-path"),
    shared("appHealthProbeInterval", "app-health-probe-interval"),
    shared("appHealthProbeTimeout", "app-health-probe-timeout"),
    shared("appHealthThreshold", "app-health-threshold"),
    shared("apiListenAddresses", "dapr-listen-addresses"),
    shared("enableApiLogging", "enable-api-logging"),
    shared("logLevel", "log-level"),
    shared("maxBodySize", "max-body-size"),
    shared("readBufferSize", "read-buffer-size"),
    shared("daprHTTPMaxRequestSize", "dapr-http-max-request-size"),
    shared("daprHTTPReadBufferSize", "dapr-http-read-buffer-size"),
    shared("enableProfiling", "enable-profiling"),
    shared("placementHostAddress", "placement-host-address"),
    shared("schedulerHostAddress", "scheduler-host-address"),
    own("configFilePath", Takes::Path, false),
    own("resourcesPath", Takes::Path, false),
    own("resourcesPaths", Takes::Paths, false),
    own("runtimePath", Takes::Path, false),
    own("env", Takes::Section, false),
    own("appLogDestination", Takes::Value, false),
    own("daprdLogDestination", Takes::Value, false),
];

/// A run file.
#[derive(Debug)]
pub(super) struct RunFile {
    pub(super) common: Section,
    pub(super) apps: Vec<Section>,
}

/// `common`, or an app.
#[derive(Debug)]
pub(super) struct Section {
    entries: Vec<Entry>,
    pub(super) at: Location,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: Spanned<u64>,
    #[serde(default, rename = "name")]
    _name: Option<String>,
    #[serde(default)]
    common: Option<Spanned<Entries>>,
    apps: Spanned<Vec<Spanned<Entries>>>,
}

/// Reads a run file; `source` names it in mistakes.
///
/// # Errors
/// Every mistake in its keys and the form of their values.
pub(super) fn read(text: &str, source: &str) -> Result<RunFile, Mistakes> {
    let written: Written = yaml::parse(text, source).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut mistakes = Vec::new();
    let mut refuse = |at: Location, what: String| mistakes.push(mistake(source, at, what));
    let (version, apps) = (written.version, written.apps);
    if version.value != 1 {
        let what = format!("there is no version {} of run files; write 1", version.value);
        refuse(version.referenced, what);
    }
    if apps.value.is_empty() || apps.value.len() > APPS_LIMIT {
        let count = apps.value.len();
        let what = format!("`apps` has {count} apps; list from 1 to {APPS_LIMIT} of them");
        refuse(apps.referenced, what);
    }
    let mut section = |written: Spanned<Entries>, is_common: bool| {
        let at = written.referenced;
        let entries = written.value.resolved(text);
        for entry in &entries {
            if let Err((at, what)) = check(entry, is_common) {
                refuse(at, what);
            }
        }
        Section { entries, at }
    };
    let nothing = Section { entries: Vec::new(), at: Location::UNKNOWN };
    let common = written.common.map_or(nothing, |common| section(common, true));
    let apps = apps.value.into_iter().map(|app| section(app, false)).collect();
    if mistakes.is_empty() { Ok(RunFile { common, apps }) } else { Err(Mistakes(mistakes)) }
}

/// A mistake in the file.
pub(super) fn mistake(source: &str, at: Location, what: String) -> YamlError {
    Mistake::at(at, what).within(source)
}

fn check(entry: &Entry, is_common: bool) -> Result<(), (Location, String)> {
    let key = &entry.key;
    let Some(field) = FIELDS.iter().find(|field| field.key == key) else {
        let known = FIELDS.iter().filter(|field| !(is_common && field.is_of_app));
        return Err((entry.key_at, suggest::unknown("key", key, known.map(|field| field.key))));
    };
    if is_common && field.is_of_app {
        let what = format!("`{key}` is each app's own; move it from `common` to the app");
        return Err((entry.key_at, what));
    }
    let form = match (field.takes, &entry.value) {
        (Takes::Value | Takes::Path, Value::One(_))
        | (Takes::Words | Takes::Paths, Value::Many(_))
        | (Takes::Section, Value::Pairs(_)) => return Ok(()),
        (_, Value::None) => {
            return Err((entry.key_at, format!("`{key}` has no value; give one or remove it")));
        }
        (Takes::Value | Takes::Path, _) => "one value",
        (Takes::Words, _) => "a list such as [python3, app.py]",
        (Takes::Paths, _) => "a list such as [./resources]",
        (Takes::Section, _) => "lines of `NAME: value`",
    };
    Err((entry.value_at, format!("`{key}` takes {form}; write it so")))
}

impl Section {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The value of a key that takes one, with its place.
    pub(super) fn one(&self, key: &str) -> Option<(&str, Location)> {
        let entry = self.entry(key)?;
        match &entry.value {
            Value::One(text) => Some((text, entry.value_at)),
            Value::Many(_) | Value::Pairs(_) | Value::None => None,
        }
    }

    /// The values of a key that takes several, with their place.
    pub(super) fn many(&self, key: &str) -> Option<(&[String], Location)> {
        let entry = self.entry(key)?;
        match &entry.value {
            Value::Many(texts) | Value::Pairs(texts) => Some((texts, entry.value_at)),
            Value::One(_) | Value::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(text: &str, mistake: &str) {
        let Mistakes(message) = read(text, "dapr.yaml").unwrap_err();
        let message: Vec<String> = message.iter().map(ToString::to_string).collect();
        assert!(message.iter().any(|message| message.starts_with(mistake)), "{message:#?}");
    }

    #[test]
    fn what_dapr_shows_is_read() {
        let text = "version: 1\nname: shop\ncommon:\n  resourcesPath: ./resources\n  env: {DEBUG: \
                    false, N: 007}\napps:\n- appID: web\n  appDirPath: ./web\n  appPort: 8080\n  \
                    command: [\"python3\", \"app.py\"]\n- appDirPath: .\n";
        let file = read(text, "dapr.yaml").unwrap();
        assert_eq!(file.common.many("env").unwrap().0, ["DEBUG=false", "N=007"]);
        let (port, at) = file.apps[0].one("appPort").unwrap();
        assert_eq!((port, at.line()), ("8080", 9));
        assert_eq!(file.apps[0].many("command").unwrap().0, ["python3", "app.py"]);
        assert!(file.apps[1].entry("appID").is_none());
    }

    #[test]
    fn mistakes_have_their_places() {
        let file = |app: &str| format!("version: 1\napps:\n- appDirPath: .\n{app}\n");
        check_refused(
            &file("  appPrt: 1"),
            "dapr.yaml:4:3: unknown key `appPrt`; did you mean `appPort`?",
        );
        check_refused(&file("  command: run"), "dapr.yaml:4:12: `command` takes a list such as");
        check_refused(&file("  appPort:"), "dapr.yaml:4:3: `appPort` has no value");
        check_refused(&file("  env: [A]"), "dapr.yaml:4:8: `env` takes lines of");
        check_refused(
            &file("colour: red"),
            "dapr.yaml:4:1: unknown field `colour`; expected one of",
        );
        check_refused(&file("common: {appID: a}"), "dapr.yaml:4:10: `appID` is each app's own");
        check_refused(
            "version: 2\napps: [{appDirPath: .}]\n",
            "dapr.yaml:1:10: there is no version 2",
        );
        check_refused("version: 1\napps: []\n", "dapr.yaml:2:7: `apps` has 0 apps");
        check_refused("apps: [{appDirPath: .}]\n", "dapr.yaml:1:1: the field `version` is missing");
        check_refused("version: 1\n", "dapr.yaml:1:1: the field `apps` is missing");
    }
}
