//! `tollway run --dapr`: takes the command line of `dapr run` in place of our own options.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use tollway_dapr::{DaprRunError, parse_dapr_run};
use tollway_launch::Console;
use tollway_launch::run_file::run_as_dapr;
use tollway_telemetry::init_terminal_log;

use crate::async_runtime::block_on;
use crate::command::run::ended;
use crate::daprd::{texts, words_of};
use crate::failure::{Misuse, error_text};

/// The words of `dapr run` in a command line, if it has some.
pub(crate) fn asked(argv: &[OsString]) -> Option<Vec<OsString>> {
    words_of("run", argv.get(1..)?)
}

/// Does what `dapr run` would.
///
/// # Errors
/// Words that it does not take, and why an app did not start.
pub(crate) fn run(words: Vec<OsString>) -> Result<ExitCode> {
    let run = match parse_dapr_run(&texts(words)) {
        Ok(run) => run,
        Err(help @ DaprRunError::Help) => {
            print!("{help}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => {
            let what = format!("{error}; `tollway run --dapr --help` lists the options");
            return Err(Misuse(what).into());
        }
    };
    init_terminal_log("warn");
    ended(block_on(Box::pin(run_as_dapr(run, Console::new(false, error_text))))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_makes_it_dapr_run() {
        let asked = |line: &str| {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            asked(&argv).map(|words| texts(words).join(" "))
        };
        assert_eq!(asked("tollway run --dapr -p 80 -- a"), Some("-p 80 -- a".to_owned()));
        assert_eq!(asked("tollway run -- app --dapr"), None);
        assert_eq!(asked("tollway sidecar --dapr"), None);
        assert_eq!(asked("tollway"), None);
    }
}
