//! `tollway lab`: experiments. One module a subcommand; the hidden ones serve the lab itself.

mod compare;
mod list;
mod report;
mod run;
mod scenario;
mod screen;
mod serve;
mod subject;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use tollway_lab::ChildCommand;

pub(crate) use scenario::built_in;
pub(crate) use screen::Screen;

#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Run a scenario: one that comes with the program, or a file.
    Run(run::RunArgs),
    /// Show scenarios and subjects.
    List(list::ListArgs),
    /// Hold one result record against another.
    Compare(compare::CompareArgs),
    /// Make a page, or text, of a result.
    Report(report::ReportArgs),
    /// Show a folder's results as pages: filter, overlay, follow them through time.
    Serve(serve::ServeArgs),
    #[command(flatten)]
    Child(ChildCommand),
}

pub(crate) fn run(command: &LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Run(args) => run::run(args),
        LabCommand::List(args) => list::run(args),
        LabCommand::Compare(args) => compare::run(args),
        LabCommand::Report(args) => {
            report::run(args)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Serve(args) => {
            serve::run(args)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Child(child) => {
            child.run()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl LabCommand {
    /// Whether its output is for a program to read.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::List(args) => args.json,
            Self::Compare(args) => args.json,
            Self::Run(_) | Self::Report(_) | Self::Serve(_) | Self::Child(_) => false,
        }
    }
}
