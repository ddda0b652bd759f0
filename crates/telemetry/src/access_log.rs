//! The access log's file: lines that come in batches, appended by a thread of its own, so that a
//! slow or full disk costs lines and nothing else.
//!
//! The file is opened again when it was moved or removed, so it can be rotated by renaming it. A
//! batch is written whole or not at all.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::handoff::Batches;
use crate::metrics::Counter;

/// Permissions of a file that is made: lines name callers and paths.
const MODE: u32 = 0o640;

/// Why the access log cannot be written.
#[derive(Debug, Error)]
pub enum AccessLogError {
    #[error("cannot open the access log {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot start the access log's thread")]
    Thread(#[source] io::Error),
}

/// Where lines go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogTarget {
    Stdout,
    File(PathBuf),
}

impl FromStr for LogTarget {
    type Err = std::convert::Infallible;

    /// `-` is standard output, everything else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "-" { Self::Stdout } else { Self::File(text.into()) })
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// What the log's thread counts.
#[derive(Default, Debug)]
pub struct LineMetrics {
    pub written: Counter,
    /// Could not be written.
    pub lost: Counter,
}

/// An open access log.
pub struct AccessLog {
    sink: Sink,
    metrics: Arc<LineMetrics>,
    fails: bool,
}

enum Sink {
    Stdout,
    File { path: PathBuf, file: File },
}

impl AccessLog {
    /// Opens the file, and makes it if it is not there.
    ///
    /// # Errors
    /// [`AccessLogError::Open`].
    pub fn open(target: &LogTarget, metrics: Arc<LineMetrics>) -> Result<Self, AccessLogError> {
        let sink = match target {
            LogTarget::Stdout => Sink::Stdout,
            LogTarget::File(path) => {
                let opened = open(path);
                let failed = |source| AccessLogError::Open { path: path.clone(), source };
                Sink::File { path: path.clone(), file: opened.map_err(failed)? }
            }
        };
        Ok(Self { sink, metrics, fails: false })
    }

    /// Writes a line for each value, made by `write_line` without its line feed, until every data
    /// thread has ended; what it returns then completes.
    ///
    /// # Errors
    /// [`AccessLogError::Thread`].
    pub fn start<T: Send + 'static>(
        mut self,
        mut batches: Batches<T>,
        write_line: impl Fn(&T, &mut Vec<u8>) + Send + 'static,
    ) -> Result<oneshot::Receiver<()>, AccessLogError> {
        let (done, finished) = oneshot::channel();
        let run = move || {
            let mut lines = Vec::new();
            while let Some(batch) = batches.blocking_recv() {
                lines.clear();
                for value in &batch {
                    write_line(value, &mut lines);
                    lines.push(b'\n');
                }
                self.write(&lines, batch.len() as u64);
            }
            // The receiver may be gone.
            let _ = done.send(());
        };
        let builder = std::thread::Builder::new().name("access-log".to_owned());
        builder.spawn(run).map_err(AccessLogError::Thread)?;
        Ok(finished)
    }

    fn write(&mut self, lines: &[u8], count: u64) {
        match self.sink.append(lines) {
            Ok(()) => {
                self.metrics.written.add(count);
                if std::mem::take(&mut self.fails) {
                    info!("the access log is written again");
                }
            }
            Err(error) => {
                self.metrics.lost.add(count);
                if !std::mem::replace(&mut self.fails, true) {
                    warn!(%error, "the access log cannot be written; requests go on");
                }
            }
        }
    }
}

impl Sink {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(lines)?;
                stdout.flush()
            }
            Self::File { path, file } => {
                if is_moved(path, file)? {
                    *file = open(path)?;
                }
                append_whole(file, lines)
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(MODE).open(path)
}

/// Whether the path names another file than the one that is open, or none.
fn is_moved(path: &Path, file: &File) -> io::Result<bool> {
    let open = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) != (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// A line that a full disk cut off would spoil the next one, so it is taken back.
fn append_whole(file: &mut File, lines: &[u8]) -> io::Result<()> {
    let before = file.metadata()?.len();
    let written = file.write_all(lines);
    if written.is_err() {
        // A pipe or a terminal cannot take anything back.
        let _ = file.set_len(before);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handoff::Handoff;

    fn log(path: &Path) -> (AccessLog, Arc<LineMetrics>) {
        let metrics = Arc::new(LineMetrics::default());
        let target = LogTarget::File(path.to_owned());
        (AccessLog::open(&target, Arc::clone(&metrics)).unwrap(), metrics)
    }

    #[test]
    fn lines_are_appended_in_order_and_the_end_waits_for_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::fs::write(&path, "before\n").unwrap();
        let (log, metrics) = log(&path);
        let (mut handoff, batches) = Handoff::new();
        let finished = log.start(batches, |text: &&str, line| line.extend(text.bytes())).unwrap();
        assert_eq!(handoff.push("one") + handoff.push("two") + handoff.flush(), 0);
        drop(handoff);
        finished.blocking_recv().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before\none\ntwo\n");
        assert_eq!(metrics.written.value(), 2);
    }

    #[test]
    fn a_file_that_was_moved_or_removed_is_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let (mut log, metrics) = log(&path);
        log.write(b"one\n", 1);
        let moved = directory.path().join("access.log.1");
        std::fs::rename(&path, &moved).unwrap();
        log.write(b"two\n", 1);
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        std::fs::remove_file(&path).unwrap();
        log.write(b"three\n", 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        assert_eq!((metrics.written.value(), metrics.lost.value()), (3, 0));
    }

    #[test]
    fn a_full_disk_costs_lines_and_leaves_no_half_ones() {
        let (mut log, metrics) = log(Path::new("/dev/full"));
        log.write(b"one\n", 1);
        log.write(b"two\n", 1);
        assert_eq!((metrics.written.value(), metrics.lost.value()), (0, 2));
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error_that_names_it() {
        let target = LogTarget::File("/no/such/directory/access.log".into());
        let error = AccessLog::open(&target, Arc::default()).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot open the access log /no/such/directory/access.log");
    }
}
