//! `tollway local-control`: the local control plane's process, which `tollway run` starts.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_telemetry::{LogFormat, init_log};

use crate::async_runtime::{block_on, shutdown};
use tollway_launch::local_control::{LINGER_MS, serve};

#[derive(Args)]
pub(crate) struct LocalControlArgs {
    /// Its directory, which must be its user's alone.
    directory: PathBuf,
    /// How long it stays after its last workload.
    #[arg(long, value_name = "MS", default_value_t = LINGER_MS)]
    linger_ms: u64,
}

pub(crate) fn run(args: &LocalControlArgs) -> Result<()> {
    init_log(LogFormat::Text);
    let linger = Duration::from_millis(args.linger_ms);
    block_on(async { Ok(serve(&args.directory, linger, shutdown()?).await?) })?
}
