//! Runs all tests; a few that failed get a second try, alone.
//!
//! Hundreds of tests start processes and wait for them. On a machine that stands still for half a
//! second some of them fail now and then, though nothing is wrong; on one that runs on, one in some
//! thousands. More failures than that count at once, and so does a program that ended without saying
//! which of its tests failed; a second failure counts always. What was tried again is told with what
//! was seen of the machine: a test that needed it is to be mended.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, PipeReader, Write, pipe, stdout};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::command_line;
use crate::stillness::{Stillness, Watch};

/// More failures than these are no bad luck on a machine that stood still.
const FORGIVEN: usize = 8;
/// The same on one that ran on.
const FORGIVEN_UNDISTURBED: usize = 2;
/// How long nothing is printed before we look whether `cargo test` has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `tests`, a `cargo test` without arguments for the harness; `tests` makes it anew.
pub(crate) fn run(tests: impl Fn() -> Command) -> Result<()> {
    let mut first = tests();
    first.arg("--no-fail-fast");
    let Outcome { passed: false, programs } = told(&mut first, &mut stdout())? else {
        return Ok(());
    };
    let again = excused(&programs)?;
    for (test, seen) in &again {
        eprintln!("{test} failed ({seen}); it is tried again");
    }
    let mut second = tests();
    let targets: BTreeSet<&str> = programs.iter().filter_map(Program::failed_target).collect();
    // Names of all at once: whoever has no such test runs none.
    second.arg("--no-fail-fast").args(targets.iter().flat_map(|target| target.split(' ')));
    second.args(["--", "--exact", "--test-threads=1"]).args(again.iter().map(|(test, _)| *test));
    let Outcome { passed, programs } = told(&mut second, &mut stdout())?;
    let ran: usize = programs.iter().map(|program| program.ran).sum();
    if !passed || ran < again.len() {
        bail!("of {} tests that were tried again, not all passed", again.len());
    }
    for (test, seen) in &again {
        eprintln!("FLAKY {test}: failed ({seen}), then passed alone");
    }
    Ok(())
}

/// The failed tests, each with what was seen of the machine in its program's time.
///
/// # Errors
///
/// Says which failures count at once, and why.
fn excused(programs: &[Program]) -> Result<Vec<(&str, Stillness)>> {
    let failed = || programs.iter().filter(|program| !program.passed);
    let is_untold = |program: &&Program| program.failed.is_empty() || program.target.is_none();
    if let Some(program) = failed().find(is_untold) {
        bail!("{} did not say which of its tests failed", program.name);
    }
    let tests = failed()
        .flat_map(|program| program.failed.iter().map(|test| (test.as_str(), program.seen)));
    let tests: Vec<_> = tests.collect();
    if tests.is_empty() {
        bail!("no program of tests ran");
    }
    let undisturbed: Vec<_> =
        tests.iter().filter(|(_, seen)| !seen.disturbs()).map(|(test, _)| *test).collect();
    if undisturbed.len() > FORGIVEN_UNDISTURBED {
        bail!("{} tests failed: {}", undisturbed.len(), undisturbed.join(", "));
    }
    if tests.len() > FORGIVEN {
        bail!("{} tests failed", tests.len());
    }
    Ok(tests)
}

/// What a whole `cargo test` came to.
struct Outcome {
    passed: bool,
    programs: Vec<Program>,
}

/// A program of tests, or the examples in a crate's documentation.
#[derive(Debug, Default, PartialEq)]
struct Program {
    name: String,
    passed: bool,
    /// How many of its tests passed.
    ran: usize,
    failed: Vec<String>,
    /// By which arguments cargo runs it, if it failed and can run single tests: `--test lab`.
    target: Option<String>,
    seen: Stillness,
}

impl Program {
    fn failed_target(&self) -> Option<&str> {
        self.target.as_deref().filter(|_| !self.passed)
    }
}

