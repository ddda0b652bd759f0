//! The thread that writes the table. Orders come over a bounded channel, so that a slow kernel
//! slows the network's reader; a value that can be watched has the progress.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tollway_net::monotonic_ns;

use crate::layout::Address;
use crate::marks::{self, Mark, Marks};
use crate::table::Table;
use crate::writer::{Changes, GaveUp, Patience, Trouble, Writer};

/// Orders that may wait: with a thousand changes each, 1 MB.
const QUEUE: usize = 16;
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Changes that are looked up one by one, so that entries are counted as they come.
const LOOKED_UP_AT_ONCE: usize = 64;
/// After many were written at once all entries are counted, at the earliest after so much for each.
const COUNT_EVERY_ENTRY: Duration = Duration::from_micros(60);
/// Attempts after which trouble is reported: some ends within a moment.
const TOLD_AFTER: u32 = 8;

/// What to do with the table.
#[derive(Debug)]
pub enum Order {
    /// The whole group follows, up to `EndListing`.
    BeginListing {
        /// Entries are compared with what is there, and those that differ counted.
        compare: bool,
        /// How often revisions restarted; progress of an earlier epoch does not count.
        epoch: u32,
    },
    Write(Changes),
    /// Everything up to this revision has been ordered before.
    Through(u64),
    /// Entries are to be counted if that is due.
    Count,
    /// To be completed and sent once everything ordered before is done.
    Mark(Mark, Marks),
    /// The whole group has been ordered, as of this revision or a newer one: what it did not
    /// bring is removed.
    EndListing(u64),
}

/// What has come about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Everything up to this revision is in the table, except what waits for room.
    pub through: u64,
    /// The last revision at which nothing waited for room: a restart continues from there.
    pub whole_through: u64,
    /// Whether the table has held the whole group at `whole_through`.
    pub is_whole: bool,
    /// How often revisions restarted, by the orders carried out.
    pub epoch: u32,
    /// Neighbours in the table; after many were written at once, a minute old at most for a million.
    pub entries: u64,
    /// Neighbours written and removed since the start, by order.
    pub written: u64,
    pub removed: u64,
    /// Entries that the table had otherwise, or too many, when it was compared.
    pub repaired: u64,
    /// How often the whole group was written.
    pub listings: u64,
    /// Neighbours that wait for room in the table.
    pub waiting: u64,
    /// Neighbours were left out for lack of room: the whole group must be listed again.
    pub has_left_out: bool,
    pub trouble: Option<Lasting>,
}

/// Trouble that has not passed by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lasting {
    pub trouble: Trouble,
    pub since: Instant,
    pub attempts: u32,
}

/// The state of a table before the first write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// The newest listing that it has entries of.
    pub round: u32,
    pub entries: u64,
    /// What is known to be in it.
    pub through: u64,
    pub is_whole: bool,
}

/// The thread and its channel. When this is dropped, the thread ends after the current order, or
/// earlier if that meets trouble.
#[derive(Debug)]
pub struct Programmer {
    orders: Option<mpsc::Sender<Order>>,
    progress: watch::Receiver<Progress>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The thread has ended: it does so only with the process, or in a panic.
#[derive(Debug, thiserror::Error)]
#[error("the thread that writes the table of neighbours has ended; start the agent again")]
pub struct Ended;

impl Programmer {
    /// Starts the thread, on a table as it was `found`.
    pub fn start(table: impl Table + 'static, found: Found) -> io::Result<Self> {
        let (orders, queue) = mpsc::channel(QUEUE);
        let begin = Progress {
            through: found.through,
            whole_through: found.through,
            is_whole: found.is_whole,
            entries: found.entries,
            ..Progress::default()
        };
        let (told, progress) = watch::channel(begin);
        let stop = Arc::new(AtomicBool::new(false));
        let mut writer = Writer::new(table);
        writer.begin_round(found.round);
        let patience = Backoff { told, stop: Arc::clone(&stop), since: None };
        let worker =
            Worker { writer, patience, listing: None, uncounted: None, last: None, unmarked: 0 };
        let thread =
            thread::Builder::new().name("neighbours".into()).spawn(move || worker.run(queue))?;
        Ok(Self { orders: Some(orders), progress, stop, thread: Some(thread) })
    }

