//! The `tollway` binary: parse, call, print.

#![forbid(unsafe_code)]

mod access;
mod args;
mod command;
mod local;
mod runtime;
mod settings;
#[allow(dead_code, reason = "the commands that read files come to it one by one")]
mod yaml;

use std::process::ExitCode;

use crate::settings::SettingsError;

fn main() -> ExitCode {
    // Exactly one provider of cryptography is built in; a second call would find it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let invocation = match settings::read(std::env::args_os().collect()) {
        Ok(invocation) => invocation,
        Err(SettingsError::Usage(error)) => error.exit(),
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match command::run(invocation) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tollway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
