//! The cgroups of a machine (version 1): one of its own in every hierarchy, below that of the supervisor.
//!
//! So what the machine uses still counts as its user's, and its own cgroup namespace shows it the root of
//! each hierarchy.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::state;

/// Where systemd and containers mount the hierarchies.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// Without these the kubelet does not start.
const NEEDED: &[&str] = &["cpu", "cpuacct", "cpuset", "memory", "pids"];
/// How long the kernel may take to let go of a cgroup whose processes were killed.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A hierarchy, and where a process is in it: a line of `/proc/self/cgroup`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// `cpu,cpuacct`, or `name=systemd` for one without controllers.
    pub(super) controllers: String,
    path: String,
}

/// The hierarchies of version 1 as this process sees them.
pub(super) fn hierarchies() -> Result<Vec<Hierarchy>> {
    let text = std::fs::read_to_string("/proc/self/cgroup")
        .context("could not read /proc/self/cgroup; the kernel needs cgroups")?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        // The one of version 2 has no list.
        (!controllers.is_empty()).then_some(Hierarchy { controllers, path })
    };
    text.lines().filter_map(hierarchy).collect()
}

/// What a machine would miss; `None` if there is all.
pub(super) fn missing(hierarchies: &[Hierarchy]) -> Option<String> {
    let has = |controller: &&&str| {
        hierarchies.iter().any(|one| one.controllers.split(',').any(|own| own == **controller))
    };
    let missing: Vec<&str> = NEEDED.iter().filter(|name| !has(name)).copied().collect();
    if !missing.is_empty() {
        return Some(format!(
            "cgroups of version 1 with the controllers {} (boot with \
             systemd.unified_cgroup_hierarchy=0)",
            missing.join(", ")
        ));
    }
    let mut folders = hierarchies.iter().map(Hierarchy::folder);
    let absent = folders.find(|folder| !folder.is_dir());
    absent.map(|folder| format!("the cgroup hierarchy at {}", folder.display()))
}

impl Hierarchy {
    /// The name of the folder where it is mounted.
    pub(super) fn mount(&self) -> &str {
        self.controllers.strip_prefix("name=").unwrap_or(&self.controllers)
    }

    /// What `mount` takes for it.
    pub(super) fn options(&self) -> String {
        match self.controllers.starts_with("name=") {
            true => format!("none,{}", self.controllers),
            false => self.controllers.clone(),
        }
    }

    /// The cgroup of this process.
    fn folder(&self) -> PathBuf {
        Path::new(ROOT).join(self.mount()).join(self.path.trim_start_matches('/'))
    }

    fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|own| own == controller)
    }
}

/// Moves this process into new cgroups of that name. `list` is the file that names them, which is written
/// before they are made.
pub(super) fn enter(name: &str, list: &Path) -> Result<()> {
    // All are read first: moving changes them.
    let above: Vec<(Hierarchy, PathBuf)> = hierarchies()?
        .into_iter()
        .map(|hierarchy| {
            let folder = hierarchy.folder();
            (hierarchy, folder)
        })
        .collect();
    let own = |folder: &Path| folder.join(name);
    let names: Vec<String> =
        above.iter().map(|(_, folder)| own(folder).display().to_string()).collect();
    state::write(list, &names.join("\n"))?;
    for (hierarchy, above) in &above {
        let folder = own(above);
        std::fs::create_dir(&folder)
            .with_context(|| format!("could not make the cgroup {}", folder.display()))?;
        if hierarchy.has("cpuset") {
            // Empty in a new one, which takes no process then.
            for set in ["cpuset.cpus", "cpuset.mems"] {
                let value = std::fs::read_to_string(above.join(set))
                    .with_context(|| format!("could not read {set} of {}", above.display()))?;
                state::write(&folder.join(set), value.trim())?;
            }
            state::write(&folder.join("cgroup.clone_children"), "1")?;
        }
        state::write(&folder.join("cgroup.procs"), "0")?;
    }
    Ok(())
}

/// Removes the cgroups that the file names, with those below. Their processes have ended.
pub(super) fn remove(list: &Path) -> Result<()> {
    let Ok(names) = std::fs::read_to_string(list) else { return Ok(()) };
    let deadline = Instant::now() + REMOVAL_LIMIT;
    for folder in names.lines().map(Path::new) {
        while let Err(error) = remove_tree(folder) {
            if Instant::now() > deadline {
                bail!("could not remove the cgroup {}: {error}", folder.display());
            }
            std::thread::sleep(PAUSE);
        }
    }
    std::fs::remove_file(list).with_context(|| format!("could not remove {}", list.display()))
}

/// A cgroup's files go with it; its folders have to go first.
fn remove_tree(folder: &Path) -> std::io::Result<()> {
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_and_version_2_is_left_out() {
        let found = parse(
            "9:name=systemd:/\n4:memory:/user/a:b\n2:cpu,cpuacct:/\n1:cpuset,pids:/\n0::/init\n",
        );
        assert_eq!(found.len(), 4);
        assert_eq!(found[0].folder(), Path::new("/sys/fs/cgroup/systemd"));
        assert_eq!(found[0].options(), "none,name=systemd");
        assert_eq!(found[1].folder(), Path::new("/sys/fs/cgroup/memory/user/a:b"));
        assert_eq!(found[2].options(), "cpu,cpuacct");
        assert!(found[2].has("cpu") && !found[1].has("cpu"));
    }

    #[test]
    fn a_machine_with_version_2_alone_misses_controllers() {
        let missing = missing(&parse("0::/user.slice\n")).unwrap();
        assert!(missing.contains("cpu, cpuacct, cpuset, memory, pids"), "{missing}");
    }

    #[test]
    fn a_tree_of_folders_is_removed() {
        let above = tempfile::tempdir().unwrap();
        let list = above.path().join("list");
        let folder = above.path().join("a");
        std::fs::create_dir_all(folder.join("b/c")).unwrap();
        std::fs::write(&list, format!("{}\n/no/such/folder", folder.display())).unwrap();
        remove(&list).unwrap();
        assert!(!folder.exists() && !list.exists());
        remove(&list).unwrap();
    }
}