/// Runs `command` with its output on `screen`, and reads it.
fn told(command: &mut Command, screen: &mut dyn Write) -> Result<Outcome> {
    let line = command_line(command);
    eprintln!("\n$ {line}");
    // One pipe for both, since cargo names a program on the one and its tests are on the other.
    let (output, input) = pipe().context("could not make a pipe")?;
    command.stdin(Stdio::null());
    command.stdout(input.try_clone().context("could not make a pipe")?).stderr(input);
    let mut running = command.spawn().with_context(|| format!("could not start `{line}`"))?;
    // Our copies of the pipe's other end, or it would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut watch = Watch::start();
    let mut reading = Reading::default();
    let lines = lines_of(output);
    let status = loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                screen.write_all(&line).context("could not tell what tests print")?;
                if reading.line(&String::from_utf8_lossy(&line)) {
                    reading.seen(watch.take());
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                break running.wait().with_context(|| format!("could not wait for `{line}`"))?;
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = running.try_wait().context("could not ask for its end")? {
                    eprintln!("a test left a process running, which keeps our pipe open");
                    break status;
                }
            }
        }
    };
    reading.seen_of_the_last(watch.take());
    Ok(Outcome { passed: status.success(), programs: reading.programs })
}

/// The lines that come out of `output`, with their ends; closed when it ends.
fn lines_of(output: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        loop {
            let mut line = Vec::new();
            let Ok(1..) = output.read_until(b'\n', &mut line) else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// What has been read of the output of `cargo test`.
#[derive(Default)]
struct Reading {
    programs: Vec<Program>,
    /// Behind `failures:`, where names are listed.
    in_list: bool,
}

impl Reading {
    /// Takes a line in; whether it begins another program.
    fn line(&mut self, line: &str) -> bool {
        let line = line.trim_end();
        if let Some(name) = program_named(line) {
            self.in_list = false;
            self.programs.push(Program { name: name.to_owned(), ..Program::default() });
            return true;
        }
        let Some(program) = self.programs.last_mut() else {
            return false;
        };
        if let Some(counts) = line.strip_prefix("test result: ") {
            program.passed = counts.starts_with("ok.");
            let passed = counts.split(' ').nth(1).and_then(|count| count.parse().ok());
            program.ran = passed.unwrap_or(0);
        }
        if let Some(target) = target_named(line) {
            program.target = Some(target.to_owned());
        }
        match line.strip_prefix("    ") {
            _ if line == "failures:" => self.in_list = true,
            Some(name) if self.in_list && !name.starts_with(' ') => {
                program.failed.push(name.to_owned());
            }
            _ => self.in_list = false,
        }
        false
    }

    /// Of the program that ended when another began.
    fn seen(&mut self, seen: Stillness) {
        if let [.., ended, _] = &mut self.programs[..] {
            ended.seen = seen;
        }
    }

    fn seen_of_the_last(&mut self, seen: Stillness) {
        if let Some(last) = self.programs.last_mut() {
            last.seen = seen;
        }
    }
}

/// The name in a line by which cargo says that it starts a program of tests.
fn program_named(line: &str) -> Option<&str> {
    let line = line.strip_prefix("   ")?.trim_start();
    let name = line.strip_prefix("Running ").or_else(|| line.strip_prefix("Doc-tests "))?;
    Some(name.split(" (").next().unwrap_or(name))
}

/// The target in a line by which cargo says how a program of tests that failed is run alone. All of
/// the workspace is built already, so its package is not named; documentation has no tests of names.
fn target_named(line: &str) -> Option<&str> {
    let told = line.strip_prefix("error: test failed, to rerun pass `")?.strip_suffix('`')?;
    let target = told.find("--").map(|place| &told[place..])?;
    (target != "--doc").then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "   \
        Compiling tollway v0.1.0\n     \
        Running unittests src/lib.rs (target/debug/deps/tollway_net-1)\n\nrunning 1 test\n\
        test a ... ok\n\n\
        test result: ok. 1 passed; 0 failed; 0 ignored\n\n     \
        Running tests/lab.rs (target/debug/deps/lab-2)\n\nrunning 3 tests\n\
        test a::b ... FAILED\ntest c ... ok\ntest d ... FAILED\n\n\
        failures:\n\n---- a::b stdout ----\n    a line that is indented\n\n\n\
        failures:\n    a::b\n    d\n\n\
        test result: FAILED. 1 passed; 2 failed; 0 ignored\n\n\
        error: test failed, to rerun pass `-p tollway --test lab`\n   \
        Doc-tests tollway_net\n\n\
        test result: ok. 0 passed; 0 failed\n\n\
        error: 1 target failed:\n    `-p tollway --test lab`\n";

    fn read(output: &str) -> Vec<Program> {
        let mut reading = Reading::default();
        let begun = output.lines().filter(|line| reading.line(line)).count();
        assert_eq!(begun, reading.programs.len());
        reading.programs
    }

    fn seen(programs: &mut [Program], longest_ms: u64) {
        for program in programs {
            program.seen.longest = Duration::from_millis(longest_ms);
        }
    }

    #[test]
    fn programs_and_their_failed_tests_are_read() {
        let programs = read(OUTPUT);
        let told = programs
            .iter()
            .map(|program| (program.name.as_str(), program.ran, program.failed.join(" ")));
        let told: Vec<_> = told.collect();
        assert_eq!(programs.iter().filter(|program| program.passed).count(), 2);
        assert_eq!(
            told,
            [
                ("unittests src/lib.rs", 1, String::new()),
                ("tests/lab.rs", 1, "a::b d".to_owned()),
                ("tollway_net", 0, String::new()),
            ]
        );
    }

    #[test]
    fn what_failed_is_run_by_its_target() {
        let programs = read(OUTPUT);
        let targets: Vec<_> = programs.iter().filter_map(Program::failed_target).collect();
        assert_eq!(targets, ["--test lab"]);
        let named = |target: &str| format!("error: test failed, to rerun pass `{target}`");
        assert_eq!(target_named(&named("-p tollway-net --lib")), Some("--lib"));
        assert_eq!(target_named(&named("--bin xtask")), Some("--bin xtask"));
        assert_eq!(target_named(&named("-p tollway-net --doc")), None);
    }

    #[test]
    fn a_machine_that_runs_on_excuses_few_failures() {
        let mut programs = read(OUTPUT);
        seen(&mut programs, 0);
        let again = excused(&programs).unwrap();
        assert_eq!(again.iter().map(|(test, _)| *test).collect::<Vec<_>>(), ["a::b", "d"]);
        programs[1].failed.push("e".to_owned());
        assert_eq!(excused(&programs).unwrap_err().to_string(), "3 tests failed: a::b, d, e");
        // Another program's time excuses nothing.
        seen(&mut programs[..1], 500);
        assert!(excused(&programs).is_err());
        seen(&mut programs, 500);
        assert_eq!(excused(&programs).unwrap().len(), 3);
    }

    #[test]
    fn a_program_that_broke_off_is_not_excused() {
        let mut programs = read(
            "     Running tests/lab.rs (target/debug/deps/lab-2)\n\nrunning 3 tests\n\
             test a ... ok\nerror: test failed, to rerun pass `-p tollway --test lab`\n",
        );
        seen(&mut programs, 500);
        let error = excused(&programs).unwrap_err().to_string();
        assert_eq!(error, "tests/lab.rs did not say which of its tests failed");
        assert!(excused(&[]).is_err(), "it did not compile");
    }

    #[test]
    fn many_failures_are_no_bad_luck() {
        let names: Vec<_> = (0..=FORGIVEN).map(|number| format!("    t{number}\n")).collect();
        let mut programs = read(&format!(
            "     Running tests/lab.rs (target/debug/deps/lab-2)\nfailures:\n{}\n\
             error: test failed, to rerun pass `-p tollway --test lab`\n",
            names.concat()
        ));
        seen(&mut programs, 500);
        assert_eq!(excused(&programs).unwrap_err().to_string(), "9 tests failed");
    }

    #[test]
    fn what_a_command_prints_is_read_from_both_of_its_streams() {
        let script = "printf '     Running one (x)\\n' >&2; echo 'test result: ok. 1 passed'; \
                      printf '     Running two (x)\\n' >&2; exit 3";
        let mut screen = Vec::new();
        let outcome = told(Command::new("sh").args(["-c", script]), &mut screen).unwrap();
        let told: Vec<_> =
            outcome.programs.iter().map(|program| (&*program.name, program.passed)).collect();
        assert_eq!((outcome.passed, told), (false, vec![("one", true), ("two", false)]));
        assert_eq!(screen.iter().filter(|byte| **byte == b'\n').count(), 3);
    }
}
