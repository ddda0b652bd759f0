//! The sentences, tables and facts of a single load run.

use tollway_record::run::{RunResult, Streaming};
use tollway_record::search::{SearchResult, TrialResult};
use tollway_record::throughput::{Flow, Throughput};
use tollway_record::tls::TlsFacts;
use tollway_record::{LatencyUs, Traffic};

use super::details::{latency_columns, latency_line};
use super::particulars::tls_version;
use super::{arrival, clipped, protocol};
use crate::document::{Kind, RunFile};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// What was reached and how fast, then what qualifies it.
pub(crate) fn run_headline(file: &RunFile) -> Vec<String> {
    let traffic = &file.run.traffic;
    let latency = &traffic.latency_us;
    let named = [("median", latency.p50), ("p99", latency.p99), ("largest", latency.max)];
    let phrases: Vec<String> = named
        .iter()
        .filter_map(|(name, us)| us.map(|us| format!("{name} {}", figures::time(us))))
        .collect();
    let rate = figures::digits3_down(traffic.achieved_rps);
    let counted = if file.run.streaming.is_some() { "messages" } else { "requests" };
    let offered = traffic.requested_rps.map(figures::digits3);
    let offered = offered.map(|rps| format!(" of {rps} offered")).unwrap_or_default();
    let mut lines: Vec<String> = file.run.throughput.iter().map(passed).collect();
    lines.extend(file.run.streaming.iter().map(streamed));
    lines.extend(file.run.search.iter().map(|search| format!("{}.", search_words(search))));
    lines.extend((lines.is_empty() || !phrases.is_empty()).then(|| match phrases.is_empty() {
        true => "No request was answered.".to_owned(),
        false => format!("{rate} {counted}/s{offered}; {}.", phrases.join(", ")),
    }));
    if traffic.errors > 0 {
        let share = traffic.errors as f64 / traffic.scheduled().max(1) as f64;
        let count = figures::count(traffic.errors);
        lines.push(format!("{count} requests failed, {} of all.", figures::percent(share)));
    }
    for limit in &traffic.client_limits {
        lines.push(format!("Client-limited: {limit}. This shows the generator, not its target."));
    }
    lines
}

/// Response, service, failures and phases in microseconds.
pub(crate) fn run_table(file: &RunFile) -> Table {
    let traffic = &file.run.traffic;
    let mut columns = vec![Column::left("time", "")];
    columns.extend(latency_columns());
    let mut group = Vec::new();
    let mut add = |name: &str, latency: &LatencyUs| {
        if latency.n > 0 {
            group.push(latency_line(None, name, latency));
        }
    };
    if file.from_send {
        add("service", &traffic.service_us);
    } else {
        add("response", &traffic.latency_us);
        add("service", &traffic.service_us);
    }
    if let Some(failed) = &traffic.error_latency_us {
        add("until failure", failed);
    }
    for (phase, latency) in &traffic.phases_us {
        add(&phase.replace('_', " "), latency);
    }
    if let Some(streaming) = &file.run.streaming {
        add("first message", &streaming.first_message_us);
        add("whole stream", &streaming.stream_us);
    }
    let note = match file.from_send {
        true if file.failures_mixed => {
            "Fortio's clock starts at the send; the file has the times of failed requests among the \
             others, and each bucket is divided by their share"
        }
        true => "Fortio's clock starts at the send: waiting for a turn is in no figure",
        false => "response counts from the intended start, service from the send",
    };
    Table {
        title: "Times, µs".to_owned(),
        note: Some(note.to_owned()),
        columns,
        groups: vec![group],
    }
}

/// What failed, by kind.
pub(crate) fn run_errors(traffic: &Traffic) -> Table {
    let other = [("unfinished", traffic.unfinished), ("never sent", traffic.dropped)];
    let kinds = traffic.errors_by_kind.iter().map(|(kind, count)| (kind.as_str(), *count));
    let all = traffic.scheduled().max(1) as f64;
    let line = |(name, count): (&str, u64)| {
        vec![
            Cell::plain(name),
            Cell::plain(figures::count(count)).toned(Tone::Doubt),
            Cell::plain(figures::percent(count as f64 / all)),
        ]
    };
    Table {
        title: "Errors".to_owned(),
        note: None,
        columns: vec![
            Column::left("what happened", ""),
            Column::right("requests", ""),
            Column::right("share", ""),
        ],
        groups: vec![kinds.chain(other).filter(|(_, count)| *count > 0).map(line).collect()],
    }
}

/// The trials of a search for the highest rate.
pub(crate) fn run_trials(run: &RunResult) -> Table {
    let trials = run.search.iter().flat_map(|search| &search.trials);
    let line = |trial: &TrialResult| {
        let p99 = trial.p99_us.map_or_else(|| figures::NONE.to_owned(), figures::time);
        let (word, tone) = match trial.held {
            true => ("held".to_owned(), Tone::Plain),
            false => (trial.why.clone().unwrap_or_else(|| "missed".to_owned()), Tone::Doubt),
        };
        vec![
            Cell::plain(figures::digits3(trial.requested_rps)),
            Cell::plain(figures::digits3_down(trial.achieved_rps)),
            Cell::plain(figures::digits3(trial.duration_s)),
            Cell::plain(p99),
            Cell::plain(word).toned(tone),
        ]
    };
    Table {
        title: "Trials".to_owned(),
        note: Some("in the order in which they ran".to_owned()),
        columns: vec![
            Column::right("offered", "req/s"),
            Column::right("achieved", "req/s"),
            Column::right("lasting", "s"),
            Column::right("p99", ""),
            Column::left("held", ""),
        ],
        groups: vec![trials.map(line).collect()],
    }
}

