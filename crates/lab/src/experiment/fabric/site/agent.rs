//! The agent of a site: its start, restart and end, and the marks that it writes.

use std::fs;
use std::path::PathBuf;

use tollway_net::monotonic_ns;

use super::super::rounds::{Mark, read_marks};
use super::{AGENT, Control, READY_LIMIT, Site};
use crate::commands::FabricAgent;
use crate::error::LabError;
use crate::process::Spec;

/// What an agent forwards on.
#[derive(Debug, Clone, Copy)]
pub(in crate::experiment::fabric) struct AgentDevices<'a> {
    pub(in crate::experiment::fabric) names: &'a [String],
    /// How its programs are attached; `None`: as suits the devices.
    pub(in crate::experiment::fabric) mode: Option<&'static str>,
}

/// An agent that has come up to its group.
#[derive(Debug, Clone)]
pub(in crate::experiment::fabric) struct Agent {
    spec: Spec,
    journal: PathBuf,
    marks_file: PathBuf,
}

impl Site {
    /// Starts an agent with an empty table, and waits until it has what its group has and follows
    /// it.
    pub(in crate::experiment::fabric) fn start_agent(
        &mut self,
        control: &Control,
        capacity: u32,
        devices: AgentDevices<'_>,
    ) -> Result<Agent, LabError> {
        self.agents += 1;
        let dir = self.supervisor.dir();
        let [journal, marks_file] =
            ["journal", "marks"].map(|kind| dir.join(format!("{kind}-{}", self.agents)));
        let described = FabricAgent {
            group: &self.group,
            devices: devices.names,
            mode: devices.mode,
            control: control.address,
            token_file: &control.token_file,
            capacity,
            journal: &journal,
            marks_file: &marks_file,
        };
        let spec = self.commands.fabric_agent(&self.network, &described);
        self.supervisor.start(&spec)?;
        let agent = Agent { spec, journal, marks_file };
        self.wait_marks(&agent, |mark| mark.is_listing)?;
        Ok(agent)
    }

    /// Waits until the agent has written down what its table has.
    pub(in crate::experiment::fabric) fn wait_journal(
        &mut self,
        agent: &Agent,
    ) -> Result<(), LabError> {
        let name = self.name(AGENT);
        Ok(self.supervisor.wait_for(&name, "its journal", READY_LIMIT, || {
            Ok(agent.journal.exists().then_some(()))
        })?)
    }

    /// Ends the agent and starts it on what it has left; when that was, on the machine's clock, and
    /// its first marks.
    pub(in crate::experiment::fabric) fn restart_agent(
        &mut self,
        agent: &Agent,
    ) -> Result<(u64, Vec<Mark>), LabError> {
        let name = self.name(AGENT);
        for complaint in self.supervisor.stop_named(&[name]) {
            tracing::warn!("{complaint}");
        }
        let removed = fs::remove_file(&agent.marks_file);
        removed.map_err(|source| LabError::Write { path: agent.marks_file.clone(), source })?;
        let began_ns = monotonic_ns();
        self.supervisor.start(&agent.spec)?;
        Ok((began_ns, self.wait_marks(agent, |_| true)?))
    }

    /// The agent's marks, once it has a mark of a revision.
    pub(in crate::experiment::fabric) fn marks(
        &mut self,
        agent: &Agent,
        revision: u64,
    ) -> Result<Vec<Mark>, LabError> {
        self.wait_marks(agent, |mark| mark.revision >= revision)
    }

    /// How many neighbours the kernel's table holds, as another process reads it.
    pub(in crate::experiment::fabric) fn programmed(&self) -> Result<u64, LabError> {
        let spec = self.commands.fabric_status(&self.network, &self.group);
        let output = self.supervisor.run(&spec, READY_LIMIT)?;
        let status: serde_json::Value = serde_json::from_str(&output).unwrap_or_default();
        Ok(status["neighbours"].as_u64().unwrap_or(0))
    }

    /// Stops the agent, removes what it leaves, and stops other processes.
    pub(in crate::experiment::fabric) fn stop_agent_and(&mut self, others: &[&str]) -> Vec<String> {
        let names: Vec<String> =
            others.iter().chain(&[AGENT]).map(|name| self.name(name)).collect();
        let complaints = self.supervisor.stop_named(&names);
        self.detach(&self.group);
        complaints
    }

    fn wait_marks(
        &mut self,
        agent: &Agent,
        is_last: impl Fn(&Mark) -> bool,
    ) -> Result<Vec<Mark>, LabError> {
        let name = self.name(AGENT);
        let mut wrong = None;
        let waited = self.supervisor.wait_for(&name, "a mark of its table", READY_LIMIT, || {
            // It makes the file when it has its table.
            let Ok(text) = fs::read_to_string(&agent.marks_file) else { return Ok(None) };
            match read_marks(&text) {
                Ok(marks) => Ok(Some(marks).filter(|marks| marks.iter().any(&is_last))),
                Err(error) => {
                    wrong = Some(error);
                    Ok(Some(Vec::new()))
                }
            }
        });
        match wrong {
            Some(source) => Err(LabError::Marks { path: agent.marks_file.clone(), source }),
            None => Ok(waited?),
        }
    }
}
