//! The `tollway` binary: parse, call, print.

#![forbid(unsafe_code)]

mod args;
mod command;
mod dapr;
mod failure;
mod runtime;
mod settings;

use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::args::Arguments;
use crate::failure::{Misuse, Report};
use crate::settings::{Asked, SettingsError};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::on_panic));
    // Exactly one provider of cryptography is built in; a second call would find it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let argv: Vec<_> = std::env::args_os().collect();
    if let Some(words) = dapr::asked(&argv) {
        return told(dapr::run(words), false);
    }
    let invocation = match settings::read(argv) {
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
    let as_json = invocation.arguments.command.prints_json();
    told(command::run(*invocation), as_json)
}

/// Tells how a command failed; the code to end with.
fn told(ended: anyhow::Result<ExitCode>, as_json: bool) -> ExitCode {
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
