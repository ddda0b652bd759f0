//! How far the networks are from each other while the runs are made.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bench::Bench;
use super::plan::Plan;
use crate::error::LabError;
use crate::progress::{Event, Progress};
use crate::subject::HOME;

/// Round trips by network, taken before the first and after the last run.
#[derive(Default)]
pub(super) struct Probes(BTreeMap<usize, Vec<f64>>);

impl Probes {
    pub(super) fn take(
        &mut self,
        bench: &Bench<'_>,
        plan: &Plan,
        mut progress: Option<&mut dyn Progress>,
    ) -> Result<(), LabError> {
        let mut networks: Vec<(usize, &'static str)> =
            plan.cells.iter().map(|cell| (cell.leg.network, cell.topology.as_str())).collect();
        networks.sort_unstable();
        networks.dedup();
        for (network, topology) in networks.into_iter().filter(|(network, _)| *network != HOME) {
            let mut times = bench.ping(network)?;
            times.sort_by(f64::total_cmp);
            if let (Some(progress), Some(&p50)) = (&mut progress, times.get(times.len() / 2)) {
                let rtt_p50 = Duration::from_secs_f64(p50 / 1e6);
                progress.report(&Event::Link { topology, rtt_p50 });
            }
            self.0.entry(network).or_default().extend(times);
        }
        Ok(())
    }

    pub(super) fn of(&self, network: usize) -> &[f64] {
        self.0.get(&network).map_or(&[], Vec::as_slice)
    }
}
