//! What a report says, before it is text or HTML: headline, tables, notes.
//!
//! Terminal and page are made from the same contents, so they cannot disagree.

use std::collections::BTreeSet;

use tollway_record::check;
use tollway_record::record::{
    Arrival, Comparison, IntervalMethod, LinkKind, Metric, Protocol, Question, Record, Row,
    Topology, Verdict,
};

use crate::figures::{self, NONE, TimeUnit};
use crate::table::{Cell, Column, Table, Tone};

/// Most columns of figures in one cost table; more rows of the record make more tables.
const COST_COLUMNS: usize = 6;

/// One place of caller and callee, with its rows.
pub(crate) struct Section<'a> {
    pub(crate) topology: Topology,
    pub(crate) title: String,
    pub(crate) rows: Vec<&'a Row>,
}

/// The record's rows by topology, nearest first.
pub(crate) fn sections(record: &Record) -> Vec<Section<'_>> {
    let of = |topology: Topology| {
        let rows: Vec<_> =
            record.rows.iter().filter(|row| row.conditions.topology == topology).collect();
        Section { topology, title: section_title(topology, &rows), rows }
    };
    Topology::ALL.iter().map(|t| of(*t)).filter(|section| !section.rows.is_empty()).collect()
}

fn section_title(topology: Topology, rows: &[&Row]) -> String {
    let name = place(topology);
    match rows.iter().find_map(|row| row.conditions.link.as_ref()) {
        None => name.to_owned(),
        Some(link) => {
            let probes = figures::count(link.rtt_measured_us.n);
            let measured = figures::time(link.rtt_measured_us.p50);
            let asked = link.rtt_asked_us.map(|us| format!("{} asked, ", figures::time(us)));
            let kind = match link.kind {
                LinkKind::Tun => "packet link",
                LinkKind::Relay => "stream relay",
                LinkKind::Real => "real network",
            };
            let asked = asked.unwrap_or_default();
            format!("{name} — {kind}, RTT {asked}{measured} measured (median of {probes} probes)")
        }
    }
}

/// A topology in words.
pub(crate) fn place(topology: Topology) -> &'static str {
    match topology {
        Topology::SameNetwork => "same network",
        Topology::OtherNetwork => "other network, same region",
        Topology::OtherRegion => "other network, other region",
    }
}

pub(crate) fn place_short(topology: Topology) -> &'static str {
    match topology {
        Topology::SameNetwork => "same network",
        Topology::OtherNetwork => "same region",
        Topology::OtherRegion => "other region",
    }
}

/// A protocol in words.
pub(crate) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http2 => "HTTP/2",
        Protocol::GrpcUnary => "gRPC unary",
        Protocol::Tcp => "TCP",
    }
}

/// One line per protocol: what Tollway adds to the mean call, place by place.
pub(crate) fn headline(record: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    for wanted in Protocol::ALL {
        let phrases: Vec<String> = means(record, Question::AddedByTollway)
            .filter(|(_, row)| row.conditions.protocol == *wanted)
            .map(|(comparison, row)| headline_phrase(comparison, row))
            .collect();
        if !phrases.is_empty() {
            lines.push(format!("{}: Tollway {}.", protocol(*wanted), join_phrases(&phrases)));
        }
    }
    if lines.is_empty() {
        lines.push("This record has no pair of rows with and without Tollway.".to_owned());
    }
    lines
}

/// Comparisons of means that answer `question`, with the judged row.
pub(crate) fn means(
    record: &Record,
    question: Question,
) -> impl Iterator<Item = (&Comparison, &Row)> {
    record
        .comparisons
        .iter()
        .filter(move |c| c.question == question && c.metric == Metric::LatencyMean)
        .filter_map(|comparison| Some((comparison, record.row(&comparison.row)?)))
}

fn headline_phrase(comparison: &Comparison, row: &Row) -> String {
    let place = match row.conditions.topology {
        Topology::SameNetwork => "in the same network",
        Topology::OtherNetwork => "to another network",
        Topology::OtherRegion => "to another region",
    };
    match comparison.difference_ci95_us {
        Some([lo, hi]) if lo <= 0.0 && hi >= 0.0 => {
            let (lo, hi) = (figures::difference(lo), figures::difference(hi));
            format!("adds nothing that this run could tell from noise {place} ({lo} to {hi})")
        }
        _ => {
            let us = comparison.difference_us;
            let verb = if us < 0.0 { "takes away" } else { "adds" };
            let share = comparison.ratio.filter(|_| row.conditions.link.is_some());
            let share =
                share.map(|ratio| format!(" ({} of the call)", figures::percent(ratio - 1.0)));
            format!("{verb} {} {place}{}", figures::time(us.abs()), share.unwrap_or_default())
        }
    }
}

