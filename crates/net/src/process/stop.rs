//! Stopping in order: a request to end, time for it, then a kill.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Process, Waited};

/// How a process took a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Exit status 0, or the end by SIGTERM itself.
    Clean,
    Failed(ExitStatus),
    /// It did not end in time.
    Killed,
    /// It had ended before the request.
    EndedBefore,
}

/// Stops processes, the last first: each gets SIGTERM, then the next one `interval` later at
/// the latest, and SIGKILL when `limit` has passed since its SIGTERM. A process that takes longer than
/// `interval` goes on stopping meanwhile: often it waits for connections of those that come after it.
/// The outcomes are in the order in which the processes ended.
pub fn stop_in_order<N>(
    processes: Vec<(N, Process)>,
    interval: Duration,
    limit: Duration,
) -> Vec<(N, Stopped)> {
    let mut outcomes = Vec::new();
    let mut slow = Vec::new();
    for (name, mut process) in processes.into_iter().rev() {
        if process.status().is_some() {
            outcomes.push((name, Stopped::EndedBefore));
            continue;
        }
        // Fails only if it has ended meanwhile, which the wait then sees.
        let _ = process.signal(Signal::TERM);
        let asked = Instant::now();
        match process.wait_until(asked + interval, None) {
            Waited::Ended => outcomes.push((name, ended(&mut process))),
            Waited::Interrupted | Waited::TimedOut => slow.push((name, process, asked)),
        }
    }
    for (name, mut process, asked) in slow {
        let outcome = match process.wait_until(asked + limit, None) {
            Waited::Ended => ended(&mut process),
            Waited::Interrupted | Waited::TimedOut => {
                let _ = process.kill();
                Stopped::Killed
            }
        };
        outcomes.push((name, outcome));
    }
    outcomes
}

fn ended(process: &mut Process) -> Stopped {
    match process.wait() {
        Ok(status) if status.success() || status.signal() == Some(Signal::TERM.as_raw()) => {
            Stopped::Clean
        }
        Ok(status) => Stopped::Failed(status),
        Err(_) => Stopped::EndedBefore,
    }
}
