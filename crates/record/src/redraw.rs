//! Experiments drawn from the blocks of one long one: the verdicts that shorter ones would have
//! given, and how often. They verify the verdicts (`docs/design/002-lab-statistics.md`); they
//! decide none.

use crate::compare::{CompareError, CompareOptions, compare};
use crate::record::{Block, Comparison, Metric, Question, Row};

/// How experiments are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// How many experiments; each has its own number, from 0, as its seed.
    pub experiments: u64,
    /// Blocks of each, all of them different.
    pub blocks: usize,
    /// The seed also decides which of a block's two runs counts as the judged one: between two
    /// equal subjects, a small difference in the recording must not show in every experiment.
    pub either_way: bool,
}

/// What is found of the mean response time of `judged` against `base` in each experiment. `change`
/// is made to every block that is called the judged one. Both rows have the same blocks, in the
/// same order.
///
/// # Errors
/// [`CompareError`] when a histogram is damaged, or where there is nothing to compare.
pub fn redraw(
    judged: &Row,
    base: &Row,
    draw: Draw,
    change: impl Fn(&mut Block),
) -> Result<Vec<Comparison>, CompareError> {
    (0..draw.experiments).map(|seed| experiment(judged, base, draw, seed, &change)).collect()
}

fn experiment(
    judged: &Row,
    base: &Row,
    draw: Draw,
    seed: u64,
    change: &impl Fn(&mut Block),
) -> Result<Comparison, CompareError> {
    let nothing = || CompareError::no_common_block(judged, base);
    let common = judged.blocks.len().min(base.blocks.len());
    let drawn = Random::new(seed).draw(common, draw.blocks.min(common));
    let mut random = Random::new(!seed);
    let (mut bases, mut judgeds) = (Vec::new(), Vec::new());
    for index in drawn {
        let mut pair = [base.blocks[index].clone(), judged.blocks[index].clone()];
        if pair[0].block != pair[1].block {
            return Err(nothing());
        }
        if draw.either_way && random.below(2) == 1 {
            pair.reverse();
        }
        let [of_base, mut of_judged] = pair;
        change(&mut of_judged);
        bases.push(of_base);
        judgeds.push(of_judged);
    }
    // Rows are compared by their blocks alone: what they make together is not needed.
    let base = Row { blocks: bases, ..base.clone() };
    let judged = Row { blocks: judgeds, ..judged.clone() };
    let options = CompareOptions::seeded(seed);
    let found = compare(&judged, &base, Question::AgainstBaseline, options)?;
    found.into_iter().find(|found| found.metric == Metric::LatencyMean).ok_or_else(nothing)
}

/// Another generator than that of the bootstrap, with the same seeds.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn below(&mut self, bound: usize) -> usize {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) as usize % bound
    }

    /// So many of all, each once at most.
    fn draw(&mut self, all: usize, count: usize) -> Vec<usize> {
        let mut left: Vec<usize> = (0..all).collect();
        (0..count).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_block_is_drawn_once_at_most_and_seeds_differ() {
        let drawn = |seed| Random::new(seed).draw(60, 20);
        let first = drawn(0);
        assert_eq!(first.len(), 20);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 20);
        assert!(first.iter().all(|index| *index < 60));
        assert_eq!(first, drawn(0));
        assert_ne!(first, drawn(1));
    }
}
