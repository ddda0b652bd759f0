//! The static table (RFC 7541 appendix A) and the look-up from a name to its first entry.

use super::hash;

/// Entries 1 to 61.
const ENTRIES: [(&[u8], &[u8]); LEN] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Indices above this one are of the dynamic table.
pub(super) const LEN: usize = 61;

const SLOTS: usize = 256;

/// Open addressing by the hash of the name; 0 is free, entries of one name are found through
/// the first of them. Filled by the compiler.
static BY_NAME: [u8; SLOTS] = index_names();

/// The entry at `index` (from 1).
pub(super) fn entry(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(index.checked_sub(1)?).copied()
}

/// Index of the first entry of `name`, whose hash is `name_hash`.
pub(super) fn find_name(name: &[u8], name_hash: u32) -> Option<usize> {
    let mut slot = name_hash as usize % SLOTS;
    loop {
        let index = usize::from(BY_NAME[slot]);
        let (found, _) = entry(index)?;
        if found == name {
            return Some(index);
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// Index of the entry with `value` among those of the name that starts at `first`.
pub(super) fn find_value(first: usize, value: &[u8]) -> Option<usize> {
    let name = ENTRIES[first - 1].0;
    let same_name = ENTRIES[first - 1..].iter().take_while(|entry| entry.0 == name);
    same_name.zip(first..).find(|(entry, _)| entry.1 == value).map(|(_, index)| index)
}

const fn index_names() -> [u8; SLOTS] {
    let mut slots = [0; SLOTS];
    let mut at = 0;
    while at < ENTRIES.len() {
        if at == 0 || !same(ENTRIES[at].0, ENTRIES[at - 1].0) {
            let mut slot = hash(0, ENTRIES[at].0) as usize % SLOTS;
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = at as u8 + 1;
        }
        at += 1;
    }
    slots
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_name_and_value() {
        for (at, (name, value)) in ENTRIES.iter().enumerate() {
            let first = find_name(name, hash(0, name)).unwrap();
            assert_eq!(find_value(first, value), Some(at + 1));
        }
        assert_eq!(find_name(b"x-other", hash(0, b"x-other")), None);
        assert_eq!(find_value(2, b"PUT"), None);
    }

    #[test]
    fn index_zero_and_beyond_are_nothing() {
        assert_eq!(entry(0), None);
        assert_eq!(entry(62), None);
    }
}
