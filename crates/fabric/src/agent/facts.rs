//! The metrics, settings and health of an agent, for its admin port.

use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use tokio::sync::watch;
use tollway_identity::Credentials;
use tollway_model::RunningConfig;
use tollway_telemetry::metrics::{Part, add_build, add_process, names};
use tollway_telemetry::{AdminFacts, Page};

use super::Agent;
use crate::{Counts, Progress};

pub(super) struct AgentFacts {
    progress: watch::Receiver<Progress>,
    is_connected: watch::Receiver<bool>,
    counts: Counts,
    capacity: u32,
    /// Once it has joined the mesh.
    credentials: OnceLock<watch::Receiver<Arc<Credentials>>>,
}

impl AgentFacts {
    /// Of an agent, the counters of its programs, and the size of its table.
    pub(super) fn new(agent: &Agent, counts: Counts, capacity: u32) -> Self {
        Self {
            progress: agent.programmer().progress(),
            is_connected: agent.is_connected(),
            counts,
            capacity,
            credentials: OnceLock::new(),
        }
    }

    /// The credentials of the agent, from now on.
    pub(super) fn has_joined(&self, credentials: watch::Receiver<Arc<Credentials>>) {
        // The agent joins once.
        let _ = self.credentials.set(credentials);
    }
}

impl AdminFacts for AgentFacts {
    fn add_metrics(&self, page: &mut Page) {
        let progress = self.progress.borrow().clone();
        page.single(&names::FABRIC_CONNECTED, u8::from(*self.is_connected.borrow()));
        page.single(&names::FABRIC_NEIGHBOURS, progress.entries);
        page.single(&names::FABRIC_CAPACITY, self.capacity);
        page.single(&names::FABRIC_WAITING, progress.waiting);
        page.single(&names::FABRIC_REVISION, progress.through);
        page.single(&names::FABRIC_DEGRADED, u8::from(progress.trouble.is_some()));
        page.single(&names::FABRIC_NEIGHBOURS_WRITTEN, progress.written);
        page.single(&names::FABRIC_NEIGHBOURS_REMOVED, progress.removed);
        page.single(&names::FABRIC_NEIGHBOURS_REPAIRED, progress.repaired);
        page.single(&names::FABRIC_FULL_SYNCS, progress.listings);
        let mut packets = page.family(&names::FABRIC_PACKETS);
        match self.counts.totals() {
            Ok(totals) => {
                totals
                    .iter()
                    .for_each(|(total, n)| packets.sample(&[("outcome", total.word())], n));
            }
            Err(error) => tracing::warn!(%error, "cannot read the programs' counters"),
        }
        let mut expiry = page.family(&names::CERTIFICATE_EXPIRY);
        if let Some(credentials) = self.credentials.get() {
            let not_after = credentials.borrow().not_after();
            expiry.sample(&[], not_after.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
        }
        add_build(page, Part::Fabric);
        add_process(page);
    }

    /// It has no settings file: nothing changes while it runs.
    fn config(&self) -> RunningConfig {
        RunningConfig { revision: 1, ..RunningConfig::default() }
    }

    fn ready(&self) -> Result<(), String> {
        if self.progress.borrow().is_whole {
            return Ok(());
        }
        Err("the table has not held the whole group yet".to_owned())
    }
}
