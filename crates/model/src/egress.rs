//! Egress: which hosts out of the mesh apps may call, and where their sidecars begin TLS for them.
//!
//! An egress belongs to a namespace and holds for the apps of it, or for some; one in the mesh's own
//! namespace holds for apps of the whole network. This module validates one; `routing` combines several.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::address::{AddressRange, AddressRangeError};
use crate::mode::Mode;
use crate::name::{Label, NameError, ServiceName};
use crate::object::ObjectName;
use crate::policy::{Part, PolicyScope};

/// Hosts of one egress.
pub const EGRESS_HOSTS_LIMIT: usize = 500;
/// Apps that one egress names.
pub const EGRESS_APPS_LIMIT: usize = 100;
/// Longest name of a host, in bytes, as DNS has it.
pub const HOST_NAME_BYTES: usize = 253;
/// The port of plain HTTP.
pub const PLAIN_PORT: u16 = 80;
/// The port of HTTP over TLS.
pub const TLS_PORT: u16 = 443;

/// The mesh's own namespace: what is for the whole network lives there.
const SYSTEM_NAMESPACE: &str = "tollway";
/// Longest label of a name, in bytes.
const LABEL_LENGTH: usize = 63;

/// Why an egress was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EgressError {
    #[error("it allows no hosts; name at least one in `hosts`")]
    NoHosts,
    #[error("it has {count} hosts; at most {EGRESS_HOSTS_LIMIT} are accepted: split it")]
    TooManyHosts { count: usize },
    #[error("it names {count} apps in `from`; at most {EGRESS_APPS_LIMIT} are accepted: split it")]
    TooManyApps { count: usize },
    #[error(
        "`from` has `{app}`, and an egress is for the apps of its own namespace `{namespace}`; for others it belongs to theirs, or to the namespace `tollway`"
    )]
    OtherNamespace { app: AppPattern, namespace: Label },
    #[error(
        "`from` has `{app}` without a namespace; an egress of the namespace `tollway` is for apps of the whole network: write {app}.NAMESPACE"
    )]
    NoNamespace { app: AppPattern },
    #[error(
        "TLS cannot be begun for the addresses `{range}`: the certificate is compared with a name"
    )]
    TlsOfRange { range: AddressRange },
    #[error("`{host}` has a port 0; ports are 1 to 65535")]
    Port { host: HostPattern },
    #[error("the authorities for `{host}` hold no certificate in PEM")]
    NoAuthority { host: HostPattern },
}

/// What becomes of calls of external hosts that no egress allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EgressDefault {
    /// They pass where they passed without any egress.
    #[default]
    Open,
    /// They are refused.
    Closed,
    /// They pass; that they would be refused is counted and logged.
    Shadow,
}

/// Apps of the own network: `app[.namespace]` with `*` for any.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AppPattern {
    pub app: Part,
    /// The egress's own if it is left out.
    pub namespace: Option<Part>,
}

impl AppPattern {
    /// Whether an app is meant; `namespace` is the egress's.
    #[must_use]
    pub fn matches(&self, service: &ServiceName, namespace: &Label) -> bool {
        let in_namespace = match &self.namespace {
            Some(part) => part.matches(&service.namespace),
            None => *namespace == service.namespace,
        };
        in_namespace && self.app.matches(&service.app)
    }
}

impl FromStr for AppPattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parts: Vec<&str> = text.split('.').collect();
        match parts[..] {
            [app] => Ok(Self { app: Part::parse(app)?, namespace: None }),
            [app, namespace] => {
                Ok(Self { app: Part::parse(app)?, namespace: Some(Part::parse(namespace)?) })
            }
            _ => Err(NameError::TooManyLabels { name: text.to_owned(), count: parts.len() }),
        }
    }
}

impl fmt::Display for AppPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.app.fmt(f)?;
        match &self.namespace {
            Some(namespace) => write!(f, ".{namespace}"),
            None => Ok(()),
        }
    }
}

/// Why a text names no host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostError {
    #[error(
        "`{0}` is not a host: write a name, `*.` and the end of names, `*` for every name, an address, or a range such as 10.1.0.0/16"
    )]
    Form(String),
    #[error("`{0}` is a name of the mesh; who may call services is decided by policies")]
    Mesh(String),
    #[error("`{text}` is not a range")]
    Range { text: String, source: AddressRangeError },
}

/// The name of an external host: in small letters, without the root's dot.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostName(Arc<str>);

