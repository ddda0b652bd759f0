//! A machine: a process with cgroups and namespaces of its own, with which everything on it ends.
//!
//! `enter` is the process before it has them, `boot` the first one of the machine, which mounts what is
//! the machine's own and runs what `services` has.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
};

use super::plan::{Cluster, Machine};
use super::running::Running;
use super::state::{Settings, State, write};
use super::{cgroups, services};
use crate::cache::remove_folder;

/// The rig's own files on a machine, at paths that are the same wherever the rig's folder is.
pub(super) const FILES: &str = "/run/rig";

/// A file below the machine's `/run` that is there once all its services were started.
const STARTED: &str = "rig/started";

/// What the kubelet wants the kernel's parameters to be. It would set them for the whole kernel, so it is
/// shown files that have these values.
const PARAMETERS: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// What there is of a machine.
pub(super) enum Condition {
    /// Its first process is not there yet, or has services to start.
    Starting,
    /// Its first process, which has started all services.
    Up(Running),
    /// It was up, and was killed.
    Killed,
    /// It ended before it was up; the log has the reason.
    Failed,
}

pub(super) fn condition(state: &State, machine: &Machine) -> Condition {
    let file = pid_file(state, machine);
    if !file.exists() {
        return Condition::Starting;
    }
    let has_started = state.machine(machine).join("run").join(STARTED).exists();
    match (Running::read(&file), has_started) {
        (Some(running), true) if !running.is_ending() => Condition::Up(running),
        (_, true) => Condition::Killed,
        (Some(_), false) => Condition::Starting,
        (None, false) => Condition::Failed,
    }
}

/// The file that has the supervisor start a machine that has ended.
pub(super) fn start_request(state: &State, machine: &Machine) -> PathBuf {
    state.machine(machine).join("start")
}

/// Forgets the process of a machine that was killed, and has the supervisor start another one.
pub(super) fn start_again(state: &State, machine: &Machine) -> Result<()> {
    let file = pid_file(state, machine);
    std::fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))?;
    write(&start_request(state, machine), "")
}

fn pid_file(state: &State, machine: &Machine) -> PathBuf {
    state.machine(machine).join("pid")
}

/// Takes the cgroups of the machine and becomes its first process, in namespaces of its own.
pub(super) fn enter(state: &State, machine: &Machine) -> Result<()> {
    let folder = state.machine(machine);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("could not make {}", folder.display()))?;
    let list = folder.join("cgroups");
    // Those of the machine that ran here before and was killed.
    cgroups::remove(&list)?;
    let supervisor = state.supervisor().context("the rig's supervisor has ended")?;
    // Several users may have a rig each.
    let name = format!("tollway-cluster-{}-{}", supervisor.pid(), machine.name);
    cgroups::enter(&name, &list)?;
    let mut unshare = Command::new("ip");
    unshare.args(["netns", "exec", machine.name, "unshare", "--mount", "--propagation", "private"]);
    unshare.args(["--uts", "--ipc", "--cgroup", "--pid", "--fork", "--kill-child=SIGKILL", "--"]);
    unshare.arg(state.program()).args(["cluster", "boot"]).arg(state.root()).arg(machine.name);
    Err(unshare.exec()).context("could not start `ip netns exec`")
}

/// Runs the machine until it is killed.
pub(super) fn boot(state: &State, cluster: &Cluster, machine: &Machine) -> Result<()> {
    let settings = state.settings()?;
    let folder = state.machine(machine);
    // As after a start of a real machine; with them goes the mark of an earlier one.
    for name in ["run", "tmp"] {
        remove_folder(&folder.join(name))?;
    }
    // While `/proc` is still that of the host, where the number means something.
    Running::this()?.write(&pid_file(state, machine))?;
    rustix::system::sethostname(machine.name.as_bytes()).context("could not set the host name")?;
    mount_folders(state, &settings, cluster, &folder)?;
    mount_cgroups()?;
    // Where programs and tables in the kernel are pinned; other machines have it from systemd.
    at("/sys/fs/bpf", |bpf| mount("bpf", bpf, "bpf", MountFlags::empty(), Some(c"mode=700")))?;
    at("/proc", |proc| {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", proc, "proc", flags, None)
    })?;
    hide_parameters()?;
    // containerd and volumes of pods rely on mounts that spread, within the machine. It comes last: what is
    // mounted twice would get every later mount twice.
    let spread = MountPropagationFlags::REC | MountPropagationFlags::SHARED;
    at("/", |root| mount_change(root, spread))?;
    let services = services::start(&settings, cluster, machine)?;
    write(&Path::new("/run").join(STARTED), "")?;
    services::reap(machine, &services)
}

