//! What the processes of a row, and everything else on the machine, use while it is measured.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use tollway_record::record::FabricBlock;

use super::site::Site;
use crate::machine;
use crate::sample::{MachineUsage, ProcessUsage, cpu_time};

/// What was used before the rounds began.
pub(super) struct Before {
    pub(super) at: Instant,
    machine: Option<MachineUsage>,
    cpu: BTreeMap<&'static str, Duration>,
    own: Duration,
}

impl Before {
    pub(super) fn take(site: &Site, roles: &[&'static str]) -> Self {
        let cpu = roles.iter().filter_map(|role| Some((*role, cpu_time(site.pid(role)?).ok()?)));
        Self {
            cpu: cpu.collect(),
            at: Instant::now(),
            machine: MachineUsage::read().ok(),
            own: own_cpu(),
        }
    }

    /// Notes in a block what was used since, for each of so many neighbours. Gives what all of the
    /// machine's processors used.
    pub(super) fn close(
        self,
        site: &Site,
        entries: u64,
        block: &mut FabricBlock,
    ) -> Option<Duration> {
        let window = self.at.elapsed();
        let machine = MachineUsage::read().ok().zip(self.machine);
        let mut known = own_cpu().saturating_sub(self.own);
        for (role, before) in self.cpu {
            let Some(usage) = site.pid(role).and_then(|pid| ProcessUsage::read(pid).ok()) else {
                continue;
            };
            let used = usage.cpu.saturating_sub(before);
            known += used;
            let each_us = used.as_secs_f64() * 1e6 / entries.max(1) as f64;
            block.cpu_us_per_entry.insert(role.to_owned(), each_us);
            block.rss_bytes.insert(role.to_owned(), usage.rss_bytes);
        }
        let (last, first) = machine?;
        let since = last.since(&first);
        let busy = since.busy(window, machine::cpus());
        block.steal_fraction = Some(since.steal_fraction());
        let foreign = busy.saturating_sub(known);
        block.foreign_cpu_cores = Some(foreign.div_duration_f64(window));
        Some(busy)
    }
}

/// Processor time of the lab and of its children that have ended, in ticks of the kernel.
fn own_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // utime, stime, cutime and cstime are the 14th to the 17th; the first two are before `)`.
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    let per_s = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs_f64(ticks as f64 / per_s as f64)
}