impl HostName {
    /// Reads a name as a request has it. Names that programs take for an address in another form, such as
    /// `0x7f.1`, and those of the mesh are none.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() || name.len() > HOST_NAME_BYTES {
            return None;
        }
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_label = |label: &str| {
            !label.is_empty() && label.len() <= LABEL_LENGTH && label.bytes().all(is_part)
        };
        if !name.split('.').all(is_label) {
            return None;
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hex = last.len() > 1 && (last.starts_with("0x") || last.starts_with("0X"));
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
        if is_number || is_hex || last.eq_ignore_ascii_case("mesh") {
            return None;
        }
        Some(Self(name.to_ascii_lowercase().into()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hosts that are treated alike.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostPattern {
    /// Every host that is called by a name: `*`.
    AnyName,
    Name(HostName),
    /// Names that end so, and have something in front: `*.example.org`.
    Below(HostName),
    /// Addresses, whatever name stands for them.
    Range(AddressRange),
}

impl HostPattern {
    /// Whether a name is meant.
    #[must_use]
    pub fn matches_name(&self, name: &HostName) -> bool {
        match self {
            Self::AnyName => true,
            Self::Name(own) => own == name,
            Self::Below(end) => {
                let front = name.as_str().strip_suffix(end.as_str());
                front.is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
            Self::Range(_) => false,
        }
    }

    /// Whether an address is meant by itself.
    #[must_use]
    pub fn matches_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Range(range) => range.contains(address),
            Self::AnyName | Self::Name(_) | Self::Below(_) => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let wrong = || HostError::Form(text.to_owned());
        let bare = text.strip_suffix('.').unwrap_or(text);
        let ends_in_mesh =
            bare.rsplit('.').next().is_some_and(|end| end.eq_ignore_ascii_case("mesh"));
        if ends_in_mesh {
            return Err(HostError::Mesh(text.to_owned()));
        }
        if text == "*" {
            return Ok(Self::AnyName);
        }
        if let Some(end) = text.strip_prefix("*.") {
            return HostName::read(end).map(Self::Below).ok_or_else(wrong);
        }
        if text.contains(['/', ':']) || text.parse::<IpAddr>().is_ok() {
            let range = text.parse();
            return range
                .map(Self::Range)
                .map_err(|source| HostError::Range { text: text.to_owned(), source });
        }
        HostName::read(text).map(Self::Name).ok_or_else(wrong)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyName => f.write_str("*"),
            Self::Name(name) => name.fmt(f),
            Self::Below(end) => write!(f, "*.{end}"),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// TLS that the sidecar begins for the app.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BeginTls {
    /// Where the app calls without TLS; it is led to the host's port. Usually 80.
    pub plain_port: u16,
    /// Those who may sign the host's certificate, in PEM; the system's if they are left out.
    pub authorities: Option<Arc<str>>,
}

/// Hosts that may be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressHost {
    pub host: HostPattern,
    /// Any port if it is left out; 443 where TLS is begun.
    pub port: Option<u16>,
    pub tls: Option<BeginTls>,
}

impl EgressHost {
    /// The port at which TLS is begun.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.port.unwrap_or(TLS_PORT)
    }

    /// Whether it allows calls of a port as they are.
    #[must_use]
    pub fn allows_port(&self, port: u16) -> bool {
        match (&self.tls, self.port) {
            (Some(tls), _) => port == self.tls_port() && port != tls.plain_port,
            (None, Some(own)) => own == port,
            (None, None) => true,
        }
    }

    /// The TLS that is begun for calls of a port.
    #[must_use]
    pub fn tls_from(&self, port: u16) -> Option<&BeginTls> {
        self.tls.as_ref().filter(|tls| tls.plain_port == port)
    }

    fn check(&self) -> Result<(), EgressError> {
        let ports = self.port.into_iter().chain(self.tls.as_ref().map(|tls| tls.plain_port));
        if ports.into_iter().any(|port| port == 0) {
            return Err(EgressError::Port { host: self.host.clone() });
        }
        let Some(tls) = &self.tls else { return Ok(()) };
        if let HostPattern::Range(range) = &self.host {
            return Err(EgressError::TlsOfRange { range: *range });
        }
        match &tls.authorities {
            Some(pem) if !pem.contains("-----BEGIN CERTIFICATE-----") => {
                Err(EgressError::NoAuthority { host: self.host.clone() })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// External hosts that apps may call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Egress {
    pub name: ObjectName,
    pub mode: Mode,
    /// The apps that may; empty means all: of the namespace, or of the network in the namespace
    /// `tollway`.
    pub from: Vec<AppPattern>,
    pub hosts: Vec<EgressHost>,
}

impl Egress {
    /// The services whose sidecars get it.
    #[must_use]
    pub fn scope(&self) -> PolicyScope {
        if self.is_of_network() {
            PolicyScope::Network
        } else {
            PolicyScope::Namespace(self.name.namespace.clone())
        }
    }

    /// Whether it holds for an app of its network.
    #[must_use]
    pub fn holds_for(&self, service: &ServiceName) -> bool {
        let is_meant = |app: &AppPattern| app.matches(service, &self.name.namespace);
        self.scope().covers(service) && (self.from.is_empty() || self.from.iter().any(is_meant))
    }

    fn is_of_network(&self) -> bool {
        self.name.namespace.as_str().eq_ignore_ascii_case(SYSTEM_NAMESPACE)
    }

    /// Checks what the types alone do not hold.
    ///
    /// # Errors
    /// [`EgressError`] for the first rule of the format that is broken.
    pub fn check(&self) -> Result<(), EgressError> {
        let (hosts, apps) = (self.hosts.len(), self.from.len());
        if hosts == 0 {
            return Err(EgressError::NoHosts);
        }
        if hosts > EGRESS_HOSTS_LIMIT {
            return Err(EgressError::TooManyHosts { count: hosts });
        }
        if apps > EGRESS_APPS_LIMIT {
            return Err(EgressError::TooManyApps { count: apps });
        }
        self.from.iter().try_for_each(|app| self.check_app(app))?;
        self.hosts.iter().try_for_each(EgressHost::check)
    }

    fn check_app(&self, app: &AppPattern) -> Result<(), EgressError> {
        let own = &self.name.namespace;
        match (&app.namespace, self.is_of_network()) {
            (None, true) => Err(EgressError::NoNamespace { app: app.clone() }),
            (Some(Part::Is(namespace)), false) if namespace == own => Ok(()),
            (Some(_), false) => {
                Err(EgressError::OtherNamespace { app: app.clone(), namespace: own.clone() })
            }
            (Some(_), true) | (None, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
