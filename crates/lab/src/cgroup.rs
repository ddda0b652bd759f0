//! CPU and memory limits of processes, by cgroup v1 or v2, and what the CPU limits did.
//!
//! Each limited process has a group of its own, directly under the hierarchy's root and named
//! after the lab's process, so that what a killed lab left is found and removed by the next one.
//! Groups are made and entered when a process is first limited; lifting a limit leaves it inside.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tollway_record::record::{Limits, Throttling};

const PREFIX: &str = "tollway-lab-";
/// Where systemd and containers put the hierarchies.
const ROOT: &str = "/sys/fs/cgroup";
const PROCS: &str = "cgroup.procs";
/// Period of an unlimited group: the kernel's default.
const DEFAULT_PERIOD_US: u32 = 100_000;

/// Why a process could not be limited.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroup hierarchy with a CPU controller is mounted under {ROOT}")]
    NotMounted,
    #[error("cannot make the group {path}")]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot write {value:?} to {path}")]
    Write { path: PathBuf, value: String, source: io::Error },
}

/// The groups of one experiment. Dropping it removes those that are empty.
#[derive(Debug)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    limited: BTreeSet<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    /// A folder for each controller.
    V1 {
        cpu: PathBuf,
        memory: PathBuf,
    },
    V2(PathBuf),
}

/// Whether this process may limit others; `Err` is the reason why not.
pub fn probe() -> Result<(), String> {
    let tried = Cgroups::new().and_then(|mut groups| {
        let hierarchy = groups.hierarchy.clone();
        let pid = std::process::id();
        let made = hierarchy.make(pid).and_then(|()| {
            let limits = Limits {
                cpu_millicores: Some(1_000),
                cpu_period_us: DEFAULT_PERIOD_US,
                memory_bytes: None,
            };
            hierarchy.set(pid, Some(&limits))
        });
        groups.limited.insert(pid);
        made
    });
    tried.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}; run as root on the host", cause.unwrap_or_default())
    })
}

impl Cgroups {
    /// Finds the hierarchy and removes what killed labs left in it.
    pub fn new() -> Result<Self, CgroupError> {
        let hierarchy = Hierarchy::find(Path::new(ROOT)).ok_or(CgroupError::NotMounted)?;
        for folder in hierarchy.folders() {
            remove_abandoned(folder);
        }
        Ok(Self { hierarchy, limited: BTreeSet::new() })
    }

    /// Limits a process, or lifts the limit.
    pub fn limit(&mut self, pid: u32, limits: Option<&Limits>) -> Result<(), CgroupError> {
        if limits.is_none() && !self.limited.contains(&pid) {
            return Ok(());
        }
        if self.limited.insert(pid) {
            self.hierarchy.make(pid)?;
            self.hierarchy.enter(pid)?;
        }
        self.hierarchy.set(pid, limits)
    }

    /// What limits did to processes so far, together; `None` when none of them has a group.
    #[must_use]
    pub fn throttling(&self, pids: &[u32]) -> Option<Throttling> {
        let limited = pids.iter().filter(|pid| self.limited.contains(pid));
        let read = limited.filter_map(|&pid| self.hierarchy.throttling(pid));
        read.reduce(|a, b| Throttling {
            periods: a.periods + b.periods,
            throttled_periods: a.throttled_periods + b.throttled_periods,
            throttled_us: a.throttled_us + b.throttled_us,
        })
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for &pid in &self.limited {
            for folder in self.hierarchy.folders() {
                // One that is not empty stays until a later lab finds it.
                let _ = fs::remove_dir(folder.join(group(pid)));
            }
        }
    }
}

impl Hierarchy {
    fn find(root: &Path) -> Option<Self> {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if controllers.split_whitespace().any(|controller| controller == "cpu") {
            return Some(Self::V2(root.to_path_buf()));
        }
        let (cpu, memory) = (root.join("cpu"), root.join("memory"));
        cpu.join("cpu.cfs_quota_us")
            .exists()
            .then_some(())
            .or_else(|| cpu.join(PROCS).exists().then_some(()))
            .map(|()| Self::V1 { cpu, memory })
    }

    fn folders(&self) -> Vec<&Path> {
        match self {
            Self::V1 { cpu, memory } => vec![cpu, memory],
            Self::V2(root) => vec![root],
        }
    }

