//! The log: appends frames durably, reads them back, distinguishes a torn end from damage. Where its bytes
//! lie is the matter of [`super::medium`].
//!
//! A frame that was cut off by a crash was never acknowledged; it is dropped. A frame that is
//! unreadable while a later one is whole was acknowledged: that is damage, and the log is refused.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::format::{
    FRAME_HEAD_BYTES, FrameBuilder, FrameHead, HEADER_BYTES, HeaderFault, Item, Salt, decode_body,
    decode_header, encode_header,
};
use super::medium::{LogLocation, Medium, forget_tail, is_blank, lock_current, sync_directory};
use super::repair::Damage;
use crate::error::OpenError;
use crate::etcd::WriteFault;
use crate::etcd::parts::{EtcdLocation, Reader};

/// A log that only this process writes.
#[derive(Debug)]
pub(super) struct Log {
    medium: Medium,
    salt: Salt,
    /// Where the next frame goes.
    end: u64,
    next_sequence: u64,
}

/// What reading a log gave.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) log: Log,
    /// Bytes of a frame at the end that was cut off by a crash.
    pub(super) torn_bytes: u64,
    /// Whether it was made by this call.
    pub(super) created: bool,
}

/// A log as far as it is whole.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) file_bytes: u64,
    pub(super) damage: Option<Damage>,
}

impl Log {
    /// Opens or makes the log at `location` for this process alone, and hands every item to `visit` in
    /// order; `visit` returns `false` for one that cannot be.
    pub(super) fn open(
        location: &LogLocation,
        visit: impl FnMut(Item, usize) -> bool,
    ) -> Result<Opened, OpenError> {
        match location {
            LogLocation::File(path) => Self::open_file(location, path, visit),
            LogLocation::Etcd(etcd) => Self::open_etcd(location, etcd, visit),
        }
    }

    fn open_file(
        location: &LogLocation,
        path: &Path,
        mut visit: impl FnMut(Item, usize) -> bool,
    ) -> Result<Opened, OpenError> {
        let io = |source| location.failed(source);
        let file = lock_current(path)?;
        let length = file.metadata().map_err(io)?.len();
        if is_blank(&file, length).map_err(io)? {
            file.set_len(0).map_err(io)?;
            let log = Self::start(Medium::file(file, 0)).map_err(io)?;
            sync_directory(path).map_err(io)?;
            return Ok(Opened { log, torn_bytes: 0, created: true });
        }
        let mut replay = Replay::start(location.clone(), &file, length)?;
        replay.visit_all(&mut visit)?;
        let (salt, end, next_sequence) = (replay.salt, replay.at, replay.next_sequence);
        let torn_bytes = replay.torn_bytes()?;
        drop(replay);
        forget_tail(&file, end, length).map_err(io)?;
        let log = Self { medium: Medium::file(file, end), salt, end, next_sequence };
        Ok(Opened { log, torn_bytes, created: false })
    }

    fn open_etcd(
        location: &LogLocation,
        etcd: &Arc<EtcdLocation>,
        mut visit: impl FnMut(Item, usize) -> bool,
    ) -> Result<Opened, OpenError> {
        let io = |source| location.failed(source);
        let Some(number) = etcd.find().map_err(io)? else {
            let mut log = Self::create(location).map_err(io)?;
            log.take_the_name(location).and_then(|durable| durable).map_err(io)?;
            return Ok(Opened { log, torn_bytes: 0, created: true });
        };
        etcd.remove_others(number).map_err(io)?;
        let reader = Reader::new(etcd, number);
        let mut replay = Replay::start(location.clone(), reader, u64::MAX)?;
        replay.visit_all(&mut visit)?;
        let (salt, end, next_sequence) = (replay.salt, replay.at, replay.next_sequence);
        let torn_bytes = replay.torn_bytes()?;
        let parts = replay.reader.into_inner().into_parts(end).map_err(io)?;
        let log = Self { medium: Medium::Etcd(parts), salt, end, next_sequence };
        Ok(Opened { log, torn_bytes, created: false })
    }

