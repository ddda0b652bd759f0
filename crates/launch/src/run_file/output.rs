//! What apps and their sidecars write: line by line to the terminal, with the name of who wrote it
//! in front, and to files.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use time::OffsetDateTime;

use super::app_plan::Destination;

/// Longest piece of a line that is passed on at once, in bytes; a longer line comes in pieces.
const LINE_BYTES: usize = 64 * 1024;
/// Lines that are remembered of a process, for when it fails.
const LAST_LINES: usize = 10;

/// Longest wait for the last lines of processes that have ended; others may hold their streams.
pub(super) const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// The stream of the terminal on which a process's lines appear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    Out,
    Error,
}

/// Where the lines of a process go.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// Stands in front of its lines on the terminal; without it they do not appear there.
    prefix: Option<String>,
    file: Option<Arc<File>>,
    pub(super) path: Option<PathBuf>,
    seen: Arc<Seen>,
}

/// What has come of a process.
#[derive(Default, Debug)]
struct Seen {
    so_far: Mutex<SoFar>,
    /// Told when a stream has ended.
    ended: Condvar,
}

#[derive(Default, Debug)]
struct SoFar {
    /// Streams that have not ended.
    open: usize,
    /// The last lines, where the terminal does not show them.
    last: VecDeque<String>,
}

impl Output {
    /// Of the process `what` (`app` or `daprd`) of an app.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn new(
        destination: Destination,
        what: &str,
        app_id: &str,
        folder: &Path,
    ) -> io::Result<Self> {
        let path = destination
            .is_file
            .then(|| folder.join(".dapr/logs").join(format!("{app_id}_{what}_{}.log", stamp())));
        let file = path.as_deref().map(|path| {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            OpenOptions::new().create(true).append(true).open(path).map(Arc::new)
        });
        let name = if what == "app" { "APP" } else { "DAPRD" };
        Ok(Self {
            prefix: destination.is_console.then(|| format!("== {name} - {app_id} == ")),
            file: file.transpose()?,
            path,
            seen: Arc::default(),
        })
    }

    /// Passes a stream of the process on to its end, in a thread of its own.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn pass(&self, from: impl Read + Send + 'static, to: Stream) -> io::Result<()> {
        let output = self.clone();
        self.so_far(|so_far| so_far.open += 1);
        let copy = move || {
            output.copy(from, to);
            output.so_far(|so_far| so_far.open -= 1);
            output.seen.ended.notify_all();
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(copy).map(|_| ())
    }

    /// Waits for what the process wrote right before its end, which has come. Its streams end with
    /// it, but for those that a process of its own holds: until `deadline`, at the longest.
    pub(super) fn wait(&self, deadline: Instant) {
        let so_far = self.seen.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        let within = deadline.saturating_duration_since(Instant::now());
        let waited = self.seen.ended.wait_timeout_while(so_far, within, |so_far| so_far.open > 0);
        drop(waited);
    }

    /// The last lines, where the terminal has not shown them.
    pub(super) fn unseen(&self) -> Vec<String> {
        let so_far = self.seen.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.last.iter().cloned().collect()
    }

    fn so_far(&self, change: impl FnOnce(&mut SoFar)) {
        change(&mut self.seen.so_far.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn copy(&self, from: impl Read, to: Stream) {
        let mut lines = BufReader::with_capacity(LINE_BYTES, from);
        let mut line = Vec::new();
        loop {
            line.clear();
            let limit = LINE_BYTES as u64;
            match lines.by_ref().take(limit).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => self.take(&mut line, to),
            }
        }
    }

    fn take(&self, line: &mut Vec<u8>, to: Stream) {
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // A disk that is full or a terminal that has gone must not hold up who writes.
        if let Some(file) = &self.file {
            let _ = file.as_ref().write_all(line);
        }
        let Some(prefix) = &self.prefix else {
            let line = String::from_utf8_lossy(line).trim_end().to_owned();
            return self.so_far(|so_far| {
                if so_far.last.len() == LAST_LINES {
                    so_far.last.pop_front();
                }
                so_far.last.push_back(line);
            });
        };
        line.splice(0..0, prefix.bytes());
        // In one piece, so that lines of others do not get between.
        let _ = match to {
            Stream::Out => io::stdout().lock().write_all(line),
            Stream::Error => io::stderr().lock().write_all(line),
        };
    }
}

/// Now, in UTC, as names of files have it.
fn stamp() -> String {
    let now = OffsetDateTime::now_utc();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = now.to_hms();
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_whole_and_the_last_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let to_file = Destination { is_console: false, is_file: true };
        let output = Output::new(to_file, "daprd", "web", folder.path()).unwrap();
        let long = "x".repeat(LINE_BYTES + 3);
        let text: String = (0..20).map(|n| format!("line {n}\n")).collect();
        output.copy(format!("{long}\n{text}no end").as_bytes(), Stream::Out);
        let path = output.path.clone().unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        assert_eq!(written, format!("{}\nxxx\n{text}no end\n", "x".repeat(LINE_BYTES)));
        assert_eq!(output.unseen().len(), LAST_LINES);
        assert_eq!(output.unseen().last().unwrap(), "no end");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("web_daprd_20") && name.ends_with(".log"), "{name}");
    }

    #[test]
    fn what_a_process_wrote_right_before_its_end_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = Destination { is_console: false, is_file: false };
        let output = Output::new(nowhere, "daprd", "web", folder.path()).unwrap();
        let (from, mut process) = io::pipe().unwrap();
        output.pass(from, Stream::Error).unwrap();
        // The process holds its end open: that is not waited for forever.
        output.wait(Instant::now() + Duration::from_millis(1));
        process.write_all(b"why it failed\n").unwrap();
        drop(process);
        output.wait(Instant::now() + Duration::from_secs(60));
        assert_eq!(output.unseen(), ["why it failed"]);
    }

    #[test]
    fn what_the_terminal_has_shown_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let to_console = Destination { is_console: true, is_file: false };
        let output = Output::new(to_console, "app", "web", folder.path()).unwrap();
        output.copy("hello\n".as_bytes(), Stream::Error);
        assert!(output.unseen().is_empty() && output.path.is_none());
    }
}
