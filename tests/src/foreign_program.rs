//! Programs in other languages that tests start at a sidecar.

use std::ffi::OsStr;
use std::process::Command;

use tollway_testkit::{Process, Start};

use crate::mesh::Sidecar;

/// Gives a program the address of its sidecar, as `tollway run` does.
pub fn beside<'a>(sidecar: &Sidecar, program: &'a mut Command) -> &'a mut Command {
    program
        .env("DAPR_HTTP_PORT", sidecar.http().port().to_string())
        .env("DAPR_GRPC_PORT", sidecar.grpc().port().to_string())
}

/// The same program with more arguments.
pub fn with_arguments(program: &Command, arguments: &[&str]) -> Command {
    let mut other = Command::new(program.get_program());
    other.args(program.get_args()).args(arguments).envs(variables(program));
    other
}

pub fn started(program: &Command) -> Process {
    let start = Start::new(program.get_program()).args(program.get_args());
    variables(program).fold(start, |start, (name, value)| start.env(name, value)).start().unwrap()
}

/// What it prints; it has to succeed.
#[track_caller]
pub fn printed(program: &mut Command) -> String {
    let output = program.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?}: {}\n{reported}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn variables(program: &Command) -> impl Iterator<Item = (&OsStr, &OsStr)> {
    program.get_envs().filter_map(|(name, value)| Some((name, value?)))
}
