//! The last lines of a summary: how far to trust the figures above them.

use std::fmt::{Result, Write as _};

use tollway_record::RunResult;
use tollway_record::check::rate_bound_rps;
use tollway_record::client_limit::ClientLimit;
use tollway_record::record::{Arrival, Protocol};
use tollway_record::traffic::LatencyUs;

use super::numbers::{counted, duration, significant};

/// Achieved rates within this part of connections / latency are set by that bound.
const CLOSED_LOOP_BOUND_PCT: f64 = 5.0;
/// From which share of the requests on it is worth a line that they waited for a connection.
const WAITED_WORTH_A_LINE: f64 = 0.01;

pub(super) fn write_doubts(text: &mut String, result: &RunResult) -> Result {
    let traffic = &result.traffic;
    for limit in &traffic.client_limits {
        writeln!(text, "  CLIENT-LIMITED: {}", explain(limit))?;
    }
    write_waits(text, result)?;
    let lost = traffic.errors + traffic.unfinished + traffic.dropped;
    if lost > 0 {
        let share = lost as f64 / traffic.scheduled().max(1) as f64 * 100.0;
        writeln!(text, "  {share:.2} % of the requests are in no latency: they were lost")?;
    }
    let unprintable = traffic.latency_us.p999.is_none() && traffic.requests > 0;
    if unprintable {
        writeln!(text, "  — : fewer than 100 requests lie beyond it")?;
    }
    if let (Arrival::Closed, Some(typical_us)) = (result.arrival, traffic.service_us.p50) {
        let bound_rps = rate_bound_rps(result.connections, typical_us);
        if (traffic.achieved_rps / bound_rps - 1.0).abs() * 100.0 < CLOSED_LOOP_BOUND_PCT
            && result.protocol == Protocol::Http1
        {
            writeln!(
                text,
                "  closed-loop bound: {} / {} = {}/s; the rate says nothing more than the latency",
                counted(u64::from(result.connections), "connection"),
                duration(typical_us),
                significant(bound_rps)
            )?;
        }
    }
    Ok(())
}

/// A stalled target shows in the response times of the requests that wait for it.
fn write_waits(text: &mut String, result: &RunResult) -> Result {
    let blocked = result.traffic.phases_us.get("blocked");
    let Some(LatencyUs { n, mean: Some(mean_us), .. }) = blocked else { return Ok(()) };
    let share = *n as f64 / result.traffic.requests.max(1) as f64;
    if result.traffic.requested_rps.is_none() || share < WAITED_WORTH_A_LINE {
        return Ok(());
    }
    writeln!(
        text,
        "  {:.1} % of the requests waited {} (mean) for a\n  connection: in the response time, not \
         in the service time",
        share * 100.0,
        duration(*mean_us)
    )
}

fn explain(limit: &ClientLimit) -> String {
    match limit {
        ClientLimit::LateSends { late_fraction } => {
            let pct = late_fraction * 100.0;
            format!(
                "{pct:.1} % of the requests were released too late: by the generator, not the target"
            )
        }
        ClientLimit::RateMissed { achieved_fraction } => format!(
            "{:.1} % of the offered rate was achieved: the target or the generator is at its limit",
            achieved_fraction * 100.0
        ),
        ClientLimit::GeneratorBusy { busiest_thread_fraction } => {
            format!("the generator was busy {:.0} % of the time", busiest_thread_fraction * 100.0)
        }
        ClientLimit::NearDirect { of_direct_fraction } => {
            format!("{:.0} % of the direct rate was reached", of_direct_fraction * 100.0)
        }
    }
}