    /// Reads the file at `path`, which no process may have open, as far as it is whole; changes
    /// nothing.
    pub(super) fn read(
        path: &Path,
        mut visit: impl FnMut(Item, usize) -> bool,
    ) -> Result<Whole, OpenError> {
        let io = |source| OpenError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(|error| {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            if is_missing { OpenError::Missing { path: path.to_owned() } } else { io(error) }
        })?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::Locked { path: path.to_owned() },
            TryLockError::Error(source) => io(source),
        })?;
        let file_bytes = file.metadata().map_err(io)?.len();
        if is_blank(&file, file_bytes).map_err(io)? {
            return Ok(Whole { file_bytes, damage: None });
        }
        let mut replay = Replay::start(LogLocation::File(path.to_owned()), &file, file_bytes)?;
        let damage = match replay.visit_all(&mut visit).and_then(|()| replay.torn_bytes()) {
            Ok(_) => None,
            Err(OpenError::Corrupt { offset, what, .. }) => {
                Some(Damage { offset, what, bytes_after: file_bytes.saturating_sub(offset) })
            }
            Err(other) => return Err(other),
        };
        Ok(Whole { file_bytes, damage })
    }

    /// Creates a new log beside that of `location`. Replaces one that an earlier process left.
    pub(super) fn create(location: &LogLocation) -> io::Result<Self> {
        Self::start(Medium::compacted(location)?)
    }

    /// Writes the header of an empty log.
    fn start(mut medium: Medium) -> io::Result<Self> {
        let salt = random_salt();
        medium.write(0, &encode_header(&salt))?;
        medium.sync().map_err(WriteFault::into_error)?;
        let end = u64::try_from(HEADER_BYTES).expect("a header is small");
        Ok(Self { medium, salt, end, next_sequence: 1 })
    }

    /// Bytes in use.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// Reserves space for `bytes` more. On an error nothing has changed.
    pub(super) fn reserve(&mut self, bytes: usize) -> io::Result<()> {
        self.medium.reserve(self.end, bytes)
    }

    /// Closes the frame and writes it, without making it durable. Returns its bytes.
    pub(super) fn append(&mut self, frame: FrameBuilder) -> io::Result<Vec<u8>> {
        let frame = frame.finish(&self.salt, self.next_sequence);
        self.medium.write(self.end, &frame)?;
        self.end += length(frame.len());
        self.next_sequence += 1;
        Ok(frame)
    }

    /// Makes everything appended durable.
    pub(super) fn sync(&mut self) -> Result<(), WriteFault> {
        self.medium.sync()
    }

    /// Writes the frame durably. Returns its bytes.
    pub(super) fn commit(&mut self, frame: FrameBuilder) -> Result<Vec<u8>, WriteFault> {
        self.reserve(frame.len()).map_err(WriteFault::NoRoom)?;
        let before = (self.end, self.next_sequence);
        let frame = self.append(frame).map_err(WriteFault::Broken)?;
        match self.sync() {
            Ok(()) => Ok(frame),
            Err(fault) => {
                // The next one is written in its place.
                (self.end, self.next_sequence) = before;
                Err(fault)
            }
        }
    }

    /// Makes the log durable and gives it the name of the store. If only the *name* is not durable,
    /// the log has the name and yet a crash may bring the old one back: the inner error reports it.
    pub(super) fn take_the_name(&mut self, location: &LogLocation) -> io::Result<io::Result<()>> {
        self.medium.sync().map_err(WriteFault::into_error)?;
        self.medium.take_the_name(location)
    }

    /// Removes a log that has not taken the name.
    pub(super) fn abandon(self, location: &LogLocation) {
        self.medium.abandon(location);
    }
}

/// Reads a log from its start.
struct Replay<R> {
    location: LogLocation,
    reader: io::BufReader<R>,
    salt: Salt,
    /// Behind the last whole frame.
    at: u64,
    length: u64,
    next_sequence: u64,
}

