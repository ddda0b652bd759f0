//! What a machine needs to be the rig's host, each by a sentence that has what to do.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::statfs;

use super::cgroups;
use crate::process::{self, find_program};

/// Programs that `up` calls, with Debian's packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("curl", "curl"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("setsid", "util-linux"),
    ("unshare", "util-linux"),
];

/// Lists everything that is missing.
pub(super) fn check(folder: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for (program, package) in PROGRAMS {
        if find_program(program).is_none() {
            missing.push(format!("`{program}` (install Debian's {package})"));
        }
    }
    if !rustix::process::geteuid().is_root() {
        missing.push("the rights of root (run it as root, or by sudo)".to_owned());
    } else if let Err(error) = process::output(Command::new("unshare").args(NAMESPACES)) {
        missing.push(format!("namespaces of its own ({error:#})"));
    }
    missing.extend(cgroups::missing(&cgroups::hierarchies()?));
    if !Path::new("/proc/sys/net/bridge").is_dir() {
        missing.push("the kernel's module br_netfilter (modprobe br_netfilter)".to_owned());
    }
    if is_overlay(folder)? {
        let folder = folder.display();
        missing.push(format!(
            "a disk below {folder} that containers can be stored on (it is an overlay itself; set \
             {} to a folder on a volume)",
            crate::cache::VARIABLE,
        ));
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!("clusters cannot run here; this is missing:\n- {}", missing.join("\n- "))
}

/// Arguments by which `unshare` tries all that the rig makes.
const NAMESPACES: &[&str] =
    &["--mount", "--net", "--uts", "--ipc", "--cgroup", "--pid", "--fork", "--mount-proc", "true"];

fn is_overlay(folder: &Path) -> Result<bool> {
    const OVERLAYFS: u64 = 0x794c_7630;
    let failed = || format!("could not look at the disk of {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    Ok(u64::try_from(statfs(folder).with_context(failed)?.f_type)? == OVERLAYFS)
}
