//! The run's clock, and the processor time that the run has cost.

use std::time::{Duration, Instant};

use rustix::time::ClockId;

/// Nanoseconds since the first connection was dialled; never goes back.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        crate::arrival::nanos(self.origin.elapsed())
    }
}

/// Processor time used so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct CpuTime {
    /// User and system time of the process.
    pub(crate) process: Duration,
    /// Of the calling thread.
    pub(crate) thread: Duration,
}

impl CpuTime {
    pub(crate) fn now() -> Self {
        Self {
            process: cpu_clock(ClockId::ProcessCPUTime),
            thread: cpu_clock(ClockId::ThreadCPUTime),
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            thread: self.thread.saturating_sub(earlier.thread),
        }
    }
}

fn cpu_clock(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The process's resident memory; 0 where /proc cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let Ok(statm) = std::fs::read_to_string("/proc/self/statm") else { return 0 };
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
