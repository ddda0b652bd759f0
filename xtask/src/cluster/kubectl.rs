//! `kubectl` against a cluster of the rig, from the network of that cluster, which the host is not in.

use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};

use super::plan::Cluster;
use super::running::Running;
use super::state::{Settings, State, write_script};
use super::supervisor;
use crate::process;

/// Calls of one cluster.
pub(super) struct Kubectl<'a> {
    state: &'a State,
    cluster: &'a Cluster,
}

impl<'a> Kubectl<'a> {
    pub(super) fn new(state: &'a State, cluster: &'a Cluster) -> Self {
        Self { state, cluster }
    }

    /// Writes the programs by which everything on the host gets there.
    pub(super) fn write(&self, supervisor: &Running, settings: &Settings) -> Result<()> {
        let network = supervisor::network_of(supervisor, self.cluster);
        let enter = self.state.enter(self.cluster.name);
        write_script(&enter, &format!("exec nsenter --net={} -- \"$@\"", network.display()))?;
        let quoted = |path: &std::path::Path| format!("'{}'", path.display());
        let call = format!(
            "exec env KUBECTL_KUBERC=false {} {} --kubeconfig {} --cache-dir {} \"$@\"",
            quoted(&enter),
            quoted(&settings.programs.kube.join("kubectl")),
            quoted(&self.state.kubeconfig(self.cluster.name)),
            quoted(&self.state.root().join("kubectl-cache").join(self.cluster.name)),
        );
        write_script(&self.state.kubectl(self.cluster.name), &call)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.state.kubectl(self.cluster.name));
        command.args(arguments);
        command
    }

    /// Runs it silently and returns what it printed.
    pub(super) fn output(&self, arguments: &[&str]) -> Result<String> {
        process::output(&mut self.command(arguments))
    }

    /// Runs it on our terminal.
    pub(super) fn run(&self, arguments: &[String]) -> Result<ExitStatus> {
        let mut command = self.command(&[]);
        command.args(arguments).status().context("could not start `kubectl`")
    }
}
