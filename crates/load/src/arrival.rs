//! When requests are meant to start: the plan of a run, fixed before it begins.
//!
//! An open loop offers requests at a rate whatever the target does; the intended start of each
//! is decided here and never moved, also when the generator or the target falls behind, so that
//! waiting is charged to the request that waited. A closed loop has no plan: a request starts
//! when a slot is free. Pure: the seed is an argument, times are offsets from the run's start.

use std::time::Duration;

use tollway_record::SplitMix64;

mod profile;

use self::profile::Cursor;
pub use self::profile::{MAX_STAGES, Profile, Stage};

/// The highest rate an open loop may ask for, in requests per second.
pub const MAX_RATE_RPS: f64 = 10_000_000.0;

/// Most requests of one burst.
pub const MAX_BURST: u32 = 10_000;

/// What decides when a request starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// At `rate_rps` requests per second in all, whether or not earlier ones have finished.
    Open { rate_rps: f64, spacing: Spacing },
    /// Each slot (a connection, or a stream of one) starts its next request when the last ends.
    Closed,
}

/// How the arrivals of an open loop are distributed in time. All have the same mean rate.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Spacing {
    /// One every `1 / rate`.
    #[default]
    Uniform,
    /// Independent arrivals: exponential gaps, as from many unrelated callers.
    Poisson,
    /// One in every interval of `1 / rate`, moved by up to `fraction` (0 to 1) of it, so that
    /// arrivals keep no fixed phase to the target's own timers.
    Jitter { fraction: f64 },
    /// `size` at once (1 to [`MAX_BURST`]), then none for `size / rate`.
    Bursts { size: u32 },
}

/// Why an arrival cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ArrivalError {
    #[error("a rate of {0} requests/s cannot be offered: give more than 0 and at most 10,000,000")]
    Rate(f64),
    #[error("a stage cannot reach {0} requests/s: give 0 to 10,000,000")]
    StageRate(f64),
    #[error("{0} stages are not possible: give 1 to {MAX_STAGES}")]
    Stages(usize),
    #[error("a jitter of {0} of the interval is not possible: give 0 to 1")]
    Jitter(f64),
    #[error("bursts of {0} are not possible: give 1 to {MAX_BURST}")]
    Burst(u32),
}

impl Arrival {
    /// Fails for a rate, jitter or burst outside its bounds.
    pub fn check(self) -> Result<(), ArrivalError> {
        let Self::Open { rate_rps, spacing } = self else { return Ok(()) };
        if !(rate_rps > 0.0 && rate_rps <= MAX_RATE_RPS) {
            return Err(ArrivalError::Rate(rate_rps));
        }
        match spacing {
            Spacing::Jitter { fraction } if !(0.0..=1.0).contains(&fraction) => {
                Err(ArrivalError::Jitter(fraction))
            }
            Spacing::Bursts { size } if !(1..=MAX_BURST).contains(&size) => {
                Err(ArrivalError::Burst(size))
            }
            Spacing::Uniform
            | Spacing::Poisson
            | Spacing::Jitter { .. }
            | Spacing::Bursts { .. } => Ok(()),
        }
    }

    /// The offered rate, if this is an open loop.
    #[must_use]
    pub fn rate_rps(self) -> Option<f64> {
        match self {
            Self::Open { rate_rps, .. } => Some(rate_rps),
            Self::Closed => None,
        }
    }
}

/// How much is measured. The warm-up comes before and is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Requests whose intended start is in a window this long.
    Lasting(Duration),
    /// Exactly this many requests.
    Requests(u64),
}

/// One planned request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Intended start, in ns on the clock of [`Schedule::begin_at`]; by default since the beginning.
    pub at_ns: u64,
    /// False during the warm-up.
    pub measured: bool,
}

/// The intended starts of an open loop, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    rate_rps: f64,
    spacing: Spacing,
    random: SplitMix64,
    index: u64,
    /// Where the last exponential gap ended (Poisson only), in mean gaps.
    poisson: f64,
    warmup_ns: u64,
    measured: u64,
    extent: Extent,
    begin_ns: u64,
    /// Where the rate moves: its stretches.
    cursor: Option<Cursor>,
}

