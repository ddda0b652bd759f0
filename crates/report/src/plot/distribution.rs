//! How response times spread: the share of requests in bins that all samples have in common.

use tollway_record::Histogram;

use super::{Axis, Kind, Line, Plot, SAMPLES_LIMIT, Sample, Unit, Weight, rounded};

/// Bins across the range that is shown.
const BINS: usize = 72;

/// The range ends where this share of the slowest sample's requests is below.
const SHOWN_UP_TO: f64 = 0.995;

/// A range wider than this factor has bins of equal ratio instead of equal width.
const RATIO_FROM_FACTOR: f64 = 3.0;

/// A histogram's own step is at most this part of a value; narrower bins would show its comb.
const RESOLUTION: f64 = 1.2e-4;

/// The samples over each other; `None` when there is nothing to spread.
pub(crate) fn distribution(samples: &[Sample]) -> Option<Plot> {
    let drawn = || samples.iter().take(SAMPLES_LIMIT).filter(|sample| sample.whole.n() > 0);
    let lo = drawn().filter_map(|sample| sample.whole.min_ns()).min()?.max(1) as f64;
    let hi = drawn().map(|sample| sample.whole.raw_quantile_ns(SHOWN_UP_TO)).max()? as f64;
    let bins = Bins::over(lo, hi)?;
    let lines = drawn()
        .map(|sample| Line {
            name: sample.name.clone(),
            colour: sample.colour,
            weight: Weight::Bold,
            dashed: false,
            ys: bins.shares(&sample.whole),
        })
        .collect();
    Some(Plot {
        kind: Kind::Distribution,
        title: "Spread of response times".to_owned(),
        x: Axis { log: bins.log, ..Axis::linear("response time", Unit::Us) },
        y: Axis::from_zero("requests per bin", Unit::Pct),
        xs: bins.edges_ns.iter().map(|ns| ns / 1e3).collect(),
        lines,
        marks: Vec::new(),
    })
}

struct Bins {
    /// One more than there are bins, ascending, in nanoseconds.
    edges_ns: Vec<f64>,
    log: bool,
}

impl Bins {
    fn over(lo: f64, hi: f64) -> Option<Self> {
        if hi <= lo {
            return None;
        }
        let log = hi / lo > RATIO_FROM_FACTOR;
        let span = if log { (hi / lo).ln() } else { hi / lo - 1.0 };
        let count = ((span / RESOLUTION) as usize).clamp(1, BINS);
        let edge = |index: usize| {
            let share = index as f64 / count as f64;
            if log { lo * (hi / lo).powf(share) } else { lo + (hi - lo) * share }
        };
        Some(Self { edges_ns: (0..=count).map(edge).collect(), log })
    }

    /// Percent of the requests in each bin; 0 at the last edge, where the last bin ends.
    fn shares(&self, latencies: &Histogram) -> Vec<Option<f64>> {
        let mut counts = vec![0_u64; self.edges_ns.len()];
        let last = self.edges_ns.len() - 1;
        for (middle_ns, count) in latencies.steps() {
            let bin = self.edges_ns.partition_point(|edge| *edge <= middle_ns as f64);
            // Before the first edge: the fastest sample itself, rounded down.
            let bin = bin.saturating_sub(1);
            if bin < last {
                counts[bin] += count;
            }
        }
        let percent = |count: u64| rounded(count as f64 * 100.0 / latencies.n() as f64);
        counts.into_iter().map(|count| Some(percent(count))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values_us: impl Iterator<Item = u64>) -> Sample {
        let mut whole = Histogram::new();
        values_us.for_each(|us| whole.record(us * 1_000));
        Sample { name: "s".to_owned(), colour: 0, whole, parts: Vec::new() }
    }

    #[test]
    fn shares_of_all_bins_are_what_lies_below_the_end() {
        for range in [100..200, 100..20_000_u64] {
            let plot = distribution(&[sample(range)]).unwrap();
            let sum: f64 = plot.lines[0].ys.iter().flatten().sum();
            assert!((98.5..=99.6).contains(&sum), "{sum} %");
            assert_eq!(plot.lines[0].ys.len(), plot.xs.len());
        }
    }

    #[test]
    fn a_wide_range_has_bins_of_equal_ratio() {
        let plot = distribution(&[sample(100..20_000)]).unwrap();
        assert!(plot.x.log);
        let ratios: Vec<f64> = plot.xs.windows(2).map(|pair| pair[1] / pair[0]).collect();
        assert!(ratios.iter().all(|ratio| (ratio / ratios[0] - 1.0).abs() < 1e-9));
        assert!(!distribution(&[sample(100..200)]).unwrap().x.log);
    }

    #[test]
    fn samples_share_their_bins() {
        let plot = distribution(&[sample(100..200), sample(150..300)]).unwrap();
        let first_half: f64 = plot.lines[1].ys.iter().take(10).flatten().sum();
        assert_eq!(first_half, 0.0, "nothing of the second sample is that fast");
    }

    #[test]
    fn equal_times_make_no_chart() {
        assert!(distribution(&[sample(std::iter::repeat_n(100, 50))]).is_none());
        assert!(distribution(&[]).is_none());
    }
}
