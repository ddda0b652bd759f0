//! Works a settings file into a command line: the file's values become options in front of those
//! that were typed, so both pass through the same parser and mean the same.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::setting::{Origin, Program, Setting, Settings, SettingsError};
use tollway_config::Mistakes;
use tollway_config::entries::{self, Entry, Value};
use tollway_config::suggest;
use tollway_config::yaml::{self, YamlError};

/// Options that say how to run and are no settings of what runs.
const NO_SETTINGS: [&str; 6] = [CONFIG, PRINT_CONFIG, PRINT_SCHEMA, "run_file", "help", "version"];
/// The option that names a settings file; a command that has it is a part with settings.
const CONFIG: &str = "config";
const PRINT_CONFIG: &str = "print_config";
const PRINT_SCHEMA: &str = "print_schema";

/// A command line of a part with settings.
pub(super) struct Merged {
    /// With the values of the file.
    pub(super) argv: Vec<OsString>,
    part: String,
    file: Option<PathBuf>,
    /// Settings that the file gave, with their lines.
    from_file: Vec<(String, u64)>,
}

/// Works in the file that `argv` names. `None` where the command has no settings or clap has
/// something to say first: the plain parse says it.
pub(super) fn work_in(
    argv: &[OsString],
    program: Program,
) -> Result<Option<Merged>, SettingsError> {
    let relaxed = relaxed(program);
    let Ok(matches) = relaxed.clone().try_get_matches_from(argv) else { return Ok(None) };
    let Some((part, typed)) = matches.subcommand() else { return Ok(None) };
    let Some(command) = relaxed.find_subcommand(part).filter(|command| has_settings(command))
    else {
        return Ok(None);
    };
    let file = typed.get_one::<PathBuf>(CONFIG).cloned();
    let mut merged =
        Merged { argv: argv.to_vec(), part: part.to_owned(), file, from_file: Vec::new() };
    if let Some(path) = merged.file.clone() {
        let options = merged.take_file(command, typed, &path)?;
        let after = argv.iter().position(|arg| arg == part).map_or(argv.len(), |at| at + 1);
        merged.argv.splice(after..after, options);
    }
    Ok(Some(merged))
}

/// What a command line of a part with settings gives, whether or not it is enough to start it.
pub(super) fn survey(argv: &[OsString], program: Program) -> Result<Settings, SettingsError> {
    let relaxed = relaxed(program);
    match work_in(argv, program)? {
        Some(merged) => Ok(merged.settings_by(&relaxed)?.0),
        None => {
            relaxed.try_get_matches_from(argv)?;
            Ok(Settings::default())
        }
    }
}

/// The part whose schema is asked for, if one is.
pub(super) fn asked_schema(argv: &[OsString], program: Program) -> Option<Command> {
    let matches = relaxed(program).try_get_matches_from(argv).ok()?;
    let (part, typed) = matches.subcommand()?;
    let mut commands = (program.command)();
    // Resolves what is inherited, so that defaults and help are as shown.
    commands.build();
    let command = commands.find_subcommand(part).filter(|command| has_settings(command))?;
    typed.get_flag(PRINT_SCHEMA).then(|| command.clone())
}

/// Whether a command takes a settings file.
pub(super) fn has_settings(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == CONFIG)
}

/// Whether an option of a part is one of its settings.
pub(super) fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some() && !NO_SETTINGS.contains(&arg.get_id().as_str()) && !arg.is_hide_set()
}

/// The key of an option in a settings file; of one that may be repeated in the plural.
pub(super) fn key_of(arg: &Arg) -> String {
    let plural = if is_list(arg) { "s" } else { "" };
    arg.get_long().unwrap_or_default().replace('-', "_") + plural
}

/// The command line without the demand for options: the file may give them.
fn relaxed(program: Program) -> Command {
    (program.command)().mut_subcommands(|command| {
        if has_settings(&command) { command.mut_args(|arg| arg.required(false)) } else { command }
    })
}

pub(super) fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// The form of values that a file may give as a section, and that are printed as one.
pub(super) const PAIRS: &str = "NAME=VALUE";

fn takes_pairs(arg: &Arg) -> bool {
    is_list(arg) && form(arg) == PAIRS
}

fn expected(arg: &Arg) -> &'static str {
    if is_list(arg) { "a list" } else { "one value" }
}

impl Merged {
    /// The options that the file gives and the command line does not.
    fn take_file(
        &mut self,
        command: &Command,
        typed: &ArgMatches,
        path: &Path,
    ) -> Result<Vec<OsString>, SettingsError> {
        let name = path.display().to_string();
        let entries = entries::read(&yaml::read_file(path)?, &name)
            .map_err(|mistake| SettingsError::from(Mistakes(vec![mistake])))?;
        let mut options = Vec::new();
        let mut mistakes = Vec::new();
        for entry in entries {
            match understand(command, &entry) {
                Ok((arg, given)) => {
                    if !is_given(typed, arg) {
                        self.from_file.push((entry.key, entry.key_at.line()));
                        options.extend(given);
                    }
                }
                Err((what, at)) => mistakes.push(YamlError {
                    source_name: name.clone(),
                    line: at.line(),
                    column: at.column(),
                    what,
                }),
            }
        }
        if mistakes.is_empty() { Ok(options) } else { Err(Mistakes(mistakes).into()) }
    }

