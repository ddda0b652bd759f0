//! How the rate of an open loop moves: evenly from one rate to the next, stretch by stretch.
//!
//! Arrivals are numbered on the real line: the plan holds `n` of them by the time at which the
//! area under the rate is `n`. So any spacing that is drawn in numbers of arrivals follows the
//! rate exactly, and the mean rate of a stretch is the mean of its ends. Pure.

use std::time::Duration;

use super::{ArrivalError, MAX_RATE_RPS};

/// Most stages of one run.
pub const MAX_STAGES: usize = 1_000;

/// A rate over time, from the beginning of the warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    stages: Vec<Stage>,
    start_rps: f64,
}

/// From the rate before it evenly to `to_rps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    pub lasting: Duration,
    pub to_rps: f64,
}

impl Profile {
    /// Begins at `start_rps`, where the warm-up stays. Fails without stages, with too many, with
    /// rates outside 0 to [`MAX_RATE_RPS`], and where nothing would ever be sent.
    pub fn new(start_rps: f64, stages: Vec<Stage>) -> Result<Self, ArrivalError> {
        if !(1..=MAX_STAGES).contains(&stages.len()) {
            return Err(ArrivalError::Stages(stages.len()));
        }
        let rates = stages.iter().map(|stage| stage.to_rps).chain([start_rps]);
        for rate_rps in rates {
            if !(0.0..=MAX_RATE_RPS).contains(&rate_rps) {
                return Err(ArrivalError::StageRate(rate_rps));
            }
        }
        let profile = Self { stages, start_rps };
        if profile.arrivals() <= 0.0 {
            return Err(ArrivalError::Rate(0.0));
        }
        Ok(profile)
    }

    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// All stages together.
    #[must_use]
    pub fn lasting(&self) -> Duration {
        self.stages.iter().fold(Duration::ZERO, |sum, stage| sum.saturating_add(stage.lasting))
    }

    /// The mean over all stages, in requests per second.
    #[must_use]
    pub fn mean_rps(&self) -> f64 {
        self.arrivals() / self.lasting().as_secs_f64()
    }

    /// The highest rate reached, in requests per second.
    #[must_use]
    pub fn highest_rps(&self) -> f64 {
        self.stages.iter().map(|stage| stage.to_rps).fold(self.start_rps, f64::max)
    }

    /// Arrivals that the stages hold.
    fn arrivals(&self) -> f64 {
        self.legs().map(|leg| leg.arrivals()).sum()
    }

    fn legs(&self) -> impl Iterator<Item = Leg> + '_ {
        let before = [self.start_rps].into_iter().chain(self.stages.iter().map(|s| s.to_rps));
        before.zip(&self.stages).map(|(from_rps, stage)| Leg {
            from_rps,
            to_rps: stage.to_rps,
            lasting_s: stage.lasting.as_secs_f64(),
        })
    }

    /// Follows the profile after a warm-up at its first rate.
    pub(super) fn follow(&self, warmup: Duration) -> Cursor {
        let first = Leg {
            from_rps: self.start_rps,
            to_rps: self.start_rps,
            lasting_s: warmup.as_secs_f64(),
        };
        let mut legs: Vec<_> = [first].into_iter().chain(self.legs()).collect();
        legs.reverse();
        Cursor { legs, begun_s: 0.0, arrivals_before: 0.0 }
    }
}

/// One stretch as it is computed with.
#[derive(Clone, Copy, Debug)]
struct Leg {
    from_rps: f64,
    to_rps: f64,
    lasting_s: f64,
}

impl Leg {
    fn arrivals(self) -> f64 {
        (self.from_rps + self.to_rps) / 2.0 * self.lasting_s
    }

    /// When the stretch has had `arrivals`, in seconds from its beginning. `arrivals` is at most
    /// [`Self::arrivals`].
    fn time_of(self, arrivals: f64) -> f64 {
        if arrivals <= 0.0 {
            return 0.0;
        }
        let growth = (self.to_rps - self.from_rps) / self.lasting_s;
        // The root of from·t + growth·t²/2 = arrivals, in the form that does not cancel.
        let root = (self.from_rps * self.from_rps + 2.0 * growth * arrivals).max(0.0).sqrt();
        (2.0 * arrivals / (self.from_rps + root)).min(self.lasting_s)
    }
}

/// The position of a schedule in its profile.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    /// Those to come, the next one last.
    legs: Vec<Leg>,
    begun_s: f64,
    arrivals_before: f64,
}

