//! What processes used over the course of a run, slice by slice. A slice costs one clock of each
//! process and one file of each cgroup, so that watching does not disturb what is watched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollway_record::record::{CostPoint, Throttling};

use super::reading::{Reading, Roles, each};
use crate::cgroup::Cgroups;
use crate::sample;

/// The length of a slice: that of the load generator's intervals.
const SLICE: Duration = Duration::from_secs(1);
/// In a short window slices are shorter, down to this: two periods of the usual CPU quota.
const SLICE_LEAST: Duration = Duration::from_millis(200);
/// A window has this many slices at least, where they would not be too short.
const SLICES_LEAST: u32 = 8;
/// More than these are not read; the rest of so long a run is one slice.
const SLICES_LIMIT: usize = 86_400;

/// When the slices of a window end; none for one that is too short for two.
pub(super) fn ends(begin: Instant, end: Instant) -> impl Iterator<Item = Instant> {
    let window = end.saturating_duration_since(begin);
    let slice = (window / SLICES_LEAST).clamp(SLICE_LEAST, SLICE);
    let count = (window.as_nanos() / slice.as_nanos()) as usize;
    let count = if count < 2 { 0 } else { count.min(SLICES_LIMIT) };
    // What is left over belongs to no slice: a short one would be more noise than figure.
    (1..=count as u32).map(move |number| begin + slice * number)
}

/// The slices so far and where the next one begins.
pub(super) struct Slices {
    begin: Instant,
    last: Usage,
    points: Vec<CostPoint>,
}

/// What everything had used at one moment.
struct Usage {
    at: Instant,
    cpu: BTreeMap<String, Duration>,
    throttling: BTreeMap<String, Throttling>,
}

impl Slices {
    /// The first slice begins where the reading was taken.
    pub(super) fn from(first: &Reading) -> Self {
        let (cpu, throttling) = (first.cpu(), first.throttling().clone());
        Self { begin: first.at, last: Usage { at: first.at, cpu, throttling }, points: Vec::new() }
    }

    /// The slice ends now and the next one begins.
    pub(super) fn close(&mut self, roles: &Roles, cgroups: Option<&Cgroups>) {
        let now = Usage {
            at: Instant::now(),
            cpu: each(roles, |pids| pids.iter().map(|&pid| sample::cpu_time(pid).ok()).sum()),
            throttling: each(roles, |pids| cgroups.and_then(|groups| groups.throttling(pids))),
        };
        self.points.push(now.since(&self.last, self.begin));
        self.last = now;
    }

    pub(super) fn into_points(self) -> Vec<CostPoint> {
        self.points
    }
}

impl Usage {
    fn since(&self, before: &Self, begin: Instant) -> CostPoint {
        let length = self.at.saturating_duration_since(before.at).max(Duration::from_nanos(1));
        let cores = self.cpu.iter().filter_map(|(role, after)| {
            let used = after.saturating_sub(*before.cpu.get(role)?);
            Some((role.clone(), used.div_duration_f64(length)))
        });
        let throttled = self.throttling.iter().filter_map(|(role, after)| {
            let since =
                after.throttled_us.saturating_sub(before.throttling.get(role)?.throttled_us);
            Some((role.clone(), Duration::from_micros(since).div_duration_f64(length)))
        });
        CostPoint {
            t_s: self.at.saturating_duration_since(begin).as_secs_f64(),
            cpu_cores: cores.collect(),
            throttled_fraction: throttled.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_slices_of_a_second_or_an_eighth_and_none_when_it_is_too_short() {
        let check = |window_ms: u64, expected_ms: &[u128]| {
            let begin = Instant::now();
            let ends = ends(begin, begin + Duration::from_millis(window_ms));
            let found: Vec<u128> = ends.map(|end| (end - begin).as_millis()).collect();
            assert_eq!(found, expected_ms, "{window_ms} ms");
        };
        check(350, &[]);
        check(450, &[200, 400]);
        check(2_000, &[250, 500, 750, 1_000, 1_250, 1_500, 1_750, 2_000]);
        check(9_800, &[1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000]);
        let begin = Instant::now();
        assert_eq!(ends(begin + SLICE, begin).count(), 0, "an end before the beginning");
    }

    #[test]
    fn a_slice_contains_the_usage_within_it() {
        let begin = Instant::now();
        let usage = |ms: u64, cpu_ms: u64, throttled_us: u64| Usage {
            at: begin + Duration::from_millis(ms),
            cpu: BTreeMap::from([("app".to_owned(), Duration::from_millis(cpu_ms))]),
            throttling: BTreeMap::from([(
                "app".to_owned(),
                Throttling { throttled_us, ..Throttling::default() },
            )]),
        };
        let point = usage(1_500, 320, 150_000).since(&usage(1_000, 70, 50_000), begin);
        assert_eq!(point.t_s, 1.5);
        assert_eq!(point.cpu_cores["app"], 0.5);
        assert_eq!(point.throttled_fraction["app"], 0.2);
    }

    #[test]
    fn a_process_that_ended_is_in_no_slice() {
        let roles = Roles::from([
            ("here".to_owned(), vec![std::process::id()]),
            ("gone".to_owned(), vec![std::process::id(), u32::MAX]),
        ]);
        let mut slices = Slices::from(&Reading::take(&roles, &[], None));
        slices.close(&roles, None);
        let points = slices.into_points();
        assert_eq!(points[0].cpu_cores.keys().collect::<Vec<_>>(), ["here"]);
        assert!(points[0].throttled_fraction.is_empty());
    }
}
