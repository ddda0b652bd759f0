//! daprd's flags: every one there is, and what becomes of it.

/// What a flag takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Text,
    /// A whole number, with a sign or without.
    Number,
    /// As Go writes it: `1m30s`.
    Duration,
    /// True by its mere name.
    Switch,
    /// Values separated by commas; each further occurrence adds more.
    List,
}

/// One flag.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As it would be written; empty for none.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    /// Why it is accepted and has no effect. `None`: it has an effect, or is refused.
    pub(crate) unneeded: Option<&'static str>,
    /// What to write instead.
    pub(crate) instead: Option<&'static str>,
}

const fn flag(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, default, help, unneeded: None, instead: None }
}

/// A flag of a part that Tollway has no need of.
const fn idle(name: &'static str, kind: Kind, why: &'static str) -> Flag {
    Flag { name, kind, default: "", help: why, unneeded: Some(why), instead: None }
}

const fn old(flag: Flag, instead: &'static str) -> Flag {
    Flag { instead: Some(instead), ..flag }
}

const PLACEMENT: &str = "no effect: there is no placement service to reach";
const SCHEDULER: &str = "no effect: there is no scheduler service to reach";
const IDENTITY: &str = "no effect: the control plane of Tollway gives the identity";
const ACTORS: &str = "no effect: the control plane of the mesh places actors";
const KUBERNETES: &str = "no effect: it concerns Kubernetes alone";
const PROFILE: &str = "no effect: there is no profile server";