impl<R: Read + Seek> Replay<R> {
    /// `length`: of the file; where that is not known, more than it can be.
    fn start(location: LogLocation, log: R, length: u64) -> Result<Self, OpenError> {
        let mut reader = io::BufReader::with_capacity(1 << 20, log);
        let mut header = [0; HEADER_BYTES];
        match reader.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(OpenError::NotAStore { path: location.path() });
            }
            Err(source) => return Err(location.failed(source)),
        }
        let salt = decode_header(&header).map_err(|fault| match fault {
            HeaderFault::NotAStore => OpenError::NotAStore { path: location.path() },
            HeaderFault::Format(found) => {
                OpenError::Format { path: location.path(), found, supported: super::format::FORMAT }
            }
            HeaderFault::Damaged => OpenError::Corrupt {
                path: location.path(),
                offset: 0,
                what: "the header's checksum is wrong",
            },
        })?;
        let at = u64::try_from(HEADER_BYTES).expect("a header is small");
        Ok(Self { location, reader, salt, at, length, next_sequence: 1 })
    }

    /// Hands every item of the whole frames to `visit`, which returns `false` for one that cannot
    /// be.
    fn visit_all(&mut self, visit: &mut impl FnMut(Item, usize) -> bool) -> Result<(), OpenError> {
        loop {
            let offset = self.at;
            let Some((body, bytes)) = self.next_frame()? else { return Ok(()) };
            let location = &self.location;
            let malformed = || OpenError::Corrupt {
                path: location.path(),
                offset,
                what: "a record has no sense",
            };
            for item in decode_body(body).ok_or_else(malformed)? {
                if !visit(item, bytes) {
                    return Err(malformed());
                }
            }
        }
    }

    /// The next whole frame's body and the frame's size; `None` where they end.
    fn next_frame(&mut self) -> Result<Option<(Bytes, usize)>, OpenError> {
        let mut head = [0; FRAME_HEAD_BYTES];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let head = FrameHead::decode(&head).filter(|head| head.sequence == self.next_sequence);
        let Some(head) = head else { return Ok(None) };
        let total = FRAME_HEAD_BYTES + head.length;
        if self.at + length(total) > self.length {
            return Ok(None);
        }
        let mut body = vec![0; head.length];
        if !self.fill(&mut body)? || !head.fits(&self.salt, &body) {
            return Ok(None);
        }
        self.at += length(total);
        self.next_sequence += 1;
        Ok(Some((body.into(), total)))
    }

    /// How many bytes behind the last whole frame are not zeros.
    ///
    /// # Errors
    /// `Corrupt` when a later frame is whole: then an acknowledged one is missing.
    fn torn_bytes(&mut self) -> Result<u64, OpenError> {
        self.reader.seek(SeekFrom::Start(self.at)).map_err(|error| self.location.failed(error))?;
        let mut tail = Vec::new();
        self.reader.read_to_end(&mut tail).map_err(|error| self.location.failed(error))?;
        let used = tail.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        tail.truncate(used);
        for at in 0..used {
            let Some(head) = FrameHead::decode(&tail[at..]) else { continue };
            let body = tail.get(at + FRAME_HEAD_BYTES..at + FRAME_HEAD_BYTES + head.length);
            let later = head.sequence > self.next_sequence;
            if later && body.is_some_and(|body| head.fits(&self.salt, body)) {
                return Err(OpenError::Corrupt {
                    path: self.location.path(),
                    offset: self.at,
                    what: "a record is damaged, and whole ones follow",
                });
            }
        }
        Ok(length(used))
    }

    /// Fills `buffer`; `false` at the end of the file.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, OpenError> {
        match self.reader.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(source) => Err(self.location.failed(source)),
        }
    }
}

pub(super) fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("sizes in memory fit 64 bits")
}

/// 128 bits from the random state the standard library seeds from the system.
fn random_salt() -> Salt {
    let mut salt = [0; 16];
    for half in salt.chunks_exact_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(0_u8).to_le_bytes());
    }
    salt
}
