//! Whether the machine stood still: tests that wait for other processes fail then without a fault
//! of theirs.
//!
//! Owns the two signs of it, the longest oversleeping of a thread that only sleeps and what the
//! hypervisor took, and from where on they count. What follows from them is the caller's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the watching thread sleeps at a time.
const NAP: Duration = Duration::from_millis(5);
/// An oversleeping that a machine which is only busy does not show.
const STOOD_STILL: Duration = Duration::from_millis(50);
/// The part of the processors' time, taken by the hypervisor, from which on programs notice.
const TAKEN: f64 = 0.03;

/// Watches until it is dropped.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    since: Option<ProcessorTime>,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    longest_us: AtomicU64,
}

/// What was seen within a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stillness {
    pub longest: Duration,
    /// Of the time of all processors, the part that the hypervisor gave to others, 0 to 1.
    pub stolen: f64,
}

impl Watch {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let watching = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !watching.ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                let over = begun.elapsed().saturating_sub(NAP).as_micros();
                let over = u64::try_from(over).unwrap_or(u64::MAX);
                watching.longest_us.fetch_max(over, Ordering::Relaxed);
            }
        });
        Self { shared, thread: Some(thread), since: ProcessorTime::now() }
    }

    /// What was seen since the last call, or since the start.
    pub(crate) fn take(&mut self) -> Stillness {
        let now = ProcessorTime::now();
        let stolen = match (self.since, now) {
            (Some(since), Some(now)) => now.stolen_since(since),
            _ => 0.0,
        };
        self.since = now;
        let longest = Duration::from_micros(self.shared.longest_us.swap(0, Ordering::Relaxed));
        Stillness { longest, stolen }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Stillness {
    /// Whether a test that waited for others may have failed by it.
    pub(crate) fn disturbs(&self) -> bool {
        self.longest >= STOOD_STILL || self.stolen >= TAKEN
    }
}

impl fmt::Display for Stillness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.stolen * 100.0;
        let longest = self.longest.as_millis();
        write!(f, "the machine stood still for {longest} ms at most, {percent:.0} % was stolen")
    }
}

/// The first line of `/proc/stat`, in its ticks.
#[derive(Clone, Copy)]
struct ProcessorTime {
    all: u64,
    stolen: u64,
}

impl ProcessorTime {
    /// `None` where the kernel tells nothing of it.
    fn now() -> Option<Self> {
        Self::of(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn of(text: &str) -> Option<Self> {
        // user nice system idle iowait irq softirq steal; guests' time is in user's already.
        let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        Some(Self { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    fn stolen_since(self, since: Self) -> f64 {
        let all = self.all.saturating_sub(since.all);
        if all == 0 {
            return 0.0;
        }
        self.stolen.saturating_sub(since.stolen) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_part_of_all_time() {
        let before = ProcessorTime::of("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2\n").unwrap();
        let after = ProcessorTime::of("cpu  40 0 40 90 0 0 0 30 9 0\n").unwrap();
        assert!((after.stolen_since(before) - 0.2).abs() < 1e-9);
        assert!(after.stolen_since(after).abs() < 1e-9, "no time at all");
        assert!(ProcessorTime::of("cpu  1 2 3\n").is_none(), "a kernel without this column");
    }

    #[test]
    fn only_what_a_busy_machine_does_not_show_disturbs() {
        let seen = |longest, stolen| Stillness { longest: Duration::from_millis(longest), stolen };
        assert!(!seen(49, 0.02).disturbs());
        assert!(seen(50, 0.0).disturbs());
        assert!(seen(0, 0.03).disturbs());
        assert_eq!(
            seen(431, 0.214).to_string(),
            "the machine stood still for 431 ms at most, 21 % was stolen"
        );
    }

    #[test]
    fn a_thread_that_sleeps_is_never_woken_early() {
        let mut watch = Watch::start();
        std::thread::sleep(NAP * 10);
        assert!(watch.take().longest > Duration::ZERO);
    }
}
