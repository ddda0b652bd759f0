//! Quantiles of several blocks together, each with a given weight: an interval over blocks needs
//! thousands of them.

use crate::histogram::Histogram;

/// The blocks' histograms side by side, so that a quantile of any mixture of blocks is one binary
/// search: `below[step * blocks + block]` samples of a block lie at or below a step.
#[derive(Debug, Clone)]
pub struct Mixture {
    blocks: usize,
    middles_ns: Vec<u64>,
    below: Vec<u64>,
}

impl Mixture {
    /// Of these blocks, in their order.
    pub fn of<'a>(blocks: impl IntoIterator<Item = &'a Histogram>) -> Self {
        let mut steps: Vec<(u64, usize, u64)> = Vec::new();
        let mut number = 0;
        for block in blocks {
            steps.extend(block.steps().map(|(middle, count)| (middle, number, count)));
            number += 1;
        }
        steps.sort_unstable();
        let mut mixture = Self { blocks: number, middles_ns: Vec::new(), below: Vec::new() };
        let mut running = vec![0; number];
        for (index, (middle, block, count)) in steps.iter().enumerate() {
            running[*block] += count;
            if steps.get(index + 1).is_none_or(|next| next.0 != *middle) {
                mixture.middles_ns.push(*middle);
                mixture.below.extend_from_slice(&running);
            }
        }
        mixture
    }

    /// The quantile in microseconds when each block counts as often as its weight; not a number
    /// where no block has samples.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64, weights: &[u32]) -> f64 {
        let below = |step: usize| -> u64 {
            let counts = &self.below[step * self.blocks..(step + 1) * self.blocks];
            counts.iter().zip(weights).map(|(count, w)| count * u64::from(*w)).sum()
        };
        let Some(last) = self.middles_ns.len().checked_sub(1) else { return f64::NAN };
        let wanted = ((below(last) as f64 * quantile).ceil() as u64).max(1);
        let (mut from, mut to) = (0, last);
        while from < to {
            let middle = usize::midpoint(from, to);
            if below(middle) >= wanted {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        self.middles_ns[from] as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_that_of_the_blocks_merged_as_often_as_they_count() {
        let block = |us: &[u64]| {
            let mut block = Histogram::new();
            us.iter().for_each(|us| block.record(us * 1_000));
            block
        };
        let blocks = [block(&[10, 20, 30]), block(&[100, 200]), block(&[5])];
        let mixture = Mixture::of(&blocks);
        for weights in [[1, 1, 1], [3, 0, 1], [0, 2, 5]] {
            let mut merged = Histogram::new();
            for (block, count) in blocks.iter().zip(weights) {
                (0..count).for_each(|_| merged.merge(block));
            }
            for quantile in [0.0, 0.5, 0.9, 1.0] {
                let expected = merged.raw_quantile_ns(quantile) as f64 / 1e3;
                let found = mixture.quantile_us(quantile, &weights);
                // One says the middle of a step, the other its end.
                let is_near = (found / expected - 1.0).abs() < 0.02;
                assert!(is_near, "{weights:?} {quantile}: {found}, not {expected}");
            }
        }
        assert!(Mixture::of(&[]).quantile_us(0.5, &[]).is_nan());
    }
}
