//! What daprd's flags and environment mean for a sidecar. Decides; starts nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tollway_config::{AppScheme, request_path};
use tollway_model::{AppId, AppProtocol, AreaName, HostNames, Label, Locality};
use tollway_proxy::mesh::{Targets, TargetsError};
use tollway_proxy::{AsDaprd, Cors, HealthCheck, WebPages};
use tollway_runtime::{COLLECTED_BODY_BYTES, MESSAGE_BYTES};
use tollway_telemetry::{LogFilter, LogFormat};

use crate::error::DaprError;
use crate::parse::{GivenFlags, Parsed, parse};
use crate::values::{self, Size};

/// The flag that names a control plane.
const CONTROL: &str = "control-plane-address";

/// What is taken of a request's head in any case, in bytes.
const HEAD_BYTES: u64 = 64 * 1024;
/// The largest head limit that may be set, in bytes: what HTTP/2 takes at most.
const MOST_HEAD_BYTES: u64 = 512 * 1024;

/// A sidecar as daprd would be started.
#[derive(Debug)]
pub struct DaprdOptions {
    pub app_id: AppId,
    pub namespace: Label,
    /// No namespace is given, so that resources of all are for the app.
    pub takes_all_namespaces: bool,
    pub app: Option<DaprdApp>,
    pub http: Vec<SocketAddr>,
    pub grpc: Vec<SocketAddr>,
    pub public: Option<SocketAddr>,
    pub inbound: SocketAddr,
    pub advertise: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The control plane, if it is not the local one.
    pub control: Option<Targets>,
    /// Where the sidecar runs.
    pub locality: Locality,
    /// Which web pages may use the API.
    pub web_pages: WebPages,
    pub drain: Duration,
    pub block: Duration,
    /// What is taken of a head, where that is more than is taken anyway.
    pub head_bytes: Option<u64>,
    /// What a message may have that is held whole.
    pub message_bytes: usize,
    pub logs_calls: bool,
    /// What is done as daprd does.
    pub as_daprd: AsDaprd,
    /// Attributes of the process in its spans, beside its own or in place of them.
    pub trace_resource: Vec<(String, String)>,
    pub log: (LogFilter, LogFormat),
    pub resources: Vec<PathBuf>,
    pub config: Vec<PathBuf>,
    /// Where to write which ports are open.
    pub ports_file: Option<PathBuf>,
    /// Notes for the start: which flags and fields have no effect.
    pub notes: Vec<String>,
    pub idle: Vec<String>,
}

/// The app of the sidecar.
#[derive(Debug)]
pub struct DaprdApp {
    /// A name or an address.
    pub host: String,
    pub port: u16,
    pub scheme: AppScheme,
    pub max_concurrency: Option<usize>,
    pub health_check: Option<HealthCheck>,
    /// Whether the sidecar asks the app which actors it runs.
    pub asks_actors: bool,
}

/// Why a sidecar cannot have these options, as `WHAT; WHAT TO DO`.
pub(crate) type Refusal = String;

