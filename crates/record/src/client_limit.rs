//! Decides whether a run measured its subject or its own load generator.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::Arrival;
use crate::run::RunResult;
use crate::traffic::Traffic;

/// Sends may be this much late, as a fraction of the interval, or [`LATE_FLOOR_NS`] if more.
const LATE_OF_INTERVAL: f64 = 0.10;
const LATE_FLOOR_NS: u64 = 1_000_000;

/// More late sends than this fraction, and the client limits.
pub const LATE_FRACTION_LIMIT: f64 = 0.01;

/// Less than this fraction of the offered rate, and the client limits.
pub const ACHIEVED_FRACTION_LIMIT: f64 = 0.99;

/// In closed loop: a load thread as busy as this, and the client limits.
pub const BUSY_FRACTION_LIMIT: f64 = 0.95;

/// In closed loop: a subject as fast as this fraction of direct, and the client limits.
pub const OF_DIRECT_LIMIT: f64 = 0.85;

/// One reason why a run may show its generator instead of its subject.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum ClientLimit {
    /// Open loop: more than 1 % of sends were late.
    LateSends { late_fraction: f64 },
    /// Open loop: less than 99 % of the offered rate was achieved.
    RateMissed { achieved_fraction: f64 },
    /// Closed loop: a load thread was busy at least 95 % of the window.
    GeneratorBusy { busiest_thread_fraction: f64 },
    /// Closed loop: the subject reached at least 85 % of what direct reached.
    NearDirect { of_direct_fraction: f64 },
}

impl ClientLimit {
    /// Whether both name the same reason, whatever the figures.
    #[must_use]
    pub fn same_reason(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for ClientLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LateSends { late_fraction } => {
                write!(f, "{:.1} % of the sends were late", late_fraction * 100.0)
            }
            Self::RateMissed { achieved_fraction } => {
                write!(f, "{:.1} % of the offered rate was achieved", achieved_fraction * 100.0)
            }
            Self::GeneratorBusy { busiest_thread_fraction } => {
                let busy = busiest_thread_fraction * 100.0;
                write!(f, "a load thread was busy {busy:.0} % of the time")
            }
            Self::NearDirect { of_direct_fraction } => {
                write!(f, "{:.0} % of what direct reached", of_direct_fraction * 100.0)
            }
        }
    }
}

/// How late a send may be before it counts as late, in nanoseconds: 10 % of the interval between
/// sends at `requested_rps`, at least 1 ms.
#[must_use]
pub fn late_threshold_ns(requested_rps: f64) -> u64 {
    if requested_rps > 0.0 {
        ((LATE_OF_INTERVAL * 1e9 / requested_rps) as u64).max(LATE_FLOOR_NS)
    } else {
        LATE_FLOOR_NS
    }
}

/// The reasons visible in one run alone.
#[must_use]
pub fn limits_of_run(run: &RunResult) -> Vec<ClientLimit> {
    if run.traffic.requested_rps.is_some() {
        return limits_in_open_loop(&run.traffic, run.arrival);
    }
    let busiest_thread_fraction = run.generator.busiest_thread_fraction;
    if busiest_thread_fraction >= BUSY_FRACTION_LIMIT {
        vec![ClientLimit::GeneratorBusy { busiest_thread_fraction }]
    } else {
        Vec::new()
    }
}

/// Signs of a client limit in an open-loop window; none in closed loop. The achieved rate is
/// compared with the planned one, which for random arrivals and bursts is sometimes below the
/// requested rate.
#[must_use]
pub fn limits_in_open_loop(traffic: &Traffic, arrival: Arrival) -> Vec<ClientLimit> {
    let mut limits = Vec::new();
    let Some(requested_rps) = traffic.requested_rps else { return limits };
    let late_fraction = traffic.lateness.map_or(0.0, |lateness| lateness.late_fraction);
    if late_fraction > LATE_FRACTION_LIMIT {
        limits.push(ClientLimit::LateSends { late_fraction });
    }
    let achieved_fraction = traffic.achieved_rps / planned_rps(traffic, arrival, requested_rps);
    if achieved_fraction < ACHIEVED_FRACTION_LIMIT {
        limits.push(ClientLimit::RateMissed { achieved_fraction });
    }
    limits
}

