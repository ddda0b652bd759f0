//! Dapr's run file as it is written: the keys, what each takes, and the position of each mistake.
//! It is read as `dapr run -f` reads it: what is not known has a note, and a key without a value is
//! as none. `app_plan` decides what the keys mean.

use std::rc::Rc;

use tollway_config::go::{At, Content, Key, Node, Reader, Resolved, only_document};
use tollway_config::yaml::YamlError;
use tollway_config::{Mistake, Mistakes, suggest};

/// Most apps of one file.
const APPS_LIMIT: usize = 100;

/// What a key takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Takes {
    Value,
    /// A whole number.
    Number,
    /// True or false.
    Switch,
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

const fn number(field: Field) -> Field {
    Field { takes: Takes::Number, ..field }
}

const fn switch(field: Field) -> Field {
    Field { takes: Takes::Switch, ..field }
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
    number(of_app("appPort", "app-port")),
    of_app("appChannelAddress", "app-channel-address"),
    number(of_app("daprHTTPPort", "dapr-http-port")),
    number(of_app("daprGRPCPort", "dapr-grpc-port")),
    number(of_app("daprInternalGRPCPort", "dapr-internal-grpc-port")),
    number(of_app("metricsPort", "metrics-port")),
    number(of_app("profilePort", "profile-port")),
    of_app("unixDomainSocket", "unix-domain-socket"),
    own("containerImage", Takes::Value, true),
    own("containerImagePullPolicy", Takes::Value, true),
    own("createService", Takes::Value, true),
    shared("appProtocol", "app-protocol"),
    number(shared("appMaxConcurrency", "app-max-concurrency")),
    switch(shared("appSSL", "app-ssl")),
    switch(shared("enableAppHealthCheck", "enable-app-health-check")),
    shared("appHealthCheckPath", "app-health-check-path"),
    number(shared("appHealthProbeInterval", "app-health-probe-interval")),
    number(shared("appHealthProbeTimeout", "app-health-probe-timeout")),
    number(shared("appHealthThreshold", "app-health-threshold")),
    shared("apiListenAddresses", "dapr-listen-addresses"),
    switch(shared("enableApiLogging", "enable-api-logging")),
    shared("logLevel", "log-level"),
    shared("maxBodySize", "max-body-size"),
    shared("readBufferSize", "read-buffer-size"),
    number(shared("daprHTTPMaxRequestSize", "dapr-http-max-request-size")),
    number(shared("daprHTTPReadBufferSize", "dapr-http-read-buffer-size")),
    switch(shared("enableProfiling", "enable-profiling")),
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
    /// What in it has no effect.
    pub(super) notes: Vec<String>,
}

/// `common`, or an app.
#[derive(Debug, Default)]
pub(super) struct Section {
    entries: Vec<Entry>,
    pub(super) at: At,
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    key: &'static str,
    pub(super) value_at: At,
    value: Value,
}

#[derive(Debug)]
enum Value {
    One(String),
    Many(Vec<String>),
    Pairs(Vec<(String, String)>),
}

/// Reads a run file; `source` names it in mistakes.
///
/// # Errors
/// Every mistake in the form of its values.
pub(super) fn read(text: &str, source: &str) -> Result<RunFile, Mistakes> {
    let root = only_document(text, Reader::RunFile, source);
    let root = root.map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut file = FileReader { source, mistakes: Vec::new(), notes: Vec::new() };
    let read = file.file(root.as_deref());
    let FileReader { mistakes, notes, .. } = file;
    match read {
        Some((common, apps)) if mistakes.is_empty() => Ok(RunFile { common, apps, notes }),
        _ => Err(Mistakes(mistakes)),
    }
}

/// A mistake in the file.
pub(super) fn mistake(source: &str, at: At, what: String) -> YamlError {
    Mistake::at(at, what).within(source)
}

struct FileReader<'a> {
    source: &'a str,
    mistakes: Vec<YamlError>,
    notes: Vec<String>,
}

