//! The `tollway` binary: parse, call, print.

#![forbid(unsafe_code)]

mod args;
mod async_runtime;
mod command;
mod dapr_run;
mod daprd;
mod failure;
mod part;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::args::Arguments;
use crate::failure::{Misuse, Report};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::on_panic));
    // Exactly one provider of cryptography is built in; a second call would find it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // Each connection is a descriptor, and the usual limit is for programs with a few files.
    tollway_net::raise_descriptor_limit();
    let argv: Vec<_> = std::env::args_os().collect();
    if let Some(words) = daprd::asked(&argv) {
        return report(daprd::run(words), |report| report.in_daprds_words().print(false));
    }
    if let Some(words) = dapr_run::asked(&argv) {
        return report(dapr_run::run(words), |report| report.print(false));
    }
    let Arguments { command } = match Arguments::try_parse_from(argv) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let as_json = command.prints_json();
    report(args::run(command), |report| report.print(as_json))
}

/// Prints how a command failed, by `print` if it is no misuse; returns the exit code.
fn report(ended: anyhow::Result<ExitCode>, print: impl FnOnce(Report)) -> ExitCode {
    match ended {
        Ok(code) => code,
        Err(error) => {
            if let Some(Misuse(what)) = error.downcast_ref() {
                Arguments::command().error(ErrorKind::ArgumentConflict, what).exit();
            }
            match error.downcast::<clap::Error>() {
                Ok(error) => error.exit(),
                Err(error) => {
                    print(Report::of(&error));
                    ExitCode::FAILURE
                }
            }
        }
    }
}