    /// Sends an order, once there is room for it.
    ///
    /// # Errors
    /// [`Ended`] if the thread has ended.
    pub async fn order(&self, order: Order) -> Result<(), Ended> {
        let orders = self.orders.as_ref().ok_or(Ended)?;
        orders.send(order).await.map_err(|_| Ended)
    }

    /// Like [`Self::order`], for a thread that may block.
    ///
    /// # Errors
    /// [`Ended`] if the thread has ended.
    pub fn order_blocking(&self, order: Order) -> Result<(), Ended> {
        let orders = self.orders.as_ref().ok_or(Ended)?;
        orders.blocking_send(order).map_err(|_| Ended)
    }

    /// Has the entries counted when that is due; while the thread is busy it is left for later.
    pub fn count(&self) {
        if let Some(orders) = &self.orders {
            let _ = orders.try_send(Order::Count);
        }
    }

    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }
}

impl Drop for Programmer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // The panic message is on standard error.
            let _ = thread.join();
        }
    }
}

struct Worker<T> {
    writer: Writer<T>,
    patience: Backoff,
    /// While the whole group comes: whether it is compared.
    listing: Option<bool>,
    /// Since when the number of entries is not known; `None` when it is.
    uncounted: Option<Instant>,
    /// What was changed last.
    last: Option<Last>,
    /// Changes since the last mark.
    unmarked: u64,
}

/// A change that was carried out.
struct Last {
    address: Address,
    /// `None` when it was removed.
    revision: Option<u64>,
    at_ns: u64,
}