impl FileReader<'_> {
    fn refuse(&mut self, at: At, what: impl Into<String>) {
        self.mistakes.push(mistake(self.source, at, what.into()));
    }

    fn note(&mut self, at: At, what: String) {
        let note = format!("{}; it has no effect", mistake(self.source, at, what));
        // A merge key brings it again.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn file(&mut self, root: Option<&Node>) -> Option<(Section, Vec<Section>)> {
        let fields = root.map(Node::fields).unwrap_or_default();
        let start = At { line: 1, column: 1 };
        let field =
            |name: &str| fields.iter().find(|(key, _)| key.name == name).map(|(_, node)| node);
        for (key, _) in fields {
            const KNOWN: [&str; 4] = ["version", "name", "common", "apps"];
            if !KNOWN.contains(&key.name.as_str()) {
                self.note(key.at, suggest::unknown("key", &key.name, KNOWN));
            }
        }
        match field("version").map(|node| (node.at, whole(node))) {
            // Dapr takes every other number.
            Some((_, Some(number))) if number != 0 => {}
            Some((at, None)) => self.refuse(at, "`version` is no number; write 1"),
            _ => self.refuse(start, "the field `version` is missing; write `version: 1`"),
        }
        let common = field("common").filter(|node| !node.is_null());
        let common = common.map_or_else(Section::default, |node| self.section(node, true));
        let Some(apps) = field("apps") else {
            self.refuse(start, "the field `apps` is missing");
            return None;
        };
        let items: &[Rc<Node>] = match &apps.content {
            Content::List(items) => items,
            Content::Fields(_) | Content::Scalar { .. } => &[],
        };
        if items.is_empty() || items.len() > APPS_LIMIT {
            let count = items.len();
            let what = format!("`apps` has {count} apps; list from 1 to {APPS_LIMIT} of them");
            self.refuse(apps.at, what);
        }
        let apps = items.iter().map(|app| self.section(app, false)).collect();
        Some((common, apps))
    }

    fn section(&mut self, node: &Node, is_common: bool) -> Section {
        if !matches!(node.content, Content::Fields(_)) {
            self.refuse(node.at, "a section takes lines of `KEY: value`; write it so");
        }
        let entries = node.fields().iter();
        let entries = entries.filter_map(|(key, node)| self.entry(key, node, is_common)).collect();
        Section { entries, at: node.at }
    }

    /// A key with its value; `None` for one that has no effect.
    fn entry(&mut self, key: &Key, node: &Node, is_common: bool) -> Option<Entry> {
        let Key { at: key_at, name } = key;
        let found = FIELDS.iter().find(|field| field.key == name);
        let Some(field) = found.filter(|field| !(is_common && field.is_of_app)) else {
            let what = match found {
                Some(_) => format!("`{name}` is each app's own; move it from `common` to the app"),
                None => {
                    let known = FIELDS.iter().filter(|field| !(is_common && field.is_of_app));
                    suggest::unknown("key", name, known.map(|field| field.key))
                }
            };
            self.note(*key_at, what);
            return None;
        };
        if node.is_null() {
            return None;
        }
        match value(field.takes, node) {
            Ok(value) => Some(Entry { key: field.key, value_at: node.at, value }),
            Err(form) => {
                self.refuse(node.at, format!("`{name}` takes {form}; write it so"));
                None
            }
        }
    }
}

/// A value in the form that its key takes.
///
/// # Errors
/// The form.
fn value(takes: Takes, node: &Node) -> Result<Value, &'static str> {
    match takes {
        Takes::Value | Takes::Path => text(node).map(Value::One).ok_or("one value"),
        Takes::Number => {
            let number = whole(node).map(|number| number.to_string());
            number.or_else(|| text(node)).map(Value::One).ok_or("a number")
        }
        Takes::Switch => match &node.content {
            Content::Scalar { resolved: Resolved::Bool(yes), .. } => {
                Ok(Value::One(yes.to_string()))
            }
            Content::Scalar { written, .. } => Ok(Value::One(written.clone())),
            Content::List(_) | Content::Fields(_) => Err("true or false"),
        },
        Takes::Words => texts(node).map(Value::Many).ok_or("a list such as [python3, app.py]"),
        Takes::Paths => texts(node).map(Value::Many).ok_or("a list such as [./resources]"),
        Takes::Section => {
            let Content::Fields(fields) = &node.content else {
                return Err("lines of `NAME: value`");
            };
            let pairs = fields.iter().map(|(key, node)| Some((key.name.clone(), text(node)?)));
            pairs.collect::<Option<_>>().map(Value::Pairs).ok_or("lines of `NAME: value`")
        }
    }
}

