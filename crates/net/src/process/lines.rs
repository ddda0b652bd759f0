//! What processes write: line by line to the streams of this process, with a prefix, and to a file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Longest piece of a line that is passed on at once, in bytes; a longer line comes in pieces.
const LINE_BYTES: usize = 64 * 1024;
/// Lines that are remembered of a process, for when it fails.
const LAST_LINES: usize = 10;

/// The stream of this process on which lines appear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    Out,
    Error,
}

/// Where the lines of a process go.
#[derive(Clone, Debug)]
pub struct Lines {
    prefix: Option<String>,
    file: Option<Arc<File>>,
    seen: Arc<Seen>,
}

/// What has come of a process.
#[derive(Default, Debug)]
struct Seen {
    so_far: Mutex<SoFar>,
    /// Notified when a stream has ended.
    ended: Condvar,
}

#[derive(Default, Debug)]
struct SoFar {
    /// Streams that have not ended.
    open: usize,
    /// The last lines, where they do not appear.
    last: VecDeque<String>,
}

impl Lines {
    /// With `prefix` lines appear on a stream of this process, after it; without it they do not,
    /// and the last ones are remembered. With `file` all are appended there.
    #[must_use]
    pub fn new(prefix: Option<String>, file: Option<File>) -> Self {
        Self { prefix, file: file.map(Arc::new), seen: Arc::default() }
    }

    /// Passes a stream of the process on to its end, in a thread of its own.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn pass(&self, from: impl Read + Send + 'static, to: Stream) -> io::Result<()> {
        let lines = self.clone();
        self.so_far(|so_far| so_far.open += 1);
        let copy = move || {
            lines.copy(from, to);
            lines.so_far(|so_far| so_far.open -= 1);
            lines.seen.ended.notify_all();
        };
        std::thread::Builder::new().name("output".to_owned()).spawn(copy).map(|_| ())
    }

    /// Waits for what the process wrote right before its end, which has come. Its streams end with
    /// it, but for those that a process of its own holds: until `deadline`, at the longest.
    pub fn wait(&self, deadline: Instant) {
        let so_far = self.seen.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        let within = deadline.saturating_duration_since(Instant::now());
        let waited = self.seen.ended.wait_timeout_while(so_far, within, |so_far| so_far.open > 0);
        drop(waited);
    }

    /// The last lines, where they have not appeared.
    #[must_use]
    pub fn unseen(&self) -> Vec<String> {
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
        // A disk that is full or a terminal that has gone must not hold up the process.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_are_passed_on_whole_and_the_last_are_remembered() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = Lines::new(None, Some(file.reopen().unwrap()));
        let long = "x".repeat(LINE_BYTES + 3);
        let text: String = (0..20).map(|n| format!("line {n}\n")).collect();
        lines.copy(format!("{long}\n{text}no end").as_bytes(), Stream::Out);
        let written = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(written, format!("{}\nxxx\n{text}no end\n", "x".repeat(LINE_BYTES)));
        assert_eq!(lines.unseen().len(), LAST_LINES);
        assert_eq!(lines.unseen().last().unwrap(), "no end");
    }

    #[test]
    fn what_a_process_wrote_right_before_its_end_is_waited_for() {
        let lines = Lines::new(None, None);
        let (from, mut process) = io::pipe().unwrap();
        lines.pass(from, Stream::Error).unwrap();
        // The process holds its end open: that is not waited for forever.
        lines.wait(Instant::now() + Duration::from_millis(1));
        process.write_all(b"why it failed\n").unwrap();
        drop(process);
        lines.wait(Instant::now() + Duration::from_secs(60));
        assert_eq!(lines.unseen(), ["why it failed"]);
    }

    #[test]
    fn what_has_appeared_is_not_repeated() {
        let lines = Lines::new(Some("app: ".to_owned()), None);
        lines.copy("hello\n".as_bytes(), Stream::Error);
        assert!(lines.unseen().is_empty());
    }
}
