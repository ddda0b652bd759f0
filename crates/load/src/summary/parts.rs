//! What only some runs have: steps, a search, conditions, streams of messages.

use std::fmt::{Result, Write as _};

use tollway_record::RunResult;
use tollway_record::run::{Step, Streaming, ThresholdResult};
use tollway_record::search::{SearchResult, TrialResult};

use super::numbers::{bytes, duration_or_dash, grouped, significant};

pub(super) fn write_parts(text: &mut String, result: &RunResult) -> Result {
    if !result.steps.is_empty() {
        write_steps(text, &result.steps)?;
    }
    if let Some(streaming) = &result.streaming {
        write_streaming(text, streaming)?;
    }
    if let Some(search) = &result.search {
        write_search(text, search)?;
    }
    write_thresholds(text, &result.thresholds)
}

fn write_steps(text: &mut String, steps: &[Step]) -> Result {
    writeln!(
        text,
        "\n{:>10}{:>11}{:>11}{:>11}{:>10}",
        "offered", "achieved", "p50", "p99", "lost"
    )?;
    for Step { traffic, .. } in steps {
        let lost = traffic.scheduled().saturating_sub(traffic.requests);
        write!(
            text,
            "{:>10}{:>11}{:>11}{:>11}{:>10}",
            per_second(traffic.requested_rps.unwrap_or(0.0)),
            per_second(traffic.achieved_rps),
            duration_or_dash(traffic.latency_us.p50),
            duration_or_dash(traffic.latency_us.p99),
            grouped(lost)
        )?;
        writeln!(text, "{}", if traffic.client_limited { "  (!)" } else { "" })?;
    }
    if steps.iter().any(|step| step.traffic.client_limited) {
        writeln!(text, "  (!) client-limited: late sends or a missed rate")?;
    }
    Ok(())
}

fn write_streaming(text: &mut String, streaming: &Streaming) -> Result {
    writeln!(
        text,
        "\n  {} streams of {} messages: {} complete, {} failed",
        streaming.kind,
        grouped(streaming.messages_per_stream),
        grouped(streaming.completed),
        grouped(streaming.failed)
    )?;
    writeln!(
        text,
        "  {} messages/s of {}, {}/s",
        significant(streaming.messages_per_s),
        bytes(streaming.message_bytes as f64),
        bytes(streaming.message_bytes_per_s)
    )?;
    for (name, latency) in
        [("first message", streaming.first_message_us), ("whole stream", streaming.stream_us)]
    {
        writeln!(
            text,
            "  {name:<15} mean {:>9}   p50 {:>9}   max {:>9}",
            duration_or_dash(latency.mean),
            duration_or_dash(latency.p50),
            duration_or_dash(latency.max)
        )?;
    }
    Ok(())
}

fn write_search(text: &mut String, search: &SearchResult) -> Result {
    writeln!(text, "\n{:>10}{:>11}{:>11}  outcome", "tried", "achieved", "p99")?;
    for trial in &search.trials {
        writeln!(
            text,
            "{:>10}{:>11}{:>11}  {}",
            per_second(trial.requested_rps),
            per_second(trial.achieved_rps),
            duration_or_dash(trial.p99_us),
            outcome(trial)
        )?;
    }
    writeln!(text, "  must hold: {}", search.slo.join(", "))?;
    match (search.held_rps, search.missed_rps) {
        (Some(held), Some(missed)) => {
            writeln!(
                text,
                "  HIGHEST RATE {} holds, {} does not",
                per_second(held),
                per_second(missed)
            )?;
        }
        (Some(held), None) => {
            writeln!(
                text,
                "  HIGHEST RATE {} holds; none higher was to be tried",
                per_second(held)
            )?;
        }
        (None, _) => writeln!(text, "  NO RATE HOLDS")?,
    }
    if search.client_limited {
        writeln!(text, "  CLIENT-LIMITED: the target may sustain more")?;
    }
    if !search.complete {
        writeln!(text, "  the search was stopped: neither end is confirmed")?;
    }
    Ok(())
}

fn outcome(trial: &TrialResult) -> String {
    let confirms = if trial.confirms { " (confirming)" } else { "" };
    match &trial.why {
        None => format!("holds{confirms}"),
        Some(why) => format!("{why}{confirms}"),
    }
}

fn write_thresholds(text: &mut String, thresholds: &[ThresholdResult]) -> Result {
    if !thresholds.is_empty() {
        writeln!(text)?;
    }
    for ThresholdResult { judgement, missed } in thresholds {
        let word = if *missed { "FAILED" } else { "ok" };
        writeln!(text, "  {word:<7} {}", judgement.describe())?;
    }
    Ok(())
}

fn per_second(rate: f64) -> String {
    format!("{}/s", significant(rate))
}
