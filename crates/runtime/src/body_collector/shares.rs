//! Which caller holds how many bytes of bodies, and which gives way: bytes that do not fit take the place
//! of a body that is still read, of the caller with most bytes, if that has more than their own caller.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;

/// By which the reader of a body is notified that it gives way. Each body that is read has its own.
pub(super) type BodyMark = Notify;

/// The bytes that are held.
pub(super) struct Shares {
    left: usize,
    /// Most bytes of one caller.
    share: usize,
    callers: HashMap<Arc<str>, Held>,
}

/// What one caller holds.
#[derive(Default)]
struct Held {
    bytes: usize,
    /// The bodies that are still read, with their bytes.
    reading: Vec<(Arc<BodyMark>, usize)>,
}

impl Held {
    fn find(&self, body: &Arc<BodyMark>) -> Option<usize> {
        self.reading.iter().position(|(other, _)| Arc::ptr_eq(other, body))
    }

    /// Whether a body of it has bytes that can give way.
    fn is_reading(&self) -> bool {
        self.reading.iter().any(|(_, bytes)| *bytes > 0)
    }

    /// Removes its largest body that is still read. Returns its bytes.
    fn give_way(&mut self) -> usize {
        let largest = (0..self.reading.len()).max_by_key(|at| self.reading[*at].1);
        let Some(at) = largest else { return 0 };
        let (reader, bytes) = self.reading.swap_remove(at);
        reader.notify_one();
        self.bytes -= bytes;
        bytes
    }
}

impl Shares {
    pub(super) fn new(bytes: usize, share: usize) -> Self {
        Self { left: bytes, share, callers: HashMap::new() }
    }

    /// A body begins to be read.
    pub(super) fn begin(&mut self, caller: &Arc<str>) -> Arc<BodyMark> {
        let body = Arc::new(BodyMark::new());
        let held = self.callers.entry(Arc::clone(caller)).or_default();
        held.reading.push((Arc::clone(&body), 0));
        body
    }

    /// Counts bytes that have come of a body. Returns false if they may not be held, or if the body has
    /// given way.
    pub(super) fn take(&mut self, caller: &str, body: &Arc<BodyMark>, bytes: usize) -> bool {
        let Some(held) = self.callers.get(caller) else { return false };
        let Some(at) = held.find(body) else { return false };
        let wanted = held.bytes + bytes;
        if wanted > self.share || !self.make_room(bytes, wanted) {
            return false;
        }
        self.left -= bytes;
        if let Some(held) = self.callers.get_mut(caller) {
            held.bytes += bytes;
            held.reading[at].1 += bytes;
        }
        true
    }

    /// Has bodies give way, of callers with more than `most` bytes, until there is room.
    fn make_room(&mut self, bytes: usize, most: usize) -> bool {
        while self.left < bytes {
            let larger = |held: &&mut Held| held.bytes > most && held.is_reading();
            let largest = self.callers.values_mut().filter(larger).max_by_key(|held| held.bytes);
            let Some(largest) = largest else { return false };
            self.left += largest.give_way();
        }
        true
    }

    /// A body is whole: it gives way no more. Returns false if it has given way.
    pub(super) fn end(&mut self, caller: &str, body: &Arc<BodyMark>) -> bool {
        let Some(held) = self.callers.get_mut(caller) else { return false };
        held.find(body).map(|at| held.reading.swap_remove(at)).is_some()
    }

    /// A body of so many bytes is held no more; `reading` if it was still read.
    pub(super) fn give_back(
        &mut self,
        caller: &str,
        reading: Option<&Arc<BodyMark>>,
        bytes: usize,
    ) {
        let Some(held) = self.callers.get_mut(caller) else { return };
        let bytes = match reading {
            // What has given way is given back already.
            Some(body) => held.find(body).map_or(0, |at| held.reading.swap_remove(at).1),
            None => bytes,
        };
        held.bytes -= bytes;
        self.left += bytes;
        if held.bytes == 0 && held.reading.is_empty() {
            self.callers.remove(caller);
        }
    }
}

#[cfg(test)]
impl Shares {
    pub(super) fn held_by(&self, caller: &str) -> usize {
        self.callers.get(caller).map_or(0, |held| held.bytes)
    }

    pub(super) fn is_unused(&self) -> bool {
        self.callers.is_empty()
    }
}
