//! The bytes of the file: frames that hold items.
//!
//! A file begins with a header (magic, format, salt). Then come frames, each written and made
//! durable as one: `magic u32, body length u32, sequence u64, checksum u32, body`, little endian.
//! The checksum covers salt, length, sequence and body; the salt is random per file, so no caller
//! can put a frame into a value and have it taken for one. After the last frame come zeros.

use bytes::Bytes;
use crc32fast::Hasher;

use crate::model::LeaseId;

/// Begins every store.
pub(super) const MAGIC: &[u8; 16] = b"tollway store\r\n\0";
/// The format this program reads and writes.
pub(super) const FORMAT: u32 = 1;
/// Magic, format, salt, reserve, checksum of these.
pub(super) const HEADER_BYTES: usize = 64;
/// Offset of the header's checksum.
const HEADER_SUM_AT: usize = HEADER_BYTES - 4;
/// Bytes in front of a frame's body.
pub(super) const FRAME_HEAD_BYTES: usize = 20;
/// Largest body of a frame: what a group and its largest transaction can come to.
pub(super) const BODY_BYTES_LIMIT: usize = 64 << 20;

const FRAME_MAGIC: u32 = 0x4757_4c54;

const TAG_BASE: u8 = 1;
const TAG_TRANSACTION: u8 = 2;
const TAG_ROWS: u8 = 3;
const TAG_LEASE_GRANTED: u8 = 4;
const TAG_LEASE_ENDED: u8 = 5;

const KIND_DELETE: u8 = 0;
const KIND_PUT: u8 = 1;
const KIND_PUT_LEASED: u8 = 2;

/// Random per file; goes into every checksum.
pub(super) type Salt = [u8; 16];

/// What a frame holds, as read back. Keys and values are slices of the frame's body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// What the file starts from.
    Base {
        revision: u64,
        next_lease: u64,
    },
    Transaction {
        revision: u64,
        steps: Vec<Step>,
    },
    /// Entries at the time when compaction copied them.
    Rows(Vec<StoredRow>),
    LeaseGranted {
        lease: LeaseId,
        ttl_ms: u64,
    },
    LeaseEnded {
        lease: LeaseId,
    },
}

/// One step of a stored transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    Delete { key: Bytes },
}

/// One entry of a stored state.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredRow {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) revision: u64,
    pub(super) lease: Option<LeaseId>,
}

/// Writes the header of a new file.
pub(super) fn encode_header(salt: &Salt) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(MAGIC);
    header[16..20].copy_from_slice(&FORMAT.to_le_bytes());
    header[20..36].copy_from_slice(salt);
    let sum = crc32fast::hash(&header[..HEADER_SUM_AT]);
    header[HEADER_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Why a header was not understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    NotAStore,
    Format(u32),
    Damaged,
}

/// Reads a header; returns the salt.
pub(super) fn decode_header(header: &[u8; HEADER_BYTES]) -> Result<Salt, HeaderFault> {
    if &header[..16] != MAGIC {
        return Err(HeaderFault::NotAStore);
    }
    let format = read_u32(&header[16..]);
    if format != FORMAT {
        return Err(HeaderFault::Format(format));
    }
    if crc32fast::hash(&header[..HEADER_SUM_AT]) != read_u32(&header[HEADER_SUM_AT..]) {
        return Err(HeaderFault::Damaged);
    }
    let mut salt = [0; 16];
    salt.copy_from_slice(&header[20..36]);
    Ok(salt)
}

/// Builds one frame: items first, then [`FrameBuilder::finish`].
#[derive(Debug)]
pub(super) struct FrameBuilder {
    buffer: Vec<u8>,
}

impl FrameBuilder {
    /// Starts in `buffer`, whose capacity is reused.
    pub(super) fn new(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        buffer.resize(FRAME_HEAD_BYTES, 0);
        Self { buffer }
    }

