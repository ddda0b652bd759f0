//! The command line of a part with settings: a flag for each setting, a settings file, and the
//! printing of both. What they mean is in `tollway_settings`.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, StyledStr, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use tollway_settings::{
    Flags, Given, Kind, Origin, PARTS, Part, Setting, Settings, SettingsError, Survey, from_flags,
    schema_text,
};

const CONFIG: &str = "config";
const PRINT_CONFIG: &str = "print_config";
const PRINT_SCHEMA: &str = "print_schema";
/// Columns of a usage in one line.
const USAGE_COLUMNS: usize = 60;

/// What a command line of a part has.
pub(crate) struct PartArgs<P> {
    pub(crate) flags: Flags,
    config: Option<PathBuf>,
    print_config: bool,
    print_schema: bool,
    part: PhantomData<P>,
}

impl<P: Part> PartArgs<P> {
    /// Runs the part with its settings, or prints them or their schema, as the command line asks.
    ///
    /// # Errors
    /// [`SettingsError`] and [`clap::Error`] for settings that cannot be used, and those of `run`.
    pub(crate) fn start<R: Default>(
        self,
        run: impl FnOnce(Given<P>, Flags) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        if self.print_schema {
            let part = PARTS.iter().find(|part| part.name == P::NAME);
            print!("{}", part.map(schema_text).unwrap_or_default());
            return Ok(R::default());
        }
        let given = match self.survey()?.complete() {
            Err(SettingsError::Missing(missing)) => return Err(missing_flags::<P>(&missing).into()),
            given => given?,
        };
        if self.print_config {
            print!("{}", given.listing.to_yaml());
            return Ok(R::default());
        }
        run(given, self.flags)
    }

    /// What is given, even if some is missing that a start needs.
    ///
    /// # Errors
    /// As [`tollway_settings::survey`].
    pub(crate) fn survey(&self) -> Result<Survey<P>, SettingsError> {
        tollway_settings::survey(&self.flags, self.config.as_deref())
    }
}

/// Reads the options of a part that is not started.
///
/// # Errors
/// What is wrong with an option.
pub(crate) fn parse_options<A: Args>(
    part: &'static str,
    options: &[OsString],
) -> Result<A, clap::Error> {
    let matches =
        A::augment_args(command(part)).no_binary_name(true).try_get_matches_from(options)?;
    A::from_arg_matches(&matches)
}

/// The command of a part by itself.
fn command(part: &'static str) -> Command {
    Command::new(part).bin_name(format!("tollway {part}"))
}