impl Cursor {
    /// When arrival number `number` is due, in ns from the beginning of the warm-up; `None`
    /// beyond the last stage. Numbers must not go down.
    pub(super) fn at_ns(&mut self, number: f64) -> Option<f64> {
        while let Some(leg) = self.legs.last() {
            let within = number - self.arrivals_before;
            if within < leg.arrivals() {
                return Some((self.begun_s + leg.time_of(within)) * 1e9);
            }
            self.arrivals_before += leg.arrivals();
            self.begun_s += leg.lasting_s;
            self.legs.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::{Schedule, Spacing};
    use proptest::prelude::*;

    #[test]
    fn a_ramp_from_nothing_is_half_as_many_as_its_end_for_as_long() {
        let plan = starts(0.0, &[(10.0, 100.0)], Spacing::Uniform);
        assert_eq!(plan.len(), 500);
        // The area under a ramp of 10/s² is n at √(n / 5).
        for (number, at_ns) in plan.iter().enumerate() {
            let expected = (number as f64 / 5.0).sqrt() * 1e9;
            assert!((*at_ns as f64 - expected).abs() < 1e3, "{number}: {at_ns}");
        }
    }

    #[test]
    fn stages_follow_each_other_at_their_rates() {
        let plan =
            starts(50.0, &[(2.0, 50.0), (1.0, 150.0), (1.0, 150.0), (1.0, 0.0)], Spacing::Uniform);
        let within = |from: u64, to: u64| {
            let ns = |s: u64| s * 1_000_000_000;
            plan.iter().filter(|at| (ns(from)..ns(to)).contains(at)).count()
        };
        assert_eq!((within(0, 2), within(2, 3), within(3, 4), within(4, 5)), (100, 100, 150, 75));
    }

    #[test]
    fn the_warm_up_stays_at_the_first_rate_and_is_not_counted() {
        let profile = profile(20.0, &[(1.0, 40.0)]);
        let second = Duration::from_secs(1);
        let plan: Vec<_> =
            Schedule::varying(&profile, Spacing::Uniform, 1, second).unwrap().collect();
        let counts = |measured| plan.iter().filter(|p| p.measured == measured).count();
        assert_eq!((counts(false), counts(true)), (20, 30));
    }

    #[test]
    fn what_cannot_be_offered_is_refused() {
        let stage = |to_rps| vec![Stage { lasting: Duration::from_secs(1), to_rps }];
        for (start_rps, stages) in [
            (0.0, Vec::new()),
            (0.0, stage(0.0)),
            (-1.0, stage(1.0)),
            (1.0, stage(f64::NAN)),
            (1.0, stage(2.0 * MAX_RATE_RPS)),
            (1.0, stage(1.0).repeat(MAX_STAGES + 1)),
            (1.0, vec![Stage { lasting: Duration::ZERO, to_rps: 5.0 }]),
        ] {
            assert!(Profile::new(start_rps, stages.clone()).is_err(), "{start_rps} {stages:?}");
        }
    }

    proptest! {
        #[test]
        fn starts_never_go_back_and_the_mean_rate_is_kept(
            start_rps in 0.0_f64..5_000.0,
            stages in proptest::collection::vec((0.0_f64..3.0, 0.0_f64..5_000.0), 1..8),
            spacing in prop_oneof![
                Just(Spacing::Uniform),
                Just(Spacing::Poisson),
                (0.0..=1.0).prop_map(|fraction| Spacing::Jitter { fraction }),
                (1_u32..100).prop_map(|size| Spacing::Bursts { size }),
            ],
        ) {
            let Ok(profile) = Profile::new(start_rps, of(&stages)) else { return Ok(()) };
            let plan = starts(start_rps, &stages, spacing);
            prop_assert!(plan.is_sorted());
            let end_ns = profile.lasting().as_nanos() as u64;
            prop_assert!(plan.iter().all(|at| *at <= end_ns));
            let expected = profile.mean_rps() * profile.lasting().as_secs_f64();
            let slack = match spacing {
                Spacing::Uniform | Spacing::Jitter { .. } => 1.0 + 1e-6 * expected,
                Spacing::Bursts { size } => f64::from(size) + 1e-6 * expected,
                // Six standard deviations.
                Spacing::Poisson => 6.0 * expected.sqrt() + 6.0,
            };
            let held = plan.len() as f64;
            prop_assert!((held - expected).abs() <= slack, "{held} of {expected}");
            prop_assert_eq!(&plan, &starts(start_rps, &stages, spacing), "the seed decides");
        }
    }

    fn starts(start_rps: f64, stages: &[(f64, f64)], spacing: Spacing) -> Vec<u64> {
        let profile = profile(start_rps, stages);
        let plan = Schedule::varying(&profile, spacing, 7, Duration::ZERO).unwrap();
        plan.map(|planned| planned.at_ns).collect()
    }

    fn profile(start_rps: f64, stages: &[(f64, f64)]) -> Profile {
        Profile::new(start_rps, of(stages)).unwrap()
    }

    fn of(stages: &[(f64, f64)]) -> Vec<Stage> {
        let stage = |&(lasting_s, to_rps): &(f64, f64)| Stage {
            lasting: Duration::from_secs_f64(lasting_s),
            to_rps,
        };
        stages.iter().map(stage).collect()
    }
}
