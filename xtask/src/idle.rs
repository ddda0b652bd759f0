//! Work for which there is time while other work waits.

use std::process::Command;
use std::thread::{self, JoinHandle};

use crate::process;

/// Does `work` on a thread whose programs have a processor only while nothing else wants it. Where `chrt` is
/// missing they run as others do.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(|| {
        let thread = rustix::thread::gettid().to_string();
        // What the thread starts inherits it.
        let scheduled =
            process::output(Command::new("chrt").args(["--idle", "--pid", "0", &thread]));
        if let Err(error) = scheduled {
            eprintln!("what is built meanwhile runs as everything else: {error:#}");
        }
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_such_a_thread_run_when_nothing_else_does() {
        let policy = || {
            let mut shown = Command::new("sh");
            shown.args(["-c", "chrt --pid $$"]);
            process::output(&mut shown).unwrap_or_default()
        };
        if process::find_program("chrt").is_none() {
            tollway_testkit::skip!("tool missing: chrt");
        }
        assert!(spawn(policy).join().unwrap().contains("SCHED_IDLE"));
    }
}
