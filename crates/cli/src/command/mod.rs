//! One module a command: its options, and what it does.

pub(crate) mod access;
pub(crate) mod api_tokens;
pub(crate) mod app;
pub(crate) mod apply;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod demo;
pub(crate) mod echo;
mod etcd;
pub(crate) mod fabric;
pub(crate) mod front;
pub(crate) mod gateway;
pub(crate) mod get;
pub(crate) mod join;
pub(crate) mod lab;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod local_control;
pub(crate) mod log;
pub(crate) mod mesh;
pub(crate) mod neighbours;
pub(crate) mod plane;
pub(crate) mod resources;
pub(crate) mod run;
pub(crate) mod sidecar;
pub(crate) mod store;
pub(crate) mod telemetry;
pub(crate) mod token;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::Command;
use crate::settings::Invocation;

/// Carries out a command; the code is 0 unless the command says otherwise.
pub(crate) fn run(invocation: Invocation) -> Result<ExitCode> {
    let Invocation { arguments, given } = invocation;
    match arguments.command {
        Command::Check(args) => return check::check(args),
        Command::Demo(args) => return demo::run(&args),
        Command::Run(args) => return run::run(args, given),
        Command::RunGuard => tollway_launch::run_guard(),
        Command::LocalControl(args) => local_control::run(&args)?,
        Command::Call(args) => return call::run(args),
        Command::Control(args) => control::run(args, given)?,
        Command::Sidecar(args) => sidecar::run(args, given)?,
        Command::Gateway(args) => gateway::run(args, given)?,
        Command::Front(args) => front::run(*args, given)?,
        Command::Fabric(args) => fabric::run(args)?,
        Command::Token(args) => token::run(args)?,
        Command::Store(args) => return store::run(args),
        Command::Join(args) => join::run(args)?,
        Command::Apply(args) => apply::apply(&args)?,
        Command::Get(args) => get::run(&args)?,
        Command::Delete(args) => apply::delete(&args)?,
        Command::Neighbours(args) => neighbours::run(&args)?,
        Command::Load(args) => return load::run(&args),
        Command::Echo(args) => echo::run(args)?,
        Command::Lab { command } => return lab::run(&command),
    }
    Ok(ExitCode::SUCCESS)
}

/// Settings of a part that can change while it runs.
pub(crate) fn live_settings(part: &str) -> Vec<&'static str> {
    match part {
        "sidecar" => [plane::LIVE, telemetry::LIVE, sidecar::LIVE].concat(),
        "gateway" => plane::LIVE.to_vec(),
        "front" => [plane::LIVE, telemetry::LIVE].concat(),
        "run" => [telemetry::LIVE, run::LIVE].concat(),
        "control" => control::LIVE.to_vec(),
        _ => Vec::new(),
    }
}
