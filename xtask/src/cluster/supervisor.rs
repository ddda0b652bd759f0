//! The process that the rig ends with: the first one of a namespace of processes in which everything
//! else runs, and of the mount namespace in which the networks are.
//!
//! Whatever kills it, the kernel ends all of them and frees the networks. Cgroups and the rig's folder
//! stay, and `down` or the next `up` removes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{WaitOptions, wait};

use super::machine::start_request;
use super::network;
use super::plan::{self, Cluster, Machine};
use super::running::Running;
use super::state::State;

/// How often ended processes and requests are looked for.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts it, detached from this process and its terminal.
pub(super) fn start(state: &State) -> Result<Child> {
    let failed = || format!("could not write {}", state.log().display());
    let log = File::create(state.log()).with_context(failed)?;
    let errors = log.try_clone().with_context(failed)?;
    let mut unshare = Command::new("setsid");
    unshare.args(["unshare", "--mount", "--propagation", "private", "--pid", "--fork"]);
    unshare.args(["--kill-child=SIGKILL", "--"]).arg(state.program());
    unshare.args(["cluster", "supervise"]).arg(state.root()).current_dir("/");
    unshare.stdin(Stdio::null()).stdout(log).stderr(errors);
    unshare.spawn().context("could not start `setsid unshare`, of util-linux")
}

/// Brings everything up and stays, until the rig's folder is gone.
pub(super) fn run(state: &State) -> Result<()> {
    Running::this()?.write(&state.supervisor_file())?;
    let settings = state.settings()?;
    // For the names of network namespaces: those of the host are not touched.
    mount("rig", "/run", "tmpfs", MountFlags::empty(), Some(c"mode=755"))
        .context("could not mount /run")?;
    network::make(state, &settings.link)?;
    let mut machines = BTreeMap::new();
    for (_, machine) in plan::machines() {
        machines.insert(start_machine(state, machine)?, machine);
    }
    while state.settings_file().exists() {
        while let Some(pid) = ended()? {
            if let Some(machine) = machines.remove(&pid) {
                eprintln!("machine {} ended", machine.name);
            }
        }
        for (_, machine) in plan::machines() {
            let is_up = machines.values().any(|up| up.name == machine.name);
            if !is_up && std::fs::remove_file(start_request(state, machine)).is_ok() {
                machines.insert(start_machine(state, machine)?, machine);
            }
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// The network namespace of a cluster as other processes of the host reach it.
pub(super) fn network_of(supervisor: &Running, cluster: &Cluster) -> PathBuf {
    let own = network::file(cluster);
    let root = Path::new("/proc").join(supervisor.pid().to_string()).join("root");
    root.join(own.strip_prefix("/").unwrap_or(&own))
}

/// Starts a machine; its number is the one that this namespace has for it.
fn start_machine(state: &State, machine: &Machine) -> Result<u32> {
    let mut command = Command::new(state.program());
    command.args(["cluster", "enter"]).arg(state.root()).arg(machine.name);
    let child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("could not start machine {}", machine.name))?;
    Ok(child.id())
}

/// A process that has ended, if there is one: of machines, and of those that lost their parent.
fn ended() -> Result<Option<u32>> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.map(|(pid, _)| pid.as_raw_nonzero().get().unsigned_abs())),
        Err(Errno::CHILD | Errno::INTR) => Ok(None),
        Err(error) => Err(error).context("could not wait for processes"),
    }
}
