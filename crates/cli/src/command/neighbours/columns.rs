//! Neighbours on the terminal: a line each, of columns or of JSON.

use std::io::{self, Write};

use serde::Serialize;
use tollway_model::NeighbourRecord;
use tollway_wire::v1::NeighboursCompacted;

/// Above the columns.
pub(super) const TITLES: &str =
    "     VNI  ADDRESS          MAC                HOST             HOST MAC           REVISION";

/// A neighbour as it is shown; without a location it was deleted.
#[derive(Serialize)]
pub(super) struct Shown {
    vni: u32,
    ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_mac: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    revision: u64,
}

impl Shown {
    pub(super) fn of(record: &NeighbourRecord) -> Self {
        let location = record.location.as_ref();
        Self {
            vni: record.key.vni().number(),
            ip: record.key.ip().to_string(),
            mac: location.map(|location| location.mac.to_string()),
            host_ip: location.map(|location| location.host_ip().to_string()),
            host_mac: location.map(|location| location.host_mac.to_string()),
            deleted: location.is_none(),
            revision: record.revision,
        }
    }
}

/// Prints one neighbour.
pub(super) fn line(out: &mut impl Write, shown: &Shown, json: bool) -> io::Result<()> {
    if json {
        return print_json(out, shown);
    }
    let Shown { vni, ip, revision, .. } = shown;
    let text = |part: &Option<String>| part.clone().unwrap_or_else(|| "-".to_owned());
    let (mac, host_ip, host_mac) = (text(&shown.mac), text(&shown.host_ip), text(&shown.host_mac));
    let deleted = if shown.deleted { "  deleted" } else { "" };
    writeln!(
        out,
        "{vni:>8}  {ip:<15}  {mac:<17}  {host_ip:<15}  {host_mac:<17}  {revision}{deleted}"
    )
}

/// Prints how far a watch is.
pub(super) fn mark(out: &mut impl Write, revision: u64, json: bool) -> io::Result<()> {
    if json {
        return print_json(out, &serde_json::json!({ "told_up_to": revision }));
    }
    writeln!(out, "# complete up to revision {revision}")
}

/// Prints that the output so far is void.
pub(super) fn compacted(
    out: &mut impl Write,
    compacted: &NeighboursCompacted,
    json: bool,
) -> io::Result<()> {
    let oldest = compacted.oldest_revision;
    if json {
        return print_json(out, &serde_json::json!({ "compacted": { "oldest_revision": oldest } }));
    }
    writeln!(out, "# deletions before revision {oldest} are compacted: the whole group follows")
}

fn print_json(out: &mut impl Write, shown: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, shown)?;
    writeln!(out)
}
