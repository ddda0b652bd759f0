//! Waits until a cluster can be used, and installs CoreDNS into it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::kubectl::Kubectl;
use super::machine::{self, Condition};
use super::plan::{Cluster, Machine};
use super::running::Running;
use super::state::{State, write};

const DNS: &str = include_str!("dns.yaml");
/// How long a cluster may take until all of it runs.
const READY_LIMIT: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(100);

/// Prints names of machines with their state: `a1=True a2=Unknown`.
const MACHINES: &str = "jsonpath={range .items[*]}{.metadata.name}=\
                        {.status.conditions[?(@.type==\"Ready\")].status} {end}";
const AVAILABLE: &str = "jsonpath={.status.availableReplicas}";

struct Wait<'a> {
    state: &'a State,
    supervisor: &'a Running,
    cluster: &'a Cluster,
    deadline: Instant,
}

/// Ends when all machines of a cluster are ready and names are looked up. A machine that was killed is
/// started again.
///
/// # Errors
///
/// Says what the cluster waits for, if a process ended that it needs or it takes too long.
pub(super) fn wait(state: &State, supervisor: &Running, cluster: &Cluster) -> Result<()> {
    let kubectl = Kubectl::new(state, cluster);
    let wait = Wait { state, supervisor, cluster, deadline: Instant::now() + READY_LIMIT };
    let manifest = state.root().join("dns.yaml");
    write(&manifest, DNS)?;
    let manifest = manifest.to_string_lossy().into_owned();
    wait.until("the API server takes CoreDNS", || {
        kubectl.output(&["apply", "-f", &manifest]).map(|_| true)
    })?;
    wait.until("every machine starts its services", || {
        let is_up = |one| matches!(machine::condition(state, one), Condition::Up(_));
        Ok(cluster.machines.iter().all(is_up))
    })?;
    wait.until("all machines are ready", || {
        Ok(are_ready(&kubectl.output(&["get", "nodes", "-o", MACHINES])?, cluster))
    })?;
    wait.until("CoreDNS is available", || {
        let deployment = ["--namespace=kube-system", "get", "deploy/coredns", "-o", AVAILABLE];
        Ok(kubectl.output(&deployment)?.trim() == "1")
    })
}

impl Wait<'_> {
    /// An attempt that fails is made again.
    fn until(&self, what: &str, mut attempt: impl FnMut() -> Result<bool>) -> Result<()> {
        let failed = |reason: &str| {
            let (cluster, logged) = (self.cluster.name, self.state.what_was_logged());
            format!("cluster {cluster}: {reason}; it waits until {what}\n{logged}")
        };
        loop {
            let outcome = attempt();
            if matches!(outcome, Ok(true)) {
                return Ok(());
            }
            if !self.supervisor.is_alive() {
                bail!(failed("the rig's supervisor ended"));
            }
            for machine in self.cluster.machines {
                match machine::condition(self.state, machine) {
                    Condition::Starting | Condition::Up(_) => {}
                    Condition::Killed => {
                        eprintln!("clusters: machine {} starts again", machine.name);
                        machine::start_again(self.state, machine)?;
                    }
                    Condition::Failed => {
                        bail!(failed(&format!("machine {} ended", machine.name)));
                    }
                }
            }
            if Instant::now() > self.deadline {
                let error = outcome.err().map(|error| format!(": {error:#}")).unwrap_or_default();
                bail!(failed(&format!("not ready within {READY_LIMIT:?}{error}")));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether a list such as `a1=True a2=Unknown` has every machine of the cluster as ready.
fn are_ready(list: &str, cluster: &Cluster) -> bool {
    let is_ready = |machine: &Machine| {
        list.split_whitespace().any(|word| word == format!("{}=True", machine.name))
    };
    cluster.machines.iter().all(is_ready)
}

#[cfg(test)]
mod tests {
    use super::super::plan::CLUSTERS;
    use super::*;

    #[test]
    fn a_cluster_is_ready_with_all_its_machines() {
        let [a, b] = &CLUSTERS;
        assert!(are_ready("a1=True a2=True ", a));
        assert!(!are_ready("a1=True a2=Unknown ", a) && !are_ready("a1=True ", a));
        assert!(are_ready("b1=True", b) && !are_ready("", b));
    }
}
