//! The settings of a part: flags, its settings file and defaults, worked into one.
//!
//! A part's options (a clap struct) are the one list of its settings: each long option is a key of
//! its settings file, with `_` for `-`, and takes the same values there. A flag wins over the
//! environment, that over the file, the file over the default. Secrets are no settings: they come
//! from a file that a setting names, or from the environment.

mod differences;
mod limit_value;
mod merge;
mod reload;
mod schema;
mod setting;
mod to_yaml;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};

pub(crate) use limit_value::{LimitSetting, limit};
pub(crate) use reload::{Reloads, watch};
pub(crate) use setting::{Given, Origin, Program, Settings, SettingsError};

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

/// A command line with the settings file worked in.
pub(crate) struct Invocation<T> {
    pub(crate) arguments: T,
    pub(crate) given: Given,
}

/// What a command line asks for.
pub(crate) enum Asked<T> {
    CarryOut(Box<Invocation<T>>),
    /// Settings or their schema.
    Print(String),
}

/// Reads a command line, and the file that it names with `--config`.
///
/// # Errors
/// [`SettingsError`].
pub(crate) fn read<T: Parser>(
    argv: Vec<OsString>,
    live: fn(&str) -> Vec<&'static str>,
) -> Result<Asked<T>, SettingsError> {
    let program = Program { command: T::command, live };
    if let Some(part) = merge::asked_schema(&argv, program) {
        return Ok(Asked::Print(schema::of(&part, &live(part.get_name()))));
    }
    let (invocation, print_config) = invocation(argv, program)?;
    Ok(match print_config {
        true => Asked::Print(invocation.given.settings.to_yaml()),
        false => Asked::CarryOut(Box::new(invocation)),
    })
}

/// What is to be carried out, and whether its settings are only to be printed.
fn invocation<T: Parser>(
    argv: Vec<OsString>,
    program: Program,
) -> Result<(Invocation<T>, bool), SettingsError> {
    let Some(merged) = merge::work_in(&argv, program)? else {
        let arguments = T::try_parse_from(&argv)?;
        let given = Given { settings: Settings::default(), argv: Vec::new(), program };
        return Ok((Invocation { arguments, given }, false));
    };
    let arguments = T::try_parse_from(&merged.argv)?;
    let (settings, print_config) = merged.settings(program)?;
    Ok((Invocation { arguments, given: Given { settings, argv, program } }, print_config))
}

/// The settings that a command line of a part gives, even if it lacks some that a start needs.
///
/// # Errors
/// [`SettingsError`].
pub(crate) fn survey(argv: &[OsString], program: Program) -> Result<Settings, SettingsError> {
    merge::survey(argv, program)
}

#[cfg(test)]
mod tests;
