//! `tollway run -f`: the apps of one of Dapr's run files, each with a sidecar of its own.
//!
//! The file is read (`file`) and decided on (`plan`) before anything is started. Every app and every
//! sidecar is a process (`member`), the sidecar in daprd's place, so that the file means what it
//! means to Dapr. One request to end is for all of them; an app that ends by itself ends alone.

mod file;
mod member;
mod output;
mod plan;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tollway_config::Mistakes;
use tollway_model::ErrorCode;

use self::member::Member;
use self::plan::{AppPlan, Around, plan};
use super::plan::AppPortTaken;
use super::signals::Signals;
use super::voice::Voice;
use super::{RunArgs, exit_code};
use crate::failure::{Failure, Misuse};
use crate::runtime::block_on;
use crate::settings::{Given, Origin};
use tollway_config::yaml;

/// The run file of a folder.
const FILE_NAME: &str = "dapr.yaml";
/// Settings of `tollway run` that concern all apps.
const FOR_ALL: [&str; 2] = ["quiet", "control"];
/// Time to see whether somebody is on an app's port already.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often members are looked after, where nothing wakes us.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest wait for the last lines of processes that have ended; others may hold their streams.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// Runs the apps of a file until all have ended.
///
/// # Errors
/// Every mistake in the file, and what hinders a start.
pub(super) fn run(file: &Path, args: &RunArgs, given: &Given) -> Result<ExitCode> {
    refuse_options_of_one_app(args, given)?;
    let voice = Voice::new(args.quiet);
    let mut plans = read(file)?;
    for plan in &mut plans {
        refuse_taken_port(plan)?;
        let control =
            args.access.control().map(|address| format!("--control-plane-address={address}"));
        plan.flags.extend(control);
    }
    // For what the sidecars tell.
    let folder = tempfile::Builder::new().prefix("tollway-run-").tempdir();
    let folder = folder.context("cannot make a folder for the ports of sidecars")?;
    block_on(Box::pin(keep(plans, voice, folder.path())))?
}

/// What stands in the file cannot stand beside it too.
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

fn read(file: &Path) -> Result<Vec<AppPlan>> {
    let file = if file.is_dir() { file.join(FILE_NAME) } else { file.to_owned() };
    let text = yaml::read_file(&file)?;
    let is_stdin = file == Path::new("-");
    let source = if is_stdin { "standard input".to_owned() } else { file.display().to_string() };
    let folder = if is_stdin { None } else { file.parent().filter(|path| *path != Path::new("")) };
    let unreadable = || {
        let what = format!("the folder of {source} cannot be found; check the path");
        Failure::new(ErrorCode::FileUnusable, what)
    };
    let folder =
        std::fs::canonicalize(folder.unwrap_or(Path::new("."))).with_context(unreadable)?;
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let around = Around { source: &source, folder: &folder, home: home.as_deref() };
    let plans = file::read(&text, &source).and_then(|file| plan(&file, &around));
    Ok(plans.map_err(Mistakes)?)
}

/// A port that somebody else serves would be taken for the app's.
fn refuse_taken_port(plan: &AppPlan) -> Result<(), AppPortTaken> {
    let (Some(port), Ok(host)) = (plan.app_port, plan.app_host.parse::<IpAddr>()) else {
        return Ok(());
    };
    let address = SocketAddr::new(host, port);
    let is_ours = !plan.command.is_empty();
    match TcpStream::connect_timeout(&address, LOOK_TIMEOUT) {
        Ok(_) if is_ours => Err(AppPortTaken { address }),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Starts the members and looks after them until all have gone.
async fn keep(plans: Vec<AppPlan>, voice: Voice, folder: &Path) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let mut members = Vec::new();
    for (number, plan) in plans.into_iter().enumerate() {
        match Member::start(plan, voice, folder, &number.to_string()) {
            Ok(member) => members.push(member),
            Err(error) => {
                members.iter_mut().for_each(Member::kill);
                return Err(error);
            }
        }
    }
    let mut ends = false;
    while !members.iter().all(Member::is_gone) {
        members.iter_mut().for_each(Member::look);
        if members.iter().any(|member| member.not_started) && !ends {
            voice.note("not all apps have started, so all end");
            ends = true;
        }
        if ends {
            members.iter_mut().for_each(Member::end);
        }
        tokio::select! {
            asked = signals.next_end_or_child() => if asked {
                // Whoever cannot wait says it twice.
                if ends {
                    members.iter_mut().for_each(Member::kill);
                }
                ends = true;
            },
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    let deadline = Instant::now() + LAST_LINES_WITHIN;
    members.iter().for_each(|member| member.wait_for_lines(deadline));
    let failed = members.iter().any(|member| member.failed);
    Ok(exit_code(i32::from(failed)))
}