impl<P: Part> Args for PartArgs<P> {
    fn augment_args(command: Command) -> Command {
        let settings = P::settings();
        let command = command.args(settings.iter().map(flag)).args(file_options());
        match usage::<P>(&settings) {
            Some(usage) => command.override_usage(usage),
            None => command,
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Part> FromArgMatches for PartArgs<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            flags: flags_of(&P::settings(), matches),
            config: matches.get_one(CONFIG).cloned(),
            print_config: matches.get_flag(PRINT_CONFIG),
            print_schema: matches.get_flag(PRINT_SCHEMA),
            part: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What the command line and the environment give.
fn flags_of(settings: &[Setting], matches: &ArgMatches) -> Flags {
    let mut flags = Flags::default();
    for setting in settings {
        let origin = match matches.value_source(setting.key) {
            Some(ValueSource::CommandLine) => Origin::Flag,
            Some(ValueSource::EnvVariable) => Origin::Environment,
            _ => continue,
        };
        let values = match setting.kind {
            Kind::Switch => vec![matches.get_flag(setting.key).to_string()],
            Kind::One | Kind::Optional | Kind::List => {
                matches.get_many(setting.key).into_iter().flatten().cloned().collect()
            }
        };
        flags.add(setting.key, values, origin);
    }
    flags
}

/// Settings of a command without a settings file: from flags and environment alone.
#[derive(Clone)]
pub(crate) struct SettingsArgs<S>(pub(crate) S);

impl<S: Settings> Args for SettingsArgs<S> {
    fn augment_args(command: Command) -> Command {
        let mut settings = Vec::new();
        S::list(&mut settings);
        command.args(settings.iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Settings> FromArgMatches for SettingsArgs<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Vec::new();
        S::list(&mut settings);
        from_flags(&flags_of(&settings, matches)).map(Self).map_err(|error| match error {
            SettingsError::Missing(missing) => {
                let flags = missing.iter().map(flag_and_value).collect();
                let mut error = clap::Error::new(ErrorKind::MissingRequiredArgument);
                error.insert(ContextKind::InvalidArg, ContextValue::Strings(flags));
                error
            }
            SettingsError::File(_) | SettingsError::Mistakes(_) => {
                clap::Error::raw(ErrorKind::InvalidValue, error)
            }
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting. What must be given is known only with the file, so no flag is required.
fn flag(setting: &Setting) -> Arg {
    let arg = Arg::new(setting.key).long(setting.flag).help(setting.help);
    let arg = match setting.short_flag {
        Some(short) => arg.short(short),
        None => arg,
    };
    let arg = match setting.alias {
        Some(alias) => arg.alias(alias),
        None => arg,
    };
    let arg = match setting.heading {
        Some(heading) => arg.help_heading(heading),
        None => arg,
    };
    let arg = match setting.variable {
        Some(variable) => arg.env(variable),
        None => arg,
    };
    if setting.kind == Kind::Switch {
        return arg.action(ArgAction::SetTrue);
    }
    let is_list = setting.kind == Kind::List;
    let arg = arg.action(if is_list { ArgAction::Append } else { ArgAction::Set });
    let arg = match setting.value_name {
        "" => arg,
        name => arg.value_name(name),
    };
    let arg = match setting.default {
        Some(text) => arg.default_value(text),
        None => arg,
    };
    let arg = match setting.bare {
        Some(text) => arg.num_args(0..=1).require_equals(true).default_missing_value(text),
        None => arg,
    };
    arg.value_parser(parser(*setting))
}

/// Checks values; they stay texts.
fn parser(setting: Setting) -> ValueParser {
    if setting.words.is_empty() {
        return ValueParser::new(move |text: &str| setting.check(text).map(|()| text.to_owned()));
    }
    let words = setting.words.iter().map(|(word, help)| match *help {
        "" => PossibleValue::new(*word),
        help => PossibleValue::new(*word).help(help),
    });
    PossibleValuesParser::new(words).into()
}

fn file_options() -> [Arg; 3] {
    let option = |id: &'static str, long: &'static str, help: &'static str| {
        Arg::new(id).long(long).help(help).help_heading("Settings file")
    };
    let config = "Take settings from a YAML file: the options below as keys, with `_` for `-`";
    let print_config =
        "Print the settings in effect as YAML, and where each comes from; start nothing";
    let print_schema = "Print a JSON Schema of the settings file, for editors; start nothing";
    [
        option(CONFIG, "config", config).value_name("FILE").value_parser(value_parser!(PathBuf)),
        option(PRINT_CONFIG, "print-config", print_config).action(ArgAction::SetTrue),
        option(PRINT_SCHEMA, "print-schema", print_schema).action(ArgAction::SetTrue),
    ]
}

/// Names what must be given. In two lines where one is too long for narrow terminals: clap does not
/// break a usage.
fn usage<P: Part>(settings: &[Setting]) -> Option<String> {
    let needed: Vec<String> =
        settings.iter().filter(|one| one.must_be_given()).map(flag_and_value).collect();
    let last = needed.last()?;
    let start = format!("tollway {} [OPTIONS]", P::NAME);
    let line = format!("{start} {}", needed.join(" "));
    if line.len() <= USAGE_COLUMNS {
        return Some(line);
    }
    let (first, rest) = match needed.as_slice() {
        [first, rest @ ..] if !rest.is_empty() => (format!(" {first}"), rest.join(" ")),
        _ => (String::new(), last.clone()),
    };
    Some(format!("{start}{first}\n       {rest}"))
}

fn flag_and_value(setting: &Setting) -> String {
    format!("--{} <{}>", setting.flag, setting.value_name)
}

/// What clap reports of flags that are missing.
fn missing_flags<P: Part>(missing: &[Setting]) -> clap::Error {
    let mut command = PartArgs::<P>::augment_args(command(P::NAME));
    let flags = missing.iter().map(flag_and_value).collect();
    let usage: StyledStr = command.render_usage();
    let mut error = clap::Error::new(ErrorKind::MissingRequiredArgument).with_cmd(&command);
    error.insert(ContextKind::InvalidArg, ContextValue::Strings(flags));
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    error
}

#[cfg(test)]
mod tests;
