//! One app and its sidecar, started and stopped in order.
//!
//! The sidecar starts first, then the app, which finds the sidecar's ports in its environment. At
//! the end the app goes first, and the sidecar finishes what is under way. The sidecar is a part
//! of this process: nothing that ends this process leaves it behind.

pub(crate) mod environment;
mod intercept;
mod messages;
mod options;
mod plan;
mod readiness;
mod supervise;
mod terminal;

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tollway_intercept::Interception;
use tollway_net::process::{Ending, Process};
use tollway_net::spawn::Confinement;
use tollway_runtime::Sidecar;

use self::environment::EnvironmentChanges;
pub use self::options::{InterceptOptions, Interceptor, Listen, RunOptions};
use self::plan::Plan;
use self::supervise::Supervision;
use crate::console::Console;
use crate::error::{CannotStart, LaunchError};
use crate::program::{guard_app, start_guard};
use crate::signals::Signals;

/// After this time without an answer of the control plane a note is printed.
const NO_ANSWER_NOTE_AFTER: Duration = Duration::from_secs(2);

/// Runs an app with its sidecar until the app ends; returns the exit code of the app. `reload` is
/// polled while the app runs. Call it in a runtime of one thread that lives as long as the process.
///
/// # Errors
/// [`LaunchError`] when one of them does not start, or the sidecar fails.
pub async fn run_app(
    options: RunOptions,
    console: Console,
    reload: impl Future<Output = Infallible>,
) -> Result<i32, LaunchError> {
    terminal::stay_unstopped()?;
    let mut signals = Signals::listen()?;
    let (command, linger) = (options.command.clone(), options.linger);
    let starting = async {
        let plan = Plan::make(options, console).await?;
        let sidecar = Box::pin(start_sidecar(&plan, console)).await?;
        Ok::<_, LaunchError>((plan, sidecar))
    };
    let (plan, sidecar) = tokio::select! {
        started = starting => started?,
        signal = signals.next_request_to_end() => return Ok(Ending::Signal(signal.as_raw()).code()),
    };
    messages::sidecar_ready(console, &plan, &sidecar);
    let interception = intercept::begin(&plan, &sidecar, console)?;
    let environment = environment::of_app(&plan, &sidecar);
    let app = start_app(&command, environment, interception.as_ref())?;
    let supervision = Supervision { plan: Arc::new(plan), app, signals, console, linger };
    // Reloading ends with the app; when it fails, the app runs on.
    tokio::select! {
        ended = supervision.run(sidecar) => ended,
        never = reload => match never {},
    }
}

/// Starts the app with its guard.
fn start_app(
    command: &[OsString],
    environment: EnvironmentChanges,
    interception: Option<&Interception>,
) -> Result<Process, LaunchError> {
    let program = command.first().cloned().unwrap_or_default();
    let failed = |source| CannotStart::of(program.to_string_lossy().into_owned(), source);
    let mut start = Command::new(&program);
    start.args(command.iter().skip(1));
    for (name, value) in environment {
        match value {
            Some(value) => start.env(name, value),
            None => start.env_remove(name),
        };
    }
    let guard = start_guard()?;
    let confinement = interception.map_or_else(Confinement::default, Interception::confinement);
    let mut app = Process::spawn(start, confinement).map_err(failed)?;
    guard_app(&mut app, guard);
    Ok(app)
}

/// Tries for some time when the control plane does not answer, and prints that it does.
async fn start_sidecar(plan: &Plan, console: Console) -> Result<Sidecar, LaunchError> {
    let starting = Sidecar::start(plan.sidecar.clone(), plan.stores.clone(), None);
    tokio::pin!(starting);
    if let Ok(started) = tokio::time::timeout(NO_ANSWER_NOTE_AFTER, &mut starting).await {
        return started.map_err(LaunchError::Sidecar);
    }
    let mesh = &plan.sidecar.common.mesh;
    let seconds = mesh.start_timeout.as_secs();
    console.note(&format!("no answer yet from {}; trying for {seconds} s", mesh.control));
    starting.await.map_err(LaunchError::Sidecar)
}