fn join_phrases(phrases: &[String]) -> String {
    match phrases.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// Rates and percentiles of one section.
pub(crate) fn latency_table(section: &Section<'_>) -> Table {
    let unit = section_unit(&section.rows);
    let percentile = |name: &str| Column::right(name, unit.name());
    let mut columns = vec![
        Column::left("protocol", ""),
        Column::left("subject", ""),
        Column::right("link RTT", unit.name()),
        Column::right("connec-", "tions").spare(1),
        Column::right("offered", "req/s"),
        Column::right("achieved", "req/s"),
        percentile("p50"),
        percentile("p75"),
        percentile("p90"),
        percentile("p99"),
        percentile("p99.9"),
        Column::right("requests", "").spare(2),
        Column::right("errors", ""),
    ];
    let limited = section.rows.iter().any(|row| row.traffic.client_limited);
    if limited {
        columns.push(Column::left("remark", ""));
    }
    let cells = |row: &&Row| {
        let mut cells = latency_cells(row, unit);
        if limited {
            let remark = if row.traffic.client_limited { "client-limited" } else { "" };
            cells.push(Cell::plain(remark).toned(Tone::Doubt));
        }
        cells
    };
    let groups = by_protocol(&section.rows)
        .into_iter()
        .map(|rows| rows.iter().map(cells).collect())
        .collect();
    Table { title: section.title.clone(), note: None, columns, groups }
}

fn latency_cells(row: &Row, unit: TimeUnit) -> Vec<Cell> {
    let (conditions, traffic) = (&row.conditions, &row.traffic);
    let scaled = |us: Option<f64>| match us {
        Some(us) => Cell::plain(figures::digits3(us / unit.us())),
        None => Cell::plain(NONE).toned(Tone::Faint),
    };
    let missed = traffic.requested_rps.is_some_and(|rps| traffic.achieved_rps < rps * 0.99);
    let latency = &traffic.latency_us;
    vec![
        Cell::plain(protocol(conditions.protocol)),
        Cell::plain(conditions.subject.as_str()).toned(Tone::Strong),
        scaled(conditions.link.as_ref().map(|link| link.rtt_measured_us.p50)),
        Cell::plain(figures::count(conditions.connections.into())),
        Cell::plain(traffic.requested_rps.map_or("unpaced".to_owned(), figures::digits3)),
        Cell::plain(figures::digits3_down(traffic.achieved_rps)).toned(doubt_if(missed)),
        scaled(latency.p50),
        scaled(latency.p75),
        scaled(latency.p90),
        scaled(latency.p99),
        scaled(latency.p999),
        Cell::plain(figures::count(traffic.requests)),
        Cell::plain(figures::count(traffic.errors)).toned(doubt_if(traffic.errors > 0)),
    ]
}

fn doubt_if(doubt: bool) -> Tone {
    if doubt { Tone::Doubt } else { Tone::Plain }
}

/// One unit for a whole section, so that its figures can be compared at a glance.
fn section_unit(rows: &[&Row]) -> TimeUnit {
    let largest = rows.iter().filter_map(|row| row.traffic.latency_us.p50).fold(0.0, f64::max);
    // Up to 10 ms microseconds have no more than five digits.
    if largest < 10_000.0 { TimeUnit::Micro } else { TimeUnit::of(largest) }
}

pub(crate) fn by_protocol<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let of = |wanted: &Protocol| -> Vec<&'a Row> {
        rows.iter().copied().filter(|row| row.conditions.protocol == *wanted).collect()
    };
    Protocol::ALL.iter().map(of).filter(|rows| !rows.is_empty()).collect()
}

/// What the network (or Tollway) adds: mean with interval, quantile differences, ratio, verdict.
pub(crate) fn added_table(record: &Record, question: Question) -> Table {
    let (title, note) = match question {
        Question::AddedByNetwork => (
            "Added by the network",
            "direct over this path minus direct in the same network, without Tollway in either",
        ),
        Question::AddedByTollway => {
            ("Added by Tollway", "tollway minus direct over the same path, interleaved")
        }
        Question::AgainstBaseline => ("Against direct", "subject minus direct over the same path"),
    };
    let subject = (question == Question::AgainstBaseline).then(|| Column::left("subject", ""));
    let mut columns = vec![Column::left("path", ""), Column::left("protocol", "")];
    columns.extend(subject);
    columns.extend([
        Column::right("mean", "[95 % interval]"),
        Column::right("ratio", "[95 % interval]").spare(1),
        Column::right("Δ p50", ""),
        Column::right("Δ p90", ""),
        Column::right("Δ p99", ""),
        Column::left("verdict", "of the mean"),
    ]);
    let mut groups: Vec<Vec<Vec<Cell>>> = Vec::new();
    for topology in Topology::ALL {
        let rows: Vec<_> = means(record, question)
            .filter(|(_, row)| row.conditions.topology == *topology)
            .map(|(mean, row)| added_cells(record, mean, row))
            .collect();
        groups.extend((!rows.is_empty()).then_some(rows));
    }
    Table { title: title.to_owned(), note: Some(note.to_owned()), columns, groups }
}

