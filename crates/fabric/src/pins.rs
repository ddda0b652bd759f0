//! The directory of the BPF file system in which a forwarder's tables and links are pinned.
//!
//! One for each group and version of the tables' layout: `/sys/fs/bpf/tollway/<group>/v2`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

use crate::layout::VERSION;

/// Where the BPF file system is, on every distribution.
const ROOT: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FILE_SYSTEM: u64 = 0xcafe_4a11;

/// Why there is nowhere to pin anything.
#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    #[error(
        "the BPF file system is not mounted at {ROOT} and cannot be; type `mount -t bpf bpf {ROOT}`"
    )]
    Mount { source: io::Error },
    #[error("cannot make the directory {}; it needs root", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot remove {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("{name:?} cannot name a group of forwarders: letters, digits, `-` and `_` can")]
    Name { name: String },
}

/// The directory of `group`, made if it is not there.
pub fn directory(group: &str) -> Result<PathBuf, PinsError> {
    let path = path_of(group)?;
    mount_if_needed()?;
    fs::create_dir_all(&path)
        .map_err(|source| PinsError::Directory { path: path.clone(), source })?;
    Ok(path)
}

/// Where the directory of `group` is, or would be.
pub fn path_of(group: &str) -> Result<PathBuf, PinsError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if group.is_empty() || group.len() > 63 || !group.chars().all(is_plain) {
        return Err(PinsError::Name { name: group.to_owned() });
    }
    Ok(Path::new(ROOT).join("tollway").join(group).join(format!("v{VERSION}")))
}

/// Removes every table of `group`, after its programs have been taken off.
pub fn remove_tables(group: &str) -> Result<(), PinsError> {
    let path = path_of(group)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| PinsError::Remove { path, source }
    };
    match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(PinsError::Remove { path, source }),
        Ok(entries) => {
            for entry in entries.flatten() {
                fs::remove_file(entry.path()).map_err(failed(&entry.path()))?;
            }
        }
    }
    fs::remove_dir(&path).map_err(failed(&path))?;
    // Its parents stay while another version or group is in them.
    for parent in path.ancestors().skip(1).take(2) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}

fn mount_if_needed() -> Result<(), PinsError> {
    let failed = |error: rustix::io::Errno| PinsError::Mount { source: error.into() };
    let here = rustix::fs::statfs(ROOT).map_err(failed)?;
    if u64::try_from(here.f_type).is_ok_and(|kind| kind == BPF_FILE_SYSTEM) {
        return Ok(());
    }
    rustix::mount::mount("bpf", ROOT, "bpf", MountFlags::empty(), None).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_cannot_lead_out_of_the_directory() {
        for name in ["", "..", "a/b", "a.b", "ä"] {
            assert!(path_of(name).is_err(), "{name}");
        }
        let path = path_of("group-1").unwrap();
        assert_eq!(path, Path::new("/sys/fs/bpf/tollway/group-1/v2"));
    }
}