impl DaprdOptions {
    /// Decides what the flags mean. `variable` reads the environment.
    ///
    /// # Errors
    /// [`DaprError::Flag`] for flags that ask for what is not served, or have values that are not
    /// understood.
    pub fn of(
        given: &GivenFlags,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, DaprError> {
        Self::read(given, variable).map_err(DaprError::Flag)
    }

    fn read(
        given: &GivenFlags,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Refusal> {
        refuse_unserved(given)?;
        let variable = &|name: &str| variable(name).filter(|value| !value.is_empty());
        let app_id = given.text("app-id");
        if app_id.is_empty() {
            return Err("app-id parameter cannot be empty; name the app with --app-id".to_owned());
        }
        let app_id = AppId::new(app_id).map_err(|error| format!("app-id: {error}"))?;
        let namespace = variable("NAMESPACE");
        let takes_all_namespaces = namespace.is_none();
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let namespace = Label::new(&namespace).map_err(|error| format!("NAMESPACE: {error}"))?;
        let outdated = given.outdated();
        let mut notes: Vec<String> = outdated
            .map(|(name, instead)| format!("Flag --{name} has been deprecated, {instead}"))
            .collect();
        let apis = addresses(given.text("dapr-listen-addresses"))?;
        let listeners = |flag: &str| -> Result<Vec<SocketAddr>, Refusal> {
            let port = port(given, flag)?;
            Ok(apis.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
        };
        let (http, grpc) = (listeners("dapr-http-port")?, listeners("dapr-grpc-port")?);
        let app = app(given, [http[0].port(), grpc[0].port()])?;
        let control = match given.text(CONTROL) {
            "" => None,
            text => {
                Some(text.parse().map_err(|error: TargetsError| format!("--{CONTROL}: {error}"))?)
            }
        };
        let (inbound, advertise) = inbound_listener(given, control.is_some(), variable)?;
        let message_bytes = message_bytes(given, &mut notes)?;
        Ok(Self {
            app_id,
            namespace,
            takes_all_namespaces,
            app,
            http,
            grpc,
            public: public(given)?,
            inbound,
            advertise,
            metrics: metrics(given)?,
            control,
            locality: locality(variable)?,
            web_pages: web_pages(given),
            drain: graceful(given),
            block: given.duration("dapr-block-shutdown-duration"),
            head_bytes: head_bytes(given)?,
            message_bytes,
            logs_calls: given.is_on("enable-api-logging"),
            as_daprd: AsDaprd {
                has_placement: names_one(given.text("placement-host-address")),
                cors: Cors::of(given.text("allowed-origins")),
                body_bytes: u64::try_from(message_bytes)
                    .ok()
                    .filter(|_| message_bytes < MESSAGE_BYTES),
            },
            trace_resource: trace_resource(variable),
            log: log(given)?,
            resources: resources(given),
            config: given.list("config").into_iter().map(PathBuf::from).collect(),
            ports_file: Some(given.text("ports-file"))
                .filter(|file| !file.is_empty())
                .map(PathBuf::from),
            notes,
            idle: given.idle().map(|(name, why)| format!("--{name} has {why}")).collect(),
        })
    }
}

/// Checks the words of a command line of daprd as a start does, with an empty environment.
///
/// # Errors
/// Why a start would fail, as `WHAT; WHAT TO DO`.
pub fn check_flags(words: &[String]) -> Result<(), String> {
    match parse(words).map_err(|error| error.to_string())? {
        Parsed::Flags(given) => {
            DaprdOptions::of(&given, |_| None).map(drop).map_err(|error| error.to_string())
        }
        Parsed::Help => Ok(()),
    }
}

/// Refuses flags that are not served here and that an app would miss.
fn refuse_unserved(given: &GivenFlags) -> Result<(), Refusal> {
    let mode = given.text("mode");
    if mode == "kubernetes" {
        return Err("--mode=kubernetes is not for this program; without --mode it runs by itself"
            .to_owned());
    }
    if mode != "standalone" {
        return Err(format!("invalid mode `{mode}`; use standalone"));
    }
    if !given.text("unix-domain-socket").is_empty() {
        return Err("--unix-domain-socket is not served; let the app connect to --dapr-http-port and --dapr-grpc-port".to_owned());
    }
    Ok(())
}

/// Names and origins beside those that are always admitted.
fn web_pages(given: &GivenFlags) -> WebPages {
    let texts = |flag| given.list(flag).into_iter().map(str::to_owned).collect();
    let mut origins: Vec<String> = texts("api-origin");
    let allowed = given.text("allowed-origins").split(',').map(str::trim);
    origins.extend(allowed.filter(|origin| !origin.is_empty()).map(str::to_owned));
    WebPages { host_names: HostNames::new(texts("api-host-name")), origins }
}

fn app(given: &GivenFlags, apis: [u16; 2]) -> Result<Option<DaprdApp>, Refusal> {
    let word = given.text("app-protocol").to_ascii_lowercase();
    let mut scheme = match word.as_str() {
        "" => AppScheme { protocol: AppProtocol::Http, is_tls: false },
        // It is none of daprd's.
        "tcp" => return Err(unknown_protocol(&word)),
        word => word.parse().map_err(|_| unknown_protocol(word))?,
    };
    scheme.is_tls |= given.is_on("app-ssl") && scheme.protocol != AppProtocol::H2c;
    let health_check = health_check(given)?;
    // Below 0 it is none to daprd, and the Dapr CLI writes -1 for that.
    let text = given.text("app-port");
    if text.is_empty() || text.parse::<i64>().is_ok_and(|port| port < 0) {
        return Ok(None);
    }
    let port = port(given, "app-port")?;
    for (flag, api) in ["dapr-http-port", "dapr-grpc-port"].into_iter().zip(apis) {
        if port != 0 && port == api {
            return Err(format!(
                "the '{flag}' argument value {api} conflicts with 'app-port'; choose another"
            ));
        }
    }
    let most = usize::try_from(given.number("app-max-concurrency"));
    let max_concurrency = most.ok().filter(|most| *most > 0);
    let host = given.text("app-channel-address").to_owned();
    let asks_actors = !given.list("disable-init-endpoints").contains(&"config");
    let app = DaprdApp { host, port, scheme, max_concurrency, health_check, asks_actors };
    Ok((port != 0).then_some(app))
}

fn unknown_protocol(word: &str) -> Refusal {
    format!("invalid value for 'app-protocol': {word}; use http, https, h2c, grpc or grpcs")
}

/// What is not above zero is the default, as in daprd.
fn health_check(given: &GivenFlags) -> Result<Option<HealthCheck>, Refusal> {
    if !given.is_on("enable-app-health-check") {
        return Ok(None);
    }
    let positive = |name, usual| match given.number(name) {
        number @ 1.. => number.unsigned_abs(),
        _ => usual,
    };
    let interval = Duration::from_secs(positive("app-health-probe-interval", 5));
    let timeout = Duration::from_millis(positive("app-health-probe-timeout", 500));
    if timeout > interval {
        return Err("value for 'health-probe-timeout' must be smaller than 'health-probe-interval'; make it so".to_owned());
    }
    let path = given.text("app-health-check-path");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let path = request_path(&path).map_err(|error| format!("--app-health-check-path: {error}"))?;
    let threshold = u32::try_from(positive("app-health-threshold", 3)).unwrap_or(u32::MAX);
    Ok(Some(HealthCheck { path, interval, timeout, threshold }))
}

/// Where other sidecars connect: where only this machine reaches it, unless the control plane is
/// another machine's.
fn inbound_listener(
    given: &GivenFlags,
    is_elsewhere: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(SocketAddr, Option<SocketAddr>), Refusal> {
    let port = port(given, "dapr-internal-grpc-port")?;
    let address = given.text("dapr-internal-grpc-listen-address");
    let usual = if is_elsewhere { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    let ip = match address {
        "" => usual.into(),
        address => ip(address, "dapr-internal-grpc-listen-address")?,
    };
    let host = match variable("DAPR_HOST_IP") {
        Some(text) => Some(ip_of(&text).ok_or_else(|| {
            format!("DAPR_HOST_IP is no IP address: `{text}`; write one such as 10.0.0.7")
        })?),
        None => None,
    };
    if ip.is_unspecified() && host.is_none() {
        return Err(
            "others cannot reach an address of all interfaces; say where they can in DAPR_HOST_IP"
                .to_owned(),
        );
    }
    // The port is the one that it listens on. A listener on loopback is not reachable from
    // other hosts, whatever the host's address.
    let advertise = host.filter(|_| !ip.is_loopback()).map(|host| SocketAddr::new(host, 0));
    Ok((SocketAddr::new(ip, port), advertise))
}

/// Where the sidecar runs, by variables of Tollway's own.
fn locality(variable: impl Fn(&str) -> Option<String>) -> Result<Locality, Refusal> {
    let name = |of: &str| -> Result<Option<AreaName>, Refusal> {
        let name = variable(of).map(|name| AreaName::new(&name)).transpose();
        name.map_err(|error| format!("{of}: {error}"))
    };
    Ok(Locality { region: name("TOLLWAY_REGION")?, zone: name("TOLLWAY_ZONE")? })
}

/// What the variables of OpenTelemetry say of the process. Attributes that are not `KEY=VALUE` are left
/// out; of several values of a key the last counts.
fn trace_resource(variable: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let text = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let attribute = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
        Some((key.trim().to_owned(), value)).filter(|(key, _)| !key.is_empty())
    };
    let name = variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name));
    let mut all: Vec<(String, String)> = Vec::new();
    for (key, value) in text.split(',').filter_map(attribute).chain(name) {
        all.retain(|(known, _)| *known != key);
        all.push((key, value));
    }
    all
}

fn public(given: &GivenFlags) -> Result<Option<SocketAddr>, Refusal> {
    if given.text("dapr-public-port").is_empty() {
        return Ok(None);
    }
    let port = port(given, "dapr-public-port")?;
    let address = match given.text("dapr-public-listen-address") {
        "" => Ipv4Addr::LOCALHOST.into(),
        address => ip(address, "dapr-public-listen-address")?,
    };
    Ok(Some(SocketAddr::new(address, port)))
}

fn metrics(given: &GivenFlags) -> Result<Option<SocketAddr>, Refusal> {
    if !given.is_on("enable-metrics") {
        return Ok(None);
    }
    let port = port(given, "metrics-port")?;
    let address = ip(given.text("metrics-listen-address"), "metrics-listen-address")?;
    Ok(Some(SocketAddr::new(address, port)))
}

fn graceful(given: &GivenFlags) -> Duration {
    // Below zero the default holds, as in daprd.
    let seconds = u64::try_from(given.number("dapr-graceful-shutdown-seconds")).unwrap_or(5);
    Duration::from_secs(seconds.min(24 * 3600))
}

/// Bodies that stream have no limit, unless it is below the default.
fn message_bytes(given: &GivenFlags, notes: &mut Vec<String>) -> Result<usize, Refusal> {
    let size = match given.is_set("max-body-size") {
        true => size(given, "max-body-size")?,
        false => scaled(given.number("dapr-http-max-request-size"), 20),
    };
    let bytes = match size {
        // daprd takes it for its default.
        Size::Any | Size::Bytes(0) => MESSAGE_BYTES,
        Size::Bytes(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
    };
    if bytes > COLLECTED_BODY_BYTES {
        notes.push(format!(
            "a message that is translated between HTTP and gRPC has {COLLECTED_BODY_BYTES} bytes at most, \
             not {bytes}; bodies that stream have no limit"
        ));
    }
    Ok(bytes.clamp(1, COLLECTED_BODY_BYTES))
}

/// How much of a head is taken, where it is more than is taken anyway.
fn head_bytes(given: &GivenFlags) -> Result<Option<u64>, Refusal> {
    let size = match given.is_set("read-buffer-size") {
        true => size(given, "read-buffer-size")?,
        false => scaled(given.number("dapr-http-read-buffer-size"), 10),
    };
    match size {
        Size::Bytes(bytes) if bytes > MOST_HEAD_BYTES => Err(format!(
            "--read-buffer-size of {bytes} bytes is too large; a head may have {MOST_HEAD_BYTES} at most"
        )),
        Size::Bytes(bytes) if bytes > HEAD_BYTES => Ok(Some(bytes)),
        Size::Bytes(_) | Size::Any => Ok(None),
    }
}

fn size(given: &GivenFlags, name: &str) -> Result<Size, Refusal> {
    let text = given.text(name);
    let wrong =
        || format!("invalid value for '{name}' option: `{text}`; write a size such as 16Mi");
    values::size(text).ok_or_else(wrong)
}

fn scaled(number: i64, shift: u32) -> Size {
    u64::try_from(number).map_or(Size::Any, |number| Size::Bytes(number.saturating_mul(1 << shift)))
}

/// Whether a text names anything: templates and shells leave quotation marks around nothing.
fn names_one(text: &str) -> bool {
    text.contains(|c: char| !c.is_whitespace() && !matches!(c, '\'' | '"'))
}

fn log(given: &GivenFlags) -> Result<(LogFilter, LogFormat), Refusal> {
    let level = given.text("log-level");
    let filter = match level.to_ascii_lowercase().as_str() {
        "fatal" => "error".to_owned(),
        word @ ("debug" | "info" | "warn" | "error") => word.to_owned(),
        _ => {
            return Err(format!(
                "undefined log level: {level}; use debug, info, warn, error or fatal"
            ));
        }
    };
    let filter = filter.parse().map_err(|error| format!("--log-level: {error}"))?;
    let format = if given.is_on("log-as-json") { LogFormat::Json } else { LogFormat::Text };
    Ok((filter, format))
}

fn resources(given: &GivenFlags) -> Vec<PathBuf> {
    let paths: Vec<PathBuf> = given.list("resources-path").into_iter().map(PathBuf::from).collect();
    let older = given.text("components-path");
    if paths.is_empty() && !older.is_empty() { vec![PathBuf::from(older)] } else { paths }
}

fn port(given: &GivenFlags, name: &str) -> Result<u16, Refusal> {
    let text = given.text(name);
    text.parse().map_err(|_| {
        format!("error parsing {name} flag: `{text}` is no port; use a number from 0 to 65535")
    })
}

/// Addresses with commas between them; what is empty or `0.0.0.0` is every one, and `localhost` is
/// loopback of IPv4 and IPv6, since clients take either for it.
fn addresses(text: &str) -> Result<Vec<IpAddr>, Refusal> {
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Ok(vec![Ipv4Addr::UNSPECIFIED.into()]);
    }
    let mut found = Vec::new();
    for part in parts {
        let both = (part == "localhost").then_some(Ipv6Addr::LOCALHOST.into());
        for address in [ip(part, "dapr-listen-addresses")?].into_iter().chain(both) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    Ok(found)
}

fn ip(text: &str, flag: &str) -> Result<IpAddr, Refusal> {
    let wrong = || format!("--{flag} is no IP address: `{text}`; write one such as 127.0.0.1");
    ip_of(text).ok_or_else(wrong)
}

fn ip_of(text: &str) -> Option<IpAddr> {
    match text {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        text => {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            match bare {
                Some(bare) => bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
                None => text.parse().ok(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