    /// What is in effect, and whether it is only to be printed.
    pub(super) fn settings(&self, program: Program) -> Result<(Settings, bool), SettingsError> {
        self.settings_by(&(program.command)())
    }

    fn settings_by(&self, command: &Command) -> Result<(Settings, bool), SettingsError> {
        let matches = command.clone().try_get_matches_from(&self.argv)?;
        let mut settings =
            Settings { part: self.part.clone(), file: self.file.clone(), list: Vec::new() };
        let found = (matches.subcommand_matches(&self.part), command.find_subcommand(&self.part));
        let (Some(matches), Some(command)) = found else { return Ok((settings, false)) };
        let options = command.get_arguments().filter(|arg| is_setting(arg));
        settings.list = options.map(|arg| self.setting(arg, matches)).collect();
        Ok((settings, matches.get_flag(PRINT_CONFIG)))
    }

    fn setting(&self, arg: &Arg, matches: &ArgMatches) -> Setting {
        let key = key_of(arg);
        let id = arg.get_id().as_str();
        let values: Vec<String> = matches
            .try_get_raw(id)
            .ok()
            .flatten()
            .map(|raw| raw.map(|value| value.to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let line = self.from_file.iter().find(|(given, _)| *given == key).map(|(_, line)| *line);
        let origin = match (matches.value_source(id), line) {
            (_, Some(line)) => Origin::File { line },
            (Some(ValueSource::CommandLine), None) => Origin::Flag,
            (Some(ValueSource::EnvVariable), None) => Origin::Environment,
            _ if values.is_empty() => Origin::Unset,
            _ => Origin::Default,
        };
        Setting { key, values, is_list: is_list(arg), origin, form: form(arg) }
    }
}

/// Whether a flag or the environment gave it.
fn is_given(typed: &ArgMatches, arg: &Arg) -> bool {
    matches!(
        typed.value_source(arg.get_id().as_str()),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

/// What a value of an option looks like.
pub(super) fn form(arg: &Arg) -> String {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return "true|false".to_owned();
    }
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
        return names.join("|");
    }
    let name = arg.get_value_names().and_then(|names| names.first());
    name.map_or_else(|| "VALUE".to_owned(), ToString::to_string)
}

type Refused = (String, serde_saphyr::Location);

/// The option of an entry, and the entry as options.
fn understand<'a>(
    command: &'a Command,
    entry: &Entry,
) -> Result<(&'a Arg, Vec<OsString>), Refused> {
    let settings = || command.get_arguments().filter(|arg| is_setting(arg));
    let Some(arg) = settings().find(|arg| key_of(arg) == entry.key) else {
        let known: Vec<String> = settings().map(key_of).collect();
        return Err((unknown_setting(command, &entry.key, &known), entry.key_at));
    };
    let refuse = |what: String| Err((what, entry.value_at));
    let key = &entry.key;
    let values = match &entry.value {
        Value::One(value) if is_list(arg) => {
            return refuse(format!("`{key}` is a list; write `{key}: [{value}]`"));
        }
        Value::One(value) => std::slice::from_ref(value),
        Value::Many(values) if is_list(arg) => values.as_slice(),
        Value::Pairs(pairs) if takes_pairs(arg) => pairs.as_slice(),
        Value::Pairs(_) => {
            return refuse(format!("`{key}` takes {}, not a section", expected(arg)));
        }
        Value::Many(_) => return refuse(format!("`{key}` takes one value, not a list")),
        Value::None => {
            return Err((format!("`{key}` has no value; give one or remove it"), entry.key_at));
        }
    };
    let mut options = Vec::new();
    for value in values {
        match option(command, arg, value) {
            Ok(option) => options.extend(option),
            Err(what) => return refuse(what),
        }
    }
    Ok((arg, options))
}

fn unknown_setting(command: &Command, key: &str, known: &[String]) -> String {
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let part = command.get_name();
    match suggest::nearest(key, &names) {
        Some(meant) => format!("unknown setting `{key}`; did you mean `{meant}`?"),
        None => {
            format!("unknown setting `{key}`; `tollway {part} --print-config` names all there are")
        }
    }
}

/// A value as the option that says the same; refused as the option would refuse it.
fn option(command: &Command, arg: &Arg, value: &str) -> Result<Option<OsString>, String> {
    let long = arg.get_long().unwrap_or_default();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match value {
            "true" => Ok(Some(format!("--{long}").into())),
            "false" => Ok(None),
            _ => Err(format!("`{}` is true or false, not `{value}`", key_of(arg))),
        };
    }
    let option = OsString::from(format!("--{long}={value}"));
    let tried = command.clone().no_binary_name(true).try_get_matches_from([&option]);
    match tried {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
            Err(refusal(arg, value, &error))
        }
        _ => Ok(Some(option)),
    }
}

fn refusal(arg: &Arg, value: &str, error: &clap::Error) -> String {
    if let Some(ContextValue::Strings(allowed)) = error.get(ContextKind::ValidValue)
        && !allowed.is_empty()
    {
        return suggest::unknown(
            &format!("value of `{}`:", key_of(arg)),
            value,
            allowed.iter().map(String::as_str),
        );
    }
    let reason = std::error::Error::source(error).map_or_else(
        || error.to_string().lines().next().unwrap_or_default().to_owned(),
        ToString::to_string,
    );
    format!("`{value}` is no value of `{}` ({}): {reason}", key_of(arg), form(arg))
}
