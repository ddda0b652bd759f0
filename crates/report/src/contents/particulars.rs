//! Figures that only some rows have: streams of messages, bytes over raw connections, packets in
//! one direction, TLS handshakes, searches for the highest rate.

use tollway_record::LatencyUs;
use tollway_record::record::{Record, Row};
use tollway_record::run::Streaming;
use tollway_record::search::SearchResult;
use tollway_record::throughput::{Flow, ThroughputTotals};
use tollway_record::tls::TlsFacts;

use super::{Differences, clipped, failures, figure, nothing, path_short, protocol};
use crate::figures;
use crate::table::{Cell, Column, Table, Tone};

/// One table for each kind that the record has.
pub(crate) fn particular_tables(record: &Record) -> Vec<Table> {
    let tables = [
        search_table(record),
        stream_table(record),
        throughput_table(record),
        packets_table(record),
        tls_table(record),
    ];
    let tables = tables.into_iter().filter(|table| !table.is_empty());
    tables.map(Table::without_empty_columns).collect()
}

fn search_table(record: &Record) -> Table {
    let columns = vec![
        Column::right("held", "req/s"),
        Column::right("did not", "req/s"),
        Column::right("trials", ""),
        Column::left("ends", ""),
        Column::left("what held", "").spare(1),
    ];
    let note = "the interval in which the highest rate lies that holds in open loop, whatever \
                comes back";
    let cells = |row: &Row| row.particulars.search.as_ref().map(search_cells);
    table(record, "Highest rate that holds", note, columns, cells)
}

fn search_cells(search: &SearchResult) -> Vec<Cell> {
    let ends = match search {
        SearchResult { complete: false, .. } => Cell::plain("not confirmed").toned(Tone::Doubt),
        SearchResult { client_limited: true, .. } => {
            Cell::plain("the generator's").toned(Tone::Doubt)
        }
        SearchResult { .. } => Cell::plain("confirmed"),
    };
    let held = search.held_rps.map(figures::digits3_down);
    vec![
        held.map_or_else(nothing, |held| Cell::plain(held).toned(Tone::Strong)),
        figure(search.missed_rps.map(figures::digits3)),
        Cell::plain(figures::count(search.trials.len() as u64)),
        ends,
        Cell::plain(clipped(&search.slo.join(", "))),
    ]
}

fn stream_table(record: &Record) -> Table {
    let columns = vec![
        Column::right("streams", "at once"),
        Column::right("messages", "of a stream"),
        Column::right("size", "bytes"),
        Column::right("messages", "per s"),
        Column::right("payload", "Mbit/s"),
        Column::right("completed", "streams"),
        Column::right("failed", "streams"),
        Column::right("first message", "mean"),
        Column::right("first message", "largest").spare(1),
        Column::right("whole stream", "mean"),
        Column::right("whole stream", "largest").spare(1),
    ];
    let note = "the first message, or its acknowledgement, counts from the start of its stream; \
                the payload is messages without their frames";
    let cells = |row: &Row| row.particulars.streaming.as_ref().map(stream_cells);
    table(record, "Streams of messages", note, columns, cells)
}

fn stream_cells(streaming: &Streaming) -> Vec<Cell> {
    let time = |us: Option<f64>| figure(us.map(figures::time));
    let of = |latency: &LatencyUs| [time(latency.mean), time(latency.max)];
    let mut cells = vec![
        Cell::plain(figures::count(streaming.streams)),
        Cell::plain(figures::count(streaming.messages_per_stream)),
        Cell::plain(figures::count(streaming.message_bytes)),
        Cell::plain(figures::digits3_down(streaming.messages_per_s)).toned(Tone::Strong),
        Cell::plain(figures::digits3_down(8.0 * streaming.message_bytes_per_s / 1e6)),
        Cell::plain(figures::count(streaming.completed)),
        failures(streaming.failed),
    ];
    cells.extend(of(&streaming.first_message_us));
    cells.extend(of(&streaming.stream_us));
    cells
}

fn throughput_table(record: &Record) -> Table {
    let columns = vec![
        Column::right("connections", ""),
        Column::right("sent", "Mbit/s"),
        Column::right("received", "Mbit/s"),
        Column::right("sent again", "segments"),
        Column::right("RTT least", "µs"),
        Column::right("RTT mean", "µs"),
        Column::right("RTT largest", "µs"),
        Column::left("congestion control", ""),
    ];
    let note = "bytes as counted at the caller; round trips as its kernel estimates them, queues \
                on the way included";
    let cells = |row: &Row| row.particulars.throughput.as_ref().map(throughput_cells);
    table(record, "Raw TCP throughput", note, columns, cells)
}

