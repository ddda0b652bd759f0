//! Where the bytes of a log lie: in a file, or in etcd ([`crate::etcd::parts`]).
//!
//! In a file space is written as zeros ahead of use, so that making a frame durable changes no file
//! size (measured: a tenth of the time).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::HEADER_BYTES;
use super::log::length;
use crate::error::OpenError;
use crate::etcd::WriteFault;
use crate::etcd::parts::{EtcdLocation, Parts};

/// Least and most zeros written ahead at once; in between, a quarter of the file.
const AHEAD_BYTES: (u64, u64) = (256 << 10, 8 << 20);
/// Values may be secrets: what is made is for this user alone, also where the directory is not.
const MODE: u32 = 0o600;
/// Attempts to lock a file that is just being replaced by its compacted self.
const LOCK_ATTEMPTS: u32 = 16;

/// Where the log of a store is.
#[derive(Clone, Debug)]
pub(super) enum LogLocation {
    File(PathBuf),
    Etcd(Arc<EtcdLocation>),
}

impl LogLocation {
    /// What it is called in messages.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Etcd(location) => location.url().into(),
        }
    }

    /// That it cannot be opened.
    pub(super) fn failed(&self, source: io::Error) -> OpenError {
        match self {
            Self::File(path) => OpenError::Io { path: path.clone(), source },
            Self::Etcd(location) => OpenError::Etcd { url: location.url(), source },
        }
    }
}

/// A location that is written.
#[derive(Debug)]
pub(super) enum Medium {
    File {
        file: File,
        /// Up to where zeros are written.
        ahead: u64,
    },
    Etcd(Parts),
}

impl Medium {
    pub(super) fn file(file: File, end: u64) -> Self {
        Self::File { file, ahead: end }
    }

    /// A new medium beside that of a store, locked. Replaces one that an earlier process left.
    pub(super) fn compacted(location: &LogLocation) -> io::Result<Self> {
        match location {
            LogLocation::File(path) => Ok(Self::file(create(&compaction_path(path))?, 0)),
            LogLocation::Etcd(location) => Ok(Self::Etcd(Parts::begin(location)?)),
        }
    }

    /// Reserves `bytes` after `end`. On an error nothing has changed.
    pub(super) fn reserve(&mut self, end: u64, bytes: usize) -> io::Result<()> {
        let needed = end + length(bytes);
        match self {
            Self::File { file, ahead } if needed > *ahead => {
                let more = (end / 4).clamp(AHEAD_BYTES.0, AHEAD_BYTES.1);
                // On a disk that is nearly full what is needed may fit where more does not.
                write_ahead(file, ahead, needed + more)
                    .or_else(|_| write_ahead(file, ahead, needed))
            }
            // etcd reports when it is full.
            Self::File { .. } | Self::Etcd(_) => Ok(()),
        }
    }

    /// Writes `bytes` at `end`, where the last ones ended, without making them durable.
    pub(super) fn write(&mut self, end: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File { file, ahead } => {
                file.write_all_at(bytes, end)?;
                // Zeros never overwrite a frame, with or without reserved space.
                *ahead = (*ahead).max(end + length(bytes.len()));
            }
            Self::Etcd(parts) => parts.append(bytes),
        }
        Ok(())
    }

    /// Makes everything that was written durable.
    pub(super) fn sync(&mut self) -> Result<(), WriteFault> {
        match self {
            Self::File { file, .. } => file.sync_data().map_err(WriteFault::Broken),
            Self::Etcd(parts) => parts.sync(),
        }
    }

    /// Gives it the name of the store; the inner error: that the name may not be durable.
    pub(super) fn take_the_name(&mut self, location: &LogLocation) -> io::Result<io::Result<()>> {
        match (self, location) {
            (Self::File { .. }, LogLocation::File(path)) => {
                std::fs::rename(compaction_path(path), path)?;
                Ok(sync_directory(path))
            }
            (Self::Etcd(parts), _) => {
                parts.take_the_name().map_err(WriteFault::into_error)?;
                Ok(Ok(()))
            }
            (Self::File { .. }, LogLocation::Etcd(_)) => unreachable!("each is of its location"),
        }
    }

    /// Removes what has not taken the name.
    pub(super) fn abandon(self, location: &LogLocation) {
        match (self, location) {
            (Self::Etcd(parts), _) => parts.abandon(),
            // What stays behind is removed when the store opens.
            (Self::File { .. }, LogLocation::File(path)) => {
                let _ = std::fs::remove_file(compaction_path(path));
            }
            (Self::File { .. }, LogLocation::Etcd(_)) => {}
        }
    }
}

/// Writes zeros up to `target`.
fn write_ahead(file: &File, ahead: &mut u64, target: u64) -> io::Result<()> {
    if let Err(error) = write_zeros(file, *ahead, target).and_then(|()| file.sync_all()) {
        // Whatever part was written reads as zeros: it stays harmless if this fails too.
        let _ = file.set_len(*ahead);
        return Err(error);
    }
    *ahead = target;
    Ok(())
}

fn write_zeros(file: &File, mut at: u64, target: u64) -> io::Result<()> {
    let zeros = [0_u8; 64 << 10];
    while at < target {
        let count = usize::try_from(target - at).map_or(zeros.len(), |c| c.min(zeros.len()));
        file.write_all_at(&zeros[..count], at)?;
        at += length(count);
    }
    Ok(())
}

/// Cuts off what follows the last whole frame, so that a torn one can never be taken for damage
/// later.
pub(super) fn forget_tail(file: &File, end: u64, length: u64) -> io::Result<()> {
    if length > end {
        file.set_len(end)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Makes a new file at `path`, locked, replacing what is there.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::Error(error) => error,
        TryLockError::WouldBlock => io::ErrorKind::ResourceBusy.into(),
    })?;
    Ok(file)
}

/// Whether a file has no content: a crash can leave its name, or the space for its header.
pub(super) fn is_blank(file: &File, length: u64) -> io::Result<bool> {
    let mut header = [0; HEADER_BYTES];
    let Some(header) = usize::try_from(length).ok().and_then(|length| header.get_mut(..length))
    else {
        return Ok(false);
    };
    file.read_exact_at(header, 0)?;
    Ok(header.iter().all(|byte| *byte == 0))
}

/// Makes a file's name durable.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Where compaction writes before it takes the store's name.
pub(super) fn compaction_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".compacting");
    name.into()
}

/// Opens and locks the file that has the name `path` while it is locked: the compaction of a store
/// that just closed may have replaced it in between.
pub(super) fn lock_current(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    for _ in 0..LOCK_ATTEMPTS {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let held = file.metadata().map_err(io)?;
        let same =
            |named: std::fs::Metadata| (named.dev(), named.ino()) == (held.dev(), held.ino());
        if std::fs::metadata(path).is_ok_and(same) {
            return Ok(file);
        }
    }
    Err(OpenError::Locked { path: path.to_owned() })
}
