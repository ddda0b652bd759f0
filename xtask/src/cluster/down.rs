//! Takes the rig down, or what is left of one that was killed.

use anyhow::Result;

use super::cgroups;
use super::plan;
use super::state::State;

/// Ends everything; without a rig it does nothing.
pub(super) fn run() -> Result<()> {
    let state = State::of_user()?;
    let _lock = state.lock()?;
    let was_there = state.root().exists();
    sweep(&state)?;
    eprintln!("clusters: {}", if was_there { "they are down" } else { "none were up" });
    Ok(())
}

/// Ends what runs, with its namespaces; then removes cgroups and the rig's folder.
pub(super) fn sweep(state: &State) -> Result<()> {
    if let Some(supervisor) = state.supervisor() {
        supervisor.kill()?;
    }
    for (_, machine) in plan::machines() {
        cgroups::remove(&state.machine(machine).join("cgroups"))?;
    }
    state.remove()
}
