//! 95 % confidence intervals of a statistic over blocks, and the verdict they allow.
//!
//! The block, not the request, is the unit that is repeated. A statistic is a function of how
//! often each block counts, so the same code serves means, ratios and quantiles of merged
//! histograms. Few blocks: jackknife over blocks with Student's t, which for a mean of blocks is
//! exactly the textbook interval. Six or more: seeded bootstrap over blocks, its percentiles
//! moved outwards for the small number of blocks (Hesterberg's expanded percentile interval).

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::record::{IntervalMethod, Verdict};
use crate::split_mix::SplitMix64;

/// Blocks from which on the bootstrap is used.
pub const BOOTSTRAP_FROM_BLOCKS: usize = 6;

/// Resamples of the bootstrap.
pub const RESAMPLES: usize = 4_000;

/// Each of the two tails outside the interval.
const TAIL: f64 = 0.025;

/// An estimate and what is known about its error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub estimate: f64,
    /// Absent with fewer than two blocks.
    pub ci95: Option<[f64; 2]>,
    pub method: Option<IntervalMethod>,
}

/// The statistic over all blocks and its interval. `statistic` is given how often each of the
/// `blocks` counts (at least one does) and must be defined for all such weights.
pub fn interval(blocks: usize, seed: u64, mut statistic: impl FnMut(&[u32]) -> f64) -> Interval {
    let mut weights = vec![1; blocks];
    let estimate = statistic(&weights);
    if blocks < 2 {
        return Interval { estimate, ci95: None, method: None };
    }
    let (ci95, method) = if blocks < BOOTSTRAP_FROM_BLOCKS {
        (jackknife_t(estimate, &mut weights, statistic), IntervalMethod::BlockT)
    } else {
        (bootstrap(seed, &mut weights, statistic), IntervalMethod::BlockBootstrap)
    };
    Interval { estimate, ci95: Some(ci95), method: Some(method) }
}

/// The verdict of a ratio's interval, if differences within `margin_pct` count as none.
#[must_use]
pub fn verdict(ratio_ci95: Option<[f64; 2]>, margin_pct: f64) -> Verdict {
    let Some([lo, hi]) = ratio_ci95 else { return Verdict::Undecided };
    let margin = 1.0 + margin_pct / 100.0;
    if lo >= 1.0 / margin && hi <= margin {
        Verdict::Same
    } else if hi < 1.0 {
        Verdict::Faster
    } else if lo > 1.0 {
        Verdict::Slower
    } else {
        Verdict::Undecided
    }
}

fn jackknife_t(
    estimate: f64,
    weights: &mut [u32],
    mut statistic: impl FnMut(&[u32]) -> f64,
) -> [f64; 2] {
    let blocks = weights.len() as f64;
    let mut without = Vec::with_capacity(weights.len());
    for left_out in 0..weights.len() {
        weights[left_out] = 0;
        without.push(statistic(weights));
        weights[left_out] = 1;
    }
    let mean = without.iter().sum::<f64>() / blocks;
    let squares: f64 = without.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (squares * (blocks - 1.0) / blocks).sqrt();
    let reach = student_t(blocks - 1.0) * error;
    [estimate - reach, estimate + reach]
}

fn bootstrap(seed: u64, weights: &mut [u32], mut statistic: impl FnMut(&[u32]) -> f64) -> [f64; 2] {
    let blocks = weights.len();
    let mut seeded = SplitMix64::new(seed);
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            weights.fill(0);
            for _ in 0..blocks {
                weights[seeded.below(blocks)] += 1;
            }
            statistic(weights)
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    let tail = expanded_tail(blocks as f64);
    let last = (resampled.len() - 1) as f64;
    let at = |fraction: f64| resampled[(last * fraction).round() as usize];
    [at(tail), at(1.0 - tail)]
}

/// The tail that makes the percentile bootstrap of a mean as wide as Student's t interval.
fn expanded_tail(blocks: f64) -> f64 {
    let normal = Normal::standard();
    normal.cdf(-(blocks / (blocks - 1.0)).sqrt() * student_t(blocks - 1.0))
}

