//! Agents: the groups that they watch, and their reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tollway_model::{Group, Instance};
use tollway_wire::v1;

use super::counts::Counts;
use super::lane::Lane;
use crate::clock::unix_now_ms;

/// Most agents that are known, those that have gone too: the longest gone are forgotten first.
pub(super) const AGENTS: usize = 10_000;
/// Most watches at once.
pub(super) const WATCHES: usize = 10_000;
/// Most troubles of one report, and most bytes of their texts and codes.
const TROUBLES: usize = 16;
const TROUBLE_BYTES: usize = 512;
const CODE_BYTES: usize = 64;

/// A watch that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyWatches;

pub(super) struct Agents {
    inner: Mutex<Inner>,
    counts: Arc<Counts>,
    /// Counts what was changed.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    agents: BTreeMap<(Group, Instance), Agent>,
    watches: usize,
    /// Of the last stream.
    stream: u64,
}

struct Agent {
    version: String,
    /// The stream that it uses; `None` when it has gone.
    stream: Option<u64>,
    /// Cancelled when another stream takes its place.
    replaced: CancellationToken,
    /// When that began or ended.
    since_unix_ms: u64,
    report: v1::FabricAgentReport,
    full_lists: u64,
    resyncs: u64,
}

/// A running watch; it is over when this is dropped.
pub(super) struct Progress {
    agents: Arc<Agents>,
    /// Whose it is; `None` for an operator's.
    agent: Option<(Group, Instance)>,
    stream: u64,
    replaced: CancellationToken,
}

impl Agents {
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        Self { inner: Mutex::default(), counts, changes: watch::channel(0).0 }
    }

    /// Begins a watch. An agent's takes the place of another one that it may have: each has one.
    pub(super) fn begin(
        self: &Arc<Self>,
        agent: Option<(Group, Instance)>,
        version: String,
    ) -> Result<Progress, TooManyWatches> {
        let mut inner = self.inner();
        if inner.watches >= WATCHES {
            return Err(TooManyWatches);
        }
        let (stream, replaced) = (inner.stream + 1, CancellationToken::new());
        if let Some(key) = &agent {
            inner.forget_oldest(key)?;
            let entry = inner.agents.entry(key.clone()).or_insert_with(|| Agent {
                version: String::new(),
                stream: None,
                replaced: CancellationToken::new(),
                since_unix_ms: 0,
                report: v1::FabricAgentReport::default(),
                full_lists: 0,
                resyncs: 0,
            });
            entry.version = cut(version, CODE_BYTES);
            entry.stream = Some(stream);
            std::mem::replace(&mut entry.replaced, replaced.clone()).cancel();
            entry.since_unix_ms = unix_now_ms();
            // The agent reports what it has again.
            entry.report = v1::FabricAgentReport::default();
        }
        inner.stream = stream;
        inner.watches += 1;
        self.counts.watchers(inner.watches);
        drop(inner);
        self.changed();
        Ok(Progress { agents: self.clone(), agent, stream, replaced })
    }

    /// The agents of a group.
    pub(super) fn of(&self, group: &Group, lane: &Lane) -> Vec<v1::FabricAgent> {
        let now = Instant::now();
        let inner = self.inner();
        let of_group = inner.agents.iter().filter(|((other, _), _)| other == group);
        of_group
            .map(|((_, instance), agent)| v1::FabricAgent {
                instance: instance.to_string(),
                version: agent.version.clone(),
                is_connected: agent.stream.is_some(),
                since_unix_ms: agent.since_unix_ms,
                lag_us: u64::try_from(lane.lag(agent.report.revision, now).as_micros())
                    .unwrap_or(u64::MAX),
                report: Some(agent.report.clone()),
                full_lists: agent.full_lists,
                resyncs: agent.resyncs,
            })
            .collect()
    }

    /// Whether every connected agent of a group holds a revision.
    pub(super) fn hold(&self, group: &Group, revision: u64) -> bool {
        let inner = self.inner();
        let mut of_group = inner.agents.iter().filter(|((other, _), _)| other == group);
        of_group.all(|(_, agent)| agent.stream.is_none() || agent.report.revision >= revision)
    }

    /// Wakes at each report of an agent.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget_oldest(&mut self, key: &(Group, Instance)) -> Result<(), TooManyWatches> {
        if self.agents.len() < AGENTS || self.agents.contains_key(key) {
            return Ok(());
        }
        let gone = self.agents.iter().filter(|(_, agent)| agent.stream.is_none());
        let longest = gone.min_by_key(|(_, agent)| agent.since_unix_ms);
        let longest = longest.map(|(key, _)| key.clone()).ok_or(TooManyWatches)?;
        self.agents.remove(&longest);
        Ok(())
    }
}

impl Progress {
    /// Takes an agent's report.
    pub(super) fn report(&self, mut report: v1::FabricAgentReport) {
        report.troubles.truncate(TROUBLES);
        for trouble in &mut report.troubles {
            trouble.text = cut(std::mem::take(&mut trouble.text), TROUBLE_BYTES);
            trouble.code = cut(std::mem::take(&mut trouble.code), CODE_BYTES);
        }
        self.change(|agent| agent.report = report);
        self.agents.changed();
    }

