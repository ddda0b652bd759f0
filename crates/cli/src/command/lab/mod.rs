//! `tollway lab`: experiments. One module a subcommand; the hidden ones serve the lab itself.

mod compare;
mod list;
mod progress_lines;
mod read_scenario;
mod read_subject;
mod run_scenario;
mod serve_pages;
mod write_report;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use tollway_lab::ChildCommand;

pub(crate) use progress_lines::Screen;
pub(crate) use read_scenario::built_in;

#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Run a scenario: a built-in one, or a file.
    Run(run_scenario::RunArgs),
    /// Show scenarios and subjects.
    List(list::ListArgs),
    /// Compare two result records.
    Compare(compare::CompareArgs),
    /// Write a result as a page, or as text.
    Report(write_report::ReportArgs),
    /// Serve a folder's results as pages: filter, overlay, follow them through time.
    Serve(serve_pages::ServeArgs),
    #[command(flatten)]
    Child(ChildCommand),
}

pub(crate) fn run(command: &LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Run(args) => run_scenario::run(args),
        LabCommand::List(args) => list::run(args),
        LabCommand::Compare(args) => compare::run(args),
        LabCommand::Report(args) => {
            write_report::run(args)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Serve(args) => {
            serve_pages::run(args)?;
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