fn added_cells(record: &Record, mean: &Comparison, row: &Row) -> Vec<Cell> {
    let quantile = |metric: Metric| {
        let found = record.comparisons.iter().find(|c| {
            c.metric == metric && c.row == mean.row && c.baseline_row == mean.baseline_row
        });
        match found {
            Some(comparison) => Cell::plain(figures::difference(comparison.difference_us)),
            None => Cell::plain(NONE).toned(Tone::Faint),
        }
    };
    let mut cells = vec![
        Cell::plain(place_short(row.conditions.topology)),
        Cell::plain(protocol(row.conditions.protocol)),
    ];
    if mean.question == Question::AgainstBaseline {
        cells.push(Cell::plain(row.conditions.subject.as_str()));
    }
    let ratio = mean.ratio.map(|ratio| figures::ratio_with(ratio, mean.ratio_ci95));
    cells.extend([
        Cell::plain(figures::difference_with(mean.difference_us, mean.difference_ci95_us))
            .toned(Tone::Strong),
        Cell::plain(ratio.unwrap_or_else(|| NONE.to_owned())),
        quantile(Metric::LatencyP50),
        quantile(Metric::LatencyP90),
        quantile(Metric::LatencyP99),
        verdict_cell(mean),
    ]);
    cells
}

fn verdict_cell(comparison: &Comparison) -> Cell {
    match comparison.verdict {
        Verdict::Same => {
            Cell::plain(format!("same within {} %", figures::digits_short(comparison.margin_pct)))
        }
        Verdict::Undecided => Cell::plain("undecided").toned(Tone::Doubt),
        decided @ (Verdict::Faster | Verdict::Slower) => Cell::plain(decided.as_str()),
    }
}

/// Processor time per request and memory of each process, one column per row of the record.
pub(crate) fn cost_tables(record: &Record) -> Vec<Table> {
    let mut tables = Vec::new();
    let all: Vec<&Row> = record.rows.iter().collect();
    for rows in by_protocol(&all) {
        let name = protocol(rows[0].conditions.protocol);
        for rows in rows.chunks(COST_COLUMNS) {
            tables.push(cpu_table(name, rows));
        }
    }
    for rows in all.chunks(COST_COLUMNS) {
        tables.push(memory_table(rows));
    }
    tables.retain(|table| !table.is_empty());
    tables
}

fn cpu_table(name: &str, rows: &[&Row]) -> Table {
    let processes: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.cost.cpu_us_per_request.keys().map(String::as_str))
        .collect();
    let mut group: Vec<Vec<Cell>> = processes
        .into_iter()
        .map(|process| {
            let cells = rows.iter().map(|row| {
                figure(row.cost.cpu_us_per_request.get(process).map(|us| figures::digits3(*us)))
            });
            line(process, cells)
        })
        .collect();
    if rows.iter().any(|row| row.cost.machine_cpu_us_per_request.is_some()) {
        let cells = rows
            .iter()
            .map(|row| figure(row.cost.machine_cpu_us_per_request.map(figures::digits3)))
            .map(|cell| if cell.tone == Tone::Plain { cell.toned(Tone::Strong) } else { cell });
        group.push(line("whole machine", cells));
    }
    Table {
        title: format!("CPU per request, {name}, µs"),
        note: Some(
            "the whole machine includes the load generator, idle duties and interrupts".to_owned(),
        ),
        columns: cost_columns(rows),
        groups: vec![group],
    }
}

fn memory_table(rows: &[&Row]) -> Table {
    let processes: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.cost.rss_bytes.keys().map(String::as_str)).collect();
    let group = processes
        .into_iter()
        .map(|process| {
            let cells = rows
                .iter()
                .map(|row| figure(row.cost.rss_bytes.get(process).map(|b| figures::megabytes(*b))));
            line(process, cells)
        })
        .collect();
    let protocols: Vec<_> = by_protocol(rows);
    let names: Vec<_> =
        protocols.iter().map(|rows| protocol(rows[0].conditions.protocol)).collect();
    Table {
        title: format!("Memory (largest resident set), {}, MB", names.join(", ")),
        note: None,
        columns: cost_columns(rows),
        groups: vec![group],
    }
}

