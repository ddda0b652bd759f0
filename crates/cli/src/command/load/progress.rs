//! Makes a run, and shows its progress on standard error.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tollway_echo::Stop;
use tollway_load::{Progress, Watch};
use tollway_record::RunResult;

use super::result_output::OutputArgs;

/// Between two lines of progress where the error stream is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// Makes a run, shows its progress and writes its result.
pub(super) fn run_and_report(
    output: &OutputArgs,
    stop: Stop,
    run: impl FnOnce(&mut Watch<'_>) -> Result<RunResult>,
) -> Result<ExitCode> {
    let mut live = Live::new(output.quiet);
    let mut report = |progress: &Progress| live.show(progress);
    let result = run(&mut Watch { report: &mut report, stop });
    live.clear();
    output.write_result(result?)
}

/// Progress on the error stream: on a terminal one line that is written over, else a line now and
/// then.
struct Live {
    is_quiet: bool,
    is_terminal: bool,
    next: Duration,
}

impl Live {
    fn new(is_quiet: bool) -> Self {
        Self { is_quiet, is_terminal: std::io::stderr().is_terminal(), next: LINES_EVERY }
    }

    fn show(&mut self, progress: &Progress) {
        if self.is_quiet {
            return;
        }
        // A part of a plan begins at 0 again.
        if progress.elapsed + LINES_EVERY < self.next {
            self.next = LINES_EVERY;
        }
        if self.is_terminal {
            eprint!("\r\x1b[2K{progress}");
        } else if progress.elapsed >= self.next {
            self.next = progress.elapsed + LINES_EVERY;
            eprintln!("{progress}");
        }
    }

    fn clear(&self) {
        if self.is_terminal && !self.is_quiet {
            eprint!("\r\x1b[2K");
        }
    }
}
