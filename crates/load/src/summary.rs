//! A run's result for a person: what was asked, what came of it, how far to trust it.

use std::fmt::Write as _;

use tollway_record::check::rate_bound_rps;
use tollway_record::client_limit::ClientLimit;
use tollway_record::record::{Arrival, Protocol};
use tollway_record::traffic::LatencyUs;
use tollway_record::{RunResult, Traffic};

/// Achieved rates within this part of connections / latency are set by that bound.
const CLOSED_LOOP_BOUND_PCT: f64 = 5.0;

/// Several lines of text, each ended, at most 100 columns wide but for the target's URL.
#[must_use]
pub fn summary(result: &RunResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write_summary(&mut text, result);
    text
}

fn write_summary(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let traffic = &result.traffic;
    writeln!(text, "{}", result.target)?;
    writeln!(
        text,
        "  {}, {} connections, payload {} bytes",
        result.protocol,
        grouped(u64::from(result.connections)),
        grouped(result.payload_bytes)
    )?;
    write_rates(text, result)?;
    write_counts(text, traffic)?;
    writeln!(text)?;
    write_latencies(text, traffic)?;
    writeln!(text)?;
    write_generator(text, result)?;
    write_doubts(text, result)
}

fn write_rates(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let traffic = &result.traffic;
    match traffic.requested_rps {
        Some(rps) => {
            let spacing = match result.arrival {
                Arrival::OpenPoisson => "open loop, Poisson",
                Arrival::OpenJitter => "open loop, jittered",
                Arrival::OpenUniform | Arrival::Closed => "open loop",
            };
            write!(text, "  offered   {}/s ({spacing})", significant(rps))?;
        }
        None => write!(text, "  offered   as fast as answers come (closed loop)")?,
    }
    writeln!(
        text,
        ", {} after {} of warm-up",
        duration(traffic.duration_s * 1e6),
        duration(result.warm_up_s * 1e6)
    )?;
    writeln!(text, "  achieved  {}/s", significant(traffic.achieved_rps))
}

fn write_counts(text: &mut String, traffic: &Traffic) -> std::fmt::Result {
    writeln!(
        text,
        "  requests  {} ok, {} errors, {} unfinished, {} dropped",
        grouped(traffic.requests),
        grouped(traffic.errors),
        grouped(traffic.unfinished),
        grouped(traffic.dropped)
    )?;
    for (kind, count) in &traffic.errors_by_kind {
        writeln!(text, "            {:>9} × {kind}", grouped(*count))?;
    }
    Ok(())
}

fn write_latencies(text: &mut String, traffic: &Traffic) -> std::fmt::Result {
    let columns = ["mean", "p50", "p75", "p90", "p99", "p99.9", "max"];
    write!(text, "{:24}", "")?;
    for column in columns {
        write!(text, "{column:>10}")?;
    }
    writeln!(text)?;
    write_row(text, "response (from the plan)", &traffic.latency_us)?;
    write_row(text, "service (from the send)", &traffic.service_us)?;
    if let Some(errors) = &traffic.error_latency_us {
        write_row(text, "errors", errors)?;
    }
    if let Some(connect) = traffic.phases_us.get("connect") {
        write_row(text, &format!("connect ({} times)", grouped(connect.n)), connect)?;
    }
    Ok(())
}

fn write_row(text: &mut String, name: &str, latency: &LatencyUs) -> std::fmt::Result {
    let LatencyUs { mean, p50, p75, p90, p99, p999, max, n: _ } = *latency;
    write!(text, "{name:24}")?;
    for value in [mean, p50, p75, p90, p99, p999, max] {
        write!(text, "{:>10}", value.map_or_else(|| "—".to_owned(), duration))?;
    }
    writeln!(text)
}

fn write_generator(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let generator = &result.generator;
    if let Some(lateness) = &result.traffic.lateness {
        writeln!(
            text,
            "  requests were late by {} (p50), {} (p99), {} (max); too late: {:.1} %",
            duration(lateness.p50_us),
            duration(lateness.p99_us),
            duration(lateness.max_us),
            lateness.late_fraction * 100.0
        )?;
    }
    let requests = result.traffic.requests;
    write!(
        text,
        "  generator used {:.1} % of a processor",
        generator.busiest_thread_fraction * 1e2
    )?;
    if requests > 0 {
        write!(text, ", {} per request", duration(generator.cpu_us / requests as f64))?;
    }
    writeln!(text)
}

fn write_doubts(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let traffic = &result.traffic;
    for limit in &traffic.client_limits {
        writeln!(text, "  CLIENT-LIMITED: {}", explain(limit))?;
    }
    let lost = traffic.errors + traffic.unfinished + traffic.dropped;
    if lost > 0 {
        let share = lost as f64 / traffic.scheduled().max(1) as f64 * 100.0;
        writeln!(
            text,
            "  {share:.2} % of the requests have no latency (failed, unfinished or dropped)"
        )?;
    }
    let unprintable = traffic.latency_us.p999.is_none() && traffic.requests > 0;
    if unprintable {
        writeln!(text, "  — : fewer than 100 requests lie beyond this percentile")?;
    }
    if let (Arrival::Closed, Some(typical_us)) = (result.arrival, traffic.service_us.p50) {
        let bound_rps = rate_bound_rps(result.connections, typical_us);
        if (traffic.achieved_rps / bound_rps - 1.0).abs() * 100.0 < CLOSED_LOOP_BOUND_PCT
            && result.protocol == Protocol::Http1
        {
            writeln!(
                text,
                "  closed-loop bound: {} connections / {} = {}/s; the rate says nothing more than \
                 the latency",
                result.connections,
                duration(typical_us),
                significant(bound_rps)
            )?;
        }
    }
    Ok(())
}

