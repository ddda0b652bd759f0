//! The apps of one of Dapr's run files, each with a sidecar of its own.
//!
//! The file is read (`format`) and decided on (`app_plan`) before anything is started. Every app and
//! every sidecar is a process (`member`); the sidecar runs as daprd, so that the file means what it
//! means to Dapr. Apps start in the order of the file, each when those before it take calls (`calls`).
//! One request to end is for all apps; an app that ends by itself ends alone. A command line of `dapr
//! run` is as a file with one app.

mod app_plan;
mod calls;
#[cfg(test)]
mod corpus;
mod format;
mod member;
mod output;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tollway_config::Mistakes;
use tollway_config::go::read_file;
use tollway_dapr::DaprRun;
use tollway_proxy::mesh::Targets;

use self::app_plan::{AppPlan, Around, plan, plan_one};
use self::format::Section;
use self::member::Member;
use self::output::LAST_LINES_WITHIN;
use crate::console::Console;
use crate::error::{AppPortTaken, LaunchError};
use crate::signals::Signals;

/// The run file of a folder.
const FILE_NAME: &str = "dapr.yaml";
/// Time to find out whether another process listens on an app's port.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often members are advanced when no signal arrives.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// Runs the apps of a file until all have ended; returns the exit code. `control` is a control plane in
/// place of this user's local one.
///
/// # Errors
/// Every mistake in the file, and why a process did not start.
pub async fn run_apps(
    file: &Path,
    control: Option<&Targets>,
    console: Console,
) -> Result<i32, LaunchError> {
    let (plans, notes) = read(file)?;
    for note in &notes {
        console.note(note);
    }
    run_plans(plans, control, console).await
}

/// Runs what a command line of `dapr run` asks for until all apps have ended; returns the exit code.
///
/// # Errors
/// Every mistake in the options or the file, and why a process did not start.
pub async fn run_as_dapr(run: DaprRun, console: Console) -> Result<i32, LaunchError> {
    let DaprRun { file, app, command, idle, control, log_as_json } = run;
    let (mut plans, mut notes) = match file {
        Some(file) => read(&file)?,
        None => (vec![one_app(app, command)?], Vec::new()),
    };
    let idle = idle.iter().map(|flag| format!("--{flag} has no effect: it stands in the file"));
    notes.extend(idle);
    for note in &notes {
        console.note(note);
    }
    if log_as_json {
        plans.iter_mut().for_each(|plan| plan.flags.push("--log-as-json=true".to_owned()));
    }
    run_plans(plans, control.as_ref(), console).await
}

/// The plan of one app in the current folder, whose output goes to the terminal.
fn one_app(
    mut given: Vec<(&'static str, Vec<String>)>,
    command: Vec<String>,
) -> Result<AppPlan, LaunchError> {
    let source = "the command line";
    let (folder, home) = (folder_of(None, source)?, home());
    let around = Around { source, folder: &folder, home: home.as_deref() };
    let one = |text: &str| vec![text.to_owned()];
    given.push(("appDirPath", one(".")));
    given.push(("command", command));
    given.push(("appLogDestination", one("console")));
    given.push(("daprdLogDestination", one("console")));
    let mut plan = plan_one(&Section::of(given), &around)?;
    plan.is_alone = true;
    Ok(plan)
}

async fn run_plans(
    mut plans: Vec<AppPlan>,
    control: Option<&Targets>,
    console: Console,
) -> Result<i32, LaunchError> {
    for plan in &mut plans {
        refuse_taken_port(plan)?;
        plan.flags.extend(control.map(|address| format!("--control-plane-address={address}")));
    }
    // Receives the ports files of the sidecars.
    let folder = tempfile::Builder::new().prefix("tollway-run-").tempdir();
    let folder =
        folder.map_err(LaunchError::system("cannot make a folder for the ports of sidecars"))?;
    supervise(plans, console, folder.path()).await
}

/// The plans of a file's apps, and what in it has no effect.
fn read(file: &Path) -> Result<(Vec<AppPlan>, Vec<String>), LaunchError> {
    let file = if file.is_dir() { file.join(FILE_NAME) } else { file.to_owned() };
    let text = read_file(&file)?;
    let is_stdin = file == Path::new("-");
    let source = if is_stdin { "standard input".to_owned() } else { file.display().to_string() };
    let folder = if is_stdin { None } else { file.parent().filter(|path| *path != Path::new("")) };
    let (folder, home) = (folder_of(folder, &source)?, home());
    let around = Around { source: &source, folder: &folder, home: home.as_deref() };
    Ok(decide(&text, &around)?)
}

/// The plans of the apps in a text, and what in it has no effect.
fn decide(text: &str, around: &Around<'_>) -> Result<(Vec<AppPlan>, Vec<String>), Mistakes> {
    let mut read = format::read(text, around.source)?;
    let notes = std::mem::take(&mut read.notes);
    Ok((plan(&read, around)?, notes))
}

/// What the text of a run file in `folder` would start, as a text for comparisons. Looks which
/// files exist.
///
/// # Errors
/// Every mistake in the text.
pub fn outline(text: &str, folder: &Path) -> Result<String, Mistakes> {
    let around = Around { source: FILE_NAME, folder, home: None };
    decide(text, &around).map(|plans| format!("{plans:?}"))
}

/// A folder, or else the current one, in full.
fn folder_of(folder: Option<&Path>, source: &str) -> Result<PathBuf, LaunchError> {
    std::fs::canonicalize(folder.unwrap_or(Path::new(".")))
        .map_err(|error| LaunchError::Folder { file: source.to_owned(), source: error })
}

/// Home of the user.
fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// Refuses a port on which another process listens: the sidecar would take that process for the
/// app.
fn refuse_taken_port(plan: &AppPlan) -> Result<(), AppPortTaken> {
    let (Some(port), Ok(host)) = (plan.app_port, plan.app_host.parse::<IpAddr>()) else {
        return Ok(());
    };
    let address = SocketAddr::new(host, port);
    let is_ours = !plan.command.is_empty();
    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
        Ok(_) if is_ours => Err(AppPortTaken { address }),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Starts the members and advances them until all have gone.
async fn supervise(
    plans: Vec<AppPlan>,
    console: Console,
    folder: &Path,
) -> Result<i32, LaunchError> {
    let mut signals = Signals::listen()?;
    let mut members = Vec::new();
    for (number, plan) in plans.into_iter().enumerate() {
        match Member::start(plan, console, folder, &number.to_string()) {
            Ok(member) => members.push(member),
            Err(error) => {
                members.iter_mut().for_each(Member::kill);
                return Err(error);
            }
        }
    }
    let mut ends = false;
    while !members.iter().all(Member::is_gone) {
        let mut may_start = true;
        for member in &mut members {
            member.advance(may_start);
            may_start &= member.is_settled();
        }
        if members.iter().any(|member| member.not_started) && !ends {
            console.note("not all apps have started, so all end");
            ends = true;
        }
        if ends {
            members.iter_mut().for_each(Member::end);
        }
        tokio::select! {
            asked = signals.next_end_or_child() => if asked {
                // A second request to end does not wait.
                if ends {
                    members.iter_mut().for_each(Member::kill);
                }
                ends = true;
            },
            () = tokio::time::sleep(POLL_EVERY) => {}
        }
    }
    let deadline = Instant::now() + LAST_LINES_WITHIN;
    members.iter().for_each(|member| member.wait_for_lines(deadline));
    let failed = members.iter().any(|member| member.failed);
    Ok(i32::from(failed))
}