/// Gives the machine its own `/run`, `/tmp` and `/var`.
fn mount_folders(
    state: &State,
    settings: &Settings,
    cluster: &Cluster,
    folder: &Path,
) -> Result<()> {
    let [run, tmp, var] = ["run", "tmp", "var"].map(|name| folder.join(name));
    for (own, mode) in [(&run, 0o755), (&tmp, 0o1777), (&var, 0o755)] {
        make_folder(own)?;
        std::fs::set_permissions(own, Permissions::from_mode(mode))
            .with_context(|| format!("could not set the mode of {}", own.display()))?;
    }
    // Everything is first mounted below `run`: the folders that it comes from may be hidden afterwards.
    let files = run.join("rig");
    let sources = [
        ("kube", &settings.programs.kube),
        ("node", &settings.programs.node),
        ("images", &settings.programs.images),
        ("keys", &state.keys(cluster.name)),
        ("var", &var),
        ("tmp", &tmp),
    ];
    for (name, source) in sources {
        let target = files.join(name);
        make_folder(&target)?;
        at(&target, |target| mount_bind(source.as_path(), target))?;
    }
    at("/run", |target| mount_bind_recursive(run.as_path(), target))?;
    for name in ["var", "tmp"] {
        let source = Path::new(FILES).join(name);
        at(format!("/{name}"), |target| mount_bind(source.as_path(), target))?;
    }
    for own in ["/run/lock", "/var/etc", "/var/lib", "/var/log", "/var/root", "/var/tmp"] {
        make_folder(Path::new(own))?;
    }
    Ok(())
}

/// Mounts each hierarchy again, whose root is the machine's own cgroup now.
fn mount_cgroups() -> Result<()> {
    let root = Path::new(cgroups::ROOT);
    let none = MountFlags::empty();
    at(root, |root| mount("cgroup", root, "tmpfs", none, Some(c"mode=755")))?;
    for hierarchy in cgroups::hierarchies()? {
        let folder = root.join(hierarchy.mount());
        make_folder(&folder)?;
        let options = std::ffi::CString::new(hierarchy.options())
            .context("a cgroup's name has a zero byte")?;
        at(&folder, |folder| mount("cgroup", folder, "cgroup", none, Some(&*options)))?;
        let controllers: Vec<&str> = hierarchy.mount().split(',').collect();
        for one in controllers.iter().filter(|_| controllers.len() > 1) {
            let link = root.join(one);
            std::os::unix::fs::symlink(hierarchy.mount(), &link)
                .with_context(|| format!("could not make the link {}", link.display()))?;
        }
    }
    Ok(())
}

fn hide_parameters() -> Result<()> {
    let folder = Path::new(FILES).join("parameters");
    make_folder(&folder)?;
    for (name, value) in PARAMETERS {
        let file = folder.join(name.replace('/', "."));
        write(&file, &format!("{value}\n"))?;
        let hidden = Path::new("/proc/sys").join(name);
        // A kernel may be built without it.
        if hidden.exists() {
            at(&hidden, |hidden| mount_bind(file.as_path(), hidden))?;
        }
    }
    Ok(())
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))
}

/// Mounts something there.
fn at(
    target: impl Into<PathBuf>,
    mount: impl FnOnce(&Path) -> rustix::io::Result<()>,
) -> Result<()> {
    let target = target.into();
    mount(&target)
        .map_err(io::Error::from)
        .with_context(|| format!("could not mount {}", target.display()))
}
