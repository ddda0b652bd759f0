//! What a run file means: for each app its folder, command and environment, the flags of its
//! sidecar, and where what both write goes. Looks which files exist; starts nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tollway_config::go::At;
use tollway_config::{Mistakes, YamlError};
use tollway_dapr::{check_flags, option_of_key};

use super::format::{FIELDS, Field, RunFile, Section, mistake};

/// Folder of an app for what concerns Dapr.
const DAPR_FOLDER: &str = ".dapr";
/// Ports that an app's sidecar takes free ones for, by their flags.
const FREE_PORTS: [&str; 4] =
    ["dapr-http-port", "dapr-grpc-port", "dapr-internal-grpc-port", "metrics-port"];
/// Ports that only one process can use.
const PORTS: [&str; 5] =
    [APP_PORT, "daprHTTPPort", "daprGRPCPort", "daprInternalGRPCPort", "metricsPort"];
/// The port of an app, which several may have: one of them may only call.
const APP_PORT: &str = "appPort";
/// Keys that concern other ways to run than this one.
const FOR_KUBERNETES: [&str; 3] = ["containerImage", "containerImagePullPolicy", "createService"];

/// Where the output of a process goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Destination {
    pub(super) is_console: bool,
    pub(super) is_file: bool,
}

/// An app and its sidecar, to be started.
#[derive(Debug)]
pub(super) struct AppPlan {
    pub(super) app_id: String,
    pub(super) folder: PathBuf,
    /// It is the one app of a command line, whose lines need no name in front.
    pub(super) is_alone: bool,
    /// Empty when the app is started by other means.
    pub(super) command: Vec<String>,
    /// What the file adds to the environment of the app.
    pub(super) env: Vec<(String, String)>,
    pub(super) app_port: Option<u16>,
    pub(super) app_host: String,
    pub(super) protocol: String,
    /// Flags of the sidecar, as daprd takes them.
    pub(super) flags: Vec<String>,
    pub(super) app_output: Destination,
    pub(super) sidecar_output: Destination,
    /// What the file says that has no effect.
    pub(super) notes: Vec<String>,
}

/// Where the file is and what is around it.
pub(super) struct Around<'a> {
    /// Name of the file, for mistakes.
    pub(super) source: &'a str,
    /// Folder of the file: its relative paths begin here.
    pub(super) folder: &'a Path,
    /// Home of the user.
    pub(super) home: Option<&'a Path>,
}

/// Decides what is started.
///
/// # Errors
/// Every mistake of every app, with its place.
pub(super) fn plan(file: &RunFile, around: &Around<'_>) -> Result<Vec<AppPlan>, Mistakes> {
    let mut mistakes = Vec::new();
    let mut planner = Planner { around, common: &file.common, mistakes: &mut mistakes };
    let plans: Vec<_> = file.apps.iter().filter_map(|app| planner.app(app)).collect();
    planner.check_ports(&file.apps);
    if mistakes.is_empty() { Ok(plans) } else { Err(Mistakes(mistakes)) }
}

/// Decides what is started of one app.
///
/// # Errors
/// Every mistake.
pub(super) fn plan_one(app: &Section, around: &Around<'_>) -> Result<AppPlan, Mistakes> {
    let (mut mistakes, common) = (Vec::new(), Section::default());
    let plan = Planner { around, common: &common, mistakes: &mut mistakes }.app(app);
    plan.filter(|_| mistakes.is_empty()).ok_or(Mistakes(mistakes))
}

struct Planner<'a> {
    around: &'a Around<'a>,
    common: &'a Section,
    mistakes: &'a mut Vec<YamlError>,
}