/// How the run was made.
pub(crate) fn run_facts(file: &RunFile) -> Vec<(String, String)> {
    let run = &file.run;
    let traffic = &run.traffic;
    let mut facts = Vec::new();
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            facts.push((name.to_owned(), value));
        }
    };
    add("made by", file.kind.word().to_owned());
    add("label", file.label.clone());
    add("target", run.target.clone());
    add("protocol", format!("{}, {}", protocol(run.protocol), run.tls));
    add("TLS", run.tls_facts.as_ref().map(tls_words).unwrap_or_default());
    add("arrival", arrival(run.arrival).to_owned());
    add("connections", figures::count(run.connections.into()));
    if run.payload_bytes > 0 {
        add("payload", format!("{} bytes", figures::count(run.payload_bytes)));
    }
    add("measured", format!("{} s", figures::digits3(traffic.duration_s)));
    add("requests", figures::count(traffic.requests));
    add("stages", stages(run));
    add("thresholds", thresholds(run));
    if let Some(lateness) = traffic.lateness {
        let [p50, p99, max] =
            [lateness.p50_us, lateness.p99_us, lateness.max_us].map(figures::time);
        add("lateness of sends", format!("p50 {p50}, p99 {p99}, largest {max}"));
    }
    if file.kind == Kind::Load {
        let generator = &run.generator;
        let busy = figures::percent(generator.busiest_thread_fraction);
        let threads = if generator.threads == 1 { "thread" } else { "threads" };
        add("generator", format!("{} {threads}, busiest {busy} of a core", generator.threads));
        add("seed", run.seed.to_string());
    }
    add("command", run.command_line.join(" "));
    facts
}

fn stages(run: &RunResult) -> String {
    let stages = run.stages.iter().map(|stage| {
        let (rps, s) = (figures::digits3(stage.to_rps), figures::digits_short(stage.lasting_s));
        format!("to {rps} requests/s in {s} s")
    });
    stages.collect::<Vec<_>>().join(", ")
}

/// What connections agreed on, and how often.
fn tls_words(tls: &TlsFacts) -> String {
    let named = [Some(&tls.cipher_suite), tls.group.as_ref(), tls.server_key.as_ref()];
    let mut words = vec![tls_version(&tls.version)];
    words.extend(named.into_iter().flatten().map(|name| clipped(name)));
    words.push(match tls.client_certificate {
        true => "with a client certificate".to_owned(),
        false => "without a client certificate".to_owned(),
    });
    let (full, resumed) = (tls.handshakes_full, tls.handshakes_resumed);
    words.push(format!("{} full handshakes", figures::count(full)));
    words.extend((resumed > 0).then(|| format!("{} resumed", figures::count(resumed))));
    words.join(", ")
}

/// What the streams carried.
fn streamed(streaming: &Streaming) -> String {
    let failed = match streaming.failed {
        0 => String::new(),
        failed => format!(", {} failed", figures::count(failed)),
    };
    format!(
        "{} streams at once carried {} messages/s of {} bytes, {}; {} came to their end{failed}.",
        figures::count(streaming.streams),
        figures::digits3_down(streaming.messages_per_s),
        figures::count(streaming.message_bytes),
        figures::bits_per_s(8.0 * streaming.message_bytes_per_s),
        figures::count(streaming.completed),
    )
}

/// What passed through the connections.
fn passed(throughput: &Throughput) -> String {
    let rate = |flow: &Flow| figures::bits_per_s(flow.bits_per_s);
    let directions = [(&throughput.sent, "sent"), (&throughput.received, "received")];
    let phrases: Vec<String> = directions
        .iter()
        .filter_map(|(flow, way)| flow.as_ref().map(|flow| format!("{} {way}", rate(flow))))
        .collect();
    let again: u64 = throughput.streams.iter().map(|stream| stream.retransmits).sum();
    match phrases.is_empty() {
        true => "Nothing passed through.".to_owned(),
        false => format!("{}; {} segments sent again.", phrases.join(", "), figures::count(again)),
    }
}

fn search_words(search: &SearchResult) -> String {
    let held = search.held_rps.map_or("no rate".to_owned(), figures::digits3_down);
    let missed = search.missed_rps.map(|rps| format!(", {} did not", figures::digits3(rps)));
    format!("{held} requests/s held {}{}", search.slo.join(" and "), missed.unwrap_or_default())
}

fn thresholds(run: &RunResult) -> String {
    let missed = run.thresholds.iter().filter(|threshold| threshold.missed).count();
    match run.thresholds.len() {
        0 => String::new(),
        all => format!("{missed} of {all} missed"),
    }
}
