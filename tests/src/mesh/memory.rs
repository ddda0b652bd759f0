//! Watches that no process of a mesh hoards what passes through it.

use tollway_testkit::{Process, peak_resident_bytes, reset_peak, resident_bytes};

use super::{Mesh, Sidecar};

/// How much a process may grow above what it held before, whatever passes through it, in bytes.
const GROWTH_LIMIT: u64 = 8 << 20;

/// Processes and what each held at the start.
pub struct Watch {
    watched: Vec<(String, u32, u64)>,
}

impl Watch {
    /// Watches all control planes and gateways, and `sidecars`.
    pub fn start(mesh: &Mesh, sidecars: &[&Sidecar]) -> Self {
        let mut processes: Vec<(String, &Process)> = Vec::new();
        for (name, network) in [("west", &mesh.west), ("east", &mesh.east)] {
            processes.push((format!("{name} control plane"), &network.control));
            processes.push((format!("{name} gateway"), &network.gateway));
        }
        for (number, sidecar) in sidecars.iter().enumerate() {
            processes.push((format!("sidecar {number}"), &sidecar.process));
        }
        let watched = processes
            .into_iter()
            .map(|(name, process)| {
                reset_peak(process.pid()).unwrap();
                (name, process.pid(), resident_bytes(process.pid()).unwrap())
            })
            .collect();
        Self { watched }
    }

    /// Fails if a process held at any time since the start much more than then.
    pub fn assert_bounded(&self) {
        let grown: Vec<_> = self
            .watched
            .iter()
            .map(|(name, pid, before)| {
                let peak = peak_resident_bytes(*pid).unwrap();
                eprintln!("{name}: {} MiB, then at most {} MiB", before >> 20, peak >> 20);
                (name, peak.saturating_sub(*before))
            })
            .collect();
        for (name, bytes) in grown {
            assert!(bytes < GROWTH_LIMIT, "the {name} grew by {bytes} bytes");
        }
    }
}
