//! The content of an adapter file; `schema/tollway-subject-1.schema.json` is its schema. Its
//! meaning is checked in `check`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tollway_record::record::{Protocol, Tls};

use crate::scenario::nowhere;

/// The format's name and version.
pub const SUBJECT_SCHEMA: &str = "tollway.subject/1";

/// A program, or a pair of it, to be put between caller and app.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterFile {
    /// [`SUBJECT_SCHEMA`].
    pub schema: Spanned<String>,
    /// What the record calls it: lower-case letters, digits, `-` and `.`.
    pub name: Spanned<String>,
    /// One line: what it is.
    pub purpose: String,
    /// Candidates for its program, of which the first that works is taken: names are searched on
    /// `PATH` and in the system's folders, paths are used unchanged.
    pub program: Spanned<Vec<String>>,
    /// Arguments with which the program prints its version and ends.
    #[serde(default = "default_version")]
    pub version: Vec<String>,
    /// How to get it where it is missing.
    pub get: Get,
    /// The authority of a program that takes certificates only from its own.
    #[serde(default)]
    pub authority: Option<AuthoritySpec>,
    /// Texts that files and commands can name as placeholders.
    #[serde(default)]
    pub texts: BTreeMap<String, String>,
    /// The first is the default.
    pub variants: Vec<VariantSpec>,
}

/// A process that the sides of a deployment ask for their certificates. It works for no request.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthoritySpec {
    /// As [`AdapterFile::program`], but without a version.
    pub program: Spanned<Vec<String>>,
    /// Has neither `url` nor `headers`.
    pub process: Side,
}

/// Where a program comes from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Get {
    /// A Debian package.
    Apt(String),
    /// A Python package with its version, put into the lab's folder of peers.
    Pip(String),
    /// One line with instructions.
    ByHand(String),
}

/// A variant: how the processes are put together.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantSpec {
    pub name: Spanned<String>,
    /// One line: how it differs from the default.
    pub purpose: String,
    pub deployments: Vec<Deployment>,
}

/// What it is made of for some protocols.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployment {
    pub protocols: Spanned<Vec<Protocol>>,
    /// What the caller's own connections may be secured with.
    #[serde(default = "default_caller_tls")]
    pub caller_tls: Vec<Tls>,
    /// How the bytes are secured between the proxies; for one proxy alone that is the
    /// caller's connection.
    #[serde(default)]
    pub between_tls: Option<Tls>,
    /// Its sides take their certificates from [`AdapterFile::authority`], which is started before
    /// them: `{{authority}}`, `{{authority_dir}}`.
    #[serde(default)]
    pub asks_authority: bool,
    /// Beside the caller.
    #[serde(default)]
    pub caller_side: Option<Side>,
    /// Beside the app.
    #[serde(default)]
    pub app_side: Option<Side>,
}

/// One process.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// Files of its own folder, by name.
    #[serde(default)]
    pub files: BTreeMap<String, Spanned<String>>,
    /// Program and arguments. It stays in the foreground, starts no processes of its own, and
    /// ends on SIGTERM.
    pub command: Spanned<Vec<String>>,
    /// Further ports on loopback that it needs: `{{NAME_port}}`.
    #[serde(default = "none")]
    pub ports: Spanned<Vec<String>>,
    /// The log line by which it reports that it takes requests; without one it does when it accepts
    /// connections.
    #[serde(default)]
    pub ready: Option<Ready>,
    /// What the caller calls, where that is not the listener itself.
    #[serde(default)]
    pub url: Option<Spanned<String>>,
    /// Header lines of each request, `name: value`.
    #[serde(default = "none")]
    pub headers: Spanned<Vec<String>>,
}

/// A page over plain HTTP that answers 200 once the process takes requests.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// One of [`Side::ports`].
    pub port: Spanned<String>,
    /// From its `/` on.
    pub path: Spanned<String>,
}

impl AdapterFile {
    #[must_use]
    pub fn variant(&self, name: &str) -> Option<&VariantSpec> {
        self.variants.iter().find(|variant| variant.name.value == name)
    }
}

impl Deployment {
    /// Its processes, that of the app first.
    pub(super) fn sides(&self) -> impl Iterator<Item = &Side> {
        self.app_side.iter().chain(&self.caller_side)
    }
}

fn none() -> Spanned<Vec<String>> {
    nowhere(Vec::new())
}

fn default_version() -> Vec<String> {
    vec!["--version".to_owned()]
}

fn default_caller_tls() -> Vec<Tls> {
    vec![Tls::Plain]
}
