//! A fixed amount of work, timed with each run: the machine's speed at that time.
//!
//! On a shared machine the speed changes between runs; if two runs differ, this shows whether the
//! machine did as well. The work is arithmetic in registers: it does not measure memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Steps of one calibration, about a millisecond of a current processor when optimised.
const STEPS: u32 = 1_000_000;
/// Repetitions, of which the quickest counts: an interrupted one does not show the speed.
const REPETITIONS: u32 = 3;

/// The time the work takes now.
#[must_use]
pub fn calibrate() -> Duration {
    (0..REPETITIONS).map(|_| once()).min().unwrap_or_default()
}

fn once() -> Duration {
    let start = Instant::now();
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
    start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_takes_a_measurable_time() {
        let time = calibrate();
        assert!(time > Duration::from_micros(100), "{time:?}: the work was optimised away");
    }
}
