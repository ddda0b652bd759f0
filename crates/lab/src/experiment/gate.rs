//! The noise gate: which runs something foreign disturbed so much that they are repeated.
//!
//! It never reads what a run measured, only what else happened meanwhile: leaving out runs by their
//! results would make any result.

use tollway_record::record::Block;

/// Bounds of noise and of repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// Processor time the hypervisor may take away, of all, 0 to 1.
    pub steal_fraction: f64,
    /// Processors that others may use.
    pub foreign_cpu_cores: f64,
    /// How often one run is repeated at most.
    pub repeats_of_run: u32,
    /// How many repetitions there may be in all, of the planned runs, 0 to 1.
    pub repeats_fraction: f64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            steal_fraction: 0.02,
            foreign_cpu_cores: 0.25,
            repeats_of_run: 2,
            repeats_fraction: 0.25,
        }
    }
}

impl Gate {
    /// Nothing is repeated; runs outside are still marked.
    #[must_use]
    pub fn without_repeats(self) -> Self {
        Self { repeats_of_run: 0, ..self }
    }

    /// Why a run is outside, in words; empty when it is not.
    #[must_use]
    pub fn judge(&self, block: &Block) -> Vec<String> {
        let foreign = block.noise.as_ref().and_then(|noise| noise.foreign_cpu_cores);
        self.reasons(block.steal_fraction, foreign)
    }

    /// Why a run with so much of others' work is outside, in words.
    pub(super) fn reasons(&self, steal: Option<f64>, foreign_cores: Option<f64>) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(steal) = steal.filter(|&steal| steal > self.steal_fraction) {
            reasons.push(format!("the hypervisor took {:.1} % of the processors", steal * 100.0));
        }
        if let Some(cores) = foreign_cores.filter(|&cores| cores > self.foreign_cpu_cores) {
            reasons.push(format!("others used {cores:.2} processors"));
        }
        reasons
    }

    /// Repetitions that `runs` planned runs may have together.
    #[must_use]
    pub(crate) fn repeats(&self, runs: usize) -> usize {
        (runs as f64 * self.repeats_fraction).ceil() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_record::record::Noise;

    fn block(steal: f64, foreign: f64) -> Block {
        let noise = Noise { foreign_cpu_cores: Some(foreign), ..Noise::default() };
        Block { steal_fraction: Some(steal), noise: Some(noise), ..Block::default() }
    }

    #[test]
    fn a_run_is_judged_by_what_else_went_on() {
        let gate = Gate::default();
        assert_eq!(gate.judge(&block(0.0, 0.2)), [""; 0]);
        assert_eq!(gate.judge(&Block::default()), [""; 0], "what is not known is no reason");
        let reasons = gate.judge(&block(0.05, 0.5));
        let expected =
            ["the hypervisor took 5.0 % of the processors", "others used 0.50 processors"];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn repetitions_are_a_share_of_the_plan() {
        let gate = Gate::default();
        assert_eq!((gate.repeats(0), gate.repeats(1), gate.repeats(100)), (0, 1, 25));
        assert_eq!(gate.without_repeats().repeats_of_run, 0);
    }
}
