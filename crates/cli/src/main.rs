//! The `tollway` binary: parse, call, print.

#![forbid(unsafe_code)]

mod args;
mod async_runtime;
mod command;
mod daprd;
mod failure;
mod settings;

use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::args::Arguments;
use crate::failure::{Misuse, Report};
use crate::settings::{Asked, Invocation, SettingsError};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::on_panic));
    // Exactly one provider of cryptography is built in; a second call would find it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let argv: Vec<_> = std::env::args_os().collect();
    if let Some(words) = daprd::asked(&argv) {
        return report(daprd::run(words), false);
    }
    let invocation = match settings::read::<Arguments>(argv, args::live_settings) {
        Ok(Asked::CarryOut(invocation)) => invocation,
        Ok(Asked::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(SettingsError::Usage(error)) => error.exit(),
        Err(error) => {
            Report::of(&error.into()).print(false);
            return ExitCode::FAILURE;
        }
    };
    let Invocation { arguments, given } = *invocation;
    let as_json = arguments.command.prints_json();
    report(args::run(arguments.command, given), as_json)
}

/// Prints how a command failed; returns the exit code.
fn report(ended: anyhow::Result<ExitCode>, as_json: bool) -> ExitCode {
    match ended {
        Ok(code) => code,
        Err(error) => match error.downcast_ref() {
            Some(Misuse(what)) => {
                Arguments::command().error(ErrorKind::ArgumentConflict, what).exit()
            }
            None => {
                Report::of(&error).print(as_json);
                ExitCode::FAILURE
            }
        },
    }
}
