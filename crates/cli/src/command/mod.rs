//! One module a command: its options, and what it does.

pub(crate) mod control;
pub(crate) mod demo;
pub(crate) mod echo;
pub(crate) mod gateway;
pub(crate) mod get;
pub(crate) mod join;
pub(crate) mod load;
pub(crate) mod mesh;
pub(crate) mod sidecar;
pub(crate) mod token;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Command;

/// Carries out a command; the code is 0 unless the command says otherwise.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Demo(args) => return demo::run(&args),
        Command::Control(args) => control::run(args)?,
        Command::Sidecar(args) => sidecar::run(args)?,
        Command::Gateway(args) => gateway::run(args)?,
        Command::Token(args) => token::run(args)?,
        Command::Join(args) => join::run(args)?,
        Command::Get(args) => get::run(&args)?,
        Command::Load(args) => load::run(&args)?,
        Command::Echo(args) => echo::run(args)?,
        Command::Lab { command } => command.run()?,
    }
    Ok(ExitCode::SUCCESS)
}
