//! The dynamic table (RFC 7541 section 2.3.2): newest first, evicted oldest first.

use std::collections::VecDeque;

use super::LINE_OVERHEAD;

/// Lines in insertion order; their bytes lie in one buffer of at most twice the table's size, so
/// inserting neither allocates (once warm) nor moves more bytes than it inserts, on average.
pub(super) struct DynamicTable {
    lines: VecDeque<Line>,
    bytes: Vec<u8>,
    /// Position, since the table began, of the first byte in `bytes`.
    base: usize,
    /// Lines ever evicted: the serial number of the oldest line.
    evicted: u32,
    size: usize,
    max_size: usize,
}

#[derive(Clone, Copy)]
struct Line {
    /// Position of the name since the table began; the value follows it.
    start: usize,
    name_len: usize,
    value_len: usize,
    hash: u32,
}

impl Line {
    fn size(self) -> usize {
        self.name_len + self.value_len + LINE_OVERHEAD
    }
}

/// Where the name of a new line comes from.
#[derive(Clone, Copy)]
pub(super) enum Name<'a> {
    Bytes(&'a [u8]),
    /// The name of the line at this index of the table itself.
    Indexed(usize),
}

impl DynamicTable {
    pub(super) fn new(max_size: usize) -> Self {
        Self { lines: VecDeque::new(), bytes: Vec::new(), base: 0, evicted: 0, size: 0, max_size }
    }

    pub(super) fn max_size(&self) -> usize {
        self.max_size
    }

    /// Bytes in use, as RFC 7541 section 4.1 counts them.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The line at `index`, 0 being the newest.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let newest_at = self.lines.len().checked_sub(1)?;
        let line = self.lines[newest_at.checked_sub(index)?];
        let start = line.start - self.base;
        let (name, rest) = self.bytes[start..].split_at(line.name_len);
        Some((name, &rest[..line.value_len]))
    }

    /// The oldest line's serial number and hash.
    pub(super) fn oldest(&self) -> Option<(u32, u32)> {
        Some((self.evicted, self.lines.front()?.hash))
    }

    /// The serial number the next line will get.
    pub(super) fn next_serial(&self) -> u32 {
        self.evicted.wrapping_add(count(self.lines.len()))
    }

    /// The hash given with the line of this serial number.
    pub(super) fn hash_of(&self, serial: u32) -> u32 {
        self.lines[serial.wrapping_sub(self.evicted) as usize].hash
    }

    /// The index (0 = newest) of the line of this serial number.
    pub(super) fn index_of(&self, serial: u32) -> usize {
        self.next_serial().wrapping_sub(serial).wrapping_sub(1) as usize
    }

    /// Whether a line of this size fits without evicting others.
    pub(super) fn has_room_for(&self, size: usize) -> bool {
        self.size + size <= self.max_size
    }

    pub(super) fn evict_oldest(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.size -= line.size();
            self.evicted = self.evicted.wrapping_add(1);
        }
    }

    /// Changes the size allowed, evicting what no longer fits.
    pub(super) fn set_max_size(&mut self, max_size: usize) {
        self.max_size = max_size;
        while self.size > max_size {
            self.evict_oldest();
        }
    }

    /// Inserts a line, evicting others as needed; one larger than the table empties it and is not
    /// stored (RFC 7541 section 4.4). An `Indexed` name must exist.
    pub(super) fn insert(&mut self, name: Name<'_>, value: &[u8], hash: u32) {
        let name_len = match name {
            Name::Bytes(name) => name.len(),
            Name::Indexed(index) => self.get(index).map_or(0, |(name, _)| name.len()),
        };
        let size = name_len + value.len() + LINE_OVERHEAD;
        if size > self.max_size {
            while !self.lines.is_empty() {
                self.evict_oldest();
            }
            return;
        }
        self.make_contiguous_room(name_len + value.len());
        let start = self.base + self.bytes.len();
        match name {
            Name::Bytes(name) => self.bytes.extend_from_slice(name),
            Name::Indexed(index) => {
                let from = self.lines[self.lines.len() - 1 - index].start - self.base;
                self.bytes.extend_from_within(from..from + name_len);
            }
        }
        self.bytes.extend_from_slice(value);
        while !self.has_room_for(size) {
            self.evict_oldest();
        }
        self.size += size;
        self.lines.push_back(Line { start, name_len, value_len: value.len(), hash });
    }

    /// Drops the bytes of evicted lines once they are as many as the table may hold.
    fn make_contiguous_room(&mut self, needed: usize) {
        if self.bytes.len() + needed <= 2 * self.max_size {
            return;
        }
        let live_from = self.lines.front().map_or(self.bytes.len(), |line| line.start - self.base);
        self.bytes.drain(..live_from);
        self.base += live_from;
    }
}

/// A table's line count is bounded by its size, far below `u32`.
fn count(lines: usize) -> u32 {
    u32::try_from(lines).expect("a table holds fewer than 2^32 lines")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &DynamicTable) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (0..table.len()).map(|at| table.get(at).unwrap()).map(|(n, v)| (text(n), text(v))).collect()
    }

    #[test]
    fn a_name_is_copied_from_the_line_that_its_insertion_evicts() {
        let mut table = DynamicTable::new(40 + LINE_OVERHEAD);
        table.insert(Name::Bytes(b"the-only-name"), b"one", 0);
        table.insert(Name::Indexed(0), b"a value that needs it all", 0);
        assert_eq!(lines(&table), [("the-only-name".into(), "a value that needs it all".into())]);
    }

    #[test]
    fn a_line_larger_than_the_table_empties_it() {
        let mut table = DynamicTable::new(100);
        table.insert(Name::Bytes(b"a"), b"1", 0);
        table.insert(Name::Bytes(b"b"), &[b'x'; 100], 0);
        assert_eq!((table.len(), table.size()), (0, 0));
        assert_eq!(table.get(0), None);
    }

    #[test]
    fn memory_stays_bounded_and_lines_right_over_many_insertions() {
        let mut table = DynamicTable::new(256);
        for n in 0..10_000_u32 {
            table.insert(Name::Bytes(b"n"), n.to_string().as_bytes(), n);
            assert!(table.size() <= 256 && table.bytes.len() <= 512);
            assert_eq!(table.get(0), Some((&b"n"[..], n.to_string().as_bytes())));
            let (oldest, hash) = table.oldest().unwrap();
            assert_eq!(table.index_of(oldest), table.len() - 1);
            assert_eq!(table.hash_of(oldest), hash);
        }
    }
}
