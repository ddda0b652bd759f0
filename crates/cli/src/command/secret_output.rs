//! Where a command puts the secret that it makes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tollway_model::ErrorCode;
use tollway_net::secret_file;

use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct SecretOutput {
    /// Write it to this file, which only its owner can read, in place of printing it.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl SecretOutput {
    /// # Errors
    /// That it cannot be printed, or the file not written.
    pub(crate) fn write(&self, secret: &[u8]) -> Result<()> {
        let Some(path) = &self.output else {
            let mut out = std::io::stdout().lock();
            return out.write_all(secret).and_then(|()| out.flush()).context("cannot print it");
        };
        secret_file::write(path, secret).map_err(|error| {
            let code = ErrorCode::of_file(&error, ErrorCode::FileUnusable);
            Failure::new(code, format!("cannot write {}: {error}", path.display())).into()
        })
    }
}
