//! The keys of neighbours in their file.
//!
//! | key | value |
//! |---|---|
//! | `t` | which table this is: 8 octets |
//! | `g`, name of a group in lower case | [`Head`] |
//! | `n`, number of the group (4 octets), key of a neighbour | what is found there, or a tombstone |
//!
//! Key and value of a neighbour are as `tollway_model::neighbour::packed` has them; its revision is
//! that of the entry. Those of a group are adjacent, in the order of their keys.

use bytes::{Bytes, BytesMut};
use prost::Message;
use tollway_model::neighbour::packed;
use tollway_model::{Group, NeighbourKey, NeighbourRecord, Vni};
use tollway_store::KeyRange;

/// The key of the table's number.
pub(super) const TABLE_KEY: &[u8] = b"t";
/// What keys of groups begin with.
pub(super) const GROUP_PREFIX: &[u8] = b"g";
const ROW_PREFIX: u8 = b'n';
/// Octets of a row's key before that of its neighbour.
pub(super) const ROW_HEAD: usize = 5;

/// The stored form of a group. The revision of its entry is the group's.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
    /// Of no other group.
    #[prost(uint32, tag = "1")]
    pub(super) number: u32,
    /// As it was first written.
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(uint64, tag = "3")]
    pub(super) neighbours: u64,
    #[prost(uint64, tag = "4")]
    pub(super) tombstones: u64,
    /// Tombstones up to this revision are gone, or about to be.
    #[prost(uint64, tag = "5")]
    pub(super) oldest: u64,
}

pub(super) fn group_key(group: &Group) -> Bytes {
    [GROUP_PREFIX, group.to_lower().as_bytes()].concat().into()
}

/// All rows of a group.
pub(super) fn rows(number: u32) -> KeyRange {
    KeyRange::prefix(row_head(number).to_vec())
}

/// The rows of one virtual network of a group.
pub(super) fn rows_of_vni(number: u32, vni: Vni) -> KeyRange {
    KeyRange::prefix([&row_head(number)[..], &vni.octets()].concat())
}

pub(super) fn row_key(number: u32, key: &NeighbourKey) -> Bytes {
    let mut bytes = row_head(number).to_vec();
    packed::pack_key(key, &mut bytes);
    bytes.into()
}

/// The keys and values of rows, each two in one piece of memory with all others.
pub(super) fn row_parts(number: u32, records: &[NeighbourRecord]) -> Vec<(Bytes, Bytes)> {
    let (mut bytes, mut ends) = (Vec::with_capacity(records.len() * 40), Vec::new());
    for record in records {
        bytes.extend_from_slice(&row_head(number));
        packed::pack_key(&record.key, &mut bytes);
        let middle = bytes.len();
        packed::pack_location(record, &mut bytes);
        ends.push((middle, bytes.len()));
    }
    let bytes = Bytes::from(bytes);
    let mut start = 0;
    ends.into_iter()
        .map(|(middle, end)| {
            let parts = (bytes.slice(start..middle), bytes.slice(middle..end));
            start = end;
            parts
        })
        .collect()
}

fn row_head(number: u32) -> [u8; ROW_HEAD] {
    let [a, b, c, d] = number.to_be_bytes();
    [ROW_PREFIX, a, b, c, d]
}

/// Packs a row behind others; `false` where it is not one that this version writes.
#[must_use]
pub(super) fn pack_row(key: &[u8], revision: u64, value: &[u8], packed: &mut Vec<u8>) -> bool {
    key.get(ROW_HEAD..).is_some_and(|key| packed::join(key, revision, value, packed))
}

/// Packed records one behind the other, shared.
pub(super) fn concat(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [one] => one.clone(),
        _ => {
            let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
            pieces.iter().for_each(|piece| all.extend_from_slice(piece));
            all.freeze()
        }
    }
}
