//! The sidecar in place of daprd: starts it, follows its control plane, ends it in order.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollway_dapr::{Configuration, DaprdOptions, Files};
use tollway_launch::local_control::{ControlEvent, LINGER_MS, restart_when_absent};
use tollway_launch::{Access, WhenAbsent, local_access, random_instance, state_folder};
use tollway_model::Instance;
use tollway_proxy::mesh::{MeshConfig, Role, StateDirectory, TokenSource};
use tollway_proxy::{
    AppOptions, CommonOptions, Limits, Live, MeshProtocol, PlaneOptions, SidecarOptions,
    TelemetryOptions, Timeouts,
};
use tollway_runtime::{Ended, Sidecar};
use tollway_telemetry::{DaprMetrics, LogTarget, start_daprd_log};

use super::log_lines;
use crate::async_runtime::block_on;
use crate::command::api_tokens::tokens_of_environment;
use crate::command::mesh::token_source;
use crate::command::resources::read_files;
use crate::failure::{Report, failure_of};

/// Life of a token of the local control plane: it is needed again where the certificate ended
/// while the machine slept.
const TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The flag that names a control plane.
const CONTROL_OPTION: &str = "--control-plane-address";
/// The variable that names a file with the join token.
const TOKEN_FILE: &str = "TOLLWAY_TOKEN_FILE";
/// The variable that has that file read although others than its owner can use it.
const ALLOW_OPEN_FILES: &str = "TOLLWAY_ALLOW_OPEN_FILES";
/// The variables that name the file with the token of a pod, and the root of the network that it joins.
const POD_TOKEN_FILE: &str = "TOLLWAY_POD_TOKEN_FILE";
const ROOT_PIN: &str = "TOLLWAY_ROOT_PIN";
/// The variable with the name of this instance of the app; by default it is random.
const INSTANCE: &str = "TOLLWAY_INSTANCE";
/// How long a local control plane that is started here stays after its last app.
const LINGER: Duration = Duration::from_millis(LINGER_MS);

/// Time from a request to its answer, and for which a call may be silent. daprd has no limit; this one ends
/// what nothing waits for any more. A timeout of Resiliency files is the user's.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 3600);

/// The request of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Over,
    /// Calls under way were cut off.
    CutOff,
    /// The app has forced it: nothing is waited for.
    ByForce,
    /// Restart with the files' present content.
    Again,
}

/// Serves until a signal ends it.
pub(super) fn run(daprd: DaprdOptions) -> Result<ExitCode> {
    let (filter, format) = &daprd.log;
    start_daprd_log(*format, filter, daprd.app_id.as_str());
    let ended = block_on(async {
        let mut signals = Signals::listen()?;
        loop {
            log_lines::starts();
            match Box::pin(serve(&daprd, &mut signals)).await? {
                End::Again => tracing::info!("starting again"),
                End::Over => {
                    log_lines::ended();
                    return Ok(ExitCode::SUCCESS);
                }
                End::CutOff => {
                    log_lines::was_cut_off();
                    return Ok(ExitCode::FAILURE);
                }
                // Threads may still run, which an end in order would wait for.
                End::ByForce => std::process::exit(1),
            }
        }
    })?;
    ended.inspect_err(log_lines::failed)
}