/// The text of a single value; that of none is empty.
fn text(node: &Node) -> Option<String> {
    match &node.content {
        Content::Scalar { resolved: Resolved::Null, .. } => Some(String::new()),
        Content::Scalar { written, .. } => Some(written.clone()),
        Content::List(_) | Content::Fields(_) => None,
    }
}

fn texts(node: &Node) -> Option<Vec<String>> {
    match &node.content {
        Content::List(items) => items.iter().map(|item| text(item)).collect(),
        Content::Fields(_) | Content::Scalar { .. } => None,
    }
}

fn whole(node: &Node) -> Option<i64> {
    match &node.content {
        Content::Scalar { resolved: Resolved::Int(number), .. } => Some(*number),
        #[expect(clippy::cast_possible_truncation, reason = "so Go takes them")]
        Content::Scalar { resolved: Resolved::Float(number), .. } if number.abs() < 1e9 => {
            Some(*number as i64)
        }
        Content::Scalar { .. } | Content::List(_) | Content::Fields(_) => None,
    }
}

impl Section {
    /// A section of these keys, each with all its values, at no position.
    pub(super) fn of(given: impl IntoIterator<Item = (&'static str, Vec<String>)>) -> Self {
        let entry = |(key, mut values): (&'static str, Vec<String>)| {
            let takes = FIELDS.iter().find(|field| field.key == key).map(|field| field.takes);
            let value = match takes {
                Some(Takes::Words | Takes::Paths) => Value::Many(values),
                Some(Takes::Value | Takes::Number | Takes::Switch | Takes::Path) => {
                    Value::One(values.pop().unwrap_or_default())
                }
                Some(Takes::Section) | None => return None,
            };
            Some(Entry { key, value_at: At::default(), value })
        };
        Self { entries: given.into_iter().filter_map(entry).collect(), at: At::default() }
    }

    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The value of a key that takes one, with its position. An empty one is as none.
    pub(super) fn one(&self, key: &str) -> Option<(&str, At)> {
        let entry = self.entry(key)?;
        match &entry.value {
            Value::One(text) if !text.is_empty() => Some((text, entry.value_at)),
            Value::One(_) | Value::Many(_) | Value::Pairs(_) => None,
        }
    }

    /// The values of a key that takes several, with their position.
    pub(super) fn many(&self, key: &str) -> Option<(&[String], At)> {
        let entry = self.entry(key)?;
        match &entry.value {
            Value::Many(texts) => Some((texts, entry.value_at)),
            Value::One(_) | Value::Pairs(_) => None,
        }
    }

    /// The names and values of a section.
    pub(super) fn pairs(&self, key: &str) -> &[(String, String)] {
        match self.entry(key).map(|entry| &entry.value) {
            Some(Value::Pairs(pairs)) => pairs,
            Some(Value::One(_) | Value::Many(_)) | None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_dapr_run_has_a_key() {
        for key in tollway_dapr::keys_of_options() {
            assert!(FIELDS.iter().any(|field| field.key == key), "{key}");
        }
    }

    #[track_caller]
    fn check_refused(text: &str, mistake: &str) {
        let Mistakes(message) = read(text, "dapr.yaml").unwrap_err();
        let message: Vec<String> = message.iter().map(ToString::to_string).collect();
        assert!(message.iter().any(|message| message.starts_with(mistake)), "{message:#?}");
    }

    #[track_caller]
    fn check_note(text: &str, note: &str) {
        let notes = read(text, "dapr.yaml").unwrap().notes;
        assert!(notes.iter().any(|found| found.starts_with(note)), "{notes:#?}");
    }

    #[test]
    fn what_dapr_shows_is_read() {
        let text = "version: 1\nname: shop\ncommon:\n  resourcesPath: ./resources\n  env: {DEBUG: \
                    false, N: 007}\napps:\n- appID: web\n  appDirPath: ./web\n  appPort: 8080\n  \
                    command: [\"python3\", \"app.py\"]\n- appDirPath: .\n";
        let file = read(text, "dapr.yaml").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(file.common.pairs("env"), [pair("DEBUG", "false"), pair("N", "007")]);
        let (port, at) = file.apps[0].one("appPort").unwrap();
        assert_eq!((port, at.line), ("8080", 9));
        assert_eq!(file.apps[0].many("command").unwrap().0, ["python3", "app.py"]);
        assert!(file.apps[1].entry("appID").is_none());
        assert_eq!(file.notes, [""; 0]);
    }

    #[test]
    fn a_key_without_a_value_is_as_none() {
        let text = "version: 1\ncommon:\n  env:\n  #  LOG: debug\napps:\n- appID: \"\"\n  \
                    appDirPath: .\n  appPort:\n  command: null\n  env: {A: , B: ~}\n";
        let file = read(text, "dapr.yaml").unwrap();
        assert_eq!(file.common.pairs("env"), []);
        assert!(file.apps[0].one("appPort").is_none() && file.apps[0].one("appID").is_none());
        let pair = |name: &str| (name.to_owned(), String::new());
        assert_eq!(file.apps[0].pairs("env"), [pair("A"), pair("B")]);
        assert!(read("version: 1\ncommon:\napps: [{appDirPath: .}]\n", "dapr.yaml").is_ok());
    }

    #[test]
    fn merge_keys_are_taken_in() {
        let text = "version: 1\ncommon:\n  env: &e {A: 1, B: 2}\napps:\n- &base\n  appID: web\n  \
                    appDirPath: .\n- <<: *base\n  appID: stock\n  env: {<<: *e, B: 3}\n";
        let file = read(text, "dapr.yaml").unwrap();
        let stock = &file.apps[1];
        assert_eq!(stock.one("appDirPath").unwrap().0, ".");
        assert_eq!(stock.one("appID").unwrap().0, "stock");
        let values: Vec<_> = stock.pairs("env").iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["1", "3"]);
    }

    #[test]
    fn values_are_what_yaml_1_1_makes_of_them() {
        let text = "version: 1\napps:\n- appDirPath: .\n  appPort: 8_080\n  metricsPort: 0x10\n  \
                    enableApiLogging: yes\n  appSSL: \"true\"\n  logLevel: no\n  appID: 010\n";
        let app = &read(text, "dapr.yaml").unwrap().apps[0];
        for (key, expected) in [
            ("appPort", "8080"),
            ("metricsPort", "16"),
            ("enableApiLogging", "true"),
            ("appSSL", "true"),
            ("logLevel", "no"),
            ("appID", "010"),
        ] {
            assert_eq!(app.one(key).unwrap().0, expected, "{key}");
        }
    }

    #[test]
    fn what_is_not_known_has_a_note_with_its_line() {
        let file = |app: &str| format!("version: 1\napps:\n- appDirPath: .\n{app}\n");
        check_note(
            &file("  appPrt: 1"),
            "dapr.yaml:4:3: unknown key `appPrt`; did you mean `appPort`?; it has no effect",
        );
        check_note(&file("  appport: 1"), "dapr.yaml:4:3: unknown key `appport`");
        check_note(&file("colour: red"), "dapr.yaml:4:1: unknown key `colour`; expected one of");
        check_note(&file("common: {appID: a}"), "dapr.yaml:4:10: `appID` is each app's own");
        assert!(read("version: 2\napps: [{appDirPath: .}]\n", "dapr.yaml").is_ok());
    }

    #[test]
    fn mistakes_have_their_positions() {
        let file = |app: &str| format!("version: 1\napps:\n- appDirPath: .\n{app}\n");
        check_refused(&file("  command: run"), "dapr.yaml:4:12: `command` takes a list such as");
        check_refused(&file("  env: [A]"), "dapr.yaml:4:8: `env` takes lines of");
        check_refused(&file("  appID: [a]"), "dapr.yaml:4:10: `appID` takes one value");
        check_refused("version: 1\napps: []\n", "dapr.yaml:2:7: `apps` has 0 apps");
        check_refused("version: 1\napps: [a]\n", "dapr.yaml:2:8: a section takes lines");
        check_refused("apps: [{appDirPath: .}]\n", "dapr.yaml:1:1: the field `version` is missing");
        check_refused("version: one\napps: []\n", "dapr.yaml:1:10: `version` is no number");
        check_refused("version: 1\n", "dapr.yaml:1:1: the field `apps` is missing");
        check_refused("a: {\n", "dapr.yaml:");
    }
}
