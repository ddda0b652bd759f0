//! What tests install from registries: in a folder outside the checkout, once for each set of
//! versions, so that a new checkout finds it there.

use std::collections::hash_map::DefaultHasher;
use std::env::{temp_dir, var_os};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

/// The variable that names the cache's folder; without it the user's own cache has it.
const CACHE: &str = "TOLLWAY_CACHE";

/// A folder in the cache for `name`, another one for each `pins`: the versions or the lock file of
/// what is installed there. It may not exist yet.
pub(crate) fn folder(name: &str, pins: impl Hash) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    pins.hash(&mut hasher);
    root().join(format!("{name}-{:016x}", hasher.finish()))
}

fn root() -> PathBuf {
    let below = |variable: &str, path: &str| Some(PathBuf::from(var_os(variable)?).join(path));
    below(CACHE, "")
        .or_else(|| below("XDG_CACHE_HOME", "tollway"))
        .or_else(|| below("HOME", ".cache/tollway"))
        .unwrap_or_else(|| temp_dir().join("tollway-cache"))
}

/// Runs `install`, which fills `folder`, unless it succeeded before; another process that needs the
/// same folder waits meanwhile.
pub(crate) fn install_once(
    folder: &Path,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let _lock = lock(folder)?;
    let done = folder.join("installed");
    if done.exists() {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    install()?;
    std::fs::write(&done, "").map_err(failed)
}

/// The exclusive lock of `folder`, held until what is returned is dropped.
fn lock(folder: &Path) -> Result<File, String> {
    let mut lock = folder.as_os_str().to_owned();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let locked = || {
        lock.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let file = File::create(&lock)?;
        file.lock().map(|()| file)
    };
    let locked: std::io::Result<File> = locked();
    locked.map_err(|error| format!("{} cannot be locked: {error}", lock.display()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::TempDir;

    #[test]
    fn each_set_of_versions_has_a_folder_of_its_own() {
        let of = |pins: [&str; 2]| folder("python", pins);
        assert_eq!(of(["a==1", "b==1"]), of(["a==1", "b==1"]));
        assert_ne!(of(["a==1", "b==1"]), of(["a==2", "b==1"]));
        assert_ne!(of(["a==1", "b==1"]), folder("node", ["a==1", "b==1"]));
    }

    #[test]
    fn what_was_installed_stays_and_what_failed_is_tried_again() {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("python-1");
        assert_eq!(install_once(&folder, || Err("no".into())), Err("no".into()));
        let mut installed = 0;
        for _ in 0..2 {
            let install = || {
                installed += 1;
                std::fs::write(folder.join("x"), "").map_err(|error| error.to_string())
            };
            install_once(&folder, install).unwrap();
        }
        assert_eq!(installed, 1);
    }

    #[test]
    fn one_at_a_time_installs_into_a_folder() {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("not/yet/there-1.0");
        let holders = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let held = lock(&folder).unwrap();
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "another holds it");
                    std::thread::sleep(Duration::from_millis(2));
                    holders.fetch_sub(1, Ordering::SeqCst);
                    drop(held);
                });
            }
        });
        let other = lock(&dir.path().join("not/yet/there-1.1"));
        let both = (lock(&folder), other);
        assert!(both.0.is_ok() && both.1.is_ok(), "each folder has its own lock");
    }
}
