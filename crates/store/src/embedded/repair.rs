//! Reads a store that no process has open, makes a damaged one usable again, and has the revisions of
//! one that was put back from a copy go on above those that are lost.
//!
//! What can be saved was written before the damage: a transaction may build on any
//! earlier one, so none is taken that follows a hole.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::compact::{Compaction, Progress};
use super::leases::Deadlines;
use super::log::{Log, Whole};
use super::medium::{LogLocation, sync_directory};
use super::state::State;
use super::{Core, replay};
use crate::error::{OpenError, RepairError, SkipError};
use crate::model::Limits;

/// Groups of keys that are counted apart.
const GROUPS: usize = 64;
/// Damaged files that are left next to a store.
const KEPT_FILES: u32 = 100;

/// Revisions that a store skips once it was put back from a copy: more than it can have used since the
/// copy was made.
const SKIPPED_REVISIONS: u64 = 1 << 40;

/// What is in a store's file.
#[derive(Debug)]
pub struct Inspection {
    pub path: PathBuf,
    pub file_bytes: u64,
    /// Of the last transaction that can be read.
    pub revision: u64,
    /// Keys by the first two parts of their names (`secret/token`), a bounded number of groups.
    pub keys: BTreeMap<String, usize>,
    /// Where reading had to end, if not at the end.
    pub damage: Option<Damage>,
}

/// A location that cannot be read, though something was acknowledged there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub offset: u64,
    pub what: &'static str,
    /// Bytes from there on that are not known to be empty.
    pub bytes_after: u64,
}

/// What a repair did.
#[derive(Debug)]
pub struct Repaired {
    /// What the store holds now.
    pub remaining: Inspection,
    /// Where the damaged file stays.
    pub damaged_file: PathBuf,
}

/// Reads a store that no process has open. Changes nothing.
///
/// # Errors
/// [`OpenError`]; damage is no error here, but part of the answer.
pub fn inspect(path: &Path) -> Result<Inspection, OpenError> {
    read(path).map(|(_, inspection)| inspection)
}

/// Reads one entry of a store that no process has open; the last value before any damage. Changes
/// nothing.
///
/// # Errors
/// [`OpenError`].
pub fn inspect_entry(path: &Path, key: &[u8]) -> Result<Option<Bytes>, OpenError> {
    let (state, _) = read(path)?;
    Ok(state.row(key).map(|row| Bytes::copy_from_slice(row.value())))
}

/// Gives the store a new file with everything that was written before the damage. The damaged
/// file stays next to it. Revisions go on above all that may have been used, so that no reader that
/// saw what is lost takes the new for the old.
///
/// # Errors
/// [`RepairError`]; the store is then as it was.
pub fn repair(path: &Path) -> Result<Repaired, RepairError> {
    let (mut state, found) = read(path)?;
    let Some(damage) = &found.damage else {
        return Err(RepairError::NotDamaged { path: path.to_owned() });
    };
    // Each lost transaction, and each lost lease, had a byte at least.
    state.revision = state.revision.saturating_add(damage.bytes_after);
    state.next_lease = state.next_lease.saturating_add(damage.bytes_after);
    let revision = state.revision;
    let failed = |source| RepairError::Write { path: path.to_owned(), source };
    let damaged_file = keep_copy(path).map_err(failed)?;
    rewrite(path, state).map_err(failed)?;
    let remaining = Inspection { revision, damage: None, ..found };
    Ok(Repaired { remaining, damaged_file })
}

/// Has the revisions of a store that was put back from a copy go on above all that may have been used
/// since the copy was made, so that no reader that saw what is lost takes the new for the old. No process
/// may have the store open. Returns the revision from which they go on.
///
/// # Errors
/// [`SkipError`]; the store is then as it was.
pub fn skip_lost_revisions(path: &Path) -> Result<u64, SkipError> {
    let (mut state, found) = read(path)?;
    if let Some(Damage { offset, what, .. }) = found.damage {
        return Err(OpenError::Corrupt { path: path.to_owned(), offset, what }.into());
    }
    state.revision = state.revision.saturating_add(SKIPPED_REVISIONS);
    state.next_lease = state.next_lease.saturating_add(SKIPPED_REVISIONS);
    let revision = state.revision;
    rewrite(path, state).map_err(|source| SkipError::Write { path: path.to_owned(), source })?;
    Ok(revision)
}

fn read(path: &Path) -> Result<(State, Inspection), OpenError> {
    let mut state = State::new(&Limits::default());
    let Whole { file_bytes, damage } =
        Log::read(path, |item, frame_bytes| replay(&mut state, item, frame_bytes))?;
    let inspection = Inspection {
        path: path.to_owned(),
        file_bytes,
        revision: state.revision,
        keys: groups(&state),
        damage,
    };
    Ok((state, inspection))
}

fn groups(state: &State) -> BTreeMap<String, usize> {
    let mut groups = BTreeMap::new();
    for row in state.rows_after(None) {
        let parts: Vec<&[u8]> = row.key().splitn(3, |byte| *byte == b'/').take(2).collect();
        let name = String::from_utf8_lossy(&parts.join(&b'/')).into_owned();
        let is_full = groups.len() >= GROUPS && !groups.contains_key(&name);
        *groups.entry(if is_full { "…".to_owned() } else { name }).or_default() += 1;
    }
    groups
}

/// A second name for the file: the first is then free to be replaced in one step.
fn keep_copy(path: &Path) -> io::Result<PathBuf> {
    for number in 1..=KEPT_FILES {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".damaged-{number}"));
        let name = PathBuf::from(name);
        match fs::hard_link(path, &name) {
            Ok(()) => {
                sync_directory(path)?;
                return Ok(name);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{KEPT_FILES} damaged files lie beside it; remove some")))
}

/// Writes the state as compaction does, to a file that then takes the store's name.
fn rewrite(path: &Path, state: State) -> io::Result<()> {
    let core = Core::new(Limits::default(), state, Arc::new(Deadlines::default()), 0);
    let mut compaction = Compaction::start(&LogLocation::File(path.to_owned()), &core)?;
    loop {
        match compaction.step(&core) {
            Ok(Progress::More) => {}
            Ok(Progress::Copied) => return compaction.take_the_name()?.name_durable,
            Err(error) => {
                compaction.abandon();
                return Err(error);
            }
        }
    }
}
