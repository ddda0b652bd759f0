//! Runs a command that must fail, and reads its output.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_testkit::retry_until;
use tollway_tests::program;

/// Longer than any command here takes to give up.
const SOON: Duration = Duration::from_secs(20);

/// The end of a command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Option<i32>,
    /// Everything on standard error.
    pub(crate) text: String,
}

impl Failure {
    /// Holds the last two lines to the form `error: … [CODE]`, `hint: …`, and the error to `parts`.
    #[track_caller]
    pub(crate) fn check(&self, code: &str, parts: &[&str]) {
        let lines: Vec<&str> = self.text.lines().collect();
        let [.., error, hint] = lines[..] else { panic!("two lines, not:\n{}", self.text) };
        assert_eq!(self.exit, Some(1), "{}", self.text);
        assert!(error.starts_with("error: "), "{}", self.text);
        assert!(error.ends_with(&format!(" [{code}]")), "{code} in:\n{}", self.text);
        let advice = hint.strip_prefix("hint: ");
        assert!(advice.is_some_and(|advice| advice.len() > 10), "{}", self.text);
        for part in parts {
            assert!(error.contains(part) || hint.contains(part), "`{part}` in:\n{}", self.text);
        }
        for noise in ["panicked", "os error", "RUST_BACKTRACE"] {
            assert!(!error.contains(noise) && !hint.contains(noise), "{}", self.text);
        }
    }
}

/// Runs `tollway` with `arguments` to its end.
pub(crate) fn tollway<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Failure {
    let mut command = Command::new(program());
    command.args(arguments);
    failure_of(command)
}

/// Runs a command to its end; one that goes on is stopped, and then has no exit code.
pub(crate) fn failure_of(mut command: Command) -> Failure {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.env_remove("TOLLWAY_TOKEN").spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        // What came before a failure is still worth showing.
        let _ = std::io::Read::read_to_end(&mut stderr, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let ended = retry_until(SOON, "the command's end", || child.try_wait().transpose());
    let exit = ended.ok().and_then(|status| status.unwrap().code());
    let _ = child.kill();
    let _ = child.wait();
    Failure { exit, text: reader.join().unwrap() }
}
