//! The form of an entry in the file: a version, the time when it is over, and the app's bytes.

use bytes::{BufMut, Bytes, BytesMut};

/// The one version of the form.
const VERSION: u8 = 1;
/// Bytes before the app's own.
pub(super) const HEAD_BYTES: usize = 9;

/// The value of an app's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// Milliseconds since 1970; 0 for never.
    pub(super) expires_unix_ms: u64,
    pub(super) value: Bytes,
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD_BYTES + self.value.len());
        bytes.put_u8(VERSION);
        bytes.put_u64(self.expires_unix_ms);
        bytes.put_slice(&self.value);
        bytes.freeze()
    }

    /// `None` for what is no record of this version.
    pub(super) fn decode(bytes: &Bytes) -> Option<Self> {
        let expires_unix_ms = Self::expiry_in(bytes)?;
        Some(Self { expires_unix_ms, value: bytes.slice(HEAD_BYTES..) })
    }

    /// Whether an encoded record is one of this version that is over.
    pub(super) fn is_over_in(bytes: &[u8], now_unix_ms: u64) -> bool {
        Self::expiry_in(bytes).is_some_and(|expires| expires != 0 && expires <= now_unix_ms)
    }

    fn expiry_in(bytes: &[u8]) -> Option<u64> {
        let (version, expires) = bytes.get(..HEAD_BYTES)?.split_first()?;
        if *version != VERSION {
            return None;
        }
        Some(u64::from_be_bytes(expires.try_into().ok()?))
    }

    pub(super) fn is_over(&self, now_unix_ms: u64) -> bool {
        self.expires_unix_ms != 0 && self.expires_unix_ms <= now_unix_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for value in [&b""[..], b"\0x"] {
            let record = Record { expires_unix_ms: 7, value: Bytes::from_static(value) };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        for wrong in [&b""[..], b"\x01short", b"\x02\0\0\0\0\0\0\0\0x"] {
            assert_eq!(Record::decode(&Bytes::from_static(wrong)), None);
        }
    }

    #[test]
    fn an_entry_is_over_at_its_end() {
        let with = |expires_unix_ms| Record { expires_unix_ms, value: Bytes::new() };
        assert!(!with(0).is_over(u64::MAX));
        assert!(with(5).is_over(5) && !with(6).is_over(5));
        for (record, is_over) in [(with(0), false), (with(5), true), (with(6), false)] {
            assert_eq!(Record::is_over_in(&record.encode(), 5), is_over);
        }
    }
}
