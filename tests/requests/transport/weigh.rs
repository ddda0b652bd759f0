//! The cost of a case: memory and processor time of the attacked processes against the attacker's,
//! and an honest caller's results meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tollway_testkit::{
    Process, cpu_time, peak_resident_bytes, reset_peak, resident_bytes, thread_cpu_time,
};

use crate::transport::honest::{Seen, ask_until};
use crate::transport::world::{Listener, World};

/// Honest requests that a case waits for, however short it is.
const HONEST_LEAST: usize = 20;
/// How long memory is given to come back.
const SETTLE: Duration = Duration::from_secs(2);

/// One case at one listener.
#[derive(Serialize, Debug)]
pub(crate) struct Outcome {
    pub(crate) case: &'static str,
    pub(crate) listener: &'static str,
    /// Connections of the attacker.
    pub(crate) peers: usize,
    /// What was done, with its numbers.
    pub(crate) done: String,
    /// The outcome of the attacker's connections.
    pub(crate) became: String,
    pub(crate) honest: Seen,
    pub(crate) memory: Memory,
    /// Of all processes that bore it, and of the attacker.
    pub(crate) cpu_ms: f64,
    pub(crate) attacker_cpu_ms: f64,
    /// Connections that were opened in a second, where that is what was done.
    pub(crate) opened_per_second: Option<f64>,
    pub(crate) passed: bool,
    pub(crate) wrong: Vec<String>,
}

/// Resident bytes of all processes that bore it.
#[derive(Serialize, Debug, Default, Clone, Copy)]
pub(crate) struct Memory {
    before_bytes: u64,
    most_bytes: u64,
    after_bytes: u64,
}

/// What an attack found out.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) peers: usize,
    pub(crate) done: String,
    pub(crate) became: String,
    pub(crate) opened_per_second: Option<f64>,
    pub(crate) wrong: Vec<String>,
}

/// What a case may cost at most.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) growth_bytes: u64,
    /// Processor time that the attacker may cause per second of its own; `None` if several cases
    /// run at once.
    pub(crate) cpu_ratio: Option<f64>,
}

/// Attacks while an honest caller calls; `leave` drops what the attack still holds.
pub(crate) fn weigh<T>(
    (case, world, listener): (&'static str, &World, Listener),
    bounds: Bounds,
    attack: impl FnOnce() -> (Found, T),
) -> Outcome {
    let attacked = world.attacked(listener);
    let (aim, ask) = (world.honest(listener), world.ask(listener));
    let stop = AtomicBool::new(false);
    for process in &attacked {
        reset_peak(process.pid()).unwrap();
    }
    let before_bytes = sum(&attacked, resident_bytes);
    let cpu = usage(&attacked);
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| ask_until(&aim, &ask, HONEST_LEAST, &stop));
        let own = thread_cpu_time().unwrap();
        let (found, held) = attack();
        let attacker = thread_cpu_time().unwrap() - own;
        let most_bytes = sum(&attacked, peak_resident_bytes);
        let caused = usage(&attacked) - cpu;
        drop(held);
        stop.store(true, Ordering::Relaxed);
        let honest = honest.join().unwrap();
        if bounds.cpu_ratio.is_some() {
            std::thread::sleep(SETTLE);
        }
        let after_bytes = sum(&attacked, resident_bytes);
        let memory = Memory { before_bytes, most_bytes, after_bytes };
        conclude((case, listener), found, honest, memory, [caused, attacker], bounds)
    })
}

/// What was found as an outcome, judged by its bounds; processor time of those who bore it and of
/// the attacker.
fn conclude(
    (case, listener): (&'static str, Listener),
    found: Found,
    honest: Seen,
    memory: Memory,
    [caused, attacker]: [Duration; 2],
    bounds: Bounds,
) -> Outcome {
    let mut wrong = found.wrong;
    if honest.failed > 0 {
        wrong.push(format!("{} honest requests failed: {:?}", honest.failed, honest.why));
    }
    let grown = memory.most_bytes.saturating_sub(memory.before_bytes);
    if grown > bounds.growth_bytes {
        wrong.push(format!("grown by {grown} bytes, at most {} are allowed", bounds.growth_bytes));
    }
    let ratio = caused.as_secs_f64() / attacker.as_secs_f64().max(1e-6);
    if bounds.cpu_ratio.is_some_and(|most| ratio > most) {
        wrong.push(format!("caused {ratio:.0} times its own processor time"));
    }
    let passed = wrong.is_empty();
    Outcome {
        case,
        listener: listener.words(),
        peers: found.peers,
        done: found.done,
        became: found.became,
        honest,
        memory,
        cpu_ms: caused.as_secs_f64() * 1e3,
        attacker_cpu_ms: attacker.as_secs_f64() * 1e3,
        opened_per_second: found.opened_per_second,
        passed,
        wrong,
    }
}

impl Outcome {
    pub(crate) fn line(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Memory { before_bytes, most_bytes, after_bytes } = self.memory;
        format!(
            "{:4} {:15} {:13} {} -> {}; honest {}/{} p99 {:.1} ms max {:.1} ms; \
             {:.1} > {:.1} > {:.1} MiB; cpu {:.0}/{:.0} ms",
            if self.passed { "pass" } else { "FAIL" },
            self.case,
            self.listener,
            self.done,
            self.became,
            self.honest.requests - self.honest.failed,
            self.honest.requests,
            self.honest.p99_ms,
            self.honest.max_ms,
            mib(before_bytes),
            mib(most_bytes),
            mib(after_bytes),
            self.cpu_ms,
            self.attacker_cpu_ms,
        )
    }
}

fn sum(processes: &[&Process], of: fn(u32) -> anyhow::Result<u64>) -> u64 {
    processes.iter().map(|process| of(process.pid()).unwrap()).sum()
}

pub(crate) fn usage(processes: &[&Process]) -> Duration {
    processes.iter().map(|process| cpu_time(process.pid()).unwrap()).sum()
}