impl Planner<'_> {
    fn refuse(&mut self, at: At, what: impl Into<String>) {
        self.mistakes.push(mistake(self.around.source, at, what.into()));
    }

    fn app(&mut self, app: &Section) -> Option<AppPlan> {
        let Some(folder) = self.path(app, "appDirPath", self.around.folder) else {
            if app.one("appDirPath").is_none() {
                self.refuse(app.at, "the app has no `appDirPath`; say in which folder it runs");
            }
            return None;
        };
        let app_id = match app.one("appID") {
            Some((id, _)) => id.to_owned(),
            None => folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let mut flags = vec![format!("--app-id={app_id}")];
        let given = FIELDS.iter().filter(|field| field.flag.is_some() && field.key != "appID");
        for field in given {
            flags.extend(self.flag(app, field));
        }
        let is_set = |flag: &str| flags.iter().any(|set| set.starts_with(&format!("--{flag}=")));
        let free: Vec<_> = FREE_PORTS.iter().filter(|flag| !is_set(flag)).collect();
        let free: Vec<_> = free.iter().map(|flag| format!("--{flag}=0")).collect();
        flags.extend(free);
        flags.extend(self.files(app, &folder));
        if let Err(what) = check_flags(&flags) {
            let at = app.entry("appID").map_or(app.at, |entry| entry.value_at);
            self.refuse(at, format!("app `{app_id}`: {what}"));
        }
        let port = app.one("appPort").and_then(|(port, _)| port.parse().ok());
        let of = |key: &str, default: &str| {
            self.value(app, key).map_or(default, |(value, _)| value).to_owned()
        };
        let (app_host, protocol) =
            (of("appChannelAddress", "127.0.0.1"), of("appProtocol", "http"));
        let command = app.many("command").map(|(words, _)| words.to_vec()).unwrap_or_default();
        if command.first().is_some_and(|program| program.trim().is_empty()) {
            let at = app.many("command").map_or(app.at, |(_, at)| at);
            self.refuse(at, "`command` names no program; write it first in the list");
        }
        Some(AppPlan {
            env: self.env(app),
            app_port: port.filter(|port| *port > 0),
            app_host,
            protocol: protocol.to_ascii_lowercase(),
            app_output: self.destination(app, "appLogDestination", "fileAndConsole"),
            sidecar_output: self.destination(app, "daprdLogDestination", "file"),
            notes: notes(app, &app_id),
            app_id,
            folder,
            is_alone: false,
            command,
            flags,
        })
    }

    /// What an app says, or else what is common to all.
    fn value<'a>(&'a self, app: &'a Section, key: &str) -> Option<(&'a str, At)> {
        app.one(key).or_else(|| self.common.one(key))
    }

    /// A key as the flag that means the same. A port below 1 is a free one, or none.
    fn flag(&mut self, app: &Section, field: &Field) -> Option<String> {
        let (value, at) = self.value(app, field.key).map(|(value, at)| (value.to_owned(), at))?;
        let flag = format!("--{}={value}", field.flag.unwrap_or_default());
        let is_port = PORTS.contains(&field.key) || field.key == "profilePort";
        let checked = match value.parse::<i64>() {
            Ok(..=0) if is_port => return None,
            Ok(1..=65535) if is_port => Ok(()),
            _ if is_port => Err(format!("`{value}` is no port; use 1 to 65535")),
            _ => check_flags(&["--app-id=app".to_owned(), flag.clone()]),
        };
        match checked {
            Ok(()) => Some(flag),
            Err(what) => {
                self.refuse(at, format!("{}: {what}", shown(field.key, at)));
                None
            }
        }
    }

    /// A path, if it is given; whatever it names must exist.
    fn path(&mut self, section: &Section, key: &str, from: &Path) -> Option<PathBuf> {
        let (text, at) = section.one(key)?;
        self.existing(text, at, key, from)
    }

    fn existing(&mut self, text: &str, at: At, key: &str, from: &Path) -> Option<PathBuf> {
        let path = match (text.strip_prefix('~'), self.around.home) {
            (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
                home.join(rest.trim_start_matches('/'))
            }
            _ => from.join(text),
        };
        match std::fs::canonicalize(&path) {
            Ok(path) => Some(path),
            Err(error) => {
                let (key, path) = (shown(key, at), path.display());
                self.refuse(at, format!("{key} names {path}: {error}; check the path"));
                None
            }
        }
    }

    /// The folders of resources and the Configuration of an app: its own, those in its folder, those
    /// of all, those that an installation of Dapr has left.
    fn files(&mut self, app: &Section, folder: &Path) -> Vec<String> {
        let base = self.around.folder;
        let inside = folder.join(DAPR_FOLDER);
        let common = self.common;
        let runtime = match self.value(app, "runtimePath").is_some() {
            true if app.one("runtimePath").is_some() => self.path(app, "runtimePath", folder),
            true => self.path(common, "runtimePath", base),
            false => self.around.home.map(Path::to_owned),
        };
        let installed = runtime.map(|path| path.join(DAPR_FOLDER)).unwrap_or_default();
        let mut resources = self.folders(app, folder);
        if resources.is_empty() {
            let own = inside.join("resources");
            resources.extend(own.is_dir().then_some(own));
        }
        if resources.is_empty() {
            resources = self.folders(common, base);
        }
        if resources.is_empty() {
            let left = installed.join("components");
            resources.extend(left.is_dir().then_some(left));
        }
        let existing = |path: PathBuf| path.is_file().then_some(path);
        let config = self
            .path(app, "configFilePath", folder)
            .or_else(|| existing(inside.join("config.yaml")))
            .or_else(|| self.path(common, "configFilePath", base))
            .or_else(|| existing(installed.join("config.yaml")));
        let flag = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let resources = resources.iter().map(|path| flag("resources-path", path));
        resources.chain(config.iter().map(|path| flag("config", path))).collect()
    }

    fn folders(&mut self, section: &Section, from: &Path) -> Vec<PathBuf> {
        let (texts, at) = section.many("resourcesPaths").unwrap_or((&[], section.at));
        let mut found: Vec<PathBuf> = texts
            .iter()
            .filter_map(|text| self.existing(text, at, "resourcesPaths", from))
            .collect();
        found.extend(self.path(section, "resourcesPath", from));
        found
    }

    /// The app's own variables win over those of all.
    fn env(&self, app: &Section) -> Vec<(String, String)> {
        let pairs = self.common.pairs("env").iter().chain(app.pairs("env"));
        let env: BTreeMap<_, _> = pairs.cloned().collect();
        env.into_iter().collect()
    }

    fn destination(&mut self, app: &Section, key: &str, usual: &str) -> Destination {
        let (word, at) = self.value(app, key).unwrap_or((usual, app.at));
        let (is_console, is_file) = match word {
            "console" => (true, false),
            "file" => (false, true),
            "fileAndConsole" => (true, true),
            _ => {
                let what = format!("`{key}` is `{word}`; write console, file or fileAndConsole");
                self.refuse(at, what);
                (true, false)
            }
        };
        Destination { is_console, is_file }
    }

    /// A port of a sidecar belongs to it alone.
    fn check_ports(&mut self, apps: &[Section]) {
        let mut taken: BTreeMap<u16, (u64, &str)> = BTreeMap::new();
        for (key, app) in apps.iter().flat_map(|app| PORTS.map(|key| (key, app))) {
            let Some((text, at)) = app.one(key) else { continue };
            let Some(port) = text.parse().ok().filter(|port| *port > 0) else { continue };
            match taken.insert(port, (at.line, key)) {
                Some((line, other)) if (key, other) != (APP_PORT, APP_PORT) => {
                    let what =
                        format!("the port {port} is taken in line {line}; give `{key}` another");
                    self.refuse(at, what);
                }
                _ => {}
            }
        }
    }
}

