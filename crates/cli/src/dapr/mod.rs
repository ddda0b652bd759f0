//! daprd's place taken: `tollway sidecar --dapr`, or this program under the name `daprd`.
//!
//! The words are read as daprd reads them (`parse`, `flags`), decided on (`options`) and carried out
//! by the same sidecar as any other (`serve`). Dapr's files (`files`) are read here for all of them.
//! Apps find each other through this user's local control plane, unless another is named.

mod access;
mod configuration;
mod endpoint;
mod files;
mod flags;
mod options;
mod parse;
mod resiliency;
mod serve;
mod values;
mod wait;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tollway_model::ErrorCode;

pub(crate) use self::configuration::Configuration;
pub(crate) use self::files::Files;
use self::options::Wanted;
use self::parse::{ParseError, Parsed};
use crate::failure::Failure;

/// The name under which this program is daprd.
const NAME: &str = "daprd";
/// What makes `tollway sidecar` be it.
const OPTION: &str = "--dapr";
/// How daprd ends for words that it does not take.
const MISUSE: u8 = 2;

/// daprd's own words in a command line, if it is one of daprd.
pub(crate) fn asked(argv: &[OsString]) -> Option<Vec<OsString>> {
    let (program, words) = argv.split_first()?;
    if Path::new(program).file_name().is_some_and(|name| name == NAME) {
        return Some(words.to_vec());
    }
    let (command, options) = words.split_first()?;
    let at = options.iter().take_while(|word| *word != "--").position(|word| word == OPTION)?;
    (command == "sidecar").then(|| [&options[..at], &options[at + 1..]].concat())
}

/// Does what daprd would.
///
/// # Errors
/// What hinders a sidecar; [`Failure`] for flags that ask for what is not done here.
pub(crate) fn run(words: Vec<OsString>) -> Result<ExitCode> {
    let given = match parse::parse(&texts(words)) {
        Ok(Parsed::Flags(given)) => given,
        Ok(Parsed::Help) => {
            eprint!("{}", flags::usage());
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Ok(refused(&error)),
    };
    if given.is_on("version") {
        println!("{}", env!("CARGO_PKG_VERSION"));
        return Ok(ExitCode::SUCCESS);
    }
    if given.is_on("build-info") {
        println!("Version: {}\nProgram: tollway", env!("CARGO_PKG_VERSION"));
        return Ok(ExitCode::SUCCESS);
    }
    if given.is_on("wait") {
        return wait::until_ready(given.text("dapr-http-port"));
    }
    let wanted = Wanted::of(&given, |name| std::env::var(name).ok())
        .map_err(|what| Failure::new(ErrorCode::BadConfiguration, what))?;
    serve::run(wanted)
}

/// Looks at flags of daprd as its start would, with nothing of the environment.
///
/// # Errors
/// What hinders a start, as `WHAT; WHAT TO DO`.
pub(crate) fn check_flags(words: &[String]) -> Result<(), String> {
    match parse::parse(words).map_err(|error| error.to_string())? {
        Parsed::Flags(given) => Wanted::of(&given, |_| None).map(drop),
        Parsed::Help => Ok(()),
    }
}

/// No flag's value needs bytes that are no text; a path of such bytes is not found.
fn texts(words: Vec<OsString>) -> Vec<String> {
    words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The mistake, every flag, and the mistake again, where a terminal shows it.
fn refused(error: &ParseError) -> ExitCode {
    eprint!("{error}\n{}{error}\n", flags::usage());
    ExitCode::from(MISUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_or_the_option_makes_it_daprd() {
        let asked = |line: &str| {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            asked(&argv).map(|words| texts(words).join(" "))
        };
        let words = Some("--app-id web".to_owned());
        assert_eq!(asked("daprd --app-id web"), words);
        assert_eq!(asked("/opt/dapr/bin/daprd --app-id web"), words);
        assert_eq!(asked("tollway sidecar --dapr --app-id web"), words);
        assert_eq!(asked("tollway sidecar --app-id web --dapr"), words);
        assert_eq!(asked("daprd"), Some(String::new()));
        for own in ["tollway", "tollway sidecar --app-id web", "tollway run --dapr -- app"] {
            assert_eq!(asked(own), None, "{own}");
        }
        assert_eq!(asked("tollway run --app-id a -- sidecar --dapr"), None);
    }
}
