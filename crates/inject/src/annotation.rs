//! Every annotation that a sidecar goes by: what it takes and what becomes of it. Tollway's own are for
//! every pod with a sidecar, or for those without `dapr.io/enabled`; Dapr's are for pods with it, whose
//! sidecar runs in daprd's place. `docs/guide/kubernetes.md` has this table.

use crate::value::Form;

/// The prefix of Tollway's own.
const OWN: &str = "tollway.dev/";
/// The prefix of Dapr's.
const DAPRS: &str = "dapr.io/";

/// Whether a pod gets a sidecar; also a label of a pod, and of a namespace.
pub const INJECT: &str = "tollway.dev/inject";
pub(crate) const ENABLED: &str = "dapr.io/enabled";
/// The name of the app in the mesh; the injector adds the one that it finds.
pub const APP: &str = "tollway.dev/app";
/// The port of the app; the injector adds the one that it finds.
pub const PORT: &str = "tollway.dev/port";
/// Whether the kernel leads the app's connections to the sidecar; also a label of a namespace.
pub const CAPTURE: &str = "tollway.dev/capture";
pub(crate) const PROTOCOL: &str = "tollway.dev/protocol";
/// The network of the sidecar, which the injector adds.
pub const NETWORK: &str = "tollway.dev/network";
pub(crate) const APP_ID: &str = "dapr.io/app-id";
/// The mark of a pod that has a sidecar; its value is the version that has added it.
pub const INJECTED: &str = "tollway.dev/injected";
pub(crate) const CONFIG: &str = "dapr.io/config";
pub(crate) const CONFIGURATION: &str = "tollway.dev/configuration";

/// An annotation of a pod.
#[derive(Debug)]
pub struct Annotation {
    pub name: &'static str,
    pub(crate) form: Form,
    pub(crate) effect: Effect,
    /// What it does, or why it does nothing.
    pub meaning: &'static str,
    /// A value that it takes.
    pub example: &'static str,
}