async fn serve(daprd: &DaprdOptions, signals: &mut Signals) -> Result<End> {
    let since = Instant::now();
    let files = Files {
        app: &daprd.app_id,
        namespace: &daprd.namespace,
        takes_all_namespaces: daprd.takes_all_namespaces,
        config: &daprd.config,
        resources: &daprd.resources,
        in_daprds_place: true,
    };
    let (found, stores) = read_files(files)?;
    for note in &daprd.notes {
        tracing::warn!("{note}");
    }
    for note in &daprd.idle {
        tracing::info!("{note}");
    }
    if daprd.app.as_ref().is_some_and(|app| !app.asks_actors) {
        log_lines::asks_no_actors();
    }
    if daprd.app.is_none() && !daprd.as_daprd.has_placement {
        log_lines::hosts_no_actors();
    }
    let access = access(daprd).await?;
    let is_local = access.local.is_some();
    let mut options = options(daprd, access, app_of(daprd).await?, &found)?;
    if let Some(tracing) = &mut options.telemetry.tracing {
        tracing.collector.resource.clone_from(&daprd.trace_resource);
    }
    let starting = Sidecar::start(options, stores, Some(found.endpoints));
    let sidecar = tokio::select! {
        started = starting => started.map_err(failure_of)?,
        end = signals.next() => return Ok(end),
    };
    let (mesh, ready) = (sidecar.mesh(), sidecar.app_ready());
    let running = tokio::spawn({
        let ready = sidecar.ready();
        async move {
            ready.await;
            log_lines::runs(since);
        }
    });
    let keeping = async move {
        match is_local {
            true => restart_when_absent(mesh, LINGER, log_event).await,
            false => std::future::pending().await,
        }
    };
    let end = Cell::new(End::Over);
    let shutdown = async {
        end.set(signals.next().await);
        block(daprd.block, ready).await;
    };
    let ended = tokio::select! {
        ended = sidecar.serve(shutdown) => ended?,
        never = keeping => match never {},
    };
    running.abort();
    Ok(match ended {
        Ended::ByForce => End::ByForce,
        Ended::InOrder(drained) if drained.cut_off > 0 && end.get() == End::Over => End::CutOff,
        Ended::InOrder(_) => end.get(),
    })
}

/// Goes on as before for a time, or until the app takes no calls any more.
async fn block(time: Duration, mut app_ready: watch::Receiver<bool>) {
    if !time.is_zero() {
        log_lines::is_blocked(time);
        // The sender lives as long as the sidecar does.
        let waited = tokio::time::timeout(time, app_ready.wait_for(|ready| !ready)).await;
        log_lines::is_unblocked(waited.is_ok());
    }
}

fn log_event(event: ControlEvent) {
    match event {
        ControlEvent::Started(local) => {
            tracing::info!(address = %local.address(), "the local control plane was started again");
        }
        ControlEvent::Failed(error) => {
            tracing::error!("{}", Report::of(&error.into()).text().trim_end());
        }
    }
}

/// The right to join: a token from a file or the environment for a control plane that is named, else one of
/// the local control plane.
async fn access(daprd: &DaprdOptions) -> Result<Access> {
    if let Some(control) = daprd.control.clone() {
        return Ok(Access::named(control, token_of_environment()?));
    }
    let absent = WhenAbsent::Start { linger: LINGER };
    Ok(local_access(&daprd.app_id, &daprd.namespace, TOKEN_TTL, absent, CONTROL_OPTION).await?)
}

/// Where the token is. The flags are daprd's, so variables name the file.
fn token_of_environment() -> Result<TokenSource> {
    let path = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let may_be_open = std::env::var(ALLOW_OPEN_FILES).is_ok_and(|value| value == "true");
    let root = std::env::var(ROOT_PIN).ok().filter(|text| !text.is_empty());
    let root = root.map(|text| text.parse()).transpose();
    let root = root.with_context(|| format!("the variable {ROOT_PIN} cannot be read"))?;
    Ok(token_source(path(TOKEN_FILE), (path(POD_TOKEN_FILE), root), may_be_open)?)
}

/// Where the app is; of several addresses of a host first one of IPv4, as most apps listen there.
async fn app_of(daprd: &DaprdOptions) -> Result<Option<AppOptions>> {
    let Some(app) = &daprd.app else { return Ok(None) };
    let host = &app.host;
    let what =
        || format!("the address of the app {host} cannot be found; check --app-channel-address");
    let found = tokio::net::lookup_host((host.as_str(), app.port)).await.with_context(what)?;
    let mut found: Vec<SocketAddr> = found.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    let address = found.first().copied().with_context(what)?;
    let named = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    Ok(Some(AppOptions {
        address,
        other_addresses: found.split_off(1),
        host: format!("{named}:{}", app.port),
        names_host: true,
        protocol: app.scheme.protocol,
        is_tls: app.scheme.is_tls,
        max_concurrency: app.max_concurrency,
        health_check: app.health_check.clone(),
        asks_actors: app.asks_actors,
    }))
}

