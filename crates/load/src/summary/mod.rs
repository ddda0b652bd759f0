//! A run's result for people: the request, the figures, the doubts.

mod doubts;
mod numbers;
mod packets;
mod parts;
mod throughput;

use std::fmt::Write as _;

use tollway_record::record::Arrival;
use tollway_record::traffic::LatencyUs;
use tollway_record::{RunResult, Traffic};

use self::numbers::{counted, duration_or_dash, significant, window};
pub(crate) use self::numbers::{duration, grouped};
pub use self::throughput::interval_line;

/// In the order in which a request goes through them.
const PHASES: [&str; 8] = [
    "blocked",
    "connecting",
    "tls_handshaking",
    "tls_handshaking_full",
    "tls_handshaking_resumed",
    "sending",
    "waiting",
    "receiving",
];

/// Several lines of text, each ended, at most 60 columns wide but for names and reasons.
#[must_use]
pub fn summary(result: &RunResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = match &result.throughput {
        Some(throughput) => throughput::write_throughput(&mut text, result, throughput),
        None if result.arrival == Arrival::Packets => packets::write_packets(&mut text, result),
        None => write_summary(&mut text, result),
    };
    let _ = parts::write_parts(&mut text, result);
    text
}

fn write_summary(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let traffic = &result.traffic;
    writeln!(text, "{}", result.target)?;
    writeln!(
        text,
        "  {} {}, {}, payload {} bytes",
        result.protocol,
        result.tls,
        counted(u64::from(result.connections), "connection"),
        grouped(result.payload_bytes)
    )?;
    write_rates(text, result)?;
    write_counts(text, traffic)?;
    writeln!(text)?;
    write_latencies(text, traffic)?;
    write_phases(text, traffic)?;
    writeln!(text)?;
    write_generator(text, result)?;
    doubts::write_doubts(text, result)
}

fn write_rates(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let traffic = &result.traffic;
    match traffic.requested_rps {
        Some(rps) => {
            let spacing = match result.arrival {
                Arrival::OpenPoisson => "open loop, Poisson",
                Arrival::OpenJitter => "open loop, jittered",
                Arrival::OpenBursts => "open loop, in bursts",
                Arrival::OpenUniform | Arrival::Closed | Arrival::Flow | Arrival::Packets => {
                    "open loop"
                }
            };
            let mean = if result.stages.is_empty() { "" } else { " on average" };
            writeln!(text, "  offered   {}/s{mean} ({spacing})", significant(rps))?;
        }
        None => writeln!(text, "  offered   as fast as answers come (closed loop)")?,
    }
    writeln!(text, "  window    {}", window(traffic.duration_s, result.warm_up_s))?;
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
    let (response, service) = (&traffic.latency_us, &traffic.service_us);
    writeln!(text, "{:10}{:>15}{:>15}", "", "response", "service")?;
    writeln!(text, "{:10}{:>15}{:>15}", "", "from the plan", "from the send")?;
    for (name, response, service) in [
        ("mean", response.mean, service.mean),
        ("p50", response.p50, service.p50),
        ("p75", response.p75, service.p75),
        ("p90", response.p90, service.p90),
        ("p99", response.p99, service.p99),
        ("p99.9", response.p999, service.p999),
        ("max", response.max, service.max),
    ] {
        let (response, service) = (duration_or_dash(response), duration_or_dash(service));
        writeln!(text, "  {name:8}{response:>15}{service:>15}")?;
    }
    Ok(())
}

/// Phases over the requests that had them, and the time until a failure.
fn write_phases(text: &mut String, traffic: &Traffic) -> std::fmt::Result {
    let rank = |name: &str| PHASES.iter().position(|phase| *phase == name);
    let mut phases: Vec<_> =
        traffic.phases_us.iter().map(|(name, phase)| (name.as_str(), phase)).collect();
    // Unknown ones last, in the order of their names.
    phases.sort_by_key(|(name, _)| rank(name).unwrap_or(PHASES.len()));
    let failed = traffic.error_latency_us.as_ref().map(|failed| ("until an error", failed));
    let rows: Vec<_> =
        phases.into_iter().chain(failed).filter(|(_, latency)| latency.n > 0).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n  {:16}{:>8}{:>11}{:>11}{:>11}", "phase", "count", "mean", "p99", "max")?;
    for (name, LatencyUs { mean, p99, max, n, .. }) in rows {
        let [mean, p99, max] = [*mean, *p99, *max].map(duration_or_dash);
        writeln!(text, "  {name:16}{:>8}{mean:>11}{p99:>11}{max:>11}", grouped(*n))?;
    }
    Ok(())
}

