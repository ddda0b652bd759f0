//! Brings the rig up, or continues what is up: machines that were killed are started again, and further
//! images loaded.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::kubectl::Kubectl;
use super::machine::{self, Condition};
use super::plan::{self, CLUSTERS, Machine};
use super::running::Running;
use super::services::IMPORT;
use super::state::{Link, Settings, State};
use super::{down, keys, programs, ready, requirements, supervisor};
use crate::workspace::Workspace;
use crate::{cache, process, tools};

/// How long the supervisor may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long a machine may be silent, by default.
const GRACE_SECONDS: u16 = 10;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// One-way delay of the link between the clusters.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u32,
    /// Packets of a hundred that the link loses, in each direction.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    loss: f64,
    /// The `tollway` that is the link, where it delays or loses packets; by default a development build,
    /// which is made first.
    #[arg(long, value_name = "FILE")]
    link_program: Option<PathBuf>,
    /// An archive with an image for all machines, such as that of `cargo xtask image`; may be repeated.
    #[arg(long, value_name = "ARCHIVE")]
    pub(super) image: Vec<PathBuf>,
    /// Seconds that a machine may be silent before it is not ready.
    #[arg(long, value_name = "SECONDS", default_value_t = GRACE_SECONDS,
          value_parser = clap::value_parser!(u16).range(4..))]
    grace: u16,
}

/// What the command line gives where it says nothing.
impl Default for Options {
    fn default() -> Self {
        let (delay, loss, link_program, image) = (0, 0.0, None, Vec::new());
        Self { delay, loss, link_program, image, grace: GRACE_SECONDS }
    }
}

/// Ends when every machine is ready and both clusters answer questions for names.
pub(super) fn run(options: &Options) -> Result<State> {
    let begin = Instant::now();
    ensure!((0.0..100.0).contains(&options.loss), "--loss is a percentage below 100");
    for archive in &options.image {
        ensure!(archive.is_file(), "there is no archive {}", archive.display());
    }
    let workspace = Workspace::load()?;
    tools::install_for_clusters(&workspace);
    let state = State::of_user()?;
    requirements::check(&cache::root())?;
    let settings = Settings {
        programs: programs::build(&workspace)?,
        link: Link {
            delay: Duration::from_millis(options.delay.into()),
            loss_percent: options.loss,
        },
        grace: Duration::from_secs(options.grace.into()),
    };
    let _lock = state.lock()?;
    let supervisor = match state.supervisor() {
        Some(supervisor) => {
            ensure!(
                state.settings().is_ok_and(|own| own == settings),
                "the clusters are up with other options, or of other programs: `cargo xtask cluster \
                 down` first"
            );
            eprintln!("clusters: they are up");
            supervisor
        }
        None => start_rig(&state, &settings, options, &workspace)?,
    };
    eprintln!("clusters: programs and keys after {:.1?}", begin.elapsed());
    for cluster in &CLUSTERS {
        Kubectl::new(&state, cluster).write(&supervisor, &settings)?;
    }
    for cluster in &CLUSTERS {
        ready::wait(&state, &supervisor, cluster)?;
        eprintln!("clusters: {} is ready after {:.1?}", cluster.name, begin.elapsed());
    }
    for archive in &options.image {
        for (_, machine) in plan::machines() {
            load(&state, machine, archive)?;
        }
        eprintln!("clusters: all machines have {}", archive.display());
    }
    Ok(state)
}

fn start_rig(
    state: &State,
    settings: &Settings,
    options: &Options,
    workspace: &Workspace,
) -> Result<Running> {
    down::sweep(state)?;
    state.create()?;
    let copy = |from: &Path, to: &Path| {
        std::fs::copy(from, to)
            .map(drop)
            .with_context(|| format!("could not copy {} to {}", from.display(), to.display()))
    };
    // Its path may be that of a newer build by now.
    copy(Path::new("/proc/self/exe"), &state.program())?;
    if !settings.link.is_plain() {
        let program = match &options.link_program {
            Some(program) => program.clone(),
            None => {
                process::run(process::cargo().args(["build", "--package", "tollway"]))?;
                workspace.program()
            }
        };
        copy(&program, &state.link_program())?;
    }
    for cluster in &CLUSTERS {
        keys::make(state, cluster)?;
    }
    state.write_settings(settings)?;
    let mut child = supervisor::start(state)?;
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(supervisor) = state.supervisor() {
            return Ok(supervisor);
        }
        let ended = child.try_wait().context("could not wait for the supervisor")?;
        if ended.is_some() || Instant::now() > deadline {
            bail!("the rig's supervisor did not start\n{}", state.what_was_logged());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Has a machine's containerd read an archive.
fn load(state: &State, machine: &Machine, archive: &Path) -> Result<()> {
    let failed = || format!("could not load {} on {}", archive.display(), machine.name);
    let Condition::Up(running) = machine::condition(state, machine) else {
        bail!("{}: the machine is not up", failed());
    };
    let file = File::open(archive).with_context(failed)?;
    let output = Command::new("nsenter")
        .args(["--mount", "--target", &running.pid().to_string(), "--", "/run/rig/node/ctr"])
        .args(IMPORT)
        .arg("-")
        .stdin(file)
        .output()
        .with_context(failed)?;
    ensure!(
        output.status.success(),
        "{}: {}",
        failed(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
