//! Timing marks for measurements: one for each revision up to which everything was received.
//!
//! Times are of the clock that all processes of a machine share, so that they can be compared with
//! a writer's and the control plane's.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

/// Marks that may wait for their reader; further ones are dropped.
pub const WAITING_MARKS: usize = 16_384;

/// A writer of a file that has nothing to do for so long writes out what it holds.
const WRITTEN_OUT_AFTER: Duration = Duration::from_millis(10);

/// How far a revision had come when. Nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// Everything up to this revision was received.
    pub revision: u64,
    /// Whether it is the end of the whole group.
    pub is_listing: bool,
    /// Neighbours written and removed since the mark before.
    pub entries: u64,
    /// The agent requested the watch.
    pub asked_ns: u64,
    /// The control plane handed the last of it to the connection.
    pub sent_ns: u64,
    /// The agent had the last of it.
    pub received_ns: u64,
    /// The kernel had taken the last of it. Without entries, when that would have been.
    pub programmed_ns: u64,
    /// The last change was read back from the table; 0 if it was not.
    pub readable_ns: u64,
}

/// Where marks go.
pub type Marks = SyncSender<Mark>;

/// A channel for marks, of bounded length.
#[must_use]
pub fn marks() -> (Marks, Receiver<Mark>) {
    sync_channel(WAITING_MARKS)
}

/// Sends a mark, if there is room for it.
pub(crate) fn send(marks: &Marks, mark: Mark) {
    if let Err(TrySendError::Full(_)) = marks.try_send(mark) {
        tracing::warn!(revision = mark.revision, "a mark was left out; too many are waiting");
    }
}

/// Writes marks to a new file, a line of JSON each, until all senders are gone. Runs on a thread of
/// its own.
///
/// # Errors
/// When the file or the thread cannot be made.
pub fn write_marks(path: &Path, marks: Receiver<Mark>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let path = path.to_owned();
    thread::Builder::new().name("marks".into()).spawn(move || {
        if let Err(error) = write_all(&mut file, &marks) {
            tracing::warn!(path = %path.display(), %error, "marks cannot be written any more");
        }
    })?;
    Ok(())
}

fn write_all(file: &mut BufWriter<File>, marks: &Receiver<Mark>) -> io::Result<()> {
    loop {
        match marks.recv_timeout(WRITTEN_OUT_AFTER) {
            Ok(mark) => write_mark(file, &mark)?,
            Err(RecvTimeoutError::Timeout) => file.flush()?,
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
    }
}

fn write_mark(file: &mut impl io::Write, mark: &Mark) -> io::Result<()> {
    let Mark { revision, is_listing, entries, .. } = mark;
    let Mark { asked_ns, sent_ns, received_ns, programmed_ns, readable_ns, .. } = mark;
    writeln!(
        file,
        "{{\"revision\":{revision},\"is_listing\":{is_listing},\"entries\":{entries},\
         \"asked_ns\":{asked_ns},\"sent_ns\":{sent_ns},\"received_ns\":{received_ns},\
         \"programmed_ns\":{programmed_ns},\"readable_ns\":{readable_ns}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_line_of_json() {
        let mut line = Vec::new();
        let mark = Mark { revision: 7, entries: 2, readable_ns: 9, ..Mark::default() };
        write_mark(&mut line, &mark).unwrap();
        let expected = "{\"revision\":7,\"is_listing\":false,\"entries\":2,\"asked_ns\":0,\
                        \"sent_ns\":0,\"received_ns\":0,\"programmed_ns\":0,\"readable_ns\":9}\n";
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }

    #[test]
    fn marks_for_which_there_is_no_room_are_left_out() {
        let (sender, receiver) = marks();
        for revision in 0..WAITING_MARKS as u64 + 5 {
            send(&sender, Mark { revision, ..Mark::default() });
        }
        drop(sender);
        assert_eq!(receiver.iter().count(), WAITING_MARKS);
    }
}
