//! `tollway run`: the options of an app and its sidecar, or of a run file. `tollway_launch` starts
//! and supervises them.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_config::AppScheme;
use tollway_dapr::Configuration;
use tollway_launch::local_control::LINGER_MS;
use tollway_launch::run_file::run_apps;
use tollway_launch::{Console, LaunchError, Listen, RunOptions, run_app};
use tollway_model::{AppId, Instance, Label};
use tollway_proxy::{Limits, Live, LiveOptions, PlaneOptions, Timeouts, live};
use tollway_telemetry::init_terminal_log;

use super::api_tokens::ApiTokenArgs;
use super::app::AppArgs;
use super::telemetry::TelemetryArgs;
use crate::async_runtime::block_on;
use crate::command::access::AccessArgs;
use crate::command::resources::ResourcesArgs;
use crate::failure::{Misuse, Report, error_text, failure_of};
use crate::settings::{self, ConfigArgs, Given, Origin};

/// Settings that concern all apps of a run file.
const FOR_ALL: [&str; 2] = ["quiet", "control"];
/// Log filter of the terminal without `--quiet`: also shows that settings have changed.
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
    /// Port on which the app takes calls; 0 finds a free one and passes it to the app in APP_PORT.
    /// Without it the app only makes calls.
    #[arg(long, value_name = "PORT")]
    app_port: Option<u16>,
    /// Address of the app.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    app_address: IpAddr,
    /// Protocol of the app: http, https, h2c, grpc, grpcs or tcp.
    #[arg(long, value_name = "PROTOCOL", default_value = "http")]
    app_protocol: AppScheme,
    #[command(flatten)]
    app: AppArgs,
    /// HTTP API; port 0 takes a free one, as for the other listeners.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    http_listen: SocketAddr,
    /// gRPC API.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    grpc_listen: SocketAddr,
    /// Outbound proxy: absolute targets, CONNECT, hosts that end in `.mesh`.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    outbound_listen: SocketAddr,
    /// Inbound listener: other sidecars connect here.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    inbound_listen: SocketAddr,
    /// Address at which the network reaches the inbound listener, if not the one it listens on.
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
    /// Name of this instance of the service [default: random].
    #[arg(long)]
    instance: Option<Instance>,
    /// Time for requests under way when the app has ended, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    drain_timeout_ms: u64,
    /// Print errors and warnings only.
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
    /// The settings that change while the sidecar runs, with Dapr's files as they were at its start.
    fn live_options(self, found: &Configuration) -> Result<LiveOptions> {
        Ok(LiveOptions {
            limits: Limits::default(),
            timeouts: self.timeouts(),
            telemetry: found.telemetry(self.telemetry.options()?),
            upstreams: self.upstreams,
        })
    }

    /// The app and its sidecar, with the content of Dapr's files.
    fn options(self, live: Live) -> Result<RunOptions> {
        let app_id = self.app_id.clone().context("name the app with --app-id")?;
        let (configuration, stores) = self.resources.read(&app_id, &self.namespace)?;
        let timeouts = self.timeouts();
        let address = |port| SocketAddr::new(self.app_address, port);
        let app = self.app_port.map(|port| self.app.at(address(port), self.app_protocol));
        let (control, token_file) = self.access.into_parts();
        Ok(RunOptions {
            app_id,
            namespace: self.namespace,
            instance: self.instance,
            app,
            command: self.command,
            control,
            token_file,
            linger: Duration::from_millis(self.linger_ms),
            listen: Listen {
                http: self.http_listen,
                grpc: self.grpc_listen,
                outbound: self.outbound_listen,
                inbound: self.inbound_listen,
                advertise: self.advertise,
            },
            plane: PlaneOptions {
                admin_listen: Some(self.admin_listen),
                threads: 1,
                limits: Limits::default(),
                timeouts,
                ports_file: None,
                live,
            },
            upstreams: self.upstreams,
            tokens: self.api_tokens.tokens()?,
            telemetry: self.telemetry.options()?,
            configuration: Arc::new(configuration),
            stores,
        })
    }

    fn timeouts(&self) -> Timeouts {
        Timeouts { drain: Duration::from_millis(self.drain_timeout_ms), ..Timeouts::default() }
    }
}

pub(crate) fn run(args: RunArgs, given: Given) -> Result<ExitCode> {
    init_terminal_log(if args.quiet { "warn" } else { LOGGED });
    let console = Console::new(args.quiet, error_text);
    if let Some(file) = &args.run_file {
        refuse_options_of_one_app(&args, &given)?;
        let running = Box::pin(run_apps(file, args.access.control(), console));
        return ended(block_on(running)?);
    }
    if args.app_id.is_none() || args.command.is_empty() {
        let what =
            "name the app with --app-id and its command behind --, or a file with --run-file";
        return Err(Misuse(what.to_owned()).into());
    }
    block_on(run_one(args, given, console))?
}

async fn run_one(args: RunArgs, given: Given, console: Console) -> Result<ExitCode> {
    let (reloads, config) = settings::watch(given);
    let (handle, live) = live(config);
    let options = args.options(live)?;
    let configuration = Arc::clone(&options.configuration);
    let reloading = reloads.run_unsignalled(async |new: RunArgs| {
        Ok(handle.apply(new.live_options(&configuration)?).await?)
    });
    ended(Box::pin(run_app(options, console, reloading)).await)
}

/// The exit code of the apps; that of a shell for a program that does not start.
fn ended(result: Result<i32, LaunchError>) -> Result<ExitCode> {
    let code = match result {
        Ok(code) => code,
        Err(LaunchError::CannotStart(error)) => {
            let code = error.exit_code();
            Report::of(&error.into()).print(false);
            code
        }
        Err(LaunchError::Sidecar(error)) => return Err(failure_of(error)),
        Err(error) => return Err(error.into()),
    };
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Refuses options that the run file has for each app.
fn refuse_options_of_one_app(args: &RunArgs, given: &Given) -> Result<(), Misuse> {
    let settings = &given.settings;
    let is_given = |origin: &Origin| matches!(origin, Origin::Flag | Origin::File { .. });
    let mut others = settings
        .list
        .iter()
        .filter(|one| is_given(&one.origin) && !FOR_ALL.contains(&one.key.as_str()));
    if let Some(other) = others.next() {
        let option = other.key.replace('_', "-");
        return Err(Misuse(format!(
            "--{option} is for one app; with --run-file it stands in the file"
        )));
    }
    if !args.command.is_empty() {
        return Err(Misuse("the commands stand in the file that --run-file names".to_owned()));
    }
    Ok(())
}