impl<T: Table> Worker<T> {
    fn run(mut self, mut queue: mpsc::Receiver<Order>) {
        while let Some(order) = queue.blocking_recv() {
            if self.patience.stop.load(Ordering::Relaxed) || self.carry_out(order).is_err() {
                return;
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<(), GaveUp> {
        match order {
            Order::BeginListing { compare, epoch } => {
                self.writer.begin_round(self.writer.round().wrapping_add(1));
                self.listing = Some(compare);
                self.patience.told.send_if_modified(|progress| {
                    let is_another = progress.epoch != epoch;
                    if is_another {
                        let (through, whole_through) = (0, 0);
                        *progress = Progress {
                            epoch,
                            through,
                            whole_through,
                            is_whole: false,
                            ..*progress
                        };
                    }
                    is_another
                });
                Ok(())
            }
            Order::Write(changes) => self.write(changes),
            Order::Through(revision) => {
                self.report(revision);
                Ok(())
            }
            Order::Count => self.count_if_due(),
            Order::Mark(mark, marks) => {
                marks::send(&marks, self.complete(mark));
                Ok(())
            }
            Order::EndListing(revision) => {
                let swept = self.writer.sweep(&mut self.patience)?;
                let compared = self.listing.take() == Some(true);
                self.count()?;
                self.patience.told.send_modify(|progress| {
                    progress.listings += 1;
                    progress.is_whole = true;
                    progress.removed += swept;
                    progress.repaired += if compared { swept } else { 0 };
                });
                self.report(revision);
                Ok(())
            }
        }
    }

    fn write(&mut self, mut changes: Changes) -> Result<(), GaveUp> {
        let (written, removed) = (changes.keys.len() as u64, changes.removed.len() as u64);
        let last = last_of(&changes);
        let fresh = self.fresh(&changes);
        let waited = self.writer.waiting() as u64;
        let patience = &mut self.patience;
        let done = match self.listing {
            Some(true) => self.writer.compare_and_write(&mut changes, patience)?,
            Some(false) | None => self.writer.write(&mut changes, patience)?,
        };
        self.last =
            last.map(|(address, revision)| Last { address, revision, at_ns: monotonic_ns() });
        self.unmarked += written + removed;
        let (waiting, has_left_out) = (self.writer.waiting() as u64, self.writer.has_left_out());
        self.patience.told.send_modify(|progress| {
            match fresh {
                Some(fresh) => {
                    let more = (progress.entries + fresh + waited).saturating_sub(waiting);
                    progress.entries = more.saturating_sub(done.removed);
                }
                None => progress.entries = progress.entries.saturating_sub(done.removed),
            }
            progress.written += written;
            progress.removed += removed;
            progress.repaired += done.different;
            progress.waiting = waiting;
            progress.has_left_out = has_left_out;
        });
        Ok(())
    }

    /// Adds the time at which the last change was carried out, and checks whether it can be read.
    fn complete(&mut self, mark: Mark) -> Mark {
        let entries = std::mem::take(&mut self.unmarked);
        let Some(last) = self.last.as_ref().filter(|_| entries > 0) else {
            let now_ns = monotonic_ns();
            return Mark { programmed_ns: now_ns, readable_ns: now_ns, ..mark };
        };
        let found = self.writer.table().look_up(&last.address);
        let found = found.map(|found| found.map(|neighbour| neighbour.revision));
        let is_there = found.is_ok_and(|found| found == last.revision);
        let readable_ns = if is_there { monotonic_ns() } else { 0 };
        Mark { entries, programmed_ns: last.at_ns, readable_ns, ..mark }
    }

    /// How many of a few are not in the table yet. Of many, and in a table that was full, that is
    /// counted later.
    fn fresh(&mut self, changes: &Changes) -> Option<u64> {
        let table = self.writer.table();
        let is_fresh = |key| Some(u64::from(table.look_up(key).ok()?.is_none()));
        let is_few = changes.keys.len() <= LOOKED_UP_AT_ONCE && self.listing.is_none();
        let fresh = is_few.then(|| changes.keys.iter().map(is_fresh).sum()).flatten();
        if fresh.is_none() && self.uncounted.is_none() {
            self.uncounted = Some(Instant::now());
        }
        fresh
    }

    /// The more there are the less often, so that it costs a two-hundredth of the thread's time.
    fn count_if_due(&mut self) -> Result<(), GaveUp> {
        let entries = self.patience.told.borrow().entries.max(1);
        let pause = COUNT_EVERY_ENTRY.saturating_mul(u32::try_from(entries).unwrap_or(u32::MAX));
        match self.uncounted {
            Some(since) if since.elapsed() >= pause => self.count(),
            Some(_) | None => Ok(()),
        }
    }

    fn count(&mut self) -> Result<(), GaveUp> {
        let entries = self.writer.count(&mut self.patience)?;
        self.uncounted = None;
        self.patience.told.send_modify(|progress| progress.entries = entries);
        Ok(())
    }

    fn report(&mut self, revision: u64) {
        let (waiting, has_left_out) = (self.writer.waiting() as u64, self.writer.has_left_out());
        self.patience.told.send_modify(|progress| {
            progress.through = revision;
            progress.waiting = waiting;
            progress.has_left_out = has_left_out;
            if waiting == 0 && !has_left_out {
                progress.whole_through = revision;
            }
        });
    }
}

/// The change that is carried out last, and the revision that it leaves.
fn last_of(changes: &Changes) -> Option<(Address, Option<u64>)> {
    match (changes.keys.last(), changes.values.last()) {
        (Some(address), Some(value)) => Some((*address, Some(value.revision))),
        _ => changes.removed.last().map(|address| (*address, None)),
    }
}

/// Waits longer each time, and reports trouble that lasts.
struct Backoff {
    told: watch::Sender<Progress>,
    stop: Arc<AtomicBool>,
    since: Option<Instant>,
}

impl Patience for Backoff {
    fn wait(&mut self, trouble: Trouble, attempt: u32) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        if attempt == TOLD_AFTER {
            tracing::warn!(trouble = trouble.text(), "the table of neighbours cannot be written");
        }
        if attempt >= TOLD_AFTER {
            let lasting = Lasting { trouble, since, attempts: attempt };
            self.told.send_modify(|progress| progress.trouble = Some(lasting));
        }
        let pause = SHORTEST_PAUSE.saturating_mul(1 << attempt.min(20));
        thread::sleep(pause.min(LONGEST_PAUSE));
        !self.stop.load(Ordering::Relaxed)
    }

    fn over(&mut self) {
        self.since = None;
        let was_told = self.told.send_if_modified(|progress| progress.trouble.take().is_some());
        if was_told {
            tracing::info!("the table of neighbours is written again");
        }
    }
}

#[cfg(test)]
mod tests;