impl Schedule {
    /// Fails as [`Arrival::check`] does. The same arguments give the same schedule.
    pub fn new(
        rate_rps: f64,
        spacing: Spacing,
        seed: u64,
        warmup: Duration,
        extent: Extent,
    ) -> Result<Self, ArrivalError> {
        Arrival::Open { rate_rps, spacing }.check()?;
        Ok(Self {
            rate_rps,
            spacing,
            random: SplitMix64::new(seed),
            index: 0,
            poisson: 0.0,
            warmup_ns: nanos(warmup),
            measured: 0,
            extent,
            begin_ns: 0,
            cursor: None,
        })
    }

    /// Arrivals at a rate that changes by `profile`; the window is as long as the profile.
    /// [`Self::interval`] is that of its highest rate. Fails as [`Arrival::check`] does.
    pub fn varying(
        profile: &Profile,
        spacing: Spacing,
        seed: u64,
        warmup: Duration,
    ) -> Result<Self, ArrivalError> {
        let extent = Extent::Lasting(profile.lasting());
        let schedule = Self::new(profile.highest_rps(), spacing, seed, warmup, extent)?;
        Ok(Self { cursor: Some(profile.follow(warmup)), ..schedule })
    }

    /// The same schedule with its beginning at `begin_ns` on the caller's clock.
    #[must_use]
    pub fn begin_at(mut self, begin_ns: u64) -> Self {
        self.begin_ns = begin_ns;
        self
    }

