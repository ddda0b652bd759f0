//! The commands that the pages show exist, and the API documentation has no broken link.

use std::process::Command;

use anyhow::{Result, bail};
use clap::CommandFactory;

use crate::deps::report;
use crate::process::{self, is_executable};
use crate::sources;
use crate::workspace::Workspace;

/// Builds the documentation of every crate, private items too; a warning is an error.
pub(crate) fn build(_workspace: &Workspace) -> Result<()> {
    let options = ["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"];
    process::run(process::cargo().args(options).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Checks each `cargo xtask …` and `tollway …` in the code blocks of the pages.
///
/// The shipped program lists its own commands, so it must have been built.
pub(crate) fn commands(workspace: &Workspace) -> Result<()> {
    let mut breaches = Vec::new();
    let program = workspace.program();
    if !is_executable(&program) {
        bail!("the documented commands were not checked: `cargo build -p tollway` comes first");
    }
    for (path, text) in sources::text_files(&workspace.root)? {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = path.strip_prefix(&workspace.root).unwrap_or(&path).display();
        for command in commands_in(&text) {
            let exists = match &command {
                Shown::Xtask(name) => crate::Arguments::command().find_subcommand(name).is_some(),
                Shown::Tollway(name) => knows(&program, name),
            };
            if !exists {
                breaches.push(format!("{page} shows {command:?}, which does not exist"));
            }
        }
    }
    report("commands", &breaches)
}

fn knows(program: &std::path::Path, name: &str) -> bool {
    process::output(Command::new(program).args([name, "--help"])).is_ok()
}

/// A command that a page shows, by its first word after the program.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Xtask(String),
    Tollway(String),
}

fn commands_in(page: &str) -> Vec<Shown> {
    let mut in_block = false;
    let mut commands = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            commands.extend(command_of(line.trim().trim_start_matches("$ ")));
        }
    }
    commands
}

fn command_of(line: &str) -> Option<Shown> {
    let first_word = |rest: &str| {
        let word = rest.split_whitespace().next()?;
        let is_command = word.starts_with(|c: char| c.is_ascii_lowercase());
        is_command.then(|| word.to_owned())
    };
    if let Some(rest) = line.strip_prefix("cargo xtask ") {
        return first_word(rest).map(Shown::Xtask);
    }
    let rest = line.strip_prefix("tollway ").or_else(|| {
        let (options, rest) = line.strip_prefix("cargo run ")?.split_once("-- ")?;
        (!options.contains("-p ") && !options.contains("--package")).then_some(rest)
    })?;
    first_word(rest).map(Shown::Tollway)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_code_blocks_only() {
        let page = "cargo xtask prose\n```sh\n$ cargo xtask test --fast\ncargo run --release -- demo\ntollway load http URL\n```\n";
        assert_eq!(
            commands_in(page),
            [
                Shown::Xtask("test".into()),
                Shown::Tollway("demo".into()),
                Shown::Tollway("load".into())
            ]
        );
    }

    #[test]
    fn options_and_other_programs_are_no_commands() {
        for line in ["tollway --version", "cargo run -p xtask -- test", "cargo build", "curl x"] {
            assert_eq!(command_of(line), None, "{line}");
        }
    }
}
