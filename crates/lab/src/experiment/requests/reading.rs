//! The use of all processes at one moment, and the difference between two.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollway_record::record::{Cost, Noise, Throttling};

use crate::cgroup::Cgroups;
use crate::machine;
use crate::progress::Pace;
use crate::sample::{self, MachineUsage, ProcessUsage};

/// Processes by role.
pub(super) type Roles = BTreeMap<String, Vec<u32>>;

pub(super) struct Reading {
    pub(super) at: Instant,
    machine: Option<MachineUsage>,
    roles: BTreeMap<String, ProcessUsage>,
    /// Waited for a processor so far.
    run_queue: BTreeMap<String, Duration>,
    throttling: BTreeMap<String, Throttling>,
    /// Of the lab and all that it started.
    own_cpu: Duration,
    cpu_pressure: Option<Duration>,
    memory_pressure: Option<Duration>,
}

/// A role in two readings: its CPU time between them, and its resident memory then and now.
type Both<'a> = (&'a String, Duration, u64, u64);

impl Reading {
    /// Processes that cannot be read are left out: the supervisor reports one that ended.
    pub(super) fn take(roles: &Roles, own: &[u32], cgroups: Option<&Cgroups>) -> Self {
        let throttling = |pids: &Vec<u32>| cgroups.and_then(|groups| groups.throttling(pids));
        Self {
            at: Instant::now(),
            machine: MachineUsage::read().ok(),
            roles: each(roles, |pids| usage(pids)),
            run_queue: each(roles, |pids| {
                Some(pids.iter().filter_map(|&pid| sample::run_queue_wait(pid)).sum())
            }),
            throttling: each(roles, throttling),
            own_cpu: own.iter().filter_map(|&pid| sample::cpu_time(pid).ok()).sum(),
            cpu_pressure: sample::cpu_pressure(),
            memory_pressure: sample::memory_pressure(),
        }
    }

    /// CPU time since `first` for each request or megabyte, at the pace of the run.
    pub(super) fn cost_since(&self, first: &Self, pace: Pace) -> Cost {
        let seconds = self.window_since(first).as_secs_f64();
        let done = seconds * pace.per_s();
        let each_us = |used: Duration| (done >= 1.0).then(|| used.as_secs_f64() * 1e6 / done);
        let mut cost = Cost::default();
        let mut by_role = BTreeMap::new();
        for (role, used, rss_bytes) in self.usage_since(first) {
            cost.rss_bytes.insert(role.clone(), rss_bytes);
            by_role.extend(each_us(used).map(|us| (role, us)));
        }
        let machine = self.busy_since(first).and_then(each_us);
        match pace {
            Pace::Requests(_) | Pace::Messages(_) | Pace::Packets(_) => {
                (cost.cpu_us_per_request, cost.machine_cpu_us_per_request) = (by_role, machine);
            }
            Pace::Megabytes(_) => {
                (cost.cpu_us_per_megabyte, cost.machine_cpu_us_per_megabyte) = (by_role, machine);
            }
        }
        for (role, after) in &self.throttling {
            let before = first.throttling.get(role).copied().unwrap_or_default();
            let since = Throttling {
                periods: after.periods.saturating_sub(before.periods),
                throttled_periods: after.throttled_periods.saturating_sub(before.throttled_periods),
                throttled_us: after.throttled_us.saturating_sub(before.throttled_us),
            };
            cost.throttling.insert(role.clone(), since);
            cost.throttled_us = Some(cost.throttled_us.unwrap_or(0) + since.throttled_us);
        }
        cost
    }

    /// CPU time so far, by role.
    pub(super) fn cpu(&self) -> BTreeMap<String, Duration> {
        self.roles.iter().map(|(role, usage)| (role.clone(), usage.cpu)).collect()
    }

    pub(super) fn throttling(&self) -> &BTreeMap<String, Throttling> {
        &self.throttling
    }

    /// CPU time since `first` and resident memory then or now, whichever is more, by role.
    pub(super) fn usage_since(&self, first: &Self) -> Vec<(String, Duration, u64)> {
        let usage = |(role, used, before, after): Both<'_>| (role.clone(), used, after.max(before));
        self.both(first).map(usage).collect()
    }

