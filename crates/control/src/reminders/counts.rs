//! Metrics of reminders, for the admin port.

use tollway_telemetry::Page;
use tollway_telemetry::metrics::{Counter, Gauge, names};
use tollway_wire::ReminderResult;

use crate::commits::CommitMetrics;
use crate::quota::Usage;

/// Only the committer writes these; the store's writer thread records `commits`.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    done: Counter,
    not_found: Counter,
    exists: Counter,
    fenced: Counter,
    excess: Counter,
    expired: Counter,
    entries: Gauge,
    bytes: Gauge,
    pub(super) commits: CommitMetrics,
}

impl Counts {
    pub(super) fn result(&self, result: &ReminderResult) {
        let counter = match result {
            ReminderResult::Done { .. } => &self.done,
            ReminderResult::NotFound => &self.not_found,
            ReminderResult::Exists => &self.exists,
            ReminderResult::Fenced => &self.fenced,
            ReminderResult::Excess { .. } => &self.excess,
        };
        counter.add(1);
    }

    pub(super) fn expired(&self, count: u64) {
        self.expired.add(count);
    }

    pub(super) fn set_usage(&self, all: Usage) {
        self.entries.set(all.entries);
        self.bytes.set(all.bytes);
    }

    pub(crate) fn add_to(&self, page: &mut Page) {
        page.single(&names::REMINDERS, self.entries.value());
        page.single(&names::REMINDER_BYTES, self.bytes.value());
        let mut changes = page.family(&names::REMINDER_CHANGES);
        for (result, counter) in [
            ("done", &self.done),
            ("not_found", &self.not_found),
            ("exists", &self.exists),
            ("fenced", &self.fenced),
            ("excess", &self.excess),
        ] {
            changes.sample(&[("result", result)], counter.value());
        }
        page.single(&names::REMINDERS_EXPIRED, self.expired.value());
        let (durations, failed) =
            (&names::REMINDER_COMMIT_DURATION, &names::REMINDER_COMMIT_FAILURES);
        self.commits.add_to(page, durations, failed);
    }
}
