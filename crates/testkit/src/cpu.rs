//! Processor time as the kernel counts it, of a process and of the calling thread.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// Processor time of all threads of a process that are alive, in user space and in the kernel
/// (`/proc/PID/task/*/schedstat`).
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let threads = std::fs::read_dir(&folder).with_context(|| format!("could not list {folder}"))?;
    let mut sum = Duration::ZERO;
    for thread in threads {
        let thread = thread.with_context(|| format!("could not list {folder}"))?;
        // One that ended in the meantime is no more.
        sum += schedstat(&thread.path()).unwrap_or_default();
    }
    Ok(sum)
}

/// Processor time of the calling thread.
pub fn thread_cpu_time() -> Result<Duration> {
    schedstat(Path::new("/proc/thread-self"))
}

fn schedstat(folder: &Path) -> Result<Duration> {
    let file = folder.join("schedstat");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read {}", file.display()))?;
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
    let nanoseconds = nanoseconds.with_context(|| format!("not a schedstat: {text}"))?;
    Ok(Duration::from_nanos(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_thread_counts_for_it_and_for_its_process() {
        let own = thread_cpu_time().unwrap();
        let process = cpu_time(std::process::id()).unwrap();
        let worked = std::thread::spawn(|| {
            let mut sum = 0_u64;
            while thread_cpu_time().unwrap() < Duration::from_millis(50) {
                sum = (0..10_000_u64).fold(sum, |sum, n| sum ^ std::hint::black_box(n));
            }
            let worked = cpu_time(std::process::id()).unwrap();
            std::hint::black_box(sum);
            worked
        });
        assert!(worked.join().unwrap() >= process + Duration::from_millis(45));
        assert!(thread_cpu_time().unwrap() < own + Duration::from_millis(45));
    }
}
