//! The content of a report, before it is text or HTML: headline, tables, notes.
//!
//! Terminal and page are made from the same contents, so they cannot disagree.

mod added;
mod cost;
mod details;
mod differences;
mod fabric;
mod groups;
mod headline;
mod latency;
mod notes;
mod pairs;
mod particulars;
mod run;
mod seed;

use tollway_record::record::{Arrival, LinkKind, Protocol, Record, Row, Topology};

pub(crate) use added::added_tables;
pub(crate) use cost::cost_tables;
pub(crate) use details::{block_table, detail_tables};
pub(crate) use differences::Differences;
pub(crate) use fabric::fabric_tables;
pub(crate) use groups::{Group, NAME_LIMIT, climbs, clipped, groups};
pub(crate) use headline::{headline, question};
pub(crate) use latency::latency_table;
pub(crate) use notes::{machine, notes, warnings, warnings_in_short};
pub(crate) use pairs::{Contest, Pair, contests};
pub(crate) use particulars::particular_tables;
pub(crate) use run::{run_errors, run_facts, run_headline, run_table, run_trials};
pub(crate) use seed::{SeedLines, idle_table, seed_lines};

use crate::figures::{self, NONE};
use crate::table::{Cell, Tone};

/// One place of caller and callee, with its rows.
pub(crate) struct Section<'a> {
    pub(crate) title: &'static str,
    /// The link, in words.
    pub(crate) link: String,
    pub(crate) rows: Vec<&'a Row>,
    pub(crate) differences: Differences,
}

/// The record's rows by topology, nearest first.
pub(crate) fn sections(record: &Record) -> Vec<Section<'_>> {
    let differences = Differences::of(record);
    let of = |topology: &Topology| {
        let rows: Vec<_> =
            record.rows.iter().filter(|row| row.conditions.topology == *topology).collect();
        let (title, link) = (section_title(*topology), link_sentence(&rows));
        Section { title, link, rows, differences }
    };
    Topology::ALL.iter().map(of).filter(|section| !section.rows.is_empty()).collect()
}

fn section_title(topology: Topology) -> &'static str {
    match topology {
        Topology::SameNetwork => "Same network",
        Topology::OtherNetwork => "Other network, same region",
        Topology::OtherRegion => "Other network, other region",
    }
}

fn link_sentence(rows: &[&Row]) -> String {
    let Some(link) = rows.iter().find_map(|row| row.conditions.link.as_ref()) else {
        return "no link between caller and callee".to_owned();
    };
    let kind = match link.kind {
        LinkKind::Tun => "packet link between network namespaces",
        LinkKind::Relay => "stream relay on loopback, which delays bytes, not packets",
        LinkKind::Real => "a network that is there anyway",
    };
    let mut sentence = kind.to_owned();
    if let Some(asked_us) = link.rtt_asked_us {
        sentence.push_str(&format!("; RTT asked {}", figures::time(asked_us)));
    }
    let probes = figures::count(link.rtt_measured_us.n);
    sentence.push_str(&format!("; RTT measured as the median of {probes} probes"));
    if link.jitter_us > 0.0 {
        sentence.push_str(&format!("; jitter {}", figures::time(link.jitter_us)));
    }
    if link.loss_pct > 0.0 {
        sentence.push_str(&format!("; loss {}", figures::percent(link.loss_pct / 100.0)));
    }
    sentence
}

/// An RFC 3339 time in UTC to the minute; other texts as they are.
pub(crate) fn shown_time(rfc3339: &str) -> String {
    match (rfc3339.get(..10), rfc3339.get(11..16)) {
        (Some(day), Some(minute)) if rfc3339.ends_with('Z') => format!("{day} {minute} UTC"),
        _ => rfc3339.to_owned(),
    }
}

/// A topology in words.
pub(crate) fn path(topology: Topology) -> &'static str {
    match topology {
        Topology::SameNetwork => "same network",
        Topology::OtherNetwork => "other network, same region",
        Topology::OtherRegion => "other network, other region",
    }
}

pub(crate) fn path_short(topology: Topology) -> &'static str {
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
        Protocol::GrpcStream => "gRPC streams",
        Protocol::Tcp => "TCP",
        Protocol::Icmp => "ICMP",
        Protocol::Vxlan => "VXLAN",
    }
}

/// When requests are sent, in words.
pub(crate) fn arrival(arrival: Arrival) -> &'static str {
    match arrival {
        Arrival::OpenUniform => "open loop, evenly spaced",
        Arrival::OpenJitter => "open loop, each moved within its interval",
        Arrival::OpenPoisson => "open loop, exponentially spaced",
        Arrival::OpenBursts => "open loop, several at once",
        Arrival::Closed => "closed loop",
        Arrival::Flow => "as many bytes as go",
        Arrival::Packets => "as many packets as go",
    }
}

/// The value of `key`; it is appended if there is none.
fn under<K: PartialEq, T: Default>(lists: &mut Vec<(K, T)>, key: K) -> &mut T {
    let at = lists.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
        lists.push((key, T::default()));
        lists.len() - 1
    });
    &mut lists[at].1
}

pub(crate) fn by_protocol<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let of = |wanted: &Protocol| -> Vec<&'a Row> {
        rows.iter().copied().filter(|row| row.conditions.protocol == *wanted).collect()
    };
    Protocol::ALL.iter().map(of).filter(|rows| !rows.is_empty()).collect()
}

/// How many failed, which casts doubt on the rest of the row.
pub(crate) fn failures(count: u64) -> Cell {
    Cell::plain(figures::count(count)).doubted(count > 0)
}

fn figure(text: Option<String>) -> Cell {
    text.map_or_else(nothing, Cell::plain)
}

fn nothing() -> Cell {
    Cell::plain(NONE).toned(Tone::Faint)
}