/// The quantile of Student's t beyond which one [`TAIL`] is.
fn student_t(freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom)
        .expect("scale 1 and at least one degree of freedom")
        .inverse_cdf(1.0 - TAIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_agrees_with_its_closed_forms() {
        let p = 1.0 - TAIL;
        let of_one = (std::f64::consts::PI * (p - 0.5)).tan();
        let of_two = (2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt();
        assert!((student_t(1.0) - of_one).abs() < 1e-6);
        assert!((student_t(2.0) - of_two).abs() < 1e-6);
        assert!((student_t(4.0) - 2.776_445_105).abs() < 1e-6);
    }

    #[test]
    fn few_blocks_give_the_textbook_interval_of_a_mean() {
        let values = [4.0, 6.0, 5.0, 9.0];
        let found = interval(4, 1, |weights| weighted_mean(&values, weights));
        let deviation = (14.0_f64 / 3.0).sqrt();
        let reach = 3.182_446_305 * deviation / 2.0;
        let [lo, hi] = found.ci95.unwrap();
        assert_eq!((found.estimate, found.method), (6.0, Some(IntervalMethod::BlockT)));
        assert!((lo - (6.0 - reach)).abs() < 1e-6 && (hi - (6.0 + reach)).abs() < 1e-6);
    }

    #[test]
    fn one_block_gives_no_interval() {
        let found = interval(1, 1, |_| 7.0);
        assert_eq!(found, Interval { estimate: 7.0, ci95: None, method: None });
    }

    #[test]
    fn same_seed_gives_the_same_bootstrap() {
        let values = [1.0, 5.0, 2.0, 8.0, 3.0, 9.0, 4.0];
        let run = |seed| interval(7, seed, |weights| weighted_mean(&values, weights));
        assert_eq!(run(3), run(3));
        assert_eq!(run(3).method, Some(IntervalMethod::BlockBootstrap));
    }

    #[test]
    fn intervals_hold_the_true_mean_nearly_at_their_nominal_rate() {
        for blocks in [3, 5, 6, 10] {
            let held = (0..400).filter(|&trial| holds_truth(blocks, trial)).count();
            // 95 % nominal; 400 trials have a standard error of 1.1 points.
            assert!(held >= 366, "{blocks} blocks: {held} of 400 intervals hold the truth");
            assert!(held < 400, "{blocks} blocks: intervals so wide that they say nothing");
        }
    }

    #[test]
    fn verdict_follows_the_interval() {
        let check = |ci, expected| assert_eq!(verdict(ci, 5.0), expected, "{ci:?}");
        check(Some([0.97, 1.03]), Verdict::Same);
        check(Some([1.01, 1.04]), Verdict::Same);
        check(Some([1.01, 1.08]), Verdict::Slower);
        check(Some([0.80, 0.99]), Verdict::Faster);
        check(Some([0.90, 1.02]), Verdict::Undecided);
        check(Some([f64::NAN, 1.02]), Verdict::Undecided);
        check(None, Verdict::Undecided);
    }

    fn holds_truth(blocks: usize, trial: u64) -> bool {
        let mut seeded = SplitMix64::new(trial * 1_000 + blocks as u64);
        let values: Vec<f64> = (0..blocks).map(|_| 10.0 + bell(&mut seeded)).collect();
        let found = interval(blocks, trial, |weights| weighted_mean(&values, weights));
        let [lo, hi] = found.ci95.unwrap();
        (lo..=hi).contains(&10.0)
    }

    /// About normal with variance 1: the sum of twelve uniforms.
    fn bell(seeded: &mut SplitMix64) -> f64 {
        let sum: f64 = (0..12).map(|_| seeded.next_u64() as f64 / u64::MAX as f64).sum();
        sum - 6.0
    }

    fn weighted_mean(values: &[f64], weights: &[u32]) -> f64 {
        let weighted = values.iter().zip(weights).map(|(v, w)| v * f64::from(*w));
        weighted.sum::<f64>() / f64::from(weights.iter().sum::<u32>())
    }
}
