//! `tollway sidecar --dapr`, or this program under the name `daprd`: runs in place of daprd.
//!
//! `tollway_dapr` reads the flags and Dapr's files; `serve` runs the sidecar. Apps find each other
//! through this user's local control plane, unless the flags name another.

mod log_lines;
mod run_sidecar;
mod wait;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use tollway_dapr::{DaprdOptions, ParseError, Parsed, parse, usage};

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
    words_of("sidecar", words)
}

/// The words of `command`, if it is to take those of Dapr.
pub(crate) fn words_of(command: &str, words: &[OsString]) -> Option<Vec<OsString>> {
    let (first, options) = words.split_first()?;
    let at = options.iter().take_while(|word| *word != "--").position(|word| word == OPTION)?;
    (first == command).then(|| [&options[..at], &options[at + 1..]].concat())
}

/// Does what daprd would.
///
/// # Errors
/// Why the sidecar failed, and flags that ask for what is not served.
pub(crate) fn run(words: Vec<OsString>) -> Result<ExitCode> {
    let given = match parse(&texts(words)) {
        Ok(Parsed::Flags(given)) => given,
        Ok(Parsed::Help) => {
            eprint!("{}", usage());
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
    run_sidecar::run(DaprdOptions::of(&given, |name| std::env::var(name).ok())?)
}

/// No flag's value needs bytes that are no text; a path of such bytes is not found.
pub(crate) fn texts(words: Vec<OsString>) -> Vec<String> {
    words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The mistake, every flag, and the mistake again, where a terminal shows it.
fn refused(error: &ParseError) -> ExitCode {
    eprint!("{error}\n{}{error}\n", usage());
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
