//! How a run is told when it is over.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use tollway_load::summary;
use tollway_record::RunResult;

#[derive(Args)]
pub(super) struct OutputArgs {
    /// Writes the result as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints the result, or writes it to where the caller wants it.
    pub(super) fn tell(&self, result: &RunResult) -> Result<()> {
        match &self.json {
            Some(path) if path == Path::new("-") => println!("{}", result.to_json()),
            Some(path) => {
                std::fs::write(path, result.to_json())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                print!("{}", summary(result));
            }
            None => print!("{}", summary(result)),
        }
        Ok(())
    }
}