    fn make(&self, pid: u32) -> Result<(), CgroupError> {
        if let Self::V2(root) = self {
            // Children have the controllers that their parent hands down.
            write(&root.join("cgroup.subtree_control"), "+cpu +memory")?;
        }
        for folder in self.folders() {
            let path = folder.join(group(pid));
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(CgroupError::Make { path, source }),
            }
        }
        Ok(())
    }

    fn enter(&self, pid: u32) -> Result<(), CgroupError> {
        for folder in self.folders() {
            write(&folder.join(group(pid)).join(PROCS), &pid.to_string())?;
        }
        Ok(())
    }

    fn set(&self, pid: u32, limits: Option<&Limits>) -> Result<(), CgroupError> {
        let period_us = limits.map_or(DEFAULT_PERIOD_US, |limits| limits.cpu_period_us);
        let quota_us = limits
            .and_then(|limits| limits.cpu_millicores)
            .map(|millicores| u64::from(millicores) * u64::from(period_us) / 1_000);
        let memory = limits.and_then(|limits| limits.memory_bytes);
        match self {
            Self::V1 { cpu, memory: folder } => {
                let (cpu, folder) = (cpu.join(group(pid)), folder.join(group(pid)));
                let text = |value: Option<u64>| value.map_or("-1".to_owned(), |v| v.to_string());
                write(&cpu.join("cpu.cfs_period_us"), &period_us.to_string())?;
                write(&cpu.join("cpu.cfs_quota_us"), &text(quota_us))?;
                write(&folder.join("memory.limit_in_bytes"), &text(memory))
            }
            Self::V2(root) => {
                let folder = root.join(group(pid));
                let text = |value: Option<u64>| value.map_or("max".to_owned(), |v| v.to_string());
                write(&folder.join("cpu.max"), &format!("{} {period_us}", text(quota_us)))?;
                write(&folder.join("memory.max"), &text(memory))
            }
        }
    }

    fn throttling(&self, pid: u32) -> Option<Throttling> {
        let folder = match self {
            Self::V1 { cpu, .. } => cpu,
            Self::V2(root) => root,
        };
        parse_stat(&fs::read_to_string(folder.join(group(pid)).join("cpu.stat")).ok()?)
    }
}

/// Version 1 counts nanoseconds as `throttled_time`, version 2 microseconds as `throttled_usec`.
fn parse_stat(text: &str) -> Option<Throttling> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    Some(Throttling {
        periods: value("nr_periods")?,
        throttled_periods: value("nr_throttled")?,
        throttled_us: value("throttled_usec").or_else(|| Some(value("throttled_time")? / 1_000))?,
    })
}

fn group(pid: u32) -> String {
    format!("{PREFIX}{}-{pid}", std::process::id())
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::Write { path: path.into(), value: value.into(), source };
    fs::write(path, value).map_err(failed)
}

/// Groups of labs that do not run any more.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let lab = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let lab = lab.and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
        if lab.is_some_and(|lab| !Path::new(&format!("/proc/{lab}")).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn both_versions_of_the_statistics_are_read() {
        let v1 = "nr_periods 20\nnr_throttled 7\nthrottled_time 350000000\nnr_bursts 0\n";
        let v2 = "usage_usec 5\nnr_periods 20\nnr_throttled 7\nthrottled_usec 350000\n";
        let expected = Throttling { periods: 20, throttled_periods: 7, throttled_us: 350_000 };
        assert_eq!((parse_stat(v1), parse_stat(v2)), (Some(expected), Some(expected)));
        assert_eq!(parse_stat("nr_periods x\n"), None);
    }

    #[test]
    fn the_hierarchy_is_recognised_by_its_files() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Hierarchy::find(root.path()), None);
        let (cpu, memory) = (root.path().join("cpu"), root.path().join("memory"));
        fs::create_dir(&cpu).unwrap();
        fs::write(cpu.join(PROCS), "").unwrap();
        assert_eq!(Hierarchy::find(root.path()), Some(Hierarchy::V1 { cpu, memory }));
        fs::write(root.path().join("cgroup.controllers"), "cpuset cpu io memory\n").unwrap();
        assert_eq!(Hierarchy::find(root.path()), Some(Hierarchy::V2(root.path().into())));
    }

    #[test]
    fn a_quota_of_50_millicores_holds_a_busy_process_back() {
        if let Err(reason) = probe() {
            tollway_testkit::skip!("{reason}");
        }
        let mut groups = Cgroups::new().unwrap();
        let mut busy = Command::new("sh");
        let mut busy =
            busy.args(["-c", "while :; do :; done"]).stdout(Stdio::null()).spawn().unwrap();
        let pid = busy.id();
        let limits =
            Limits { cpu_millicores: Some(50), cpu_period_us: 100_000, memory_bytes: None };
        groups.limit(pid, Some(&limits)).unwrap();
        let (start, before) = (Instant::now(), crate::sample::cpu_time(pid).unwrap());
        std::thread::sleep(Duration::from_millis(1_000));
        let used = crate::sample::cpu_time(pid).unwrap() - before;
        let share = used.div_duration_f64(start.elapsed());
        let throttling = groups.throttling(&[pid, 1]).unwrap();
        groups.limit(pid, None).unwrap();
        busy.kill().unwrap();
        busy.wait().unwrap();
        let folder = groups.hierarchy.folders()[0].join(group(pid));
        assert!(folder.exists());
        drop(groups);
        assert!(share < 0.15, "{share}");
        assert!(
            throttling.throttled_periods > 0 && throttling.throttled_us > 100_000,
            "{throttling:?}"
        );
        assert!(!folder.exists(), "a group is removed when its process has ended");
    }
}
