//! The options that sidecar and gateway share.

use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, FromArgMatches};
use tollway_launch::random_instance;
use tollway_model::Instance;
use tollway_proxy::mesh::{MeshConfig, Role, TokenSource};
use tollway_proxy::{CommonOptions, Live, LiveOptions, TelemetryOptions, Timeouts};

use super::plane::PlaneArgs;
use crate::async_runtime::{shutdown, shutdown_or_hangup};
use crate::settings::Reloads;

#[derive(Args)]
pub(crate) struct CommonArgs {
    /// The control plane.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15010")]
    control: String,
    /// File with the join token; without it the variable `TOLLWAY_TOKEN` is read.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Name of this instance of the service [default: random].
    #[arg(long, value_name = "NAME")]
    instance: Option<Instance>,
    #[command(flatten)]
    pub(crate) plane: PlaneArgs,
    /// Time without a sign of the peer after which a mesh connection with requests under way is
    /// closed, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20_000, help_heading = "Times and limits")]
    silence_timeout_ms: u64,
    /// Time for the control plane to give a first identity, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 30_000, help_heading = "Times and limits")]
    start_timeout_ms: u64,
}

impl CommonArgs {
    pub(crate) fn options(self, role: Role, live: Live) -> Result<CommonOptions> {
        let silence = self.silence_timeout();
        let token = self.token_file.map_or(TokenSource::Environment, TokenSource::File);
        let instance = match self.instance {
            Some(instance) => instance,
            None => random_instance()?,
        };
        let mut mesh = MeshConfig::new(self.control, token, role, instance);
        mesh.start_timeout = Duration::from_millis(self.start_timeout_ms);
        let mut plane = self.plane.options(live);
        plane.timeouts.silence = silence;
        Ok(CommonOptions { mesh, plane })
    }

    /// What a running data plane takes over.
    pub(crate) fn live_options(&self) -> LiveOptions {
        let (limits, timeouts) = self.plane.bounds();
        LiveOptions {
            limits,
            timeouts: Timeouts { silence: self.silence_timeout(), ..timeouts },
            telemetry: TelemetryOptions::default(),
            upstreams: Vec::new(),
        }
    }

    fn silence_timeout(&self) -> Duration {
        Duration::from_millis(self.silence_timeout_ms)
    }
}

/// Runs `part` until it ends, and puts changes of its settings file to work meanwhile.
pub(crate) async fn serve_live<E: Into<anyhow::Error>, A: FromArgMatches>(
    part: impl Future<Output = Result<(), E>>,
    reloads: Reloads,
    apply: impl AsyncFnMut(A) -> Result<()>,
) -> Result<()> {
    tokio::select! {
        ended = part => ended.map_err(Into::into),
        failed = reloads.run(apply) => failed,
    }
}

/// SIGHUP reads the settings file again; without one it ends the part.
pub(crate) fn end_of(reloads: &Reloads) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>> {
    Ok(if reloads.follow_a_file() {
        Box::pin(shutdown()?)
    } else {
        Box::pin(shutdown_or_hangup()?)
    })
}
