//! Metrics of neighbours, for the admin port.

use tollway_telemetry::Page;
use tollway_telemetry::metrics::{Counter, Gauge, names};
use tollway_wire::v1::{NeighbourFailureReason, WriteNeighboursResponse};

use super::groups::Totals;
use crate::commits::CommitMetrics;

/// Only one thread writes these, except `commits`, which the store's writer thread records.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    changed: Counter,
    unchanged: Counter,
    exists: Counter,
    not_found: Counter,
    invalid: Counter,
    excess: Counter,
    groups: Gauge,
    neighbours: Gauge,
    tombstones: Gauge,
    compacted: Counter,
    looked_up: Counter,
    watchers: Gauge,
    sent: Counter,
    full_lists: Counter,
    resyncs: Counter,
    pub(super) commits: CommitMetrics,
}

impl Counts {
    pub(super) fn wrote(&self, response: &WriteNeighboursResponse) {
        self.changed.add(response.changed.into());
        self.unchanged.add(response.unchanged.into());
        for failure in &response.failures {
            let counter = match failure.reason() {
                NeighbourFailureReason::Exists => &self.exists,
                NeighbourFailureReason::NotFound => &self.not_found,
                NeighbourFailureReason::Excess => &self.excess,
                NeighbourFailureReason::Invalid | NeighbourFailureReason::Unspecified => {
                    &self.invalid
                }
            };
            counter.add(1);
        }
    }

    pub(super) fn invalid(&self, count: usize) {
        self.invalid.add(count as u64);
    }

    pub(super) fn set_totals(&self, totals: Totals) {
        self.groups.set(totals.groups);
        self.neighbours.set(totals.neighbours);
        self.tombstones.set(totals.tombstones);
    }

    pub(super) fn compacted(&self, count: u64) {
        self.compacted.add(count);
    }

    pub(super) fn looked_up(&self, count: usize) {
        self.looked_up.add(count as u64);
    }

    pub(super) fn watchers(&self, count: usize) {
        self.watchers.set(count as u64);
    }

    pub(super) fn sent(&self, records: usize) {
        self.sent.add(records as u64);
    }

    pub(super) fn full_list(&self) {
        self.full_lists.add(1);
    }

    pub(super) fn resync(&self) {
        self.resyncs.add(1);
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        page.single(&names::NEIGHBOUR_GROUPS, self.groups.value());
        page.single(&names::NEIGHBOURS, self.neighbours.value());
        page.single(&names::NEIGHBOUR_TOMBSTONES, self.tombstones.value());
        page.single(&names::NEIGHBOUR_TOMBSTONES_COMPACTED, self.compacted.value());
        let mut changes = page.family(&names::NEIGHBOUR_CHANGES);
        for (result, counter) in [
            ("changed", &self.changed),
            ("unchanged", &self.unchanged),
            ("exists", &self.exists),
            ("not_found", &self.not_found),
            ("invalid", &self.invalid),
            ("excess", &self.excess),
        ] {
            changes.sample(&[("result", result)], counter.value());
        }
        page.single(&names::NEIGHBOUR_LOOKUPS, self.looked_up.value());
        page.single(&names::NEIGHBOUR_WATCHERS, self.watchers.value());
        page.single(&names::NEIGHBOUR_RECORDS_SENT, self.sent.value());
        page.single(&names::NEIGHBOUR_SNAPSHOTS_SENT, self.full_lists.value());
        page.single(&names::NEIGHBOUR_RESYNCS, self.resyncs.value());
        let (durations, failed) =
            (&names::NEIGHBOUR_COMMIT_DURATION, &names::NEIGHBOUR_COMMIT_FAILURES);
        self.commits.add_to(page, durations, failed);
    }
}
