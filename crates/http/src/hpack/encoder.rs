//! Field lines to header blocks.
//!
//! A line enters the table when it comes for the second time: values that are new each time
//! (request ids, dates, trace contexts) then never push out those that repeat. What must not be
//! guessed by probing the table (RFC 7541 section 7.1.3) never enters it.

use super::table::{DynamicTable, Name};
use super::{DEFAULT_TABLE_BYTES, LINE_OVERHEAD, hash, integer, static_table};

/// The sending half of a connection's compression state.
pub struct Encoder {
    table: DynamicTable,
    /// Finds a line of the table by its hash.
    by_hash: Slots,
    /// Hashes of lines seen lately that were not in the table; the next takes the oldest's place.
    seen: [u32; SEEN],
    oldest_seen: usize,
    /// The most this side uses, for any offer of the peer.
    own_limit: usize,
    /// The table index of each line of the last block, by position: heads of one connection are
    /// alike.
    last_block: Vec<Option<Indexed>>,
    /// Lines written of the block at hand.
    written: usize,
    /// A size update the next block must begin with: the smallest size since the last block.
    smallest_size: Option<usize>,
}

/// The line of an index.
#[derive(Clone, Copy)]
enum Indexed {
    /// Its index.
    Static(usize),
    /// Its serial number.
    Dynamic(u32),
}

/// As many lines of a block are remembered.
const REMEMBERED: usize = 64;

/// Enough for the lines of a few heads between two sightings of one line.
const SEEN: usize = 64;

/// Cookies shorter than this could be guessed (RFC 7541 section 7.1.3).
const SHORT_COOKIE: usize = 20;

impl Encoder {
    /// Uses at most `own_limit` bytes of table, 4,096 until the peer's SETTINGS change it.
    #[must_use]
    pub fn new(own_limit: usize) -> Self {
        let mut encoder = Self {
            table: DynamicTable::new(DEFAULT_TABLE_BYTES),
            by_hash: Slots::for_table_of(own_limit),
            seen: [0; SEEN],
            oldest_seen: 0,
            last_block: Vec::new(),
            written: 0,
            own_limit,
            smallest_size: None,
        };
        encoder.set_peer_limit(DEFAULT_TABLE_BYTES);
        encoder
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_peer_limit(&mut self, bytes: usize) {
        let size = bytes.min(self.own_limit);
        if size == self.table.max_size() {
            return;
        }
        while self.table.size() > size {
            self.evict_oldest();
        }
        self.table.set_max_size(size);
        self.smallest_size = Some(self.smallest_size.map_or(size, |least| least.min(size)));
    }

    /// Begins a block: size updates that are due come first.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.written = 0;
        let Some(smallest) = self.smallest_size.take() else { return };
        if smallest < self.table.max_size() {
            integer::encode(0x20, 5, smallest, out);
        }
        integer::encode(0x20, 5, self.table.max_size(), out);
    }

    /// Appends one field line; `name` is lower case. A `sensitive` one is marked as never to be
    /// indexed by any hop.
    pub fn field(&mut self, name: &[u8], value: &[u8], sensitive: bool, out: &mut Vec<u8>) {
        let place = self.written;
        self.written += 1;
        if !sensitive && let Some(index) = self.index_as_last(place, name, value) {
            return integer::encode(0x80, 7, index, out);
        }
        let line = self.look_up(name, value, sensitive, out);
        if let Some(known) = self.last_block.get_mut(place) {
            *known = line;
        } else if place < REMEMBERED {
            self.last_block.push(line);
        }
    }

    /// The index of the line at `place` of the last block, if this line equals it.
    fn index_as_last(&self, place: usize, name: &[u8], value: &[u8]) -> Option<usize> {
        let (line, index) = match (*self.last_block.get(place)?)? {
            Indexed::Static(index) => (static_table::entry(index)?, index),
            Indexed::Dynamic(serial) => {
                let at = self.table.index_of(serial);
                (self.table.get(at)?, static_table::LEN + 1 + at)
            }
        };
        (line == (name, value)).then_some(index)
    }

