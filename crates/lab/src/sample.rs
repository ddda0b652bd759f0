//! What processes and the whole machine have used: CPU time, memory, pressure.
//!
//! A process's CPU time is read from its kernel clock, which counts all its threads, those that
//! ended included, in nanoseconds. (The sum over `/proc/PID/task/*/schedstat` loses ended
//! threads; `/proc/PID/stat` counts in ticks of 10 ms, too coarse for windows of a second.)

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("cannot read the CPU clock of process {pid}; it may have ended")]
    Clock { pid: u32, source: io::Error },
    #[error("cannot read {path}")]
    Read { path: String, source: io::Error },
    #[error("{path} has no {what}")]
    Format { path: String, what: &'static str },
}

/// What one process has used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessUsage {
    /// User and system time of all its threads since it started.
    pub cpu: Duration,
    /// Memory it holds in RAM now.
    pub rss_bytes: u64,
    /// The most it ever held.
    pub peak_rss_bytes: u64,
}

impl ProcessUsage {
    pub fn read(pid: u32) -> Result<Self, SampleError> {
        let cpu = cpu_time(pid)?;
        let path = format!("/proc/{pid}/status");
        let status = read_file(&path)?;
        let bytes = |key, what| {
            kib_field(&status, key)
                .map(|kib| kib * 1024)
                .ok_or_else(|| SampleError::Format { path: path.clone(), what })
        };
        Ok(Self {
            cpu,
            rss_bytes: bytes("VmRSS:", "VmRSS")?,
            peak_rss_bytes: bytes("VmHWM:", "VmHWM")?,
        })
    }
}

/// CPU time of a process, all threads, nanosecond resolution.
pub fn cpu_time(pid: u32) -> Result<Duration, SampleError> {
    let failed = |error: nix::Error| SampleError::Clock { pid, source: error.into() };
    let id = i32::try_from(pid).map_err(|_| failed(nix::Error::ESRCH))?;
    let time =
        clock_getcpuclockid(Pid::from_raw(id)).and_then(|clock| clock.now()).map_err(failed)?;
    Ok(Duration::from(time))
}

/// What all processors have done since boot, each kind summed over processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineUsage {
    /// Doing nothing, waiting for disks included.
    pub idle: Duration,
    /// Taken away by the hypervisor.
    pub steal: Duration,
    /// Everything, the two above included.
    pub total: Duration,
}

impl MachineUsage {
    pub fn read() -> Result<Self, SampleError> {
        let path = "/proc/stat";
        let text = read_file(path)?;
        Self::parse(&text, rustix::param::clock_ticks_per_second())
            .ok_or_else(|| SampleError::Format { path: path.into(), what: "line of all CPUs" })
    }

    /// Fields of the first line: user nice system idle iowait irq softirq steal guest guest_nice;
    /// guest time is part of user time already.
    fn parse(text: &str, ticks_per_s: u64) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let time = |ticks: u64| Duration::from_nanos(ticks * (1_000_000_000 / ticks_per_s.max(1)));
        let fields = ticks.get(..8)?;
        Some(Self {
            idle: time(fields[3] + fields[4]),
            steal: time(fields[7]),
            total: time(fields.iter().sum()),
        })
    }

    /// What was used from `earlier` until this reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            idle: self.idle.saturating_sub(earlier.idle),
            steal: self.steal.saturating_sub(earlier.steal),
            total: self.total.saturating_sub(earlier.total),
        }
    }

    /// Time spent working over a wall-clock window on `cpus` processors. From idle time, which
    /// the kernel counts exactly, rather than from busy ticks, which it samples.
    #[must_use]
    pub fn busy(&self, window: Duration, cpus: u32) -> Duration {
        (window * cpus).saturating_sub(self.idle).saturating_sub(self.steal)
    }

    /// Share of all CPU time that the hypervisor took, 0 to 1.
    #[must_use]
    pub fn steal_fraction(&self) -> f64 {
        if self.total.is_zero() { 0.0 } else { self.steal.as_secs_f64() / self.total.as_secs_f64() }
    }
}

/// Time in which the process's threads were ready to run and waited for a processor, summed over
/// those that live.
#[must_use]
pub fn run_queue_wait(pid: u32) -> Option<Duration> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let wait = |entry: fs::DirEntry| {
        parse_run_queue_wait(&fs::read_to_string(entry.path().join("schedstat")).ok()?)
    };
    Some(entries.filter_map(Result::ok).filter_map(wait).sum())
}

