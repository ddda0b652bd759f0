//! Starting the local control plane: one starter at a time, and ready when it returns.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tollway_model::ErrorCode;
use tollway_net::process::{Process, log_tail};

use super::error::LocalError;
use super::running::{LocalControl, find_in};
use crate::program::own_program;

const LOCK: &str = "lock";
const LOG: &str = "control.log";
/// Time for a control plane to be ready, on a busy machine and after a predecessor that ends.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time to wait for another process that starts it; longer than [`READY_TIMEOUT`].
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(10);
/// Lines at the end of the log that are searched for the reason of a failed start.
const LOG_TAIL_LINES: usize = 40;

/// The right to start a control plane in `directory`, given back when dropped, however that is.
pub(super) async fn lock(directory: &Path) -> Result<File, LocalError> {
    let path = directory.join(LOCK);
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| LocalError::Lock { path: path.clone(), source })?;
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                tokio::time::sleep(POLL_EVERY).await;
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                return Err(LocalError::Busy { path, timeout: LOCK_TIMEOUT });
            }
            Err(error) => return Err(LocalError::Lock { path, source: error.into() }),
        }
    }
}

/// Starts it and waits until it serves. The lock must be held.
pub(super) async fn start(directory: &Path, linger: Duration) -> Result<LocalControl, LocalError> {
    let log = directory.join(LOG);
    let mut process = spawn(directory, &log, linger).map_err(LocalError::Spawn)?;
    let until = Instant::now() + READY_TIMEOUT;
    loop {
        if let Some(mut found) = find_in(directory).await {
            if let Err(error) = process.release() {
                tracing::debug!(%error, "nothing waits for the end of the local control plane");
            }
            found.started = true;
            return Ok(found);
        }
        if process.status().is_some() {
            return Err(ended(&log));
        }
        if Instant::now() >= until {
            // Fails only if it has ended, which is as good.
            let _ = process.kill();
            return Err(LocalError::NotReady { timeout: READY_TIMEOUT, log });
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Starts the process with an empty environment: it outlives this one and serves other workloads.
fn spawn(directory: &Path, log: &Path, linger: Duration) -> std::io::Result<Process> {
    let mut options = std::fs::OpenOptions::new();
    let log = options.write(true).create(true).truncate(true).mode(0o600).open(log)?;
    let mut command = Command::new(own_program());
    command.arg("local-control").arg(directory);
    command.arg("--linger-ms").arg(linger.as_millis().to_string());
    command.env_clear().env("TOLLWAY_LOG", "warn").current_dir("/");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Process::spawn_detached(command)
}

/// The error from the end of its log: error and hint as the command line prints them, or else the
/// last line.
fn ended(log: &Path) -> LocalError {
    let tail = log_tail(log, LOG_TAIL_LINES);
    let lines = tail.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let line_of = |what: &str| lines.clone().find_map(|line| line.strip_prefix(what));
    let error = line_of("error: ").or(lines.clone().next()).unwrap_or("it wrote nothing");
    let coded = error.strip_suffix(']').and_then(|error| error.rsplit_once(" ["));
    let coded = coded.and_then(|(text, word)| Some((text, ErrorCode::from_word(word)?)));
    let log = || format!("read its log, {}", log.display());
    LocalError::Ended {
        reason: coded.map_or(error, |(text, _)| text).to_owned(),
        hint: line_of("hint: ").map_or_else(log, str::to_owned),
        code: coded.map(|(_, code)| code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_line_of_an_error() {
        let check = |text: &str, expected: &str, code| {
            let log = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&log, text).unwrap();
            let error = ended(log.path());
            let expected = format!("the local control plane did not start: {expected}");
            assert!(error.to_string().starts_with(&expected), "{error}");
            assert_eq!(error.code(), Some(code));
        };
        let said = "error: no room [ERR_DISK_FULL]\nhint: free space\n";
        check(said, "no room; free space", ErrorCode::DiskFull);
        check("error: it is [odd]\n", "it is [odd]; read", ErrorCode::NoControlPlane);
        check("something else\n\n", "something else; read", ErrorCode::NoControlPlane);
        check("", "it wrote nothing; read", ErrorCode::NoControlPlane);
    }

    #[tokio::test]
    async fn one_starts_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).await.unwrap();
        let waiting = lock(directory.path());
        tokio::pin!(waiting);
        let early = tokio::time::timeout(POLL_EVERY * 5, &mut waiting).await;
        assert!(early.is_err(), "two may start");
        drop(held);
        waiting.await.unwrap();
    }
}
