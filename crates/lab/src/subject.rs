//! Subjects: what a scenario measures, and the contract between one and the lab.
//!
//! A [`SubjectKind`] has a name (`direct`, `tollway`, `haproxy`) and variants, knows whether it
//! can run on this machine and how to get it, and makes [`Subject`]s. A subject is started once
//! on a [`Ground`], for all the [`Leg`]s that the scenario takes, and answers with a
//! [`StartedSubject`]: for each leg where the caller sends its requests and which processes work for
//! them. To add one, implement both traits in a file of this folder and name it in
//! [`Catalogue::built_in`]; nothing else of the lab changes. The rules:
//!
//! - **Between.** Caller and load generator are in network [`HOME`]; the callee's app, which the
//!   lab starts, is at [`Ground::app`]. A subject works between them and starts nothing else.
//!   Across networks only what [`Subject::published`] names beforehand can be reached.
//! - **Processes.** Every process is started by [`Ground::start`] with a name of its own that
//!   begins with its network's ([`Ground::process`]), listens on free ports (its own choice, written
//!   in a ports file, or [`Ground::free_port`] where a configuration must know beforehand) and
//!   ends on SIGTERM. The lab stops them, samples them, limits and pins them by these names, so
//!   none may detach itself or leave work to processes that it did not start.
//! - **Ready.** `start` returns when all listeners are bound. The lab then calls each leg until
//!   it answers, so a subject need not wait until it has learnt of itself.
//! - **Fair.** As many worker threads as Tollway's sidecars have (one), connections kept open,
//!   no logs per request, tuned as its own documentation advises. [`StartedSubject::config`] holds all
//!   of its configuration, for the report.

mod adapter;
mod catalogue;
mod direct;
mod floor;
mod linkerd;
mod tollway;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_record::record::{Protocol, Tls};

pub use adapter::{
    Adapter, AdapterFile, CertificateError, Deployment, Get, SUBJECT_SCHEMA, Side, TemplateError,
    VariantSpec, built_in_adapters, peers_folder,
};
pub(crate) use adapter::{Authorities, Identity, program_paths};
pub use catalogue::Catalogue;
pub use direct::Direct;
pub use floor::Floor;
pub use linkerd::{Linkerd, LinkerdControlArgs, LinkerdControlError, run_linkerd_control};
pub use tollway::Tollway;

use crate::commands::CallerTls;
use crate::error::LabError;
use crate::experiment::Ground;
use crate::progress::Progress;
use crate::topology::Isolation;

/// The network of the caller.
pub const HOME: usize = 0;

/// The role of processes that do not carry the requests: neither limited nor pinned.
pub const BACKGROUND: &str = "control-planes";

/// A protocol, its security and the callee's network: what a subject is to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leg {
    /// Index of the callee's network; [`HOME`] is the caller's own.
    pub network: usize,
    /// The caller's protocol. The app at the other end has the same.
    pub protocol: Protocol,
    /// What the caller's own connection is secured with.
    pub tls: Tls,
}

/// A kind of subject, of which there may be several variants.
pub trait SubjectKind {
    /// The bare name in the record.
    fn name(&self) -> &str;

    /// One line: what it is.
    fn purpose(&self) -> &str;

    /// What it can be made of; the first is the default. Never empty.
    fn variants(&self) -> &[Variant];

    /// Whether it can run on this machine. Cheap enough for a list: it may look for files and run a
    /// program for its version, not start a server.
    fn availability(&self) -> Availability;

    /// Makes it; `variant` is one of [`SubjectKind::variants`].
    fn make(&self, variant: &Variant) -> Box<dyn Subject>;
}

/// What a subject is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// As in `tollway:traced`; lower-case letters, digits, `-` and `.`.
    pub name: Cow<'static, str>,
    /// One line: how it differs from the default.
    pub purpose: Cow<'static, str>,
}

impl Variant {
    /// One of the program's own.
    #[must_use]
    pub const fn known(name: &'static str, purpose: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), purpose: Cow::Borrowed(purpose) }
    }
}

/// Whether a subject can run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    Ready {
        /// Empty for what has none.
        version: String,
    },
    Missing {
        /// What is missing.
        why: String,
        /// One line with instructions.
        how: String,
        /// Commands that install it from its registry package, for `--install-peers`; each a
        /// program and its arguments. Empty where there is no package.
        install: Vec<Vec<String>>,
    },
}

/// A subject under measurement.
pub trait Subject {
    /// Whether it can carry a leg; `Err` is the reason why not, for the report.
    fn carries(&self, leg: &Leg) -> Result<(), String>;

    /// Whether it works with networks isolated like that; `Err` is the reason why not, for the
    /// report.
    fn stands_in(&self, _isolation: &Isolation) -> Result<(), String> {
        Ok(())
    }

    /// Listeners that will be called from another network than their own.
    fn published(&self, _network: &str) -> Vec<Listener> {
        Vec::new()
    }

    /// Starts its processes. On an error the lab stops what was started.
    ///
    /// # Errors
    /// The error that kept a process from listening.
    fn start(
        &self,
        ground: &mut Ground,
        legs: &[Leg],
        progress: &mut dyn Progress,
    ) -> Result<StartedSubject, LabError>;
}

/// A listener of a subject's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Unique among all subjects' in its network; the name for [`Ground::published`].
    pub name: String,
    /// Name of the process as in [`Ground::process`], without its network.
    pub process: String,
    /// Its name in that process's ports file.
    pub port: &'static str,
}

/// A started subject.
#[derive(Debug, Clone, Default)]
pub struct StartedSubject {
    /// One for each requested leg.
    pub routes: BTreeMap<Leg, Route>,
    /// Names of its processes in the order they were started.
    pub processes: Vec<String>,
    /// Full configuration by process or file: command lines are added by the lab.
    pub config: BTreeMap<String, String>,
}

/// How the caller reaches the callee through a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// For HTTP a URL, for gRPC and TCP an address. HTTP paths are the echo server's (`/echo`).
    pub url: String,
    /// Header lines, `name: value`.
    pub headers: Vec<String>,
    /// Where the URL is one of TLS.
    pub caller_tls: Option<CallerTls>,
    /// The file `cgroup.procs` of the cgroup in which the caller has to be for its connections to be
    /// intercepted.
    pub cgroup: Option<PathBuf>,
    /// Proxies between caller and callee.
    pub hops: u32,
    /// How the bytes are secured on the longest hop: between the proxies, or between
    /// caller and callee where there are none.
    pub tls: Tls,
    /// What of the caller's TLS the app itself ends; nothing where a proxy before it does.
    pub app_tls: Tls,
    /// What it is made of, in the report's words: `sidecar–gateway–sidecar`.
    pub made_of: String,
    /// The processes that carry the request, or support it, by role.
    pub roles: BTreeMap<String, Vec<String>>,
}

/// `NAME` or `NAME:VARIANT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubjectName {
    pub name: String,
    /// The default where there is none.
    pub variant: Option<String>,
}

impl SubjectName {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((name, variant)) => Self { name: name.into(), variant: Some(variant.into()) },
            None => Self { name: text.into(), variant: None },
        }
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, ":{variant}"))
    }
}

/// How the app at `address` is called without anything between.
#[must_use]
pub fn direct_url(protocol: Protocol, tls: Tls, address: SocketAddr) -> String {
    match (protocol, tls) {
        (Protocol::Http1 | Protocol::Http2, Tls::Plain) => format!("http://{address}/echo"),
        (Protocol::Http1 | Protocol::Http2, Tls::Tls | Tls::Mtls) => {
            format!("https://{address}/echo")
        }
        _ => address.to_string(),
    }
}