    /// Bytes so far, head included.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it holds no item yet.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.len() == FRAME_HEAD_BYTES
    }

    /// The bytes so far, with space for the head in front.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The same items, for another file.
    pub(super) fn duplicate(&self) -> Self {
        Self { buffer: self.buffer.clone() }
    }

    pub(super) fn base(&mut self, revision: u64, next_lease: u64) {
        self.buffer.push(TAG_BASE);
        self.u64(revision);
        self.u64(next_lease);
    }

    pub(super) fn lease_granted(&mut self, lease: LeaseId, ttl_ms: u64) {
        self.buffer.push(TAG_LEASE_GRANTED);
        self.u64(lease.0.get());
        self.u64(ttl_ms);
    }

    pub(super) fn lease_ended(&mut self, lease: LeaseId) {
        self.buffer.push(TAG_LEASE_ENDED);
        self.u64(lease.0.get());
    }

    /// Starts a transaction of `count` steps, which must follow.
    pub(super) fn transaction(&mut self, revision: u64, count: u32) {
        self.buffer.push(TAG_TRANSACTION);
        self.u64(revision);
        self.buffer.extend_from_slice(&count.to_le_bytes());
    }

    /// A step of the transaction begun. Returns where the key starts.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], lease: Option<LeaseId>) -> usize {
        self.buffer.push(if lease.is_some() { KIND_PUT_LEASED } else { KIND_PUT });
        if let Some(lease) = lease {
            self.u64(lease.0.get());
        }
        self.lengths(key, value)
    }

    /// As [`FrameBuilder::put`].
    pub(super) fn delete(&mut self, key: &[u8]) -> usize {
        self.buffer.push(KIND_DELETE);
        self.lengths(key, b"")
    }

    /// Starts a run of `count` rows, which must follow.
    pub(super) fn rows(&mut self, count: u32) {
        self.buffer.push(TAG_ROWS);
        self.buffer.extend_from_slice(&count.to_le_bytes());
    }

    /// A row of the run begun.
    pub(super) fn row(&mut self, key: &[u8], value: &[u8], revision: u64, lease: Option<LeaseId>) {
        self.u64(revision);
        self.put(key, value, lease);
    }

    /// The whole frame.
    pub(super) fn finish(mut self, salt: &Salt, sequence: u64) -> Vec<u8> {
        let length = u32::try_from(self.buffer.len() - FRAME_HEAD_BYTES)
            .expect("groups are far smaller than 4 GiB");
        let sum = checksum(salt, length, sequence, &self.buffer[FRAME_HEAD_BYTES..]);
        self.buffer[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        self.buffer[4..8].copy_from_slice(&length.to_le_bytes());
        self.buffer[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.buffer[16..20].copy_from_slice(&sum.to_le_bytes());
        self.buffer
    }

    fn lengths(&mut self, key: &[u8], value: &[u8]) -> usize {
        let key_length = u32::try_from(key.len()).expect("keys are limited far below 4 GiB");
        let value_length = u32::try_from(value.len()).expect("values are limited below 4 GiB");
        self.buffer.extend_from_slice(&key_length.to_le_bytes());
        self.buffer.extend_from_slice(&value_length.to_le_bytes());
        let start = self.buffer.len();
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        start
    }

    fn u64(&mut self, number: u64) {
        self.buffer.extend_from_slice(&number.to_le_bytes());
    }
}

/// The head of a frame, as far as it can be believed before the body is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) length: usize,
    pub(super) sequence: u64,
    sum: u32,
}

impl FrameHead {
    /// Reads a head; `None` when these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..FRAME_HEAD_BYTES)?;
        let length = usize::try_from(read_u32(&head[4..])).ok()?;
        if read_u32(head) != FRAME_MAGIC || length > BODY_BYTES_LIMIT {
            return None;
        }
        Some(Self { length, sequence: read_u64(&head[8..]), sum: read_u32(&head[16..]) })
    }

    /// Whether `body` is the body this head was made for, in the file of `salt`.
    pub(super) fn fits(&self, salt: &Salt, body: &[u8]) -> bool {
        u32::try_from(self.length)
            .is_ok_and(|length| checksum(salt, length, self.sequence, body) == self.sum)
    }
}

