//! Conditions that differ between the rows of a record, and so must be named for each.

use tollway_record::record::{Conditions, Limits, Record, Row};

use crate::figures;

/// The differing conditions; subject and protocol are always named, the location if there are
/// several.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Differences {
    pub(crate) path: bool,
    case: bool,
    layout: bool,
    payload: bool,
    offered: bool,
    limits: bool,
}

impl Differences {
    /// A case's name covers everything that the scenario changes with it.
    pub(crate) fn of(record: &Record) -> Self {
        let rows = &record.rows;
        // A case for each protocol adds nothing to the protocol.
        let case_differs = |row: &Row| {
            let of_protocol = |other: &&Row| other.conditions.protocol == row.conditions.protocol;
            rows.iter()
                .find(of_protocol)
                .is_some_and(|first| first.conditions.case != row.conditions.case)
        };
        let between = |same: fn(&Row, &Row) -> bool| {
            let differs_in_case = |row: &Row| {
                let of_case = |other: &&Row| other.conditions.case == row.conditions.case;
                rows.iter().find(of_case).is_some_and(|first| !same(first, row))
            };
            rows.iter().any(differs_in_case)
        };
        let path_differs =
            |row: &Row| rows.iter().any(|o| o.conditions.topology != row.conditions.topology);
        Self {
            path: rows.first().is_some_and(path_differs),
            case: rows.iter().any(case_differs),
            layout: between(|a, b| a.conditions.layout == b.conditions.layout),
            payload: between(|a, b| a.conditions.payload_bytes == b.conditions.payload_bytes),
            offered: between(|a, b| offered(a) == offered(b)),
            limits: between(|a, b| a.conditions.limits == b.conditions.limits),
        }
    }

    pub(crate) fn any(self) -> bool {
        self.case || self.layout || self.payload || self.offered || self.limits
    }

    /// The differing conditions of the row, such as `get-4k, pinned`; empty if none differ.
    pub(crate) fn words(self, row: &Row) -> String {
        let Conditions { case, layout, payload_bytes, limits, .. } = &row.conditions;
        let words = [
            self.case.then(|| super::clipped(case)),
            self.layout.then(|| layout.to_string()),
            self.payload.then(|| format!("{} bytes", figures::count(*payload_bytes))),
            self.offered.then(|| offered(row)),
            self.limits.then(|| limits.as_ref().map(limited)).flatten(),
        ];
        let words: Vec<String> = words.into_iter().flatten().filter(|w| !w.is_empty()).collect();
        words.join(", ")
    }
}

/// The offered rate as it is shown; empty in closed loop.
pub(crate) fn offered(row: &Row) -> String {
    let rps = row.traffic.requested_rps.map(figures::digits3);
    rps.map(|rps| format!("{rps}/s")).unwrap_or_default()
}

/// What each process may use: `150m CPU, 64 MB`.
pub(crate) fn limited(limits: &Limits) -> String {
    let cpu = limits.cpu_millicores.map(|millicores| format!("{millicores}m CPU"));
    let memory = limits.memory_bytes.map(|bytes| format!("{} MB", figures::megabytes(bytes)));
    cpu.into_iter().chain(memory).collect::<Vec<_>>().join(", ")
}
