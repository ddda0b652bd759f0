//! What the generator itself costs while it measures.

use std::time::Duration;

use rustix::time::ClockId;
use tollway_record::run::Generator;

/// What the generator itself costs over the window.
#[derive(Default)]
pub(crate) struct Cost {
    begun: Option<(u64, CpuTime)>,
    used: Option<(u64, CpuTime)>,
}

impl Cost {
    /// Takes the processor times when the window starts and when it has ended.
    pub(crate) fn note(&mut self, now_ns: u64, start_ns: u64, end_ns: Option<u64>) {
        if self.begun.is_none() && now_ns >= start_ns {
            self.begun = Some((now_ns, CpuTime::now()));
        }
        if let (Some((begun_ns, begun)), None) = (self.begun, self.used)
            && end_ns.is_some_and(|end_ns| now_ns >= end_ns)
        {
            self.used = Some((now_ns - begun_ns, CpuTime::now().since(begun)));
        }
    }

    pub(crate) fn generator(&self) -> Generator {
        let (wall_ns, cpu) = self.used.unwrap_or_default();
        let busy = if wall_ns > 0 { cpu.thread.as_secs_f64() * 1e9 / wall_ns as f64 } else { 0.0 };
        Generator {
            threads: 1,
            cpu_us: cpu.process.as_secs_f64() * 1e6,
            busiest_thread_fraction: busy.min(1.0),
            rss_bytes: resident_bytes(),
        }
    }
}

/// Processor time used so far.
#[derive(Clone, Copy, Default)]
struct CpuTime {
    /// User and system time of the process.
    process: Duration,
    /// Of the calling thread.
    thread: Duration,
}

impl CpuTime {
    fn now() -> Self {
        Self { process: process_cpu(), thread: cpu_clock(ClockId::ThreadCPUTime) }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            thread: self.thread.saturating_sub(earlier.thread),
        }
    }
}

/// Processor time of the calling thread, in ns.
pub(crate) fn thread_cpu_ns() -> u64 {
    crate::arrival::nanos(cpu_clock(ClockId::ThreadCPUTime))
}

fn cpu_clock(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time of the process so far.
#[must_use]
pub fn process_cpu() -> Duration {
    cpu_clock(ClockId::ProcessCPUTime)
}

/// The most resident memory that the process ever had, or since [`forget_peak`], in bytes; 0 where
/// /proc cannot be read.
#[must_use]
pub fn peak_resident_bytes() -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Lets the peak start again at what is resident now; it stays where the kernel does not permit that.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The process's resident memory; 0 where /proc cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
