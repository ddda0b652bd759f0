//! `tollway run`: an app and its sidecar, started and stopped in order.
//!
//! First the sidecar, then the app, which finds the sidecar's ports in its environment; at the
//! end the app goes first and the sidecar finishes what is under way. The sidecar is a part of
//! this process: nothing that ends this process leaves it behind. For the app the kernel and a
//! guard (`guard`) see to that.

mod app;
mod environment;
pub(crate) mod guard;
mod plan;
mod several;
mod signals;
mod supervise;
mod terminal;
mod voice;
mod watch;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use tollway_model::{AppId, Instance, Label};
use tollway_proxy::{Limits, LiveOptions, Timeouts, live};
use tollway_runtime::Sidecar;
use tollway_telemetry::init_terminal_log;

use self::app::App;
pub(crate) use self::app::CannotStart;
pub(crate) use self::plan::AppPortTaken;
use self::plan::Plan;
use self::signals::Signals;
use self::supervise::{Supervision, exit_code};
use self::voice::Voice;
use super::api_tokens::ApiTokenArgs;
use super::app::AppArgs;
use super::telemetry::TelemetryArgs;
use crate::access::AccessArgs;
use crate::args::Command;
use crate::command::resources::ResourcesArgs;
use crate::failure::{Misuse, Report, failure_of};
use crate::local::LINGER_MS;
use crate::runtime::block_on;
use crate::settings::{self, ConfigArgs, Given};
use tollway_config::AppScheme;
use tollway_dapr::Configuration;

/// A control plane that has not answered after this is told.
const NO_ANSWER_NOTE_AFTER: Duration = Duration::from_secs(2);
/// What is told on the terminal unless `--quiet`: also that settings have changed.
const LOGGED: &str = "warn,tollway::settings=info";

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Name of the app, which is needed without --run-file.
    #[arg(long, value_name = "ID")]
    app_id: Option<AppId>,
    /// Run all apps of a run file of Dapr, each with a sidecar, in place of one app: FILE, the
    /// dapr.yaml of a folder, or - for standard input. Of the options below --quiet and --control
    /// go with it; the rest stands in the file.
    #[arg(short = 'f', long, value_name = "FILE")]
    run_file: Option<PathBuf>,
    /// Namespace of the app.
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: Label,
    /// Port on which the app takes calls; 0 finds a free one and tells the app in APP_PORT.
    /// Without it the app only makes calls.
    #[arg(long, value_name = "PORT")]
    app_port: Option<u16>,
    /// Address of the app.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    app_address: IpAddr,
    /// What the app speaks: http, https, h2c, grpc, grpcs or tcp.
    #[arg(long, value_name = "PROTOCOL", default_value = "http")]
    app_protocol: AppScheme,
    #[command(flatten)]
    app: AppArgs,
    /// HTTP API; port 0 takes a free one, as for the other doors.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    http_listen: SocketAddr,
    /// gRPC API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    outbound_listen: SocketAddr,
    /// Mesh door: other sidecars connect here.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    inbound_listen: SocketAddr,
    /// Where others of the network reach the mesh door, if not where it listens.
    #[arg(long, value_name = "IP:PORT")]
    advertise: Option<SocketAddr>,
    /// Metrics and health.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    admin_listen: SocketAddr,
    /// A loopback port that stands for a TCP service, such as `5432=db.shop.east`.
    #[arg(long = "upstream", value_name = "PORT=SERVICE")]
    upstreams: Vec<String>,
    #[command(flatten)]
    api_tokens: ApiTokenArgs,
    #[command(flatten)]
    resources: ResourcesArgs,
    #[command(flatten)]
    telemetry: Box<TelemetryArgs>,
    /// Tells this instance from others of the service [default: made up].
    #[arg(long)]
    instance: Option<Instance>,
    /// Time for requests under way when the app has ended, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    drain_timeout_ms: u64,
    /// Say nothing but errors and warnings.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// How long a local control plane that is started stays after its last app.
    #[arg(long, value_name = "MS", hide = true, default_value_t = LINGER_MS)]
    linger_ms: u64,
    /// The app and its arguments; needed without --run-file.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Settings of its own that a running app's sidecar takes over.
pub(crate) const LIVE: &[&str] = &["drain_timeout_ms", "upstreams"];

impl RunArgs {
    /// What a running sidecar takes over, beside what Dapr's files said at its start.
    fn live_options(self, found: &Configuration) -> Result<LiveOptions> {
        Ok(LiveOptions {
            limits: Limits::default(),
            timeouts: self.timeouts(),
            telemetry: found.telemetry(self.telemetry.options()?),
            upstreams: self.upstreams,
        })
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts { drain: Duration::from_millis(self.drain_timeout_ms), ..Timeouts::default() }
    }
}

pub(crate) fn run(args: RunArgs, given: Given) -> Result<ExitCode> {
    init_terminal_log(if args.quiet { "warn" } else { LOGGED });
    if let Some(file) = &args.run_file {
        return several::run(file, &args, &given);
    }
    if args.app_id.is_none() || args.command.is_empty() {
        let what =
            "name the app with --app-id and its command behind --, or a file with --run-file";
        return Err(Misuse(what.to_owned()).into());
    }
    terminal::stay_unstopped()?;
    block_on(start(args, given))?
}

async fn start(args: RunArgs, given: Given) -> Result<ExitCode> {
    let voice = Voice::new(args.quiet);
    let mut signals = Signals::listen()?;
    let command = args.command.clone();
    let linger = Duration::from_millis(args.linger_ms);
    let (reloads, config) = settings::watch(given);
    let (handle, live) = live(config);
    let starting = async {
        let plan = Plan::make(args, live, voice).await?;
        let sidecar = Box::pin(start_sidecar(&plan, voice)).await?;
        Ok::<_, anyhow::Error>((plan, sidecar))
    };
    let (plan, sidecar) = tokio::select! {
        started = starting => started?,
        signal = signals.next_request_to_end() => return Ok(exit_code(128 + signal.as_raw())),
    };
    voice.sidecar_ready(&plan, &sidecar);
    let guard = guard::Guard::start()?;
    let app = match App::start(&command, environment::of_app(&plan, &sidecar), guard) {
        Ok(app) => app,
        Err(cannot_start) => {
            let code = cannot_start.exit_code();
            Report::of(&cannot_start.into()).print(false);
            return Ok(exit_code(code));
        }
    };
    let plan = Arc::new(plan);
    let reloading = reloads.run_unsignalled(async |command| {
        let Command::Run(new) = command else { return Ok(()) };
        Ok(handle.apply(new.live_options(&plan.found)?).await?)
    });
    let supervision = Supervision { plan: Arc::clone(&plan), app, signals, voice, linger };
    // Changes end with the app; a failure of following them does not end it.
    tokio::select! {
        ended = supervision.run(sidecar) => ended,
        never = reloading => match never {},
    }
}

/// Tries for some time where the control plane does not answer, and says so.
async fn start_sidecar(plan: &Plan, voice: Voice) -> Result<Sidecar> {
    let starting = Sidecar::start(plan.sidecar.clone(), plan.stores.clone(), None);
    tokio::pin!(starting);
    if let Ok(started) = tokio::time::timeout(NO_ANSWER_NOTE_AFTER, &mut starting).await {
        return started.map_err(failure_of);
    }
    let mesh = &plan.sidecar.common.mesh;
    let seconds = mesh.start_timeout.as_secs();
    voice.note(&format!("no answer yet from {}; trying for {seconds} s", mesh.control));
    starting.await.map_err(failure_of)
}