fn packets_table(record: &Record) -> Table {
    let columns = vec![
        Column::right("frame", "bytes"),
        Column::right("came out", "million/s"),
        Column::right("time of each", "ns"),
        Column::right("lost", ""),
    ];
    let note = "made in the kernel on one processor, as fast as they go, and counted where they \
                come out; the time of each has making and counting in it";
    let cells = |row: &Row| row.is_packets().then(|| packets_cells(row));
    table(record, "Packets", note, columns, cells)
}

fn packets_cells(row: &Row) -> Vec<Cell> {
    let traffic = &row.traffic;
    let some = traffic.requests > 0;
    let each_ns = || traffic.duration_s * 1e9 / traffic.requests as f64;
    let sent = traffic.requests.saturating_add(traffic.errors);
    let lost = traffic.errors as f64 / sent.max(1) as f64;
    vec![
        Cell::plain(figures::count(row.conditions.payload_bytes)),
        Cell::plain(figures::digits3_down(traffic.achieved_rps / 1e6)).toned(Tone::Strong),
        figure(some.then(|| figures::digits3(each_ns()))),
        Cell::plain(figures::share(lost)),
    ]
}

fn throughput_cells(totals: &ThroughputTotals) -> Vec<Cell> {
    let megabits = |flow: Option<Flow>| match flow {
        Some(flow) => Cell::plain(figures::digits3_down(flow.bits_per_s / 1e6)).toned(Tone::Strong),
        None => nothing(),
    };
    let rtt = &totals.rtt_us;
    let known = |us: f64| figure((rtt.max > 0).then(|| figures::digits3(us)));
    vec![
        Cell::plain(figures::count(totals.streams.into())),
        megabits(totals.sent),
        megabits(totals.received),
        Cell::plain(figures::count(totals.retransmits)),
        known(rtt.min as f64),
        known(rtt.mean),
        known(rtt.max as f64),
        Cell::plain(clipped(&totals.congestion_control)),
    ]
}

fn tls_table(record: &Record) -> Table {
    let columns = vec![
        Column::left("version", ""),
        Column::left("cipher suite", ""),
        Column::left("key exchange", "").spare(1),
        Column::left("server's key", "").spare(1),
        Column::left("client's", "certificate"),
        Column::right("handshakes", "full"),
        Column::right("handshakes", "resumed"),
        Column::right("CPU each", "mean, µs"),
        Column::right("time each", "mean, µs"),
    ];
    let note = "what the load generator's own connections agreed on; CPU is the generator's part \
                of a handshake";
    let cells = |row: &Row| row.particulars.tls_facts.as_ref().map(|tls| tls_cells(tls, row));
    table(record, "TLS of the caller's connections", note, columns, cells)
}

fn tls_cells(tls: &TlsFacts, row: &Row) -> Vec<Cell> {
    let text = |text: Option<&String>| figure(text.map(|text| clipped(text)));
    let mean = |latency: Option<&LatencyUs>| {
        figure(latency.and_then(|latency| latency.mean).map(figures::digits3))
    };
    vec![
        Cell::plain(tls_version(&tls.version)),
        Cell::plain(clipped(&tls.cipher_suite)),
        text(tls.group.as_ref()),
        text(tls.server_key.as_ref()),
        Cell::plain(if tls.client_certificate { "shown" } else { "none" }),
        Cell::plain(figures::count(tls.handshakes_full)),
        Cell::plain(figures::count(tls.handshakes_resumed)),
        mean(tls.handshake_cpu_us.as_ref()),
        mean(row.traffic.phases_us.get("tls_handshaking")),
    ]
}

/// `TLS 1.3` of `TLSv1_3`; other names as they are.
pub(super) fn tls_version(version: &str) -> String {
    match version.strip_prefix("TLSv") {
        Some(number) => format!("TLS {}", clipped(&number.replace('_', "."))),
        None => clipped(version),
    }
}

/// The rows for which there are cells, each behind its path, protocol, case and subject.
fn table(
    record: &Record,
    title: &str,
    note: &str,
    columns: Vec<Column>,
    cells: impl Fn(&Row) -> Option<Vec<Cell>>,
) -> Table {
    let differences = Differences::of(record);
    let mut heads = vec![Column::left("protocol", "")];
    heads.extend(differences.path.then(|| Column::left("path", "")));
    heads.extend(differences.any().then(|| Column::left("case", "")));
    heads.push(Column::left("subject", ""));
    let line = |row: &Row| {
        let conditions = &row.conditions;
        let mut line = vec![Cell::plain(protocol(conditions.protocol))];
        line.extend(differences.path.then(|| Cell::plain(path_short(conditions.topology))));
        line.extend(differences.any().then(|| Cell::plain(differences.words(row))));
        line.push(Cell::plain(clipped(&conditions.label())).toned(Tone::Strong));
        line.extend(cells(row)?);
        Some(line)
    };
    Table {
        title: title.to_owned(),
        note: Some(note.to_owned()),
        columns: heads.into_iter().chain(columns).collect(),
        groups: vec![record.rows.iter().filter_map(line).collect()],
    }
}
