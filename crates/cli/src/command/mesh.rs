//! What sidecar, gateway and front do with their settings alike.

use std::path::PathBuf;
use std::pin::Pin;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tollway_identity::KeyExchange;
use tollway_launch::random_instance;
use tollway_proxy::mesh::{MeshConfig, PodToken, Role, RootPin, StateDirectory, TokenSource};
use tollway_proxy::{CommonOptions, Live, LiveOptions, PlaneOptions, TelemetryOptions};
use tollway_settings::reload::Reloads;
use tollway_settings::{Member, Part, Plane};

use crate::async_runtime::{shutdown, shutdown_or_hangup};

/// The options of a data plane that joins a network.
///
/// # Errors
/// When the system has no random numbers for the name of the instance.
pub(crate) fn common_options(member: Member, role: Role, live: Live) -> Result<CommonOptions> {
    let (_, timeouts) = member.bounds();
    let may_be_open = member.plane.allow_open_files;
    let pod = (member.pod_token_file, member.root_pin);
    let token = token_source(member.token_file, pod, may_be_open)?;
    let has_name = member.instance.is_none();
    let instance = member.instance.map_or_else(random_instance, Ok)?;
    let mut mesh = MeshConfig::new(member.control, token, role, instance);
    mesh.start_timeout = member.start_timeout_ms.0;
    mesh.state = member.state_dir.map(|path| StateDirectory { path, has_name });
    mesh.key_exchange = key_exchange(member.classical_key_exchange);
    let plane = PlaneOptions { timeouts, ..plane_options(member.plane, live) };
    Ok(CommonOptions { mesh, plane })
}

/// By what a part proves who it is: the token of its pod, or a join token.
///
/// # Errors
/// When one of the two settings of a pod is missing, or both ways are given.
pub(crate) fn token_source(
    token_file: Option<PathBuf>,
    pod: (Option<PathBuf>, Option<RootPin>),
    may_be_open: bool,
) -> Result<TokenSource, ProofError> {
    match pod {
        (Some(_), Some(_)) if token_file.is_some() => Err(ProofError::Two),
        (Some(file), Some(root)) => Ok(TokenSource::Pod(PodToken { file, root })),
        (Some(_), None) => Err(ProofError::NoRoot),
        (None, Some(_)) => Err(ProofError::NoPod),
        (None, None) => Ok(TokenSource::of(token_file, may_be_open)),
    }
}

/// Why settings do not show by what a part proves who it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProofError {
    #[error("--token-file and --pod-token-file are two ways to join; give one of them")]
    Two,
    #[error(
        "--pod-token-file needs --root-pin: what `tollway identity root` prints where the control plane runs"
    )]
    NoRoot,
    #[error("--root-pin is for a pod, whose token --pod-token-file names")]
    NoPod,
}

/// How the keys of connections are agreed on.
pub(crate) fn key_exchange(is_classical: bool) -> KeyExchange {
    if is_classical { KeyExchange::Classical } else { KeyExchange::Hybrid }
}

/// The options of a data plane of any kind.
pub(crate) fn plane_options(plane: Plane, live: Live) -> PlaneOptions {
    let (limits, timeouts) = plane.bounds();
    PlaneOptions {
        limits,
        timeouts,
        admin_listen: Some(plane.admin_listen),
        threads: plane.threads,
        ports_file: plane.ports_file,
        live,
    }
}

/// What a running data plane takes over.
pub(crate) fn live_options(member: &Member) -> LiveOptions {
    let (limits, timeouts) = member.bounds();
    let telemetry = TelemetryOptions::default();
    LiveOptions { limits, timeouts, telemetry, upstreams: Vec::new() }
}

/// Runs `part` until it ends, and puts changes of its settings file to work meanwhile.
pub(crate) async fn serve_live<E: Into<anyhow::Error>, P: Part>(
    part: impl Future<Output = Result<(), E>>,
    reloads: Reloads<P>,
    apply: impl AsyncFnMut(P) -> Result<()>,
) -> Result<()> {
    let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    tokio::select! {
        ended = part => ended.map_err(Into::into),
        never = reloads.run(Some(hangup), with_text(apply)) => match never {},
    }
}

/// Makes the error of `apply` the text that the log has.
pub(crate) fn with_text<P: Part>(
    mut apply: impl AsyncFnMut(P) -> Result<()>,
) -> impl AsyncFnMut(P) -> Result<(), String> {
    async move |new| apply(new).await.map_err(|error| format!("{error:#}"))
}

/// SIGHUP reads the settings file again; without one it ends the part.
pub(crate) fn end_of<P: Part>(
    reloads: &Reloads<P>,
) -> Result<Pin<Box<dyn Future<Output = ()> + Send>>> {
    Ok(if reloads.follow_a_file() {
        Box::pin(shutdown()?)
    } else {
        Box::pin(shutdown_or_hangup()?)
    })
}
