//! A control plane's store in etcd: whether etcd answers, and which process serves from there.

use std::path::Path;

use anyhow::Result;
use tollway_control::StartError;
use tollway_store::{Etcd, EtcdOptions};

use super::finding::Finding;
use super::store_directory::{RUNS, answered, ask, directory_finding};
use crate::async_runtime::block_on;

/// `admin_dir` has the admin socket of a control plane that serves.
pub(super) fn inspect(options: &EtcdOptions, admin_dir: &Path) -> Result<Vec<Finding>> {
    let mut findings = vec![directory_finding(admin_dir, "--admin-dir")];
    let master = match block_on(Etcd::master_at(options))? {
        Ok(master) => master,
        Err(error) => {
            findings.push(Finding::of_error("store", &StartError::from(error).into()));
            return Ok(findings);
        }
    };
    findings.push(Finding::ok("store", format!("etcd at {} answers", options.members.join(","))));
    let Some(master) = master else { return Ok(findings) };
    match ask(admin_dir)? {
        Ok(answer) => findings.extend(answered(&answer)),
        // The master has its admin socket elsewhere.
        Err(_) => {
            // Of one on this machine the ports may be taken.
            let is_here = machine(&master) == machine(&options.holder);
            let name = if is_here { RUNS } else { "master" };
            let what = format!("{master} serves from there; another one stands by");
            findings.push(Finding::ok(name, what));
        }
    }
    Ok(findings)
}

/// That of a process which names itself `MACHINE (process NUMBER)`.
fn machine(holder: &str) -> &str {
    holder.rsplit_once(" (process ").map_or(holder, |(machine, _)| machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_on_the_machine_that_it_names() {
        assert_eq!(machine("west-1 (process 4711)"), "west-1");
        assert_ne!(machine("west-1 (process 4711)"), machine("west-2 (process 4711)"));
        assert_eq!(machine("another one"), "another one");
    }
}