/// All of them, in the order of their names.
pub(crate) const FLAGS: &[Flag] = &[
    idle("actors-disseminate-timeout", Kind::Duration, ACTORS),
    old(idle("actors-service", Kind::Text, ACTORS), "flag no longer has any effect"),
    flag(
        "allowed-origins",
        Kind::Text,
        "",
        "Origins of web pages that may use the API, with commas between; `*` for every one",
    ),
    flag("api-host-name", Kind::List, "", "Further host names by which the API may be called"),
    flag("api-origin", Kind::List, "", "Origins of web pages that may use the API"),
    flag("app-channel-address", Kind::Text, "127.0.0.1", "Where the app listens"),
    flag("app-health-check-path", Kind::Text, "/healthz", "Path of health checks over HTTP"),
    flag("app-health-probe-interval", Kind::Number, "5", "Seconds between health checks"),
    flag("app-health-probe-timeout", Kind::Number, "500", "Milliseconds for a health check"),
    flag("app-health-threshold", Kind::Number, "3", "Failed checks in a row until the app is ill"),
    flag("app-id", Kind::Text, "", "Name of the app"),
    flag("app-max-concurrency", Kind::Number, "-1", "Requests at the app at a time; -1 for any"),
    flag("app-port", Kind::Text, "", "Port on which the app takes calls"),
    flag("app-protocol", Kind::Text, "http", "What the app speaks: http, https, h2c, grpc, grpcs"),
    old(
        flag("app-ssl", Kind::Switch, "false", "The app speaks TLS"),
        "use '--app-protocol https|grpcs'",
    ),
    idle("app-binding-options-timeout", Kind::Duration, "no effect: bindings are not served"),
    flag("build-info", Kind::Switch, "false", "Print what was built, and end"),
    old(
        flag("components-path", Kind::Text, "", "An older name of --resources-path"),
        "use --resources-path",
    ),
    flag("config", Kind::List, "", "File with a Configuration"),
    flag(
        "control-plane-address",
        Kind::Text,
        "",
        "Tollway's control plane, HOST:PORT; this user's local one without it. With TOLLWAY_TOKEN",
    ),
    idle("control-plane-namespace", Kind::Text, IDENTITY),
    idle("control-plane-trust-domain", Kind::Text, IDENTITY),
    flag(
        "dapr-block-shutdown-duration",
        Kind::Duration,
        "0",
        "Serve on for so long after a request to end, or until the app takes no calls",
    ),
    flag(
        "dapr-graceful-shutdown-seconds",
        Kind::Number,
        "5",
        "Seconds for requests under way at the end",
    ),
    flag("dapr-grpc-port", Kind::Text, "50001", "Port of the gRPC API; 0 takes a free one"),
    old(
        flag(
            "dapr-http-max-request-size",
            Kind::Number,
            "4",
            "An older form of --max-body-size, in MB",
        ),
        "use '--max-body-size 4Mi'",
    ),
    flag("dapr-http-port", Kind::Text, "3500", "Port of the HTTP API; 0 takes a free one"),
    old(
        flag(
            "dapr-http-read-buffer-size",
            Kind::Number,
            "4",
            "An older form of --read-buffer-size, in KB",
        ),
        "use '--read-buffer-size 4Ki'",
    ),
    flag("dapr-internal-grpc-listen-address", Kind::Text, "", "Where other sidecars connect"),
    flag("dapr-internal-grpc-port", Kind::Text, "0", "Port for other sidecars; 0 takes a free one"),
    flag(
        "dapr-listen-addresses",
        Kind::Text,
        "localhost",
        "Where the APIs listen, with commas between",
    ),
    flag(
        "dapr-public-listen-address",
        Kind::Text,
        "",
        "Address for health and metadata without a token",
    ),
    flag("dapr-public-port", Kind::Text, "", "Port for health and metadata without a token"),
    idle("disable-builtin-k8s-secret-store", Kind::Switch, KUBERNETES),
    flag(
        "disable-init-endpoints",
        Kind::List,
        "",
        "What the app is not asked for at its start: config (its actors); subscribe never is",
    ),
    flag(
        "enable-api-logging",
        Kind::Switch,
        "false",
        "Write a line for each request to standard output",
    ),
    flag("enable-app-health-check", Kind::Switch, "false", "Ask the app for its health"),
    flag("enable-metrics", Kind::Switch, "true", "Serve metrics"),
    idle("enable-mtls", Kind::Switch, "no effect: mutual TLS is always on"),
    idle("enable-profiling", Kind::Switch, PROFILE),
    idle("hot-reload-reconcile-interval", Kind::Duration, "no effect: files are read at the start"),
    flag("log-as-json", Kind::Switch, "false", "Log lines as JSON"),
    flag("log-level", Kind::Text, "info", "What is logged: debug, info, warn, error, fatal"),
    flag(
        "max-body-size",
        Kind::Text,
        "4Mi",
        "Largest message that is held whole, 64Mi at most; others stream",
    ),
    flag("metrics-listen-address", Kind::Text, "127.0.0.1", "Where metrics are served"),
    flag("metrics-port", Kind::Text, "9090", "Port of metrics and health; 0 takes a free one"),
    flag("mode", Kind::Text, "standalone", "How it runs: standalone"),
    idle("placement-host-address", Kind::Text, PLACEMENT),
    flag("ports-file", Kind::Text, "", "Write which ports are open to this file, as JSON"),
    idle("profile-port", Kind::Text, PROFILE),
    flag(
        "read-buffer-size",
        Kind::Text,
        "4Ki",
        "Size of a request's head; 64Ki are taken in any case",
    ),
    old(idle("reminders-service", Kind::Text, ACTORS), "flag no longer has any effect"),
    flag("resources-path", Kind::List, "", "Folder with resource files"),
    idle("scheduler-host-address", Kind::List, SCHEDULER),
    idle("scheduler-job-streams", Kind::Number, SCHEDULER),
    idle("sentry-address", Kind::Text, IDENTITY),
    idle("sentry-request-jwt-audiences", Kind::List, IDENTITY),
    flag("unix-domain-socket", Kind::Text, "", "Folder for sockets of the APIs: refused"),
    flag("version", Kind::Switch, "false", "Print the version, and end"),
    flag(
        "wait",
        Kind::Switch,
        "false",
        "Wait until the sidecar at --dapr-http-port can call, and end",
    ),
];

/// The flag of that name.
pub(crate) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// What `--help` prints.
pub fn usage() -> String {
    let mut text = String::from("Usage of daprd:\n");
    for Flag { name, kind, default, help, .. } in FLAGS {
        let value = match kind {
            Kind::Text => " string",
            Kind::Number => " int",
            Kind::Duration => " duration",
            Kind::Switch => "",
            Kind::List => " strings",
        };
        let form = format!("--{name}{value}");
        let default = match *default {
            "" | "false" => String::new(),
            default => format!(" (default {default})"),
        };
        text.push_str(&format!("      {form:<44} {help}{default}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that lists them for people.
    const PAGE: &str = include_str!("../../../docs/guide/daprd.md");

    #[test]
    fn every_flag_stands_in_the_guide_and_none_twice() {
        for flag in FLAGS {
            let same = FLAGS.iter().filter(|other| other.name == flag.name).count();
            assert_eq!(same, 1, "{}", flag.name);
            assert!(PAGE.contains(&format!("`--{}`", flag.name)), "{}", flag.name);
        }
    }
}
