//! The settings of a part: flags, its settings file and defaults, worked into one.
//!
//! A part's options (a clap struct) are the one list of its settings: each long option is a key of
//! its settings file, with `_` for `-`, and takes the same values there. A flag wins over the
//! environment, that over the file, the file over the default. Secrets are no settings: they come
//! from a file that a setting names, or from the environment.

mod change;
mod merge;
mod print;
mod reload;
mod schema;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};
use thiserror::Error;

use crate::args::Arguments;
use tollway_config::{FileError, Mistakes};

pub(crate) use reload::{Reloads, watch};

/// The options that every part with settings has.
#[derive(Args, Clone, Debug)]
#[allow(dead_code, reason = "looked up among what clap has matched, before there is a command")]
pub(crate) struct ConfigArgs {
    /// Take settings from a YAML file: the options below as keys, with `_` for `-`.
    #[arg(long, value_name = "FILE", help_heading = "Settings file")]
    config: Option<PathBuf>,
    /// Print the settings in effect as YAML, and where each comes from; start nothing.
    #[arg(long, help_heading = "Settings file")]
    print_config: bool,
    /// Print a JSON Schema of the settings file, for editors; start nothing.
    #[arg(long, help_heading = "Settings file")]
    print_schema: bool,
}

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

/// A command line with the settings file worked in.
pub(crate) struct Invocation {
    pub(crate) arguments: Arguments,
    pub(crate) given: Given,
}

/// What a part was given.
#[derive(Default)]
pub(crate) struct Given {
    /// Empty for a command without settings.
    pub(crate) settings: Settings,
    /// The command line as typed, to work the file in again.
    argv: Vec<OsString>,
}

/// What a command line asks for.
pub(crate) enum Asked {
    CarryOut(Box<Invocation>),
    /// Settings or their schema.
    Print(String),
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

/// Reads a command line, and the file that it names with `--config`.
///
/// # Errors
/// [`SettingsError`].
pub(crate) fn read(argv: Vec<OsString>) -> Result<Asked, SettingsError> {
    if let Some(part) = merge::asked_schema(&argv) {
        return Ok(Asked::Print(schema::of(&part)));
    }
    let (invocation, print_config) = invocation(argv)?;
    Ok(match print_config {
        true => Asked::Print(invocation.given.settings.to_yaml()),
        false => Asked::CarryOut(Box::new(invocation)),
    })
}

/// What is to be carried out, and whether its settings are only to be printed.
fn invocation(argv: Vec<OsString>) -> Result<(Invocation, bool), SettingsError> {
    let Some(merged) = merge::work_in(&argv)? else {
        let arguments = Arguments::try_parse_from(&argv)?;
        return Ok((Invocation { arguments, given: Given::default() }, false));
    };
    let arguments = Arguments::try_parse_from(&merged.argv)?;
    let (settings, print_config) = merged.settings()?;
    Ok((Invocation { arguments, given: Given { settings, argv } }, print_config))
}

/// The settings that a command line of a part gives, even if it lacks some that a start needs.
///
/// # Errors
/// [`SettingsError`].
pub(crate) fn survey(argv: &[OsString]) -> Result<Settings, SettingsError> {
    merge::survey(argv)
}

#[cfg(test)]
mod tests;