fn cost_columns(rows: &[&Row]) -> Vec<Column> {
    let of = |row: &&Row| {
        Column::right(place_short(row.conditions.topology), row.conditions.subject.as_str())
    };
    std::iter::once(Column::left("process", "")).chain(rows.iter().map(of)).collect()
}

fn line(name: &str, cells: impl Iterator<Item = Cell>) -> Vec<Cell> {
    std::iter::once(Cell::plain(name)).chain(cells).collect()
}

fn figure(text: Option<String>) -> Cell {
    text.map_or_else(|| Cell::plain(NONE).toned(Tone::Faint), Cell::plain)
}

/// How to read the figures: blocks, intervals, what a dash means; then the record's own notes.
pub(crate) fn notes(record: &Record) -> Vec<String> {
    let mut notes = vec![plan(record)];
    notes.extend(interval_note(record));
    notes.push(format!(
        "Latency is response time, from the intended start of a request to the last byte of its \
         answer. {NONE} stands for a percentile with fewer than 100 samples beyond it, and for \
         what was not measured. Δ is the difference of two percentiles, not the percentile of a \
         difference; only means can be subtracted."
    ));
    notes.extend(record.notes.iter().cloned());
    notes
}

fn plan(record: &Record) -> String {
    let blocks = record.rows.iter().map(|row| row.blocks.len()).max().unwrap_or_default();
    let window = record
        .rows
        .iter()
        .flat_map(|row| &row.blocks)
        .map(|block| block.traffic.duration_s)
        .fold(0.0, f64::max);
    let payloads: BTreeSet<u64> =
        record.rows.iter().map(|row| row.conditions.payload_bytes).collect();
    let payloads: Vec<_> = payloads.into_iter().map(figures::count).collect();
    let arrivals: BTreeSet<Arrival> =
        record.rows.iter().map(|row| row.conditions.arrival).collect();
    let arrivals: Vec<_> = arrivals.into_iter().map(arrival).collect();
    format!(
        "{blocks} interleaved blocks, {} s measured per row and block; {}; payload {} bytes.",
        figures::digits3(window),
        arrivals.join(" and "),
        payloads.join(" and "),
    )
}

fn arrival(arrival: Arrival) -> &'static str {
    match arrival {
        Arrival::OpenUniform => "open loop, evenly spaced",
        Arrival::OpenPoisson => "open loop, exponentially spaced",
        Arrival::Closed => "closed loop",
    }
}

fn interval_note(record: &Record) -> Option<String> {
    let methods: BTreeSet<IntervalMethod> =
        record.comparisons.iter().filter_map(|comparison| comparison.method).collect();
    let texts: Vec<_> = methods
        .into_iter()
        .map(|method| match method {
            IntervalMethod::BlockT => "Student's t over blocks (fewer than 6)",
            IntervalMethod::BlockBootstrap => "bootstrap over blocks",
        })
        .collect();
    (!texts.is_empty()).then(|| format!("95 % intervals: {}.", texts.join("; ")))
}

/// The record's warnings and what the checks find, each once.
pub(crate) fn warnings(record: &Record) -> Vec<String> {
    let mut warnings = record.warnings.clone();
    for doubt in check::check(record) {
        if !warnings.contains(&doubt) {
            warnings.push(doubt);
        }
    }
    warnings
}

/// Machine and versions, as pairs of name and value.
pub(crate) fn machine(record: &Record) -> Vec<(String, String)> {
    let machine = &record.machine;
    let cpus =
        format!("{} × {}", machine.cpus, machine.cpu_model.as_deref().unwrap_or(&machine.arch));
    let mut facts = vec![("processors".to_owned(), cpus)];
    let mut add = |name: &str, value: Option<String>| {
        facts.extend(value.filter(|v| !v.is_empty()).map(|value| (name.to_owned(), value)));
    };
    add("memory", machine.memory_bytes.map(|b| format!("{} GB", figures::digits3(b as f64 / 1e9))));
    add("system", Some(format!("{}, Linux {}, {}", machine.os, machine.kernel, machine.arch)));
    add("virtualization", machine.virtualization.clone());
    add("governor", machine.cpu_governor.clone());
    add("congestion control", machine.congestion_control.clone());
    add("stolen", machine.steal_fraction.map(|f| format!("{} of CPU time", figures::percent(f))));
    for (name, value) in &machine.details {
        add(name, Some(value.clone()));
    }
    for subject in record.subjects.iter().filter(|subject| !subject.version.is_empty()) {
        add(&subject.name, Some(format!("{} ({})", subject.version, subject.variant)));
    }
    let named = record.parameters.iter().map(|(name, value)| format!("{name}={value}"));
    add("parameters", Some(named.collect::<Vec<_>>().join(" ")));
    add("command", Some(record.command_line.join(" ")));
    facts
}
