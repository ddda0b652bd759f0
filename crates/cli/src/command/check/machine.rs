//! What the machine and this user have.

use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Resource, geteuid, getrlimit};
use tollway_lab::Isolation;
use tollway_model::ErrorCode;

use super::finding::Finding;

/// The oldest kernel that has what the data loop uses.
const OLDEST_KERNEL: (u32, u32) = (5, 11);
/// Descriptors below which a part can hardly serve, and below which a warning is due.
const FEW_DESCRIPTORS: u64 = 256;
const MODEST_DESCRIPTORS: u64 = 4096;

pub(super) fn kernel() -> Finding {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let what = format!("{} {release}", system.sysname().to_string_lossy());
    let (major, minor) = OLDEST_KERNEL;
    match version(&release) {
        Some(found) if found < OLDEST_KERNEL => Finding::fail(
            "kernel",
            None,
            format!("{what} is too old"),
            format!("use Linux {major}.{minor} or later"),
        ),
        Some(_) => Finding::ok("kernel", what),
        None => Finding::warn(
            "kernel",
            format!("{what} has a version that cannot be compared"),
            format!("it has to be like Linux {major}.{minor} or later"),
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Tried in a process of its own, since the attempt moves the process to other namespaces.
pub(super) fn isolation() -> Finding {
    let tried = std::env::current_exe()
        .and_then(|program| Command::new(program).args(["check", "--probe-isolation"]).output());
    let reason = match tried {
        Ok(output) if output.status.success() => {
            return Finding::ok("namespaces", "permitted, with the TUN device");
        }
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let reason = if reason.is_empty() { "it cannot be tried".to_owned() } else { reason };
    Finding::warn(
        "namespaces",
        format!("not permitted: {reason}"),
        "run as root, or permit user namespaces and /dev/net/tun; without them the demo stays on \
         loopback, everything else works",
    )
}

/// The other end of [`isolation`].
pub(super) fn probe_isolation() -> ExitCode {
    match Isolation::prepare() {
        Isolation::Namespaces => ExitCode::SUCCESS,
        Isolation::Loopback { reason } => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    }
}

pub(super) fn descriptors() -> Finding {
    let limits = getrlimit(Resource::Nofile);
    let now = limits.current.unwrap_or(u64::MAX);
    // A request under way holds two connections, one on each side.
    let what = format!("{now} files and sockets, {} requests at once", now / 2);
    let most = limits.maximum.map_or("unlimited".to_owned(), |most| most.to_string());
    let fix = format!("raise it before the start: ulimit -n {most}");
    if limits.current.is_none() {
        Finding::ok("descriptors", "no limit")
    } else if now < FEW_DESCRIPTORS {
        Finding::fail("descriptors", ErrorCode::OutOfDescriptors, format!("only {what}"), fix)
    } else if now < MODEST_DESCRIPTORS {
        Finding::warn("descriptors", what, fix)
    } else {
        Finding::ok("descriptors", what)
    }
}

pub(super) fn ipv6() -> Finding {
    match TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => Finding::ok("ipv6", "there"),
        Err(_) => Finding::ok("ipv6", "not there; everything works over IPv4"),
    }
}

/// The private directory of this user, in which parts have their sockets.
pub(super) fn runtime_directory() -> Finding {
    let name = "runtime dir";
    let Some(path) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) else {
        return Finding::ok(name, "a fallback: XDG_RUNTIME_DIR is not set");
    };
    let fix = "unset XDG_RUNTIME_DIR, or set it to a directory of yours with mode 0700";
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() && writable(&path) => {
            Finding::ok(name, path.display().to_string())
        }
        Ok(found) if !found.is_dir() => {
            Finding::warn(name, format!("{} is no directory", path.display()), fix)
        }
        Ok(_) => Finding::warn(name, format!("{} is not this user's", path.display()), fix),
        Err(error) => Finding::warn(name, format!("{}: {}", path.display(), error.kind()), fix),
    }
}

pub(super) fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        assert_eq!(version("6.18.0-amd64"), Some((6, 18)));
        assert!(version("5.4.0").unwrap() < OLDEST_KERNEL);
        assert!(version("5.11").unwrap() >= OLDEST_KERNEL);
        assert!(version("10.1.2").unwrap() > OLDEST_KERNEL);
        assert_eq!(version("unknown"), None);
    }
}