/// Fields: time on a processor, time waiting for one, both nanoseconds, and time slices.
fn parse_run_queue_wait(text: &str) -> Option<Duration> {
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Time during which at least one task of the machine waited for memory, since boot. `None` where
/// the kernel has no pressure accounting.
#[must_use]
pub fn memory_pressure() -> Option<Duration> {
    parse_pressure(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// Time during which at least one task of the machine waited for a processor, since boot.
/// `None` where the kernel has no pressure accounting.
#[must_use]
pub fn cpu_pressure() -> Option<Duration> {
    parse_pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_pressure(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

fn kib_field(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse().ok()
}

fn read_file(path: &str) -> Result<String, SampleError> {
    fs::read_to_string(path).map_err(|source| SampleError::Read { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Instant;

    #[test]
    fn a_busy_loop_s_time_is_found_also_when_its_thread_has_ended() {
        let pid = std::process::id();
        let before = cpu_time(pid).unwrap();
        // Other tests run in this process meanwhile, so the loop's own clock is the reference
        // and they can only add to it.
        let own = thread::spawn(|| spin(Duration::from_millis(300))).join().unwrap();
        let used = cpu_time(pid).unwrap() - before;
        assert!(used >= own, "{used:?} of at least {own:?}");
    }

    #[test]
    fn the_time_of_another_process_is_within_10_percent_of_what_it_used() {
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; times; exec sleep 30";
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut lines = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut lines, &mut line).unwrap();
        let measured = cpu_time(child.id()).unwrap().as_secs_f64();
        child.kill().unwrap();
        child.wait().unwrap();
        let own: f64 = line.split_whitespace().map(shell_seconds).sum();
        assert!(own > 0.05, "{line}");
        assert!((measured - own).abs() <= own * 0.1 + 0.02, "{measured} s, the shell says {own} s");
    }

    #[test]
    fn memory_of_this_process_is_plausible() {
        let usage = ProcessUsage::read(std::process::id()).unwrap();
        assert!(usage.rss_bytes > 1 << 20 && usage.peak_rss_bytes >= usage.rss_bytes / 2);
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = ProcessUsage::read(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("4294967295"), "{error}");
    }

    #[test]
    fn machine_lines_are_read_and_subtracted() {
        let parse = |line: &str| MachineUsage::parse(line, 100).unwrap();
        let before = parse("cpu  100 0 50 1000 10 0 5 2 0 0\ncpu0 1 1 1 1\n");
        let after = parse("cpu  150 0 70 1200 20 0 15 12 0 0\n");
        let used = after.since(&before);
        assert_eq!(used.idle, Duration::from_millis(2_100));
        assert_eq!(used.steal, Duration::from_millis(100));
        assert_eq!(used.total, Duration::from_millis(3_000));
        let busy = used.busy(Duration::from_millis(1_500), 2);
        assert_eq!(busy, Duration::from_millis(800));
        assert!((used.steal_fraction() - 1.0 / 30.0).abs() < 1e-9);
        assert_eq!(MachineUsage::parse("intr 5", 100), None);
        assert_eq!(MachineUsage::parse("cpu  1 2 x", 100), None);
        assert!(MachineUsage::read().unwrap().total > Duration::ZERO);
    }

    #[test]
    fn pressure_is_the_total_of_the_line_some() {
        let text = "some avg10=0.00 avg60=0.10 total=123456\nfull avg10=0.00 total=9\n";
        assert_eq!(parse_pressure(text), Some(Duration::from_micros(123_456)));
        assert_eq!(parse_pressure("nothing"), None);
    }

    #[test]
    fn the_wait_for_a_processor_is_the_second_number() {
        let wait = parse_run_queue_wait("1234567 89000 12\n");
        assert_eq!(wait, Some(Duration::from_micros(89)));
        assert_eq!(parse_run_queue_wait("1"), None);
        assert!(run_queue_wait(std::process::id()).is_some());
        assert_eq!(run_queue_wait(u32::MAX), None);
    }

    fn spin(time: Duration) -> Duration {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(own.tv_sec as u64, own.tv_nsec as u32)
    }

    /// `0m1.234s` of the shell's `times`.
    fn shell_seconds(text: &str) -> f64 {
        let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    }
}
