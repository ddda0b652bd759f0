//! Response time by percentile: x is 1/(1−p) on a logarithmic scale, so that every nine takes the
//! same width. Merged curves bold, their parts faint, dashed where few samples are beyond.

use tollway_record::Histogram;
use tollway_record::histogram::SAMPLES_BEYOND;

use super::{Axis, Kind, Line, Plot, SAMPLES_LIMIT, Sample, Unit, Weight, rounded};

/// A curve ends where fewer samples than this lie beyond it.
const CURVE_BEYOND: f64 = 20.0;

/// Step along the curve, in nines.
const STEP_NINES: f64 = 0.04;

/// The samples over each other; `None` when none is large enough for a curve.
pub(crate) fn percentiles(samples: &[Sample]) -> Option<Plot> {
    let drawn = || samples.iter().take(SAMPLES_LIMIT);
    let mut lines = Vec::new();
    for sample in drawn() {
        for part in sample.parts.iter().filter(|_| sample.parts.len() > 1) {
            lines.extend(curve(sample, part, Weight::Faint));
        }
    }
    for sample in drawn() {
        lines.extend(curve(sample, &sample.whole, Weight::Bold));
    }
    let steps = lines.iter().map(|line| line.ys.len()).max()?;
    for line in &mut lines {
        line.ys.resize(steps, None);
    }
    let mut plot = Plot {
        kind: Kind::Percentiles,
        title: "Response time by percentile".to_owned(),
        x: Axis::linear("percentile", Unit::Nines),
        y: Axis::linear("", Unit::Us),
        xs: (0..steps).map(|step| rounded(step as f64 * STEP_NINES)).collect(),
        lines,
        marks: Vec::new(),
    };
    let (lo, hi) = plot.range()?;
    plot.y = Axis::of_times("response time", lo, hi);
    (hi > 0.0).then_some(plot)
}

/// The curve where it is sure, and its tail, which begins where that ends.
fn curve(sample: &Sample, latencies: &Histogram, weight: Weight) -> Vec<Line> {
    let ys = values_us(latencies);
    let sure = (latencies.n() as f64 / SAMPLES_BEYOND as f64).log10() / STEP_NINES;
    let last_sure = (sure.max(0.0) as usize).min(ys.len().saturating_sub(1));
    let line = |dashed: bool, ys: Vec<Option<f64>>| Line {
        name: sample.name.clone(),
        colour: sample.colour,
        weight,
        dashed,
        ys,
    };
    if ys.is_empty() {
        return Vec::new();
    }
    let solid: Vec<_> = ys[..=last_sure].iter().copied().map(Some).collect();
    let mut lines = vec![line(false, solid)];
    if last_sure + 1 < ys.len() {
        let before = std::iter::repeat_n(None, last_sure);
        let tail = before.chain(ys[last_sure..].iter().copied().map(Some)).collect();
        lines.push(line(true, tail));
    }
    lines
}

/// The latency at each step, in microseconds.
fn values_us(latencies: &Histogram) -> Vec<f64> {
    let n = latencies.n() as f64;
    let end_nines = (n / CURVE_BEYOND).log10();
    let Some(min_ns) = latencies.min_ns().filter(|_| end_nines > 0.0) else { return Vec::new() };
    let mut values = vec![rounded(min_ns as f64 / 1e3)];
    let mut steps = latencies.steps();
    let (mut below, mut at_ns) = (0, min_ns);
    for index in 1..=(end_nines / STEP_NINES) as usize {
        let wanted = (n * (1.0 - 10_f64.powf(-(index as f64) * STEP_NINES))).ceil() as u64;
        while below < wanted {
            let Some((middle, count)) = steps.next() else { break };
            (below, at_ns) = (below + count, middle);
        }
        values.push(rounded(at_ns as f64 / 1e3));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(count: u64) -> Sample {
        let mut whole = Histogram::new();
        (1..=count).for_each(|step| whole.record(step * 1_000_000 / count));
        Sample { name: "even".to_owned(), colour: 0, whole, parts: Vec::new() }
    }

    #[test]
    fn curve_of_even_times_is_one_minus_the_tail() {
        let plot = percentiles(&[sample(100_000)]).unwrap();
        let (solid, tail) = (&plot.lines[0], &plot.lines[1]);
        assert!(!solid.dashed && tail.dashed);
        for (nines, us) in
            plot.xs.iter().zip(&solid.ys).skip(1).filter_map(|(x, y)| Some((x, (*y)?)))
        {
            let expected = 1_000.0 * (1.0 - 10_f64.powf(-nines));
            assert!((us / expected - 1.0).abs() < 0.002, "{nines} nines: {us}, not {expected}");
        }
        // 100,000 samples are sure up to three nines and drawn up to 20 beyond.
        assert!((plot.xs.last().unwrap() - 3.68).abs() < 0.02, "{:?}", plot.xs.last());
        let joint = plot.xs.iter().rposition(|nines| *nines <= 3.0).unwrap();
        assert!(solid.ys[joint].is_some() && tail.ys[joint].is_some());
        assert!(solid.ys[joint + 1].is_none() && tail.ys[joint - 1].is_none());
    }

    #[test]
    fn few_samples_make_no_curve() {
        assert!(percentiles(&[sample(20)]).is_none());
        assert!(percentiles(&[]).is_none());
        assert!(percentiles(&[sample(21)]).is_some());
    }
}
