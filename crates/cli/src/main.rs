//! The `tollway` binary: parse, call, print.

#![forbid(unsafe_code)]

mod args;
mod command;
mod runtime;
#[allow(dead_code, reason = "the commands that read files come to it one by one")]
mod yaml;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;

fn main() -> ExitCode {
    // Exactly one provider of cryptography is built in; a second call would find it installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match command::run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tollway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