    /// The mean time between two arrivals; of the highest rate where it moves.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.rate_rps)
    }

    /// `None` where the rate has come to its end.
    fn next_ns(&mut self) -> Option<u64> {
        let number = self.next_number();
        let at = match &mut self.cursor {
            Some(cursor) => cursor.at_ns(number)?,
            // Divided each time: adding up a rounded interval would drift away from the rate.
            None => number * 1e9 / self.rate_rps,
        };
        Some(at as u64)
    }

    /// The next arrival's place among all, by its spacing: whole numbers if uniform.
    fn next_number(&mut self) -> f64 {
        let index = self.index;
        self.index += 1;
        match self.spacing {
            Spacing::Uniform => index as f64,
            Spacing::Bursts { size } => burst_begin(index, size),
            Spacing::Jitter { fraction } => index as f64 + fraction * self.random.unit(),
            Spacing::Poisson => {
                self.poisson += -(1.0 - self.random.unit()).ln();
                self.poisson
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        if self.extent == Extent::Requests(self.measured) {
            return None;
        }
        let at_ns = self.next_ns()?;
        let measured = at_ns >= self.warmup_ns;
        if let Extent::Lasting(duration) = self.extent
            && at_ns >= self.warmup_ns.saturating_add(nanos(duration))
        {
            return None;
        }
        self.measured += u64::from(measured);
        Some(Planned { at_ns: self.begin_ns.saturating_add(at_ns), measured })
    }
}

/// Number of the first arrival of the burst that `index` is part of.
fn burst_begin(index: u64, size: u32) -> f64 {
    (index - index % u64::from(size)) as f64
}

/// 584 years at most.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn uniform_starts_at_zero_and_keeps_the_interval() {
        let starts = starts(1000.0, Spacing::Uniform, Duration::ZERO, Extent::Requests(4));
        assert_eq!(starts, [0, 1_000_000, 2_000_000, 3_000_000]);
    }

    #[test]
    fn a_burst_starts_at_once_and_the_mean_rate_is_kept() {
        let plan = starts(1000.0, Spacing::Bursts { size: 3 }, Duration::ZERO, Extent::Requests(7));
        assert_eq!(plan, [0, 0, 0, 3_000_000, 3_000_000, 3_000_000, 6_000_000]);
        let steady = Profile::new(1000.0, vec![Stage { lasting: SECOND, to_rps: 1000.0 }]).unwrap();
        let spacing = Spacing::Bursts { size: 250 };
        let staged = Schedule::varying(&steady, spacing, 7, Duration::ZERO).unwrap();
        let begins: Vec<u64> = staged.map(|request| request.at_ns).collect();
        assert_eq!(begins.len(), 1000);
        for (number, burst) in begins.chunks(250).enumerate() {
            assert!(
                burst.iter().all(|at| at.abs_diff(number as u64 * 250_000_000) < 2),
                "{burst:?}"
            );
        }
    }

    #[test]
    fn uniform_does_not_drift_over_a_long_run() {
        let mut schedule =
            Schedule::new(3.0, Spacing::Uniform, 0, Duration::ZERO, Extent::Requests(u64::MAX))
                .unwrap();
        let at = schedule.nth(3_000_000).unwrap().at_ns;
        assert_eq!(at, 1_000_000 * 1_000_000_000);
    }

    #[test]
    fn a_window_holds_rate_times_duration_requests() {
        for spacing in [Spacing::Uniform, Spacing::Jitter { fraction: 1.0 }] {
            let plan = starts(700.0, spacing, Duration::ZERO, Extent::Lasting(3 * SECOND));
            assert_eq!(plan.len(), 2100, "{spacing:?}");
        }
    }

    #[test]
    fn poisson_keeps_the_mean_rate_and_has_exponential_gaps() {
        let plan = starts(1000.0, Spacing::Poisson, Duration::ZERO, Extent::Requests(100_000));
        let mean = *plan.last().unwrap() as f64 / plan.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "mean gap {mean} ns");
        let long = plan.windows(2).filter(|pair| pair[1] - pair[0] > 1_000_000).count();
        let share = long as f64 / plan.len() as f64;
        assert!((share - (-1.0_f64).exp()).abs() < 0.01, "{share} of the gaps exceed the mean");
    }

    #[test]
    fn the_warm_up_is_not_counted() {
        let plan: Vec<_> = Schedule::new(10.0, Spacing::Uniform, 0, SECOND, Extent::Requests(5))
            .unwrap()
            .collect();
        assert_eq!(plan.len(), 15);
        assert!(plan[..10].iter().all(|request| !request.measured));
        assert!(plan[10..].iter().all(|request| request.measured));
    }

    #[test]
    fn a_rate_that_is_not_a_positive_number_is_refused() {
        for rate_rps in [0.0, -1.0, f64::NAN, f64::INFINITY, 2.0 * MAX_RATE_RPS] {
            let arrival = Arrival::Open { rate_rps, spacing: Spacing::Uniform };
            assert!(arrival.check().is_err(), "{rate_rps}");
        }
        let spacing = Spacing::Jitter { fraction: 1.5 };
        assert_eq!(
            Arrival::Open { rate_rps: 1.0, spacing }.check(),
            Err(ArrivalError::Jitter(1.5))
        );
        for size in [0, MAX_BURST + 1] {
            let spacing = Spacing::Bursts { size };
            let refused = Arrival::Open { rate_rps: 1.0, spacing }.check();
            assert_eq!(refused, Err(ArrivalError::Burst(size)));
        }
    }

    proptest! {
        #[test]
        fn starts_never_go_back_and_counts_are_exact(
            rate_rps in 0.1_f64..1_000_000.0,
            spacing in prop_oneof![
                Just(Spacing::Uniform),
                Just(Spacing::Poisson),
                (0.0..=1.0).prop_map(|fraction| Spacing::Jitter { fraction }),
                (1..=MAX_BURST).prop_map(|size| Spacing::Bursts { size }),
            ],
            seed: u64,
            count in 0_u64..2_000,
        ) {
            let plan: Vec<_> =
                Schedule::new(rate_rps, spacing, seed, Duration::ZERO, Extent::Requests(count))
                    .unwrap()
                    .map(|request| request.at_ns)
                    .collect();
            prop_assert_eq!(plan.len() as u64, count);
            prop_assert!(plan.is_sorted());
            let again: Vec<_> =
                Schedule::new(rate_rps, spacing, seed, Duration::ZERO, Extent::Requests(count))
                    .unwrap()
                    .map(|request| request.at_ns)
                    .collect();
            prop_assert_eq!(plan, again);
        }
    }

    fn starts(rate_rps: f64, spacing: Spacing, warmup: Duration, extent: Extent) -> Vec<u64> {
        Schedule::new(rate_rps, spacing, 7, warmup, extent)
            .unwrap()
            .map(|request| request.at_ns)
            .collect()
    }
}