fn write_generator(text: &mut String, result: &RunResult) -> std::fmt::Result {
    let generator = &result.generator;
    if let Some(lateness) = &result.traffic.lateness {
        writeln!(
            text,
            "  sends were late by {} (p50), {} (p99); {:.1} % too late",
            duration(lateness.p50_us),
            duration(lateness.p99_us),
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

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_record::Histogram;
    use tollway_record::client_limit::ClientLimit;
    use tollway_record::record::{Protocol, Tls};
    use tollway_record::run::{Generator, RUN_SCHEMA, Step};
    use tollway_record::search::{SearchResult, TrialResult};
    use tollway_record::traffic::Lateness;

    #[test]
    fn an_open_loop_is_summarised_on_half_a_page() {
        let text = summary(&open_loop());
        let expected = "\
http://127.0.0.1:8080/echo
  http1 plain, 16 connections, payload 1,024 bytes
  offered   1,000/s (open loop)
  window    10.0 s after 1.00 s of warm-up
  achieved  998/s
  requests  9,998 ok, 2 errors, 0 unfinished, 0 dropped
                    2 × status-503

                 response        service
            from the plan  from the send
  mean             412 µs         398 µs
  p50              412 µs         398 µs
  p75              412 µs         398 µs
  p90              412 µs         398 µs
  p99                   —              —
  p99.9                 —              —
  max              412 µs         398 µs

  phase              count       mean        p99        max
  connect               16     120 µs          —     300 µs

  sends were late by 0.20 µs (p50), 12.3 µs (p99); 0.0 % too late
  generator used 5.6 % of a processor, 56.0 µs per request
  0.02 % of the requests are in no latency: they were lost
  — : fewer than 100 requests lie beyond it
";
        assert_eq!(text, expected, "{text}");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 66, "{widest} columns");
    }

    #[test]
    fn steps_conditions_and_a_search_are_tables() {
        let mut result = open_loop();
        result.steps = [500.0, 1_000.0]
            .map(|rate| {
                let requested_rps = Some(rate);
                let client_limited = rate > 600.0;
                let traffic = Traffic { requested_rps, client_limited, ..result.traffic.clone() };
                Step { traffic, generator: result.generator }
            })
            .to_vec();
        let trial = |requested_rps, why: Option<&str>| TrialResult {
            requested_rps,
            achieved_rps: requested_rps,
            duration_s: 3.0,
            p99_us: Some(2_000.0),
            held: why.is_none(),
            why: why.map(str::to_owned),
            client_limited: false,
            confirms: why.is_none(),
        };
        result.search = Some(SearchResult {
            slo: vec!["p99<10ms".into()],
            held_rps: Some(900.0),
            missed_rps: Some(950.0),
            client_limited: true,
            complete: true,
            trials: vec![trial(900.0, None), trial(950.0, Some("p99<10ms: 23.00 ms"))],
        });
        result.judge_thresholds(&["p50>1ms".parse().unwrap()]).unwrap();
        let text = summary(&result);
        for line in [
            "   offered   achieved        p50        p99      lost",
            "     500/s      998/s     412 µs          —         2",
            "   1,000/s      998/s     412 µs          —         2  (!)",
            "     900/s      900/s    2.00 ms  holds (confirming)",
            "     950/s      950/s    2.00 ms  p99<10ms: 23.00 ms",
            "  HIGHEST RATE 900/s holds, 950/s does not",
            "  CLIENT-LIMITED: the target may sustain more",
            "  ok      p50>1ms: 412 µs",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_limited_client_is_named() {
        let mut result = open_loop();
        result.traffic.client_limits = vec![ClientLimit::LateSends { late_fraction: 0.1 }];
        let text = summary(&result);
        assert!(text.contains("CLIENT-LIMITED: 10.0 % of the requests were released too late"));
    }

    #[test]
    fn requests_that_waited_for_a_connection_are_shown_in_open_loop() {
        let shown = "  5.0 % of the requests waited 443 ms (mean) for a\n  connection: in the \
                    response time, not in the service time\n";
        let check = |n: u64, rate: Option<f64>, expected: bool| {
            let mut result = open_loop();
            result.traffic.requested_rps = rate;
            let blocked = LatencyUs { mean: Some(443e3), n, ..LatencyUs::default() };
            result.traffic.phases_us.insert("blocked".to_owned(), blocked);
            let text = summary(&result);
            assert_eq!(text.contains(shown), expected, "{n}: {text}");
        };
        check(500, Some(1000.0), true);
        check(0, Some(1000.0), false);
        check(50, Some(1000.0), false);
        check(500, None, false);
    }

    #[test]
    fn a_rate_that_only_follows_from_the_latency_is_marked() {
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
        let connect =
            LatencyUs { mean: Some(120.0), max: Some(300.0), n: 16, ..LatencyUs::default() };
        traffic.phases_us.insert("connect".into(), connect);
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
            tls_facts: None,
            requests_per_connection: None,
            streams: 1,
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
