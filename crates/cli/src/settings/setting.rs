//! Settings as values: each with its text and its origin; and why they could not be used.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Command;
use thiserror::Error;
use tollway_config::{FileError, Mistakes};

/// Where the value of a setting comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Flag,
    Environment,
    File {
        line: u64,
    },
    Default,
    /// It has no value.
    Unset,
}

/// One setting and its value as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) key: String,
    /// One, unless it is a list; none if it is unset.
    pub(crate) values: Vec<String>,
    pub(crate) is_list: bool,
    pub(crate) origin: Origin,
    /// What a value looks like, such as `IP:PORT`.
    pub(crate) form: String,
}

/// All settings of a part, in the order of its help.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    /// `sidecar`, `gateway` …
    pub(crate) part: String,
    pub(crate) file: Option<PathBuf>,
    pub(crate) list: Vec<Setting>,
}

/// The command line of the program, and which settings of its parts change while they run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) command: fn() -> Command,
    /// The keys of the settings of a part that change while it runs.
    pub(crate) live: fn(&str) -> Vec<&'static str>,
}

/// The settings of a part, and where they come from.
pub(crate) struct Given {
    /// Empty for a command without settings.
    pub(crate) settings: Settings,
    /// The command line as typed, to work the file in again.
    pub(super) argv: Vec<OsString>,
    pub(super) program: Program,
}

/// Why settings could not be used.
#[derive(Debug, Error)]
pub(crate) enum SettingsError {
    /// What clap says about flags: its own text, its own exit code.
    #[error("{0}")]
    Usage(#[from] clap::Error),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Mistakes(#[from] Mistakes),
}

impl Settings {
    /// A setting by its key.
    pub(crate) fn get(&self, key: &str) -> Option<&Setting> {
        self.list.iter().find(|setting| setting.key == key)
    }

    /// The first value of a setting; empty without one.
    pub(crate) fn first(&self, key: &str) -> String {
        let value = self.get(key).and_then(|setting| setting.values.first());
        value.cloned().unwrap_or_default()
    }
}
