//! Memory of one process: what it is idle and at work, and what an idle connection adds.

use serde::Serialize;
use tollway_record::record::{Layout, Row, Topology};
use tollway_record::{Block, Record};

use super::compare::{block_of, median, row_of};

const MIB: f64 = 1_048_576.0;
const KIB: f64 = 1_024.0;

/// A line of the table.
#[derive(Serialize)]
pub(super) struct Weight {
    pub(super) what: &'static str,
    /// Median, least and most over the repeats, in bytes; absent where it could not be measured.
    pub(super) bytes: Option<[f64; 3]>,
    /// The promised figure, in bytes.
    pub(super) must: f64,
    pub(super) goal: f64,
    pub(super) reached: &'static str,
}

/// All of them; of a record that is not there none is known.
pub(super) fn weights(record: Option<&Record>) -> Vec<Weight> {
    let of = |what, found: fn(&Record) -> Option<Vec<f64>>, unit: f64, must, goal| {
        weight(what, record.and_then(found), must * unit, goal * unit)
    };
    vec![
        of("a sidecar that has not been called yet", idle, MIB, 8.0, 6.0),
        of("a sidecar at 10 requests/s", few, MIB, 8.0, 6.0),
        of("a sidecar after full rate over 32 connections", busy, MIB, 12.0, 8.0),
        of("each idle plain connection to a sidecar", plain, KIB, 6.0, 3.0),
        of("each idle connection with mutual TLS to a front", mtls, KIB, 16.0, 10.0),
    ]
}

/// Reached means that every repeat is within the bound.
fn weight(what: &'static str, found: Option<Vec<f64>>, must: f64, goal: f64) -> Weight {
    let bytes = found.filter(|found| !found.is_empty()).map(|found| {
        let least = found.iter().copied().fold(f64::INFINITY, f64::min);
        let most = found.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        [median(found.into_iter()), least, most]
    });
    let reached = match bytes {
        None => "not measured",
        Some([_, _, most]) if most <= goal => "goal",
        Some([_, _, most]) if most <= must => "must",
        Some(_) => "no",
    };
    Weight { what, bytes, must, goal, reached }
}

/// The larger of the two sidecars. The record keeps the largest of all repeats.
fn idle(record: &Record) -> Option<Vec<f64>> {
    let sidecars = record.idle.iter().filter(|idle| idle.process.ends_with("-sidecar"));
    sidecars.map(|idle| idle.rss_bytes).max().map(|bytes| vec![bytes as f64])
}

fn few(record: &Record) -> Option<Vec<f64>> {
    larger(record, "few")
}

fn busy(record: &Record) -> Option<Vec<f64>> {
    larger(record, "max")
}

/// Of each repeat of a case the larger of the two sidecars.
fn larger(record: &Record, case: &str) -> Option<Vec<f64>> {
    let row = row(record, case, "tollway")?;
    let roles = ["client-sidecar", "app-sidecar"];
    let largest = |block: &Block| {
        roles
            .iter()
            .filter_map(|role| resident(block, role))
            .fold(None, |most, bytes| Some(f64::max(most.unwrap_or(0.0), bytes)))
    };
    Some(row.blocks.iter().filter_map(largest).collect())
}

fn plain(record: &Record) -> Option<Vec<f64>> {
    each(record, "tollway", ["plain-few", "plain-many"], "client-sidecar")
}

fn mtls(record: &Record) -> Option<Vec<f64>> {
    each(record, "tollway:front", ["mtls-few", "mtls-many"], "front")
}

/// What each connection adds that the second of two cases has more than the first.
fn each(record: &Record, subject: &str, cases: [&str; 2], role: &str) -> Option<Vec<f64>> {
    let [few, many] = cases.map(|case| row(record, case, subject));
    let (few, many) = (few?, many?);
    let more = many.conditions.connections.checked_sub(few.conditions.connections)?;
    let added = |block: &Block| {
        let before = block_of(few, block.block)?;
        Some((resident(block, role)? - resident(before, role)?) / f64::from(more.max(1)))
    };
    Some(many.blocks.iter().filter_map(added).collect())
}

fn resident(block: &Block, role: &str) -> Option<f64> {
    block.cost.rss_bytes.get(role).map(|bytes| *bytes as f64)
}

fn row<'a>(record: &'a Record, case: &str, subject: &str) -> Option<&'a Row> {
    row_of(record, (case, Topology::SameNetwork, Layout::Shared), subject)
}

/// `6.1 MiB`, `2.9 KiB`.
pub(super) fn size_text(bytes: f64) -> String {
    if bytes.abs() < 0.25 * MIB {
        format!("{:.1} KiB", bytes / KIB)
    } else {
        format!("{:.1} MiB", bytes / MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_memory_is_reached_by_every_repeat() {
        let of = |found: &[f64]| weight("x", Some(found.to_vec()), 8.0, 6.0).reached;
        assert_eq!(of(&[5.0, 6.0]), "goal");
        assert_eq!(of(&[5.0, 7.0]), "must");
        assert_eq!(of(&[5.0, 9.0]), "no");
        assert_eq!(of(&[]), "not measured");
        assert_eq!(weights(None).len(), 5);
        assert_eq!(
            (size_text(6.0 * MIB), size_text(3.0 * KIB)),
            ("6.0 MiB".into(), "3.0 KiB".into())
        );
    }
}