    /// Completes when another stream has taken the place of this one.
    pub(super) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }

    pub(super) fn full_list(&self) {
        self.change(|agent| agent.full_lists += 1);
    }

    pub(super) fn resync(&self) {
        self.change(|agent| agent.resyncs += 1);
    }

    /// Changes what is noted of the agent, if this is its stream still.
    fn change(&self, change: impl FnOnce(&mut Agent)) {
        let Some(key) = &self.agent else { return };
        let mut inner = self.agents.inner();
        let agent = inner.agents.get_mut(key);
        if let Some(agent) = agent.filter(|agent| agent.stream == Some(self.stream)) {
            change(agent);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.change(|agent| {
            agent.stream = None;
            agent.since_unix_ms = unix_now_ms();
        });
        let mut inner = self.agents.inner();
        inner.watches -= 1;
        self.agents.counts.watchers(inner.watches);
        drop(inner);
        self.agents.changed();
    }
}

/// The beginning of a text that may be too long.
fn cut(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

#[cfg(test)]
mod tests {
    use super::super::key::Head;
    use super::*;

    fn agents() -> (Arc<Agents>, Group, Lane) {
        let agents = Arc::new(Agents::new(Arc::default()));
        (agents, Group::new("racks").unwrap(), Lane::new(Head::default(), 1))
    }

    fn report(revision: u64) -> v1::FabricAgentReport {
        v1::FabricAgentReport { revision, ..Default::default() }
    }

    #[test]
    fn a_revision_is_held_when_every_connected_agent_reports_it() {
        let (agents, group, lane) = agents();
        let begin = |name: &str| {
            let agent = Some((group.clone(), Instance::new(name).unwrap()));
            agents.begin(agent, "1".to_owned()).unwrap()
        };
        assert!(agents.hold(&group, 5), "nobody lacks it");
        let (first, second) = (begin("a"), begin("b"));
        assert!(!agents.hold(&group, 5));
        first.report(report(5));
        assert!(!agents.hold(&group, 5));
        second.report(report(7));
        assert!(agents.hold(&group, 5) && !agents.hold(&group, 6));
        drop(first);
        assert!(agents.hold(&group, 7), "who has gone is not waited for");
        let known = agents.of(&group, &lane);
        let shown: Vec<_> =
            known.iter().map(|agent| (&*agent.instance, agent.is_connected)).collect();
        assert_eq!(shown, [("a", false), ("b", true)]);
    }

    #[test]
    fn the_stream_that_came_last_is_the_agents() {
        let (agents, group, lane) = agents();
        let key = Some((group.clone(), Instance::new("a").unwrap()));
        let old = agents.begin(key.clone(), "1".to_owned()).unwrap();
        let new = agents.begin(key, "2".to_owned()).unwrap();
        assert!(old.replaced.is_cancelled() && !new.replaced.is_cancelled());
        old.report(report(9));
        assert!(!agents.hold(&group, 9));
        drop(old);
        let [agent] = &agents.of(&group, &lane)[..] else { panic!("it is one agent") };
        assert!(agent.is_connected && agent.version == "2");
        drop(new);
        assert!(!agents.of(&group, &lane)[0].is_connected);
        assert_eq!(agents.inner().watches, 0);
    }

    #[test]
    fn the_report_of_an_agent_is_bounded() {
        let (agents, group, lane) = agents();
        let key = Some((group.clone(), Instance::new("a").unwrap()));
        let progress = agents.begin(key, "v".repeat(1000)).unwrap();
        let trouble = v1::FabricAgentTrouble {
            code: "c".repeat(1000),
            text: "ü".repeat(1000),
            ..Default::default()
        };
        progress.report(v1::FabricAgentReport { troubles: vec![trouble; 100], ..report(1) });
        let agent = agents.of(&group, &lane).remove(0);
        let troubles = agent.report.unwrap().troubles;
        assert_eq!((agent.version.len(), troubles.len()), (CODE_BYTES, TROUBLES));
        assert_eq!((troubles[0].code.len(), troubles[0].text.len()), (CODE_BYTES, TROUBLE_BYTES));
    }

    #[test]
    fn the_longest_gone_are_forgotten_first() {
        let (agents, group, _) = agents();
        let key = |number: usize| {
            Some((group.clone(), Instance::new(&format!("agent-{number}")).unwrap()))
        };
        let mut streams: Vec<_> =
            (0..AGENTS).map(|number| agents.begin(key(number), String::new()).unwrap()).collect();
        assert!(agents.begin(key(AGENTS), String::new()).is_err(), "all are here");
        drop(streams.remove(3));
        let _new = agents.begin(key(AGENTS), String::new()).unwrap();
        let inner = agents.inner();
        assert_eq!(inner.agents.len(), AGENTS);
        assert!(!inner.agents.contains_key(&key(3).unwrap()));
    }
}