    /// CPU time in seconds since `first` and what is resident now, by role: a process gives back
    /// by and by what its start or its last work needed.
    pub(super) fn idled_since(&self, first: &Self) -> BTreeMap<String, (f64, u64)> {
        let usage = |(role, used, _, after): Both<'_>| (role.clone(), (used.as_secs_f64(), after));
        self.both(first).map(usage).collect()
    }

    /// The roles that are in both readings.
    fn both<'a>(&'a self, first: &'a Self) -> impl Iterator<Item = Both<'a>> {
        self.roles.iter().filter_map(|(role, after)| {
            let before = first.roles.get(role)?;
            let used = after.cpu.saturating_sub(before.cpu);
            Some((role, used, before.rss_bytes, after.rss_bytes))
        })
    }

    pub(super) fn noise_since(&self, first: &Self) -> Noise {
        let window = self.window_since(first);
        let share = |before: Option<Duration>, after: Option<Duration>| {
            let (before, after) = before.zip(after)?;
            Some(after.saturating_sub(before).div_duration_f64(window))
        };
        let foreign = self.busy_since(first).map(|busy| {
            let own = self.own_cpu.saturating_sub(first.own_cpu);
            busy.saturating_sub(own).div_duration_f64(window)
        });
        let waited = self.run_queue.iter().filter_map(|(role, after)| {
            let before = first.run_queue.get(role)?;
            Some((role.clone(), after.saturating_sub(*before).div_duration_f64(window)))
        });
        Noise {
            foreign_cpu_cores: foreign,
            cpu_pressure_fraction: share(first.cpu_pressure, self.cpu_pressure),
            memory_pressure_fraction: share(first.memory_pressure, self.memory_pressure),
            run_queue_fraction: waited.collect(),
        }
    }

    pub(super) fn steal_since(&self, first: &Self) -> Option<f64> {
        Some(self.machine?.since(&first.machine?).steal_fraction())
    }

    pub(super) fn window_since(&self, first: &Self) -> Duration {
        self.at.saturating_duration_since(first.at).max(Duration::from_nanos(1))
    }

    /// At least what its own processes used: where the hypervisor takes much, the kernel counts a
    /// processor that waits to be woken as idle and as taken away, and too little is left.
    fn busy_since(&self, first: &Self) -> Option<Duration> {
        let since = self.machine?.since(&first.machine?);
        let known = self.usage_since(first).into_iter().map(|(_, used, _)| used).sum();
        Some(since.busy(self.window_since(first), machine::cpus()).max(known))
    }
}

pub(super) fn each<T>(roles: &Roles, read: impl Fn(&Vec<u32>) -> Option<T>) -> BTreeMap<String, T> {
    roles.iter().filter_map(|(role, pids)| Some((role.clone(), read(pids)?))).collect()
}

fn usage(pids: &[u32]) -> Option<ProcessUsage> {
    let usages: Vec<_> = pids.iter().filter_map(|&pid| ProcessUsage::read(pid).ok()).collect();
    (usages.len() == pids.len() && !pids.is_empty()).then(|| ProcessUsage {
        cpu: usages.iter().map(|usage| usage.cpu).sum(),
        rss_bytes: usages.iter().map(|usage| usage.rss_bytes).sum(),
        peak_rss_bytes: usages.iter().map(|usage| usage.peak_rss_bytes).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_in_the_cost_of_a_run_and_no_longer_resident() {
        const BYTES: u64 = 64 << 20;
        let roles = Roles::from([("own".to_owned(), vec![std::process::id()])]);
        let held = vec![1_u8; usize::try_from(BYTES).unwrap()];
        let first = Reading::take(&roles, &[], None);
        assert!(std::hint::black_box(&held).iter().all(|byte| *byte == 1));
        drop(held);
        let last = Reading::take(&roles, &[], None);
        let (_, after) = last.idled_since(&first)["own"];
        let before = first.idled_since(&first)["own"].1;
        assert!(after + BYTES / 2 < before);
        assert_eq!(last.usage_since(&first)[0].2, before);
    }
}
