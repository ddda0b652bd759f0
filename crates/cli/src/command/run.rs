//! `tollway run`: the options of an app and its sidecar, or of a run file. `tollway_launch` starts
//! and supervises them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_dapr::Configuration;
use tollway_launch::local_control::LINGER_MS;
use tollway_launch::run_file::run_apps;
use tollway_launch::{
    Console, InterceptOptions, Interceptor, LaunchError, Listen, RunOptions, run_app,
};
use tollway_proxy::mesh::TokenSource;
use tollway_proxy::{Limits, Live, LiveOptions, PlaneOptions, Timeouts, live};
use tollway_settings::reload::watch;
use tollway_settings::{Flags, Given, Intercept, InterceptMode, Listing, Origin, Run};
use tollway_telemetry::init_terminal_log;

use super::api_tokens::tokens;
use super::mesh::with_text;
use super::telemetry::telemetry_options;
use crate::async_runtime::block_on;
use crate::command::resources::read_dapr_files;
use crate::failure::{Misuse, Report, error_text, failure_of};
use crate::part::PartArgs;

/// Settings that concern all apps of a run file.
const FOR_ALL: [&str; 2] = ["quiet", "control"];
/// Log filter of the terminal without `--quiet`: also shows that settings have changed.
const LOGGED: &str = "warn,tollway_settings=info";

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) part: PartArgs<Run>,
    #[command(flatten)]
    command: RunCommand,
}

/// What is to run.
#[derive(Args)]
struct RunCommand {
    /// Run all apps of a run file of Dapr, each with a sidecar, in place of one app: FILE, the
    /// dapr.yaml of a folder, or - for standard input. Of the other options --quiet and --control
    /// go with it; the rest stands in the file.
    #[arg(short = 'f', long, value_name = "FILE")]
    run_file: Option<PathBuf>,
    /// How long a local control plane that is started stays after its last app.
    #[arg(long, value_name = "MS", hide = true, default_value_t = LINGER_MS)]
    linger_ms: u64,
    /// The app and its arguments; needed without --run-file.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let RunArgs { part, command } = args;
    part.start(|given, flags| run_command(command, given, flags))
}

fn run_command(command: RunCommand, given: Given<Run>, flags: Flags) -> Result<ExitCode> {
    let settings = &given.settings;
    init_terminal_log(if settings.quiet { "warn" } else { LOGGED });
    let console = Console::new(settings.quiet, error_text);
    if let Some(file) = &command.run_file {
        refuse_options_of_one_app(&command, &given.listing)?;
        let running = Box::pin(run_apps(file, settings.access.control.as_ref(), console));
        return ended(block_on(running)?);
    }
    if settings.app_id.is_none() || command.command.is_empty() {
        let what =
            "name the app with --app-id and its command behind --, or a file with --run-file";
        return Err(Misuse(what.to_owned()).into());
    }
    block_on(run_one(command, given, flags, console))?
}

async fn run_one(
    command: RunCommand,
    given: Given<Run>,
    flags: Flags,
    console: Console,
) -> Result<ExitCode> {
    let settings = given.settings.clone();
    let (reloads, config) = watch(given, flags);
    let (handle, live) = live(config);
    let options = options(settings, command, live)?;
    let configuration = Arc::clone(&options.configuration);
    let apply = async |new: Run| Ok(handle.apply(live_options(new, &configuration)?).await?);
    // SIGHUP is the app's.
    let reloading = reloads.run(None, with_text(apply));
    ended(Box::pin(run_app(options, console, reloading)).await)
}

/// The settings that change while the sidecar runs, with Dapr's files as they were at its start.
fn live_options(settings: Run, found: &Configuration) -> Result<LiveOptions> {
    Ok(LiveOptions {
        limits: Limits::default(),
        timeouts: timeouts(&settings),
        telemetry: found.telemetry(telemetry_options(&settings.telemetry)?),
        upstreams: settings.upstreams.iter().map(ToString::to_string).collect(),
    })
}

/// The app and its sidecar, with what Dapr's files have.
fn options(settings: Run, command: RunCommand, live: Live) -> Result<RunOptions> {
    let app_id = settings.app_id.clone().context("name the app with --app-id")?;
    let (configuration, stores) =
        read_dapr_files(&settings.dapr_files, &app_id, &settings.namespace)?;
    let timeouts = timeouts(&settings);
    Ok(RunOptions {
        app_id,
        namespace: settings.namespace,
        instance: settings.instance,
        locality: settings.location.locality(),
        app: settings.app_port.map(|port| settings.app.at(port)),
        command: command.command,
        control: settings.access.control,
        token: TokenSource::of(settings.access.token_file, settings.access.allow_open_files),
        state_dir: settings.state_dir,
        linger: Duration::from_millis(command.linger_ms),
        listen: Listen {
            http: settings.http_listen,
            grpc: settings.grpc_listen,
            outbound: settings.outbound_listen,
            inbound: settings.inbound_listen,
            advertise: settings.advertise,
        },
        plane: PlaneOptions {
            admin_listen: Some(settings.admin_listen),
            threads: 1,
            limits: Limits::default(),
            timeouts,
            ports_file: None,
            live,
        },
        upstreams: settings.upstreams.iter().map(ToString::to_string).collect(),
        intercept: intercept_options(settings.intercept),
        tokens: tokens(&settings.api_tokens, settings.access.allow_open_files)?,
        web_pages: settings.web_access.pages(),
        telemetry: telemetry_options(&settings.telemetry)?,
        configuration: Arc::new(configuration),
        stores,
    })
}

/// How connections of the app are intercepted, if they are.
fn intercept_options(settings: Intercept) -> Option<InterceptOptions> {
    let by = match settings.intercept? {
        InterceptMode::Auto => None,
        InterceptMode::Bpf => Some(Interceptor::Bpf),
        InterceptMode::Nftables => Some(Interceptor::Nftables),
    };
    Some(InterceptOptions {
        by,
        spared: settings.intercept_excludes,
        mesh_only: settings.intercept_mesh_only,
        aliases: settings.intercept_hosts,
        resolvers: settings.intercept_resolvers,
        closes_port: settings.intercept_inbound,
    })
}

fn timeouts(settings: &Run) -> Timeouts {
    Timeouts { drain: settings.drain_timeout_ms.0, ..Timeouts::default() }
}

/// The exit code of apps; that of a shell for a program that does not start.
pub(crate) fn ended(result: Result<i32, LaunchError>) -> Result<ExitCode> {
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
fn refuse_options_of_one_app(command: &RunCommand, listing: &Listing) -> Result<(), Misuse> {
    let is_given = |origin: &Origin| matches!(origin, Origin::Flag | Origin::File { .. });
    let mut others = listing
        .list
        .iter()
        .filter(|one| is_given(&one.origin) && !FOR_ALL.contains(&one.setting.key));
    if let Some(other) = others.next() {
        let option = other.setting.flag;
        return Err(Misuse(format!(
            "--{option} is for one app; with --run-file it stands in the file"
        )));
    }
    if !command.command.is_empty() {
        return Err(Misuse("the commands stand in the file that --run-file names".to_owned()));
    }
    Ok(())
}