fn options(
    daprd: &DaprdOptions,
    access: Access,
    app: Option<AppOptions>,
    found: &Configuration,
) -> Result<SidecarOptions> {
    let role = Role::Sidecar { app: daprd.app_id.clone(), namespace: daprd.namespace.clone() };
    let mut limits = Limits::default();
    if let Some(bytes) = daprd.head_bytes {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        limits.h1.head_bytes = bytes;
        limits.h1.target_bytes = bytes;
        limits.h2.header_list_bytes = bytes.try_into().unwrap_or(u32::MAX);
    }
    let is_local = access.local.is_some();
    let instance = match std::env::var(INSTANCE) {
        Ok(name) if !name.is_empty() => Instance::new(&name)
            .with_context(|| format!("the variable {INSTANCE} is no name of an instance"))?,
        Ok(_) | Err(_) => random_instance()?,
    };
    let has_name = std::env::var_os(INSTANCE).is_none_or(|name| name.is_empty());
    let mut mesh = MeshConfig::new(access.control, access.token, role, instance);
    mesh.locality = daprd.locality.clone();
    mesh.state = state_folder().filter(|_| !is_local).map(|path| StateDirectory { path, has_name });
    let plane = PlaneOptions {
        admin_listen: daprd.metrics,
        threads: 1,
        limits,
        timeouts: Timeouts {
            drain: daprd.drain,
            request: LONGEST_CALL,
            stream_idle: LONGEST_CALL,
            ..Timeouts::default()
        },
        ports_file: daprd.ports_file.clone(),
        live: Live::fixed(),
    };
    let plan = found.metrics.clone().filter(|_| daprd.metrics.is_some());
    let dapr_metrics = plan.map(|plan| DaprMetrics::new(daprd.app_id.as_str(), plan));
    for (file, namespace) in &found.rules {
        if let Some(metrics) = &dapr_metrics {
            metrics.runtime().rules_loaded(file, namespace);
        }
    }
    Ok(found.complete(SidecarOptions {
        takes_calls_of_services: false,
        common: CommonOptions { mesh, plane },
        app,
        http_listen: daprd.http.clone(),
        grpc_listen: daprd.grpc.clone(),
        outbound_listen: None,
        public_listen: daprd.public,
        inbound_listen: daprd.inbound,
        advertise: daprd.advertise,
        mesh_protocol: MeshProtocol::default(),
        upstreams: Vec::new(),
        message_bytes: daprd.message_bytes,
        api_rules: None,
        access: None,
        resilience: None,
        tokens: tokens_of_environment()?,
        web_pages: daprd.web_pages.clone(),
        telemetry: TelemetryOptions {
            tracing: None,
            access_log: daprd.logs_calls.then_some(LogTarget::Stdout),
        },
        dapr_metrics,
        external_endpoints: None,
        interception: None,
        as_daprd: Some(Arc::new(daprd.as_daprd.clone())),
    }))
}

/// The signals that end a sidecar, listened to as long as it lives.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self> {
        let listen = |kind, name| signal(kind).with_context(|| format!("cannot wait for {name}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
            hangup: listen(SignalKind::hangup(), "SIGHUP")?,
        })
    }

    /// As daprd: SIGHUP has it start again.
    async fn next(&mut self) -> End {
        tokio::select! {
            _ = self.terminate.recv() => End::Over,
            _ = self.interrupt.recv() => End::Over,
            _ = self.hangup.recv() => End::Again,
        }
    }
}
