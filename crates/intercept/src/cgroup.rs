//! The cgroup of an app: made below this process's own in the hierarchy of version 2, and removed
//! with the value.
//!
//! A cgroup of version 2 is where programs for sockets can be attached, also on a machine that
//! manages its resources by version 1. No controller is enabled, so it bounds nothing.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// How the names of these cgroups begin; the id of the process that made it follows, and a number.
const NAME: &str = "tollway-run-";
static MADE: AtomicU32 = AtomicU32::new(0);
/// Times that the removal is tried: processes that have ended leave a moment later.
const REMOVALS: u32 = 20;
const REMOVE_EVERY: Duration = Duration::from_millis(5);

/// Why there is no cgroup for an app.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("this machine has no cgroups of version 2, and they cannot be mounted")]
    NoHierarchy { source: io::Error },
    #[error("cannot find this process's own cgroup of version 2")]
    Own { source: io::Error },
    #[error("cannot make a cgroup below {}", parent.display())]
    Make { parent: PathBuf, source: io::Error },
}

/// A cgroup of its own, empty until processes are started in it.
#[derive(Debug)]
pub(crate) struct Cgroup {
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
    processes: OwnedFd,
}

impl Cgroup {
    /// Makes it. Those that processes left which are gone are removed.
    pub(crate) fn make() -> Result<Self, CgroupError> {
        let (parent, path) = open_own()?;
        remove_left(&parent);
        let failed = |source: io::Error| CgroupError::Make { parent: path.clone(), source };
        let name = format!("{NAME}{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        match rustix::fs::mkdirat(&parent, &name, Mode::RWXU) {
            // Of an earlier process of this number; nothing is in it, or it would be here.
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let open = |name: String, flags| {
            rustix::fs::openat(&parent, name, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| failed(error.into()))
        };
        let directory = open(name.clone(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let processes = open(format!("{name}/cgroup.procs"), OFlags::WRONLY)?;
        Ok(Self { parent, name, directory, processes })
    }

    /// The file by which processes enter.
    pub(crate) fn processes(&self) -> BorrowedFd<'_> {
        self.processes.as_fd()
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(REMOVE_EVERY),
                _ => return,
            }
        }
        // What the app has started and left is in it. The next start removes it.
        tracing::debug!(name = self.name, "a cgroup is still in use");
    }
}

/// Removes the cgroups of processes that are gone; those that are in use stay.
fn remove_left(parent: &OwnedFd) {
    let Ok(entries) = rustix::fs::Dir::read_from(parent) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let pid = name.strip_prefix(NAME).and_then(|rest| rest.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            // Refused while processes are in it.
            let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
    }
}

/// Opens this process's own cgroup of version 2; the path is for messages.
fn open_own() -> Result<(OwnedFd, PathBuf), CgroupError> {
    let own = |source| CgroupError::Own { source };
    let cgroups = fs::read_to_string("/proc/self/cgroup").map_err(own)?;
    let within = own_path(&cgroups).unwrap_or("/").to_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(own)?;
    match find_mount(&mounts) {
        Some(mount) => {
            let path = mount.path_of(&within);
            Ok((open_directory(&path).map_err(own)?, path))
        }
        None => open_in_new_mount(&within),
    }
}

/// Mounts the hierarchy for a moment, for a machine that has it nowhere.
fn open_in_new_mount(within: &str) -> Result<(OwnedFd, PathBuf), CgroupError> {
    let failed = |source| CgroupError::NoHierarchy { source };
    let folder = tempfile::tempdir().map_err(failed)?;
    rustix::mount::mount("none", folder.path(), "cgroup2", MountFlags::empty(), None)
        .map_err(|error| failed(error.into()))?;
    let path = Mount { root: "/".to_owned(), at: folder.path().to_owned() }.path_of(within);
    let opened = open_directory(&path);
    // What is open stays.
    let _ = rustix::mount::unmount(folder.path(), UnmountFlags::DETACH);
    Ok((opened.map_err(|source| CgroupError::Own { source })?, path))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The path of version 2 in a file `/proc/PID/cgroup`.
fn own_path(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Where a hierarchy is mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    /// Which of its cgroups is at the top of the mount.
    root: String,
    at: PathBuf,
}

impl Mount {
    /// The folder of a cgroup. One that is not below the mount's top has none: the top stands for it.
    fn path_of(&self, cgroup: &str) -> PathBuf {
        let below = match self.root.as_str() {
            "/" => Some(cgroup),
            root => cgroup.strip_prefix(root),
        };
        let below = below.filter(|below| !below.contains("/.."));
        self.at.join(below.unwrap_or_default().trim_start_matches('/'))
    }
}

/// The first mount of version 2 in a file `/proc/PID/mountinfo`.
fn find_mount(mounts: &str) -> Option<Mount> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        (kind.split(' ').next()? == "cgroup2").then_some(())?;
        let mut fields = place.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        Some(Mount { root: unescaped(root), at: unescaped(at).into() })
    })
}

/// A path in which blanks are written as `\040`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        25 30 0:23 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755\n\
        26 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        27 25 0:25 /a\\040b /sys/fs/cgroup/uni\\040fied rw shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_hierarchy_of_version_2_is_found_beside_those_of_version_1() {
        let mount = find_mount(MOUNTS).unwrap();
        assert_eq!(mount, Mount { root: "/a b".into(), at: "/sys/fs/cgroup/uni fied".into() });
        assert_eq!(find_mount("26 25 0:24 / /a rw - cgroup cgroup rw,memory\n"), None);
        assert_eq!(own_path("5:memory:/x\n0::/user.slice/a\n"), Some("/user.slice/a"));
        assert_eq!(own_path("5:memory:/x\n"), None);
    }

    #[test]
    fn a_cgroup_has_its_folder_below_the_mount() {
        let mount = |root: &str| Mount { root: root.into(), at: "/cg".into() };
        assert_eq!(mount("/").path_of("/user/a"), Path::new("/cg/user/a"));
        assert_eq!(mount("/").path_of("/"), Path::new("/cg"));
        assert_eq!(mount("/user").path_of("/user/a"), Path::new("/cg/a"));
        // In a container whose namespace begins elsewhere.
        assert_eq!(mount("/other").path_of("/user/a"), Path::new("/cg"));
        assert_eq!(mount("/").path_of("/../../a"), Path::new("/cg"));
    }

    #[test]
    fn a_cgroup_is_made_and_removed() {
        let first = tollway_testkit::need_right!(Cgroup::make());
        let (_, path) = open_own().unwrap();
        let folder = path.join(&first.name);
        assert!(folder.join("cgroup.procs").exists());
        drop(first);
        assert!(!folder.exists());
    }
}