fn checksum(salt: &Salt, length: u32, sequence: u64, body: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(salt);
    hasher.update(&length.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Reads the items of a body; `None` when it is malformed.
pub(super) fn decode_body(body: Bytes) -> Option<Vec<Item>> {
    let mut reader = Reader { body, at: 0 };
    let mut items = Vec::new();
    while reader.at < reader.body.len() {
        items.push(reader.item()?);
    }
    Some(items)
}

struct Reader {
    body: Bytes,
    at: usize,
}

impl Reader {
    fn item(&mut self) -> Option<Item> {
        match self.u8()? {
            TAG_BASE => Some(Item::Base { revision: self.u64()?, next_lease: self.u64()? }),
            TAG_TRANSACTION => {
                let (revision, count) = (self.u64()?, self.u32()?);
                let steps = (0..count).map(|_| self.step()).collect::<Option<_>>()?;
                Some(Item::Transaction { revision, steps })
            }
            TAG_ROWS => {
                let count = self.u32()?;
                (0..count).map(|_| self.row()).collect::<Option<_>>().map(Item::Rows)
            }
            TAG_LEASE_GRANTED => {
                Some(Item::LeaseGranted { lease: self.lease()?, ttl_ms: self.u64()? })
            }
            TAG_LEASE_ENDED => Some(Item::LeaseEnded { lease: self.lease()? }),
            _ => None,
        }
    }

    fn step(&mut self) -> Option<Step> {
        let kind = self.u8()?;
        let lease = if kind == KIND_PUT_LEASED { Some(self.lease()?) } else { None };
        let (key_length, value_length) = (self.length()?, self.length()?);
        let (key, value) = (self.take(key_length)?, self.take(value_length)?);
        match kind {
            KIND_PUT | KIND_PUT_LEASED => Some(Step::Put { key, value, lease }),
            KIND_DELETE => Some(Step::Delete { key }),
            _ => None,
        }
    }

    fn row(&mut self) -> Option<StoredRow> {
        let revision = self.u64()?;
        match self.step()? {
            Step::Put { key, value, lease } => Some(StoredRow { key, value, revision, lease }),
            Step::Delete { .. } => None,
        }
    }

    fn lease(&mut self) -> Option<LeaseId> {
        self.u64()?.try_into().ok().map(LeaseId)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    fn u8(&mut self) -> Option<u8> {
        let byte = *self.body.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.body.get(self.at..self.at.checked_add(4)?)?;
        self.at += 4;
        Some(read_u32(bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.body.get(self.at..self.at.checked_add(8)?)?;
        self.at += 8;
        Some(read_u64(bytes))
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.body.len())?;
        let bytes = self.body.slice(self.at..end);
        self.at = end;
        Some(bytes)
    }
}

/// The first four bytes; the caller has checked that they are there.
fn read_u32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The first eight bytes; the caller has checked that they are there.
fn read_u64(bytes: &[u8]) -> u64 {
    u64::from(read_u32(bytes)) | u64::from(read_u32(&bytes[4..])) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT: Salt = [7; 16];

    fn lease(id: u64) -> LeaseId {
        LeaseId(id.try_into().unwrap())
    }

    fn sample() -> Vec<u8> {
        let mut frame = FrameBuilder::new(Vec::new());
        frame.base(3, 9);
        frame.transaction(4, 3);
        frame.put(b"a", b"1", None);
        frame.put(b"b", b"", Some(lease(8)));
        frame.delete(b"c");
        frame.rows(1);
        frame.row(b"d", b"2", 2, Some(lease(5)));
        frame.lease_granted(lease(9), 1500);
        frame.lease_ended(lease(8));
        frame.finish(&SALT, 6)
    }

    #[test]
    fn a_frame_reads_back_as_written() {
        let frame = sample();
        let head = FrameHead::decode(&frame).unwrap();
        let body = Bytes::from(frame[FRAME_HEAD_BYTES..].to_vec());
        assert_eq!((head.sequence, head.length), (6, body.len()));
        assert!(head.fits(&SALT, &body));
        assert!(!head.fits(&[8; 16], &body));
        let put = |key: &'static str, value: &'static str, lease| Step::Put {
            key: key.into(),
            value: value.into(),
            lease,
        };
        let steps = vec![
            put("a", "1", None),
            put("b", "", Some(lease(8))),
            Step::Delete { key: "c".into() },
        ];
        let row =
            StoredRow { key: "d".into(), value: "2".into(), revision: 2, lease: Some(lease(5)) };
        assert_eq!(
            decode_body(body).unwrap(),
            [
                Item::Base { revision: 3, next_lease: 9 },
                Item::Transaction { revision: 4, steps },
                Item::Rows(vec![row]),
                Item::LeaseGranted { lease: lease(9), ttl_ms: 1500 },
                Item::LeaseEnded { lease: lease(8) },
            ]
        );
    }

    #[test]
    fn foreign_newer_and_damaged_headers_are_distinguished() {
        let header = encode_header(&SALT);
        assert_eq!(decode_header(&header), Ok(SALT));
        let with = |at: usize, byte: u8| {
            let mut other = header;
            other[at] = byte;
            decode_header(&other)
        };
        assert_eq!(with(0, b'S'), Err(HeaderFault::NotAStore));
        assert_eq!(with(16, 2), Err(HeaderFault::Format(2)));
        assert_eq!(with(25, 0), Err(HeaderFault::Damaged));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_never_fits(bit in 0_usize..8 * 100) {
            let mut frame = sample();
            let bits = frame.len() * 8;
            let bit = bit % bits;
            frame[bit / 8] ^= 1 << (bit % 8);
            let fits = FrameHead::decode(&frame).is_some_and(|head| {
                frame.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + head.length)
                    .is_some_and(|body| head.fits(&SALT, body))
            });
            prop_assert!(!fits);
        }

        #[test]
        fn any_body_is_read_or_refused_without_panic(body: Vec<u8>) {
            let _ = decode_body(body.into());
        }
    }
}