fn explain(limit: &ClientLimit) -> String {
    match limit {
        ClientLimit::LateSends { late_fraction } => {
            format!("{:.1} % of the requests were released too late", late_fraction * 100.0)
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

/// Three significant digits and a unit that fits.
fn duration(us: f64) -> String {
    match us {
        _ if us < 999.5 => format!("{} µs", significant(us)),
        _ if us < 999_500.0 => format!("{} ms", significant(us / 1e3)),
        _ => format!("{} s", significant(us / 1e6)),
    }
}

/// Three significant digits below a thousand, whole and grouped above.
fn significant(value: f64) -> String {
    match value {
        _ if value >= 999.5 => grouped(value.round() as u64),
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Thousands apart: `12,345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_record::Histogram;
    use tollway_record::record::Tls;
    use tollway_record::run::{Generator, RUN_SCHEMA};
    use tollway_record::traffic::Lateness;

    #[test]
    fn an_open_loop_is_told_in_a_dozen_lines() {
        let text = summary(&open_loop());
        let expected = "\
http://127.0.0.1:8080/echo
  http1, 16 connections, payload 1,024 bytes
  offered   1,000/s (open loop), 10.0 s after 1.00 s of warm-up
  achieved  998/s
  requests  9,998 ok, 2 errors, 0 unfinished, 0 dropped
                    2 × status-503

                              mean       p50       p75       p90       p99     p99.9       max
response (from the plan)    412 µs    412 µs    412 µs    412 µs         —         —    412 µs
service (from the send)     398 µs    398 µs    398 µs    398 µs         —         —    398 µs

  requests were late by 0.20 µs (p50), 12.3 µs (p99), 2.10 ms (max); too late: 0.0 %
  generator used 5.6 % of a processor, 56.0 µs per request
  0.02 % of the requests have no latency (failed, unfinished or dropped)
  — : fewer than 100 requests lie beyond this percentile
";
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn a_limited_client_is_named() {
        let mut result = open_loop();
        result.traffic.client_limits = vec![ClientLimit::LateSends { late_fraction: 0.1 }];
        let text = summary(&result);
        assert!(text.contains("CLIENT-LIMITED: 10.0 % of the requests were released too late"));
    }

    #[test]
    fn a_closed_loop_that_only_shows_its_latency_says_so() {
        let mut result = open_loop();
        result.arrival = Arrival::Closed;
        result.connections = 8;
        result.traffic.requested_rps = None;
        result.traffic.achieved_rps = 398.0;
        let mut latencies = Histogram::new();
        latencies.record_n(20_000_000, 4_000);
        result.traffic.set_services(&latencies);
        let text = summary(&result);
        assert!(text.contains("closed-loop bound: 8 connections / 20.0 ms = 400/s"), "{text}");
    }

    #[test]
    fn numbers_carry_three_digits_and_a_unit() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (12.34, "12.3 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (138_210.0, "138 ms"),
            (1_500_000.0, "1.50 s"),
            (4_000_000_000.0, "4,000 s"),
        ] {
            assert_eq!(duration(us), text);
        }
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(0), "0");
    }

    fn open_loop() -> RunResult {
        let mut traffic = Traffic {
            requested_rps: Some(1000.0),
            achieved_rps: 998.4,
            duration_s: 10.0,
            requests: 9_998,
            errors: 2,
            lateness: Some(Lateness {
                p50_us: 0.2,
                p99_us: 12.3,
                max_us: 2_100.0,
                ..Lateness::default()
            }),
            ..Traffic::default()
        };
        traffic.errors_by_kind.insert("status-503".into(), 2);
        let mut histogram = Histogram::new();
        histogram.record_n(412_000, 9_998);
        traffic.set_latencies(&histogram);
        let mut histogram = Histogram::new();
        histogram.record_n(398_000, 9_998);
        traffic.set_services(&histogram);
        RunResult {
            schema: RUN_SCHEMA.into(),
            started_at: "2026-01-01T00:00:00Z".into(),
            target: "http://127.0.0.1:8080/echo".into(),
            protocol: Protocol::Http1,
            tls: Tls::Plain,
            arrival: Arrival::OpenUniform,
            connections: 16,
            in_flight_limit: None,
            payload_bytes: 1024,
            warm_up_s: 1.0,
            seed: 1,
            command_line: Vec::new(),
            traffic,
            generator: Generator {
                threads: 1,
                cpu_us: 560_000.0,
                busiest_thread_fraction: 0.056,
                rss_bytes: 0,
            },
            ..RunResult::default()
        }
    }
}