/// Requests per second that the plan held.
fn planned_rps(traffic: &Traffic, arrival: Arrival, requested_rps: f64) -> f64 {
    if traffic.duration_s <= 0.0 {
        return requested_rps;
    }
    let scheduled = traffic.scheduled() as f64;
    let planned = match arrival {
        Arrival::OpenPoisson | Arrival::OpenJitter | Arrival::OpenBursts => scheduled,
        // A window that begins or ends between two arrivals may have one less than its length
        // gives.
        Arrival::OpenUniform | Arrival::Closed | Arrival::Flow | Arrival::Packets => {
            scheduled.max(requested_rps * traffic.duration_s - 1.0)
        }
    };
    planned / traffic.duration_s
}

/// The sign that shows only in comparison with the direct run in closed loop.
#[must_use]
pub fn limit_against_direct(subject_rps: f64, direct_rps: f64) -> Option<ClientLimit> {
    let of_direct_fraction = subject_rps / direct_rps;
    (direct_rps > 0.0 && of_direct_fraction >= OF_DIRECT_LIMIT)
        .then_some(ClientLimit::NearDirect { of_direct_fraction })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Lateness;

    #[test]
    fn a_send_is_late_after_a_tenth_of_the_interval_or_a_millisecond() {
        let check = |rps: f64, ns: u64| assert_eq!(late_threshold_ns(rps), ns, "{rps}");
        check(1_000.0, 1_000_000);
        check(100.0, 1_000_000);
        check(10.0, 10_000_000);
        check(0.0, 1_000_000);
    }

    #[test]
    fn open_loop_is_limited_by_late_sends_or_a_missed_rate() {
        let check = |late_fraction: f64, achieved_rps: f64, reasons: usize| {
            let traffic = Traffic {
                requested_rps: Some(1_000.0),
                achieved_rps,
                lateness: Some(Lateness { late_fraction, ..Lateness::default() }),
                ..Traffic::default()
            };
            let found = limits_in_open_loop(&traffic, Arrival::OpenUniform);
            assert_eq!(found.len(), reasons, "{late_fraction}, {achieved_rps}: {found:?}");
        };
        check(0.01, 990.0, 0);
        check(0.011, 1_000.0, 1);
        check(0.0, 989.0, 1);
        check(0.5, 500.0, 2);
        assert!(limits_in_open_loop(&Traffic::default(), Arrival::Closed).is_empty());
    }

    #[test]
    fn few_random_arrivals_are_no_missed_rate_and_few_even_ones_are() {
        let check = |arrival, requests: u64, errors: u64, limited: bool| {
            let traffic = Traffic {
                requested_rps: Some(1_000.0),
                achieved_rps: requests as f64 / 2.0,
                duration_s: 2.0,
                requests,
                errors,
                ..Traffic::default()
            };
            let found = limits_in_open_loop(&traffic, arrival);
            assert_eq!(!found.is_empty(), limited, "{arrival}: {requests} + {errors}: {found:?}");
        };
        check(Arrival::OpenPoisson, 1_900, 0, false);
        check(Arrival::OpenPoisson, 1_900, 100, true);
        check(Arrival::OpenPoisson, 2_050, 50, true);
        check(Arrival::OpenJitter, 1_900, 0, false);
        check(Arrival::OpenBursts, 1_900, 0, false);
        check(Arrival::OpenUniform, 1_900, 0, true);
        check(Arrival::OpenUniform, 1_999, 0, false);
        check(Arrival::OpenUniform, 1_900, 100, true);
    }

    #[test]
    fn an_even_window_cut_between_two_arrivals_is_no_missed_rate() {
        let traffic = Traffic {
            requested_rps: Some(10.0),
            achieved_rps: 4.0 / 0.49,
            duration_s: 0.49,
            requests: 4,
            ..Traffic::default()
        };
        assert_eq!(limits_in_open_loop(&traffic, Arrival::OpenUniform), []);
    }

    #[test]
    fn closed_loop_is_limited_near_direct() {
        let check = |subject, direct, limited: bool| {
            let found = limit_against_direct(subject, direct);
            assert_eq!(found.is_some(), limited, "{subject} of {direct}");
        };
        check(84.0, 100.0, false);
        check(85.0, 100.0, true);
        check(100.0, 0.0, false);
    }
}
