//! The layout *pinned*: the subject on a processor of its own, everything else on the others, so
//! that a saturated subject is the limit, and not the processes that share its processor.

use std::fs;
use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Why processes could not be bound to processors.
#[derive(Debug, thiserror::Error)]
#[error("cannot bind process {pid} to processors {processors:?}")]
pub struct AffinityError {
    pid: u32,
    processors: Vec<usize>,
    source: io::Error,
}

/// Does `work` with the `subject` on the last processor and the `others` on the rest. Processes
/// that `work` starts are among the others. Afterwards all may use all processors again.
pub fn pinned<T>(
    subject: Vec<u32>,
    others: &[u32],
    work: impl FnOnce() -> T,
) -> Result<T, AffinityError> {
    let mut bound = Bound { all: own_processors()?, processes: Vec::new() };
    let Some((&last, rest)) = bound.all.split_last() else { return Ok(work()) };
    let (last, rest) = (vec![last], rest.to_vec());
    for &pid in others.iter().filter(|pid| !subject.contains(pid)) {
        bound.bind(pid, &rest)?;
    }
    for &pid in &subject {
        bound.bind(pid, &last)?;
    }
    Ok(work())
}

/// Processes that are bound, until dropped.
struct Bound {
    all: Vec<usize>,
    processes: Vec<u32>,
}

impl Bound {
    fn bind(&mut self, pid: u32, processors: &[usize]) -> Result<(), AffinityError> {
        self.processes.push(pid);
        set(pid, processors)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for &pid in &self.processes {
            // One that ended needs no processor.
            let _ = set(pid, &self.all);
        }
    }
}

/// All threads of a process; threads they start later inherit it.
fn set(pid: u32, processors: &[usize]) -> Result<(), AffinityError> {
    let failed = |source| AffinityError { pid, processors: processors.to_vec(), source };
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    for thread in threads(pid).map_err(failed)? {
        match sched_setaffinity(Some(thread), &set) {
            // A thread may end between being listed and being bound.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

fn threads(pid: u32) -> io::Result<Vec<Pid>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let id = |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
    Ok(entries.filter_map(Result::ok).filter_map(id).collect())
}

fn own_processors() -> Result<Vec<usize>, AffinityError> {
    let pid = std::process::id();
    let failed = |error: rustix::io::Errno| AffinityError {
        pid,
        processors: Vec::new(),
        source: error.into(),
    };
    let set = sched_getaffinity(None).map_err(failed)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn allowed(pid: u32) -> String {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    #[test]
    fn subject_and_others_share_no_processor_while_the_work_lasts() {
        let all = own_processors().unwrap();
        let start = || Command::new("sleep").arg("30").stdout(Stdio::null()).spawn().unwrap();
        let (mut subject, mut other) = (start(), start());
        let before = allowed(subject.id());
        let seen = pinned(vec![subject.id()], &[subject.id(), other.id()], || {
            (allowed(subject.id()), allowed(other.id()))
        });
        let after = (allowed(subject.id()), allowed(other.id()));
        for child in [&mut subject, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if all.len() > 1 {
            let (subject, other) = seen.unwrap();
            assert_eq!(subject, all.last().unwrap().to_string());
            assert_ne!(subject, other);
        }
        assert_eq!(after, (before.clone(), before), "and afterwards all may use all");
    }
}