    /// Appends a line by what the tables hold; which of theirs it is now.
    fn look_up(
        &mut self,
        name: &[u8],
        value: &[u8],
        sensitive: bool,
        out: &mut Vec<u8>,
    ) -> Option<Indexed> {
        let name_hash = hash(0, name);
        let static_name = static_table::find_name(name, name_hash);
        if sensitive || must_not_be_indexed(name, value) {
            integer::encode(0x10, 4, static_name.unwrap_or(0), out);
            literal_rest(static_name, name, value, out);
            return None;
        }
        if let Some(index) = static_name.and_then(|first| static_table::find_value(first, value)) {
            integer::encode(0x80, 7, index, out);
            return Some(Indexed::Static(index));
        }
        let line_hash = hash(name_hash, value);
        if let Some(serial) = self.find(name, value, line_hash) {
            let index = static_table::LEN + 1 + self.table.index_of(serial);
            integer::encode(0x80, 7, index, out);
            return Some(Indexed::Dynamic(serial));
        }
        let enters = self.enters_table(name.len() + value.len() + LINE_OVERHEAD, line_hash);
        if enters {
            integer::encode(0x40, 6, static_name.unwrap_or(0), out);
            self.insert(name, value, line_hash);
        } else {
            integer::encode(0x00, 4, static_name.unwrap_or(0), out);
        }
        literal_rest(static_name, name, value, out);
        enters.then(|| Indexed::Dynamic(self.table.next_serial().wrapping_sub(1)))
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> &DynamicTable {
        &self.table
    }

    fn find(&self, name: &[u8], value: &[u8], line_hash: u32) -> Option<u32> {
        self.by_hash.find(line_hash, |serial| {
            self.table.hash_of(serial) == line_hash
                && self.table.get(self.table.index_of(serial)) == Some((name, value))
        })
    }

    /// Whether the line is worth a place: seen before, and not most of the table.
    fn enters_table(&mut self, size: usize, line_hash: u32) -> bool {
        let is_second = self.seen.contains(&line_hash);
        if !is_second {
            self.seen[self.oldest_seen] = line_hash;
            self.oldest_seen = (self.oldest_seen + 1) % SEEN;
        }
        is_second && size <= self.table.max_size() / 2
    }

    fn insert(&mut self, name: &[u8], value: &[u8], line_hash: u32) {
        let size = name.len() + value.len() + LINE_OVERHEAD;
        while !self.table.has_room_for(size) {
            self.evict_oldest();
        }
        self.by_hash.insert(line_hash, self.table.next_serial());
        self.table.insert(Name::Bytes(name), value, line_hash);
    }

    fn evict_oldest(&mut self) {
        if let Some((serial, line_hash)) = self.table.oldest() {
            self.by_hash.remove(line_hash, serial, |other| self.table.hash_of(other));
            self.table.evict_oldest();
        }
    }
}

/// Credentials and short cookies.
fn must_not_be_indexed(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"cookie" => value.len() < SHORT_COOKIE,
        b"authorization" | b"proxy-authorization" | b"set-cookie" => true,
        _ => false,
    }
}

/// What follows the first integer of a literal: the name unless it is indexed, and the value.
fn literal_rest(static_name: Option<usize>, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    if static_name.is_none() {
        string(name, out);
    }
    string(value, out);
}

/// A string literal as it is. What repeats goes by its index; of the rest Huffman's code would save
/// a quarter of the bytes and cost coding here and decoding there with every request.
fn string(plain: &[u8], out: &mut Vec<u8>) {
    integer::encode(0x00, 7, plain.len(), out);
    out.extend_from_slice(plain);
}

/// Open addressing from a line's hash to its serial number, at most half full.
struct Slots {
    /// Serial number plus one; 0 is free.
    slots: Vec<u64>,
}

impl Slots {
    fn for_table_of(bytes: usize) -> Self {
        let most_lines = bytes / LINE_OVERHEAD;
        Self { slots: vec![0; (2 * most_lines).next_power_of_two().max(2)] }
    }

    fn find(&self, line_hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(line_hash);
        while let Some(serial) = self.serial(at) {
            if is_it(serial) {
                return Some(serial);
            }
            at = self.after(at);
        }
        None
    }

    fn insert(&mut self, line_hash: u32, serial: u32) {
        let mut at = self.home(line_hash);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = u64::from(serial) + 1;
    }

    /// Frees the slot of `serial` and moves those behind it up, so that no search is cut short.
    fn remove(&mut self, line_hash: u32, serial: u32, hash_of: impl Fn(u32) -> u32) {
        let mut hole = self.home(line_hash);
        while let Some(found) = self.serial(hole)
            && found != serial
        {
            hole = self.after(hole);
        }
        let mut at = self.after(hole);
        while let Some(other) = self.serial(at) {
            let home = self.home(hash_of(other));
            if self.distance(home, at) >= self.distance(hole, at) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.slots[hole] = 0;
    }

    fn serial(&self, at: usize) -> Option<u32> {
        self.slots[at].checked_sub(1).map(|serial| serial.try_into().expect("stored from a u32"))
    }

    fn home(&self, line_hash: u32) -> usize {
        (line_hash >> 6) as usize & (self.slots.len() - 1)
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}
