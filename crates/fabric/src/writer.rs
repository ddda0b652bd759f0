//! Writes changes into the table in batches, through all errors of the kernel. This part of
//! programming is common to a real table and a test's; `programmer` runs it on a thread.
//!
//! A write that the kernel refuses for a time is tried again from where it stopped. A neighbour for
//! which the table has no room waits, in memory of bounded size, until removals make room. Beyond
//! that bound it is left out, and the group has to be listed again once there is room.

use std::collections::BTreeMap;
use std::io;

use crate::batch::Stopped;
use crate::layout::{Address, Neighbour};
use crate::table::{BATCH, Table};

/// How many neighbours may wait for room; 60 bytes each.
pub const MAX_WAITING: usize = 16_384;

/// Changes of addresses, each of which is in it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub keys: Vec<Address>,
    /// Beside each of `keys`.
    pub values: Vec<Neighbour>,
    pub removed: Vec<Address>,
}

impl Changes {
    pub fn put(&mut self, key: Address, value: Neighbour) {
        self.keys.push(key);
        self.values.push(value);
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len() + self.removed.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why the table cannot be written for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The kernel is at work on the same place (EBUSY, EAGAIN, EINTR): over in a moment.
    Busy,
    /// The kernel has no memory (ENOMEM).
    Memory,
    /// This process may not write the table (EPERM, EACCES).
    Privilege,
    /// Another error of the kernel, by its number.
    Kernel(i32),
}

impl Trouble {
    /// What it is, and what to do about it, for the log and `tollway fabric status`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Busy => "the kernel is busy with the table; it is tried again".to_owned(),
            Self::Memory => {
                "the kernel has no memory for the table; give the machine, or this service's \
                 control group, more"
                    .to_owned()
            }
            Self::Privilege => {
                "this process may not write the table; run it as root, or with the capability \
                 CAP_BPF"
                    .to_owned()
            }
            Self::Kernel(number) => {
                let error = io::Error::from_raw_os_error(number);
                format!("the kernel refuses to write the table: {error}; it is tried again")
            }
        }
    }

    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EAGAIN | libc::EINTR) => Self::Busy,
            Some(libc::ENOMEM) => Self::Memory,
            Some(libc::EPERM | libc::EACCES) => Self::Privilege,
            other => Self::Kernel(other.unwrap_or_default()),
        }
    }
}

/// What to do while there is trouble: wait, and go on or give up.
pub trait Patience {
    /// Waits; `false` gives up. `attempt` counts from 1 and restarts with progress.
    fn wait(&mut self, trouble: Trouble, attempt: u32) -> bool;

    /// The table is written again.
    fn over(&mut self);
}

/// The writer was stopped before everything was written.
#[derive(Debug, PartialEq, Eq)]
pub struct GaveUp;

/// What came of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Those of the removed that were there.
    pub removed: u64,
    /// Entries that were not in the table as they are, where they were compared.
    pub different: u64,
}

/// A table, and what could not be put into it yet.
#[derive(Debug)]
pub struct Writer<T> {
    table: T,
    round: u32,
    waiting: BTreeMap<Address, Neighbour>,
    left_out: bool,
}

impl<T: Table> Writer<T> {
    pub fn new(table: T) -> Self {
        Self { table, round: 0, waiting: BTreeMap::new(), left_out: false }
    }

    #[must_use]
    pub fn table(&self) -> &T {
        &self.table
    }

    /// How many neighbours wait for room.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether neighbours were left out that do not even wait for room.
    #[must_use]
    pub fn has_left_out(&self) -> bool {
        self.left_out
    }

    /// A listing begins: what is written from now on belongs to `round`.
    pub fn begin_round(&mut self, round: u32) {
        self.round = round;
        self.left_out = false;
    }

    #[must_use]
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Carries out all of `changes`, removals first.
    pub fn write(
        &mut self,
        changes: &mut Changes,
        patience: &mut dyn Patience,
    ) -> Result<Written, GaveUp> {
        changes.values.iter_mut().for_each(|value| value.round = self.round);
        let removed = self.remove(&changes.removed, patience)?;
        if !self.waiting.is_empty() {
            self.forget_waiting(&changes.keys);
            if removed > 0 {
                self.retry_waiting(removed, patience)?;
            }
        }
        self.put(&changes.keys, &changes.values, patience)?;
        Ok(Written { removed: removed as u64, different: 0 })
    }

    /// Like [`Self::write`]; returns how many of the entries differed from the table.
    pub fn compare_and_write(
        &mut self,
        changes: &mut Changes,
        patience: &mut dyn Patience,
    ) -> Result<Written, GaveUp> {
        let mut different = 0;
        for (key, value) in changes.keys.iter().zip(&changes.values) {
            let found = self.retry(patience, |table| table.look_up(key))?;
            different += u64::from(!found.is_some_and(|found| found.has_content_of(value)));
        }
        Ok(Written { different, ..self.write(changes, patience)? })
    }

