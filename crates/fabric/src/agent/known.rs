//! An agent's view of its group: the control plane's table, the revision, and which arriving
//! records are new.

use std::collections::HashMap;
use std::io;

use tollway_model::NeighbourRecord;
use tollway_model::neighbour::packed::{PackedError, records};

use crate::journal::{Entry, Journal, JournalError};
use crate::layout::{Address, Neighbour};
use crate::ledger::{Ledger, MAX_AHEAD};
use crate::programmer::{Found, Progress};
use crate::table::Table;
use crate::writer::Changes;

/// What is known, and how sure it is.
#[derive(Debug, Default)]
pub struct Known {
    /// The control plane's table; 0 before the first message.
    table: u64,
    ledger: Ledger,
    /// The kernel's table has held the whole group since then.
    is_whole: bool,
    /// How often revisions restarted; progress of the programming thread may be of an earlier
    /// epoch.
    epoch: u32,
    kept: Option<Entry>,
}

impl Known {
    /// Combines the kernel's table and the journal, and reports the table's state.
    pub(super) fn survey(table: &dyn Table, entry: Option<&Entry>) -> io::Result<(Self, Found)> {
        let through = entry.map_or(0, |entry| entry.revision);
        let (mut round, mut entries, mut ahead) = (0, 0, HashMap::new());
        table.visit(&mut |address, neighbour| {
            entries += 1;
            round = round.max(neighbour.round);
            if neighbour.revision > through && ahead.len() < MAX_AHEAD {
                ahead.insert(*address, neighbour.revision);
            }
        })?;
        // So many cannot be what came after the journal was written last.
        let is_plausible = ahead.len() < MAX_AHEAD;
        let known = match entry {
            Some(entry) if is_plausible => {
                let ledger = Ledger::new(through, ahead);
                let kept = Some(entry.clone());
                Self { table: entry.table, ledger, is_whole: true, epoch: 0, kept }
            }
            _ => Self::default(),
        };
        let found = Found { round, entries, through: known.from(), is_whole: known.is_whole };
        Ok((known, found))
    }

    /// The revision to watch from: 0 for the whole group.
    pub(super) fn from(&self) -> u64 {
        if self.is_whole { self.ledger.through() } else { 0 }
    }

    /// The control plane's table that [`Self::from`] is a revision of.
    pub(super) fn table(&self) -> u64 {
        if self.from() == 0 { 0 } else { self.table }
    }

    /// Writes the journal, if the kernel's table is whole up to another revision than the journal
    /// has.
    pub(super) fn keep(
        &mut self,
        journal: &Journal,
        progress: &Progress,
    ) -> Result<(), JournalError> {
        let entry = Entry { table: self.table, revision: progress.whole_through };
        let is_sure = self.is_whole && progress.epoch == self.epoch && progress.is_whole;
        if is_sure && self.kept.as_ref() != Some(&entry) {
            journal.write(&entry)?;
            self.kept = Some(entry);
        }
        Ok(())
    }

    /// As of which beginning of revisions orders are.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A new watch goes on where the last one was.
    pub(super) fn resume(&mut self) {
        self.ledger.break_off();
    }

    /// A listing of the whole group of the control plane's `table` follows. `is_unknown`: that
    /// table has not reached the known revision, so it was restored from a copy. Revisions of
    /// another or a restored table are not comparable to former ones.
    pub(super) fn begin_listing(&mut self, base: u64, table: u64, is_unknown: bool) {
        if is_unknown || table != self.table {
            self.table = table;
            self.ledger = Ledger::default();
            self.is_whole = false;
            self.epoch += 1;
            self.kept = None;
        }
        self.ledger.begin_listing(base);
    }

    /// The whole group must be listed again, without evidence against the known state.
    pub(super) fn doubt(&mut self) {
        self.is_whole = false;
    }

    /// Everything up to `revision` was received; returns whether that ends a listing.
    pub(super) fn advance(&mut self, revision: u64) -> bool {
        let was_listing = self.ledger.is_listing();
        self.is_whole |= was_listing;
        self.ledger.advance(revision);
        was_listing
    }

    /// More is ahead of the watch than can be remembered.
    pub(super) fn is_full(&self) -> bool {
        self.ledger.is_full()
    }

    /// The records of a packed batch that have to be written; with it the watch has sent everything
    /// up to `mark`, unless that is 0.
    pub(super) fn take(&mut self, packed: &[u8], mark: u64) -> Result<Changes, PackedError> {
        self.sift(packed, |ledger, address, revision| {
            if revision <= mark {
                ledger.takes_with_mark(&address, revision)
            } else {
                ledger.takes(address, revision)
            }
        })
    }

    /// The records of the answer to a question, read at the store's revision `read_at`.
    pub(super) fn take_answer(
        &mut self,
        packed: &[u8],
        read_at: u64,
    ) -> Result<Changes, PackedError> {
        let is_full = self.is_full();
        self.sift(packed, |ledger, address, revision| {
            !is_full && ledger.takes_answer(address, revision, read_at)
        })
    }

    fn sift(
        &mut self,
        packed: &[u8],
        mut takes: impl FnMut(&mut Ledger, Address, u64) -> bool,
    ) -> Result<Changes, PackedError> {
        let mut taken: Vec<(Address, u64, Option<Neighbour>)> = Vec::new();
        for (index, record) in records(packed).enumerate() {
            let record = record?.read(index)?;
            let address = address_of(&record);
            if takes(&mut self.ledger, address, record.revision) {
                taken.push((address, record.revision, neighbour_of(&record)));
            }
        }
        // A batch may have several records of one address, of which the newest counts; a list is in
        // the order of addresses.
        if !taken.is_sorted_by(|(one, ..), (next, ..)| one < next) {
            taken.sort_by_key(|(address, revision, _)| (*address, std::cmp::Reverse(*revision)));
            taken.dedup_by_key(|(address, ..)| *address);
        }
        let mut changes = Changes::default();
        for (address, _, neighbour) in taken {
            match neighbour {
                Some(neighbour) => changes.put(address, neighbour),
                None => changes.removed.push(address),
            }
        }
        Ok(changes)
    }
}

fn address_of(record: &NeighbourRecord) -> Address {
    Address::new(record.key.vni().number(), record.key.ip())
}

fn neighbour_of(record: &NeighbourRecord) -> Option<Neighbour> {
    let location = record.location.as_ref()?;
    let (mac, host_mac) = (location.mac.octets(), location.host_mac.octets());
    Some(Neighbour::new(mac, location.host_ip(), host_mac, record.revision))
}