/// What becomes of an annotation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Decides whether there is a sidecar, or is read to that end.
    Decides,
    /// The name of the app.
    Name,
    /// The value is that of a flag of the sidecar.
    Flag(&'static str),
    /// A switch of the sidecar, which is there or not.
    Switch(&'static str),
    /// Each of the values is one of a flag of the sidecar.
    Each(&'static str),
    /// The port of the app, by this flag.
    AppPort(&'static str),
    /// The port of a listener of the sidecar.
    Listener(Listener),
    Resource(Resource),
    Image,
    PullPolicy,
    Control,
    /// A Secret with the join token.
    TokenSecret,
    /// A Secret with the token that app and sidecar share, for the sidecar's variable of this name, which
    /// the app gets too.
    SharedToken(&'static str),
    /// A ConfigMap with Dapr's Configuration.
    Configuration,
    /// A Configuration of Dapr in the namespace.
    DaprConfiguration,
    /// ConfigMaps with Dapr's resource files.
    Resources,
    Env,
    EnvFromSecret,
    Mounts {
        read_only: bool,
    },
    /// Where the sidecar runs, by flag and by variable.
    Locality(&'static str, &'static str),
    Probe(ProbeKind, &'static str),
    Seccomp,
    Ignored,
    /// The pod would rely on what there is not.
    Refused,
    /// The kernel leads the app's connections to the sidecar.
    Capture,
}

/// What a sidecar listens for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Listener {
    Http,
    Grpc,
    Outbound,
    Inbound,
    Admin,
    Public,
    Captured,
    Names,
}

/// What is requested or limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    CpuRequest,
    CpuLimit,
    MemoryRequest,
    MemoryLimit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeKind {
    Readiness,
    Liveness,
}

impl Annotation {
    /// What it takes, in words.
    #[must_use]
    pub fn takes(&self) -> String {
        self.form.allowed()
    }

    /// Whether it is taken and does nothing.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        self.effect == Effect::Ignored
    }

    /// Whether a pod with it gets no sidecar.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.effect == Effect::Refused
    }

    /// Whether it is one of Dapr's.
    #[must_use]
    pub fn is_daprs(&self) -> bool {
        self.name.starts_with(DAPRS)
    }

    /// Whether it is of use for a sidecar in daprd's place alone, or for none but such a one.
    pub(crate) fn is_of_one_style(&self) -> bool {
        matches!(
            self.effect,
            Effect::Flag(_)
                | Effect::Switch(_)
                | Effect::Each(_)
                | Effect::AppPort(_)
                | Effect::Capture
                | Effect::Listener(
                    Listener::Outbound | Listener::Public | Listener::Captured | Listener::Names
                )
        )
    }
}

/// Whether an annotation's name is one of Tollway or Dapr.
pub(crate) fn is_known_prefix(name: &str) -> bool {
    name.starts_with(OWN) || name.starts_with(DAPRS)
}

/// The annotation of that name.
pub(crate) fn find(name: &str) -> Option<&'static Annotation> {
    ANNOTATIONS.iter().find(|annotation| annotation.name == name)
}

const fn of(
    name: &'static str,
    form: Form,
    effect: Effect,
    example: &'static str,
    meaning: &'static str,
) -> Annotation {
    Annotation { name, form, effect, meaning, example }
}

/// Tollway's own, then Dapr's.
pub const ANNOTATIONS: &[Annotation] = &[
    of(
        INJECT,
        Form::Switch,
        Effect::Decides,
        "true",
        "whether the pod gets a sidecar; also as a label of the pod or of the namespace, after which the annotation comes first",
    ),
    of(
        INJECTED,
        Form::Text,
        Effect::Decides,
        "0.1.0",
        "marks a pod that has its sidecar; it is left as it is",
    ),
    of(
        APP,
        Form::Name,
        Effect::Name,
        "orders",
        "the app's name in the mesh; without it the name of the Deployment, StatefulSet, Job or other object that makes the pod",
    ),
    of(
        PORT,
        Form::AppPort,
        Effect::AppPort("app-port"),
        "8080",
        "the port on which the app takes calls by its name, beside those to which Services lead; without it the one that containers declare under the name `http`, `h2c` or `grpc`, which is what the app speaks, or, if tollway.dev/protocol says what it speaks, the only one that they declare. With `services`, and in other cases, the app takes calls of Services alone; with `none` it only makes calls",
    ),
    of(
        PROTOCOL,
        Form::OneOf(&["http", "https", "h2c", "grpc", "grpcs", "tcp"]),
        Effect::Flag("app-protocol"),
        "grpc",
        "what the app speaks; `http` without it",
    ),
    of(
        CAPTURE,
        Form::Switch,
        Effect::Capture,
        "true",
        "the kernel leads the app's connections and questions for names to the sidecar, so that it calls services by their names; takes an init container with NET_ADMIN. As a label of the namespace it is for pods that say nothing of it, without dapr.io/enabled",
    ),
    of(
        "tollway.dev/upstreams",
        Form::List,
        Effect::Each("upstream"),
        "5432=db.shop.east",
        "ports of loopback that stand for TCP services",
    ),
    of(
        "tollway.dev/app-host",
        Form::OneOf(&["service", "address"]),
        Effect::Flag("app-host"),
        "address",
        "the host that calls of others name to the app",
    ),
    of(
        "tollway.dev/max-concurrency",
        Form::Count,
        Effect::Flag("app-max-concurrency"),
        "100",
        "requests at the app at a time; further ones wait",
    ),
    of(
        "tollway.dev/health-check",
        Form::Switch,
        Effect::Switch("enable-app-health-check"),
        "true",
        "the sidecar checks the app's health and calls it only while it is healthy",
    ),
    of(
        "tollway.dev/health-check-path",
        Form::Path,
        Effect::Flag("app-health-check-path"),
        "/healthz",
        "path of the health check",
    ),
    of(
        "tollway.dev/health-check-interval-ms",
        Form::Count,
        Effect::Flag("app-health-probe-interval-ms"),
        "5000",
        "time between two health checks, in milliseconds",
    ),
    of(
        "tollway.dev/health-check-timeout-ms",
        Form::Count,
        Effect::Flag("app-health-probe-timeout-ms"),
        "500",
        "time for the answer to a health check, in milliseconds",
    ),
    of(
        "tollway.dev/health-check-threshold",
        Form::Count,
        Effect::Flag("app-health-threshold"),
        "3",
        "failed health checks in a row that make the app unhealthy",
    ),
    of(
        "tollway.dev/mesh-protocol",
        Form::OneOf(&["http2", "http1"]),
        Effect::Flag("mesh-protocol"),
        "http1",
        "what carries requests to services of HTTP/1.1",
    ),
    of(
        "tollway.dev/api-origins",
        Form::List,
        Effect::Each("api-origin"),
        "https://shop.example",
        "origins of web pages that may send requests to the sidecar",
    ),
    of(
        "tollway.dev/api-host-names",
        Form::List,
        Effect::Each("api-host-name"),
        "orders.example",
        "host names by which the HTTP API may be called",
    ),
    of(
        "tollway.dev/log-level",
        Form::Text,
        Effect::Flag("log-level"),
        "debug",
        "what the sidecar logs, as `--log-level` takes it",
    ),
    of(
        "tollway.dev/log-format",
        Form::OneOf(&["text", "json"]),
        Effect::Flag("log-format"),
        "json",
        "the form of its log lines",
    ),
    of(
        "tollway.dev/access-log",
        Form::OneOf(&["-"]),
        Effect::Flag("access-log"),
        "-",
        "a line of JSON for each request, on standard output",
    ),
    of(
        "tollway.dev/trace-endpoint",
        Form::Text,
        Effect::Flag("trace-endpoint"),
        "http://collector.observe:4317",
        "the OpenTelemetry collector that takes spans",
    ),
    of(
        "tollway.dev/trace-protocol",
        Form::OneOf(&["grpc", "http"]),
        Effect::Flag("trace-protocol"),
        "grpc",
        "the form of OTLP; needs tollway.dev/trace-endpoint",
    ),
    of(
        "tollway.dev/trace-ratio",
        Form::Share,
        Effect::Flag("trace-ratio"),
        "0.1",
        "the share of traces that is recorded; needs tollway.dev/trace-endpoint",
    ),
    of("tollway.dev/threads", Form::Count, Effect::Flag("threads"), "2", "data-plane threads"),
    of(
        "tollway.dev/drain-timeout-ms",
        Form::Count,
        Effect::Flag("drain-timeout-ms"),
        "10000",
        "time for requests under way at the end, in milliseconds",
    ),
    of(
        "tollway.dev/request-timeout-ms",
        Form::Count,
        Effect::Flag("request-timeout-ms"),
        "60000",
        "time from the end of a request to the head of its response, in milliseconds",
    ),
    of(
        "tollway.dev/connect-timeout-ms",
        Form::Count,
        Effect::Flag("connect-timeout-ms"),
        "5000",
        "time to connect and authenticate, in milliseconds",
    ),
    of(
        "tollway.dev/idle-timeout-ms",
        Form::Count,
        Effect::Flag("idle-timeout-ms"),
        "300000",
        "time for which an exchange may be silent, in milliseconds",
    ),
    of(
        "tollway.dev/max-connections",
        Form::Count,
        Effect::Flag("max-connections"),
        "10000",
        "most connections held at once, by each data-plane thread",
    ),
    of(
        "tollway.dev/max-requests",
        Form::Count,
        Effect::Flag("max-requests"),
        "5000",
        "most requests under way at once, in each data-plane thread",
    ),
    of(
        "tollway.dev/limits",
        Form::List,
        Effect::Each("limit"),
        "head_ms=5000",
        "limits by their names",
    ),
    of(
        "tollway.dev/http-port",
        Form::Port,
        Effect::Listener(Listener::Http),
        "3600",
        "port of the HTTP API; 3500 without it",
    ),
    of(
        "tollway.dev/grpc-port",
        Form::Port,
        Effect::Listener(Listener::Grpc),
        "50011",
        "port of the gRPC API; 50001 without it",
    ),
    of(
        "tollway.dev/outbound-port",
        Form::Port,
        Effect::Listener(Listener::Outbound),
        "15011",
        "port of the outbound proxy; 15001 without it",
    ),
    of(
        "tollway.dev/capture-port",
        Form::Port,
        Effect::Listener(Listener::Captured),
        "15016",
        "port for connections that are captured; 15006 without it",
    ),
    of(
        "tollway.dev/capture-names-port",
        Form::Port,
        Effect::Listener(Listener::Names),
        "15054",
        "port for questions for names; 15053 without it",
    ),
    of(
        "tollway.dev/inbound-port",
        Form::Port,
        Effect::Listener(Listener::Inbound),
        "50012",
        "port to which other sidecars connect; 50002 without it",
    ),
    of(
        "tollway.dev/admin-port",
        Form::Port,
        Effect::Listener(Listener::Admin),
        "9091",
        "port of metrics and health, which probes use; 15020 without it, and 9090 in daprd's place",
    ),
    of(
        "tollway.dev/zone",
        Form::Text,
        Effect::Locality("zone", "TOLLWAY_ZONE"),
        "eu-west-1a",
        "the zone in which the pod runs",
    ),
    of(
        "tollway.dev/region",
        Form::Text,
        Effect::Locality("region", "TOLLWAY_REGION"),
        "eu-west-1",
        "the region of that zone",
    ),
    of(
        CONFIGURATION,
        Form::Object,
        Effect::Configuration,
        "orders-dapr",
        "a ConfigMap of the pod's namespace; its key `configuration.yaml` is a Configuration of Dapr",
    ),
    of(
        "tollway.dev/resources",
        Form::Objects,
        Effect::Resources,
        "orders-components",
        "ConfigMaps of the pod's namespace; their keys that end with `.yaml` are Dapr's resource files (components, Resiliency, HTTPEndpoints)",
    ),
    of(
        "tollway.dev/api-token-secret",
        Form::Object,
        Effect::SharedToken("DAPR_API_TOKEN"),
        "api-token",
        "a Secret; the app must show its key `token` to the sidecar",
    ),
    of(
        "tollway.dev/app-token-secret",
        Form::Object,
        Effect::SharedToken("APP_API_TOKEN"),
        "app-token",
        "a Secret; the sidecar shows its key `token` to the app",
    ),
    of(
        "tollway.dev/token-secret",
        Form::Object,
        Effect::TokenSecret,
        "join-token",
        "a Secret whose key `token` is the join token, in place of the token of the service account",
    ),
    of(
        "tollway.dev/control",
        Form::Text,
        Effect::Control,
        "control.tollway:15010",
        "the control plane, as `--control` takes it",
    ),
    of("tollway.dev/env", Form::Pairs, Effect::Env, "PROXY=a,LEVEL=b", "variables of the sidecar"),
    of(
        "tollway.dev/env-from-secret",
        Form::SecretPairs,
        Effect::EnvFromSecret,
        "REDIS=redis:password",
        "variables of the sidecar from Secrets: `NAME=SECRET:KEY`, or `NAME=SECRET` where the key is the name",
    ),
    of(
        "tollway.dev/volume-mounts",
        Form::Mounts,
        Effect::Mounts { read_only: true },
        "certs:/etc/certs",
        "volumes of the pod that the sidecar reads",
    ),
    of(
        "tollway.dev/cpu-request",
        Form::Quantity,
        Effect::Resource(Resource::CpuRequest),
        "50m",
        "processor time that the sidecar requests",
    ),
    of(
        "tollway.dev/cpu-limit",
        Form::Quantity,
        Effect::Resource(Resource::CpuLimit),
        "500m",
        "most processor time of the sidecar",
    ),
    of(
        "tollway.dev/memory-request",
        Form::Quantity,
        Effect::Resource(Resource::MemoryRequest),
        "32Mi",
        "memory that the sidecar requests",
    ),
    of(
        "tollway.dev/memory-limit",
        Form::Quantity,
        Effect::Resource(Resource::MemoryLimit),
        "128Mi",
        "most memory of the sidecar",
    ),
    of(
        "tollway.dev/image",
        Form::Text,
        Effect::Image,
        "registry.example/tollway:0.1.0",
        "the image of the sidecar",
    ),
    of(
        "tollway.dev/image-pull-policy",
        Form::OneOf(crate::settings::PullPolicy::WORDS),
        Effect::PullPolicy,
        "Never",
        "when a node fetches the image",
    ),
    of(
        ENABLED,
        Form::Switch,
        Effect::Decides,
        "true",
        "whether the pod gets a sidecar in daprd's place",
    ),
    of(
        APP_ID,
        Form::Name,
        Effect::Name,
        "orders",
        "the app's name; without it as without tollway.dev/app",
    ),
    of(
        "dapr.io/app-port",
        Form::Port,
        Effect::AppPort("app-port"),
        "8080",
        "the port on which the app takes calls",
    ),
    of(
        "dapr.io/app-protocol",
        Form::OneOf(&["http", "https", "h2c", "grpc", "grpcs"]),
        Effect::Flag("app-protocol"),
        "grpc",
        "what the app speaks",
    ),
    of(
        "dapr.io/app-ssl",
        Form::Switch,
        Effect::Flag("app-ssl"),
        "true",
        "the app speaks TLS; an older form of app-protocol",
    ),
    of(
        "dapr.io/app-channel-address",
        Form::Text,
        Effect::Flag("app-channel-address"),
        "127.0.0.1",
        "where the app listens",
    ),
    of(
        "dapr.io/app-max-concurrency",
        Form::Number,
        Effect::Flag("app-max-concurrency"),
        "10",
        "requests at the app at a time; -1 for any number",
    ),
    of(
        CONFIG,
        Form::Object,
        Effect::DaprConfiguration,
        "appconfig",
        "a Configuration of the pod's namespace, which may decide who calls the app; `tollway kube inject`, which reads no cluster, refuses it without tollway.dev/configuration",
    ),
    of(
        "dapr.io/enable-app-health-check",
        Form::Switch,
        Effect::Flag("enable-app-health-check"),
        "true",
        "the sidecar checks the app's health",
    ),
    of(
        "dapr.io/app-health-check-path",
        Form::Text,
        Effect::Flag("app-health-check-path"),
        "/healthz",
        "path of the health check",
    ),
    of(
        "dapr.io/app-health-probe-interval",
        Form::Number,
        Effect::Flag("app-health-probe-interval"),
        "5",
        "seconds between two health checks",
    ),
    of(
        "dapr.io/app-health-probe-timeout",
        Form::Number,
        Effect::Flag("app-health-probe-timeout"),
        "500",
        "milliseconds for the answer to a health check",
    ),
    of(
        "dapr.io/app-health-threshold",
        Form::Number,
        Effect::Flag("app-health-threshold"),
        "3",
        "failed health checks in a row that make the app unhealthy",
    ),
    of(
        "dapr.io/disable-init-endpoints",
        Form::Text,
        Effect::Flag("disable-init-endpoints"),
        "config",
        "what the app is not asked for at its start",
    ),
    of(
        "dapr.io/grpc-port",
        Form::Port,
        Effect::Listener(Listener::Grpc),
        "50011",
        "port of the gRPC API",
    ),
    of(
        "dapr.io/internal-grpc-port",
        Form::Port,
        Effect::Listener(Listener::Inbound),
        "50012",
        "port to which other sidecars connect",
    ),
    of(
        "dapr.io/metrics-port",
        Form::Port,
        Effect::Listener(Listener::Admin),
        "9091",
        "port of metrics and health, which probes use",
    ),
    of(
        "dapr.io/sidecar-listen-addresses",
        Form::Text,
        Effect::Flag("dapr-listen-addresses"),
        "127.0.0.1",
        "where the APIs listen",
    ),
    of(
        "dapr.io/max-body-size",
        Form::Text,
        Effect::Flag("max-body-size"),
        "16Mi",
        "the largest message that is held whole",
    ),
    of(
        "dapr.io/http-max-request-size",
        Form::Number,
        Effect::Flag("dapr-http-max-request-size"),
        "16",
        "an older form of max-body-size, in MB",
    ),
    of(
        "dapr.io/read-buffer-size",
        Form::Text,
        Effect::Flag("read-buffer-size"),
        "64Ki",
        "the largest head of a request",
    ),
    of(
        "dapr.io/http-read-buffer-size",
        Form::Number,
        Effect::Flag("dapr-http-read-buffer-size"),
        "64",
        "an older form of read-buffer-size, in KB",
    ),
    of(
        "dapr.io/graceful-shutdown-seconds",
        Form::Number,
        Effect::Flag("dapr-graceful-shutdown-seconds"),
        "10",
        "seconds for requests under way at the end",
    ),
    of(
        "dapr.io/block-shutdown-duration",
        Form::Text,
        Effect::Flag("dapr-block-shutdown-duration"),
        "10s",
        "for how long the sidecar serves on after a request to end",
    ),
    of(
        "dapr.io/enable-api-logging",
        Form::Switch,
        Effect::Flag("enable-api-logging"),
        "true",
        "a line for each request on standard output",
    ),
    of(
        "dapr.io/log-level",
        Form::OneOf(&["debug", "info", "warn", "error", "fatal"]),
        Effect::Flag("log-level"),
        "debug",
        "what the sidecar logs",
    ),
    of(
        "dapr.io/log-as-json",
        Form::Switch,
        Effect::Flag("log-as-json"),
        "true",
        "log lines as JSON",
    ),
    of(
        "dapr.io/api-token-secret",
        Form::Object,
        Effect::SharedToken("DAPR_API_TOKEN"),
        "api-token",
        "a Secret; the app must show its key `token` to the sidecar",
    ),
    of(
        "dapr.io/app-token-secret",
        Form::Object,
        Effect::SharedToken("APP_API_TOKEN"),
        "app-token",
        "a Secret; the sidecar shows its key `token` to the app",
    ),
    of("dapr.io/env", Form::Pairs, Effect::Env, "PROXY=a,LEVEL=b", "variables of the sidecar"),
    of(
        "dapr.io/env-from-secret",
        Form::SecretPairs,
        Effect::EnvFromSecret,
        "REDIS=redis:password",
        "variables of the sidecar from Secrets",
    ),
    of(
        "dapr.io/volume-mounts",
        Form::Mounts,
        Effect::Mounts { read_only: true },
        "certs:/etc/certs",
        "volumes of the pod that the sidecar reads",
    ),
    of(
        "dapr.io/volume-mounts-rw",
        Form::Mounts,
        Effect::Mounts { read_only: false },
        "data:/var/data",
        "volumes of the pod that the sidecar writes",
    ),
    of(
        "dapr.io/sidecar-cpu-request",
        Form::Quantity,
        Effect::Resource(Resource::CpuRequest),
        "50m",
        "processor time that the sidecar requests",
    ),
    of(
        "dapr.io/sidecar-cpu-limit",
        Form::Quantity,
        Effect::Resource(Resource::CpuLimit),
        "500m",
        "most processor time of the sidecar",
    ),
    of(
        "dapr.io/sidecar-memory-request",
        Form::Quantity,
        Effect::Resource(Resource::MemoryRequest),
        "32Mi",
        "memory that the sidecar requests",
    ),
    of(
        "dapr.io/sidecar-memory-limit",
        Form::Quantity,
        Effect::Resource(Resource::MemoryLimit),
        "128Mi",
        "most memory of the sidecar",
    ),
    of(
        "dapr.io/sidecar-readiness-probe-delay-seconds",
        Form::Seconds,
        Effect::Probe(ProbeKind::Readiness, "initialDelaySeconds"),
        "3",
        "when the readiness probe begins",
    ),
    of(
        "dapr.io/sidecar-readiness-probe-timeout-seconds",
        Form::Count,
        Effect::Probe(ProbeKind::Readiness, "timeoutSeconds"),
        "3",
        "time for the answer to a readiness probe",
    ),
    of(
        "dapr.io/sidecar-readiness-probe-period-seconds",
        Form::Count,
        Effect::Probe(ProbeKind::Readiness, "periodSeconds"),
        "6",
        "time between two readiness probes",
    ),
    of(
        "dapr.io/sidecar-readiness-probe-threshold",
        Form::Count,
        Effect::Probe(ProbeKind::Readiness, "failureThreshold"),
        "3",
        "failed readiness probes in a row that count",
    ),
    of(
        "dapr.io/sidecar-liveness-probe-delay-seconds",
        Form::Seconds,
        Effect::Probe(ProbeKind::Liveness, "initialDelaySeconds"),
        "3",
        "when the liveness probe begins",
    ),
    of(
        "dapr.io/sidecar-liveness-probe-timeout-seconds",
        Form::Count,
        Effect::Probe(ProbeKind::Liveness, "timeoutSeconds"),
        "3",
        "time for the answer to a liveness probe",
    ),
    of(
        "dapr.io/sidecar-liveness-probe-period-seconds",
        Form::Count,
        Effect::Probe(ProbeKind::Liveness, "periodSeconds"),
        "6",
        "time between two liveness probes",
    ),
    of(
        "dapr.io/sidecar-liveness-probe-threshold",
        Form::Count,
        Effect::Probe(ProbeKind::Liveness, "failureThreshold"),
        "3",
        "failed liveness probes in a row that count",
    ),
    of(
        "dapr.io/sidecar-seccomp-profile-type",
        Form::OneOf(&["RuntimeDefault", "Unconfined"]),
        Effect::Seccomp,
        "RuntimeDefault",
        "the seccomp profile of the sidecar; RuntimeDefault without it",
    ),
    of(
        "dapr.io/unix-domain-socket-path",
        Form::Text,
        Effect::Refused,
        "/tmp/sockets",
        "sidecars have no sockets for their APIs; let the app use the ports in DAPR_HTTP_PORT and DAPR_GRPC_PORT",
    ),
    of(
        "dapr.io/pluggable-components",
        Form::Text,
        Effect::Refused,
        "store",
        "sidecars load no pluggable components; use a state store that Tollway serves",
    ),
    of(
        "dapr.io/sidecar-image",
        Form::Text,
        Effect::Ignored,
        "daprio/daprd:1.18.3",
        "it names an image of daprd; use tollway.dev/image",
    ),
    of(
        "dapr.io/enable-metrics",
        Form::Switch,
        Effect::Ignored,
        "true",
        "the port of metrics serves the probes, so it is always open",
    ),
    of(
        "dapr.io/enable-native-sidecar",
        Form::Switch,
        Effect::Ignored,
        "true",
        "a sidecar of Tollway always is a native one",
    ),
    of(
        "dapr.io/enable-profiling",
        Form::Switch,
        Effect::Ignored,
        "true",
        "there is no profile server",
    ),
    of(
        "dapr.io/enable-debug",
        Form::Switch,
        Effect::Ignored,
        "true",
        "there is no debugger to wait for",
    ),
    of(
        "dapr.io/debug-port",
        Form::Port,
        Effect::Ignored,
        "40000",
        "there is no debugger to wait for",
    ),
    of(
        "dapr.io/placement-host-address",
        Form::Text,
        Effect::Ignored,
        "placement:50005",
        "actors are placed by Tollway's control plane",
    ),
    of(
        "dapr.io/scheduler-host-address",
        Form::Text,
        Effect::Ignored,
        "scheduler:50006",
        "reminders are kept by Tollway's control plane",
    ),
    of(
        "dapr.io/actors-disseminate-timeout",
        Form::Text,
        Effect::Ignored,
        "30s",
        "actors are placed by Tollway's control plane",
    ),
    of(
        "dapr.io/sentry-request-jwt-audiences",
        Form::Text,
        Effect::Ignored,
        "a",
        "identities come from Tollway's control plane",
    ),
    of(
        "dapr.io/disable-builtin-k8s-secret-store",
        Form::Switch,
        Effect::Ignored,
        "true",
        "sidecars have no secret store",
    ),
    of(
        "dapr.io/pluggable-components-sockets-folder",
        Form::Text,
        Effect::Ignored,
        "/sockets",
        "sidecars load no pluggable components",
    ),
    of(
        "dapr.io/component-container",
        Form::Text,
        Effect::Ignored,
        "store",
        "sidecars load no pluggable components",
    ),
    of(
        "dapr.io/inject-pluggable-components",
        Form::Switch,
        Effect::Ignored,
        "false",
        "sidecars load no pluggable components",
    ),
];