/// A key as it was written: in a file, or as an option, which has no position.
fn shown(key: &str, at: At) -> String {
    match option_of_key(key).filter(|_| at == At::default()) {
        Some(flag) => format!("`--{flag}`"),
        None => format!("`{key}`"),
    }
}

fn notes(app: &Section, app_id: &str) -> Vec<String> {
    let idle = FOR_KUBERNETES.iter().filter(|key| app.one(key).is_some());
    idle.map(|key| format!("`{key}` of {app_id} has no effect: it concerns Kubernetes alone"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::format;
    use super::*;

    /// Plans a file in a folder with `web` and `back`, in which files are.
    fn planned(text: &str, files: &[&str]) -> Result<Vec<AppPlan>, String> {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for file in files.iter().chain(&["web/app.py", "back/app.py"]) {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let around = Around { source: "dapr.yaml", folder: &root, home: Some(&root.join("user")) };
        let shown = root.display().to_string();
        let read =
            format::read(text, "dapr.yaml").map_err(|Mistakes(message)| message[0].to_string())?;
        match plan(&read, &around) {
            Ok(mut plans) => {
                for plan in &mut plans {
                    for flag in &mut plan.flags {
                        *flag = flag.replace(&shown, "");
                    }
                }
                Ok(plans)
            }
            Err(Mistakes(message)) => {
                let message: Vec<String> = message.iter().map(ToString::to_string).collect();
                Err(message.join("\n").replace(&shown, ""))
            }
        }
    }

    #[test]
    fn an_apps_word_wins_over_that_of_all() {
        let text = "version: 1\ncommon:\n  appProtocol: HTTP\n  logLevel: warn\n  env: {A: 1, B: 2}\n\
                    apps:\n- appDirPath: ./web/\n  appPort: 8080\n  logLevel: debug\n  env: {B: 3}\n  \
                    command: [python3, app.py]\n- appID: other\n  appDirPath: back\n  appProtocol: GRPC\n  \
                    metricsPort: -1\n  appLogDestination: console\n";
        let plans = planned(text, &[]).unwrap();
        let [web, other] = &plans[..] else { panic!("{plans:?}") };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!((web.app_id.as_str(), web.app_port), ("web", Some(8080)));
        assert_eq!(web.env, [pair("A", "1"), pair("B", "3")]);
        for flag in
            ["--app-port=8080", "--log-level=debug", "--app-protocol=HTTP", "--metrics-port=0"]
        {
            assert!(web.flags.iter().any(|given| given == flag), "{flag}: {:?}", web.flags);
        }
        assert_eq!((other.app_id.as_str(), other.app_port), ("other", None));
        assert_eq!(other.protocol, "grpc");
        assert!(other.flags.contains(&"--metrics-port=0".to_owned()), "{:?}", other.flags);
        assert!(other.flags.contains(&"--log-level=warn".to_owned()), "{:?}", other.flags);
        let console = Destination { is_console: true, is_file: false };
        assert_eq!(other.app_output, console);
        assert_eq!(other.sidecar_output, Destination { is_console: false, is_file: true });
    }

    #[test]
    fn two_apps_may_have_one_app_port() {
        let app = |folder: &str| format!("- appDirPath: {folder}\n  appPort: 8080\n");
        let text = format!("version: 1\napps:\n{}{}", app("web"), app("back"));
        let plans = planned(&text, &[]).unwrap();
        assert_eq!(plans.iter().filter(|plan| plan.app_port == Some(8080)).count(), 2);
    }

    #[test]
    fn resources_are_the_apps_own_before_those_of_all() {
        let flags = |app: &str, common: &str, files: &[&str]| {
            let text =
                format!("version: 1\ncommon: {{{common}}}\napps: [{{appDirPath: web{app}}}]\n");
            let plans = planned(&text, files).unwrap();
            let about = |flag: &&String| flag.contains("-path=") || flag.contains("config=");
            plans[0].flags.iter().filter(about).cloned().collect::<Vec<_>>().join(" ")
        };
        let files = [
            "web/own/a",
            "web/.dapr/resources/a",
            "web/.dapr/config.yaml",
            "all/a",
            "c.yaml",
            "user/.dapr/components/a",
            "user/.dapr/config.yaml",
        ];
        let common = "resourcesPaths: [all], configFilePath: c.yaml";
        let own = ", resourcesPath: ./own, configFilePath: app.py";
        assert_eq!(flags(own, common, &files), "--resources-path=/web/own --config=/web/app.py");
        let beside = "--resources-path=/web/.dapr/resources --config=/web/.dapr/config.yaml";
        assert_eq!(flags("", common, &files), beside);
        assert_eq!(flags("", common, &files[3..]), "--resources-path=/all --config=/c.yaml");
        let left = "--resources-path=/user/.dapr/components --config=/user/.dapr/config.yaml";
        assert_eq!(flags("", "", &files[3..]), left);
        assert_eq!(flags("", "", &[]), "");
    }

    #[test]
    fn mistakes_are_reported_with_line_and_column() {
        for (app, mistake) in [
            ("appDirPath: nowhere", "dapr.yaml:3:15: `appDirPath` names /nowhere"),
            ("appID: a", "dapr.yaml:3:3: the app has no `appDirPath`"),
            (
                "appDirPath: web\n  appProtocol: smtp",
                "dapr.yaml:4:16: `appProtocol`: invalid value",
            ),
            ("appDirPath: web\n  appPort: many", "dapr.yaml:4:12: `appPort`: `many` is no port"),
            ("appDirPath: web\n  appPort: 70000", "dapr.yaml:4:12: `appPort`: `70000` is no port"),
            ("appDirPath: web\n  appID: a b", "dapr.yaml:4:10: app `a b`: app-id"),
            (
                "appDirPath: web\n  enableApiLogging: maybe",
                "dapr.yaml:4:21: `enableApiLogging`: invalid argument",
            ),
            (
                "appDirPath: web\n  resourcesPaths: [x]",
                "dapr.yaml:4:19: `resourcesPaths` names /web/x",
            ),
            (
                "appDirPath: web\n  unixDomainSocket: /tmp",
                "dapr.yaml:4:21: `unixDomainSocket`: --unix-domain-socket",
            ),
            (
                "appDirPath: web\n  appLogDestination: disk",
                "dapr.yaml:4:22: `appLogDestination` is `disk`",
            ),
            ("appDirPath: web\n  command: ['']", "dapr.yaml:4:12: `command` names no program"),
            (
                "appDirPath: web\n  appPort: 80\n- appDirPath: back\n  metricsPort: 80",
                "dapr.yaml:6:16: the port 80 is taken in line 4",
            ),
            (
                "appDirPath: web\n  daprHTTPPort: 80\n- appDirPath: back\n  daprHTTPPort: 80",
                "dapr.yaml:6:17: the port 80 is taken in line 4",
            ),
        ] {
            let message = planned(&format!("version: 1\napps:\n- {app}\n"), &[]).unwrap_err();
            assert!(message.lines().any(|line| line.starts_with(mistake)), "{mistake}: {message}");
        }
    }
}