    /// How many entries the table has.
    pub fn count(&mut self, patience: &mut dyn Patience) -> Result<u64, GaveUp> {
        self.retry(patience, |table| {
            let mut entries = 0;
            table.visit(&mut |_, _| entries += 1).map(|()| entries)
        })
    }

    /// Removes entries of earlier rounds that this round does not have; returns how many.
    pub fn sweep(&mut self, patience: &mut dyn Patience) -> Result<u64, GaveUp> {
        let round = self.round;
        let mut swept = 0;
        // Some thousand at a time, so that what is to go need not be held whole.
        loop {
            let mut stale = Vec::new();
            self.retry(patience, |table| {
                stale.clear();
                table.visit(&mut |key, value| {
                    if value.round != round && stale.len() < MAX_WAITING {
                        stale.push(*key);
                    }
                })
            })?;
            if stale.is_empty() {
                return Ok(swept);
            }
            swept += self.remove(&stale, patience)? as u64;
            self.retry_waiting(stale.len(), patience)?;
        }
    }

    /// Retries `room` of the neighbours that wait for room.
    pub fn retry_waiting(
        &mut self,
        room: usize,
        patience: &mut dyn Patience,
    ) -> Result<(), GaveUp> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut next = Changes::default();
        for _ in 0..room {
            let Some((key, mut value)) = self.waiting.pop_first() else { break };
            value.round = self.round;
            next.put(key, value);
        }
        self.put(&next.keys, &next.values, patience)
    }

    fn put(
        &mut self,
        keys: &[Address],
        values: &[Neighbour],
        patience: &mut dyn Patience,
    ) -> Result<(), GaveUp> {
        let (mut at, mut attempt) = (0, 0);
        while at < keys.len() {
            let end = keys.len().min(at + BATCH);
            let stopped = match self.table.update(&keys[at..end], &values[at..end]) {
                Ok(()) => Stopped { done: end - at, source: io::Error::from_raw_os_error(0) },
                Err(stopped) => stopped,
            };
            at += stopped.done;
            if at == end {
                attempt = over_after(attempt, patience);
                continue;
            }
            if stopped.source.raw_os_error() == Some(libc::E2BIG) {
                self.keep_waiting(keys[at], values[at]);
                at += 1;
                continue;
            }
            attempt = if stopped.done > 0 { 1 } else { attempt + 1 };
            if !patience.wait(Trouble::of(&stopped.source), attempt) {
                return Err(GaveUp);
            }
        }
        Ok(())
    }

    /// Returns how many were there.
    fn remove(&mut self, keys: &[Address], patience: &mut dyn Patience) -> Result<usize, GaveUp> {
        self.forget_waiting(keys);
        let (mut at, mut attempt, mut gone) = (0, 0, 0);
        while at < keys.len() {
            let end = keys.len().min(at + BATCH);
            let Err(stopped) = self.table.delete(&keys[at..end]) else {
                gone += end - at;
                at = end;
                attempt = over_after(attempt, patience);
                continue;
            };
            at += stopped.done;
            gone += stopped.done;
            if stopped.source.raw_os_error() == Some(libc::ENOENT) {
                at += 1;
                continue;
            }
            attempt = if stopped.done > 0 { 1 } else { attempt + 1 };
            if !patience.wait(Trouble::of(&stopped.source), attempt) {
                return Err(GaveUp);
            }
        }
        Ok(gone)
    }

    /// What is written or removed now need not be placed later.
    fn forget_waiting(&mut self, keys: &[Address]) {
        for key in keys {
            if self.waiting.is_empty() {
                return;
            }
            self.waiting.remove(key);
        }
    }

    fn keep_waiting(&mut self, key: Address, value: Neighbour) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.insert(key, value);
        } else {
            self.left_out = true;
        }
    }

    fn retry<R>(
        &mut self,
        patience: &mut dyn Patience,
        mut work: impl FnMut(&T) -> io::Result<R>,
    ) -> Result<R, GaveUp> {
        let mut attempt = 0;
        loop {
            match work(&self.table) {
                Ok(done) => {
                    over_after(attempt, patience);
                    return Ok(done);
                }
                Err(error) => {
                    attempt += 1;
                    if !patience.wait(Trouble::of(&error), attempt) {
                        return Err(GaveUp);
                    }
                }
            }
        }
    }
}

/// Says that trouble is over if there was some.
fn over_after(attempt: u32, patience: &mut dyn Patience) -> u32 {
    if attempt > 0 {
        patience.over();
    }
    0
}

#[cfg(test)]
mod tests;
