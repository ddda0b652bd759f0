//! How long the commits of a store take, and how many fail, for the admin port.

use tollway_store::Commit;
use tollway_telemetry::Page;
use tollway_telemetry::metrics::{Counter, Durations, Metric};

/// Only the thread that writes the store records these.
#[derive(Default, Debug)]
pub(crate) struct CommitMetrics {
    durations: Durations,
    failed: Counter,
}

impl CommitMetrics {
    pub(crate) fn record(&self, commit: Commit) {
        if commit.durable {
            self.durations.record(commit.took);
        } else {
            self.failed.add(1);
        }
    }

    pub(crate) fn add_to(
        &self,
        page: &mut Page,
        durations: &'static Metric,
        failed: &'static Metric,
    ) {
        page.durations(durations, &[], &[&self.durations]);
        page.single(failed, self.failed.value());
    }
}
