//! The conditions of a run: limits and their effects, noise, and use without load.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one process may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a processor; absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millicores: Option<u32>,
    /// The time over which the processor's share is counted, microseconds; the kernel's and
    /// Kubernetes' default is 100,000.
    #[serde(default = "default_cpu_period_us")]
    pub cpu_period_us: u32,
    /// Absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

fn default_cpu_period_us() -> u32 {
    100_000
}

/// What a CPU quota did to a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttling {
    /// Periods in which the process wanted to run.
    pub periods: u64,
    /// Those of them in which it was held back.
    pub throttled_periods: u64,
    pub throttled_us: u64,
}

/// What processes used in one stretch of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CostPoint {
    /// End of the stretch, seconds after the window began.
    pub t_s: f64,
    /// Processors by role.
    pub cpu_cores: BTreeMap<String, f64>,
    /// Share of the stretch in which a CPU quota held the role back; with several threads it may
    /// exceed 1. Empty without quotas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttled_fraction: BTreeMap<String, f64>,
}

/// What else went on while a run was measured. What could not be found out is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Processors used by what does not belong to the experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_cpu_cores: Option<f64>,
    /// Share of the time in which some task of the machine waited for a processor, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pressure_fraction: Option<f64>,
    /// Share of the time in which some task of the machine waited for memory, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure_fraction: Option<f64>,
    /// Share of the time in which processes waited for a processor, by role; with several
    /// threads it may exceed 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub run_queue_fraction: BTreeMap<String, f64>,
}

/// What a process of a subject uses without load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IdleUsage {
    pub subject: String,
    #[serde(default)]
    pub variant: String,
    /// The process's role: `client-sidecar`, `control-planes`.
    pub process: String,
    /// Processors, mean over the blocks.
    pub cpu_cores: f64,
    /// Resident at the end of the time watched, the most of all blocks.
    pub rss_bytes: u64,
    /// Time watched, all blocks together.
    pub duration_s: f64,
}
