//! Neighbours packed into bytes: as they are stored, sent, and handed from one to the other.
//!
//! A record has fixed width by its first octet, numbers have their highest octet first:
//!
//! | octets | what |
//! |---|---|
//! | 1 | tag: 1 for an IPv6 address, 2 for an IPv6 host, 4 for a tombstone; the sum of them |
//! | 3 | vni |
//! | 4 or 16 | address |
//! | 8 | revision |
//! | 6 | hardware address |
//! | 6 | hardware address of the host |
//! | 4 or 16 | address of the host |
//!
//! The last three fields are missing in a tombstone, whose tag lacks the 2. A record has 32 octets
//! if both addresses are IPv4, 56 if both are IPv6. Records follow each other without gaps; a batch
//! has at most [`BATCH_RECORDS`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

use super::{AddressError, HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};

/// Most records of one batch.
pub const BATCH_RECORDS: usize = 1024;
/// Longest record, in bytes.
pub const RECORD_LIMIT_BYTES: usize = 56;
/// Longest batch, in bytes.
pub const BATCH_LIMIT_BYTES: usize = BATCH_RECORDS * RECORD_LIMIT_BYTES;

const TAG_IP_V6: u8 = 1;
const TAG_HOST_V6: u8 = 2;
const TAG_TOMBSTONE: u8 = 4;

/// Octets before the address.
const HEAD: usize = 4;
const REVISION: usize = 8;
const MAC: usize = 6;

/// Why packed neighbours were refused. `record` counts from 0.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackedError {
    #[error("record {record} begins with the octet {tag}, which this version does not know")]
    Tag { record: usize, tag: u8 },
    #[error("record {record} is cut off: it has {found} of {wanted} octets")]
    CutOff { record: usize, found: usize, wanted: usize },
    #[error("record {record} is not a neighbour")]
    Address { record: usize, source: AddressError },
    #[error("there are more than {BATCH_RECORDS} records; send several batches")]
    TooMany,
}

/// Octets of a record by its tag; `None` for one that is not known.
fn length(tag: u8) -> Option<usize> {
    let ip = HEAD + if tag & TAG_IP_V6 == 0 { 4 } else { 16 } + REVISION;
    match tag & !TAG_IP_V6 {
        0 => Some(ip + 2 * MAC + 4),
        TAG_HOST_V6 => Some(ip + 2 * MAC + 16),
        TAG_TOMBSTONE => Some(ip),
        _ => None,
    }
}

/// One record of a batch. Its length is checked, its content is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedRecord<'a>(&'a [u8]);

impl<'a> PackedRecord<'a> {
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    #[must_use]
    pub fn is_tombstone(self) -> bool {
        self.0[0] & TAG_TOMBSTONE != 0
    }

    #[must_use]
    pub fn revision(self) -> u64 {
        let at = self.revision_at();
        self.0[at..at + REVISION]
            .iter()
            .fold(0, |revision, octet| revision << 8 | u64::from(*octet))
    }

    /// Reads and checks the whole; `index` is its place in the batch, for the error.
    ///
    /// # Errors
    /// [`PackedError::Address`].
    pub fn read(self, index: usize) -> Result<NeighbourRecord, PackedError> {
        self.checked().map_err(|source| PackedError::Address { record: index, source })
    }

    fn checked(self) -> Result<NeighbourRecord, AddressError> {
        let vni = Vni::from_octets([self.0[1], self.0[2], self.0[3]]);
        let at = self.revision_at();
        let key = NeighbourKey::new(vni, ip(&self.0[HEAD..at]))?;
        let rest = &self.0[at + REVISION..];
        let location = match rest.split_first_chunk::<MAC>() {
            None => None,
            Some((mac, rest)) => rest.split_first_chunk::<MAC>().map(|(host_mac, host_ip)| {
                HostLocation::new(Mac::new(*mac)?, ip(host_ip), Mac::new(*host_mac)?)
            }),
        };
        Ok(NeighbourRecord { key, revision: self.revision(), location: location.transpose()? })
    }

    fn revision_at(self) -> usize {
        HEAD + if self.0[0] & TAG_IP_V6 == 0 { 4 } else { 16 }
    }
}

/// An address of 4 or 16 octets.
fn ip(octets: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(octets) {
        Ok(v4) => Ipv4Addr::from(v4).into(),
        Err(_) => {
            let v6 = octets.first_chunk::<16>().copied().unwrap_or_default();
            Ipv6Addr::from(v6).into()
        }
    }
}

/// The records of a batch, one after the other; ends after the first error.
///
/// It does not count them against [`BATCH_RECORDS`]: [`unpack`] does.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    taken: usize,
}

/// Splits packed records without reading their content.
#[must_use]
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { rest: bytes, taken: 0 }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<PackedRecord<'a>, PackedError>;

    fn next(&mut self) -> Option<Self::Item> {
        let tag = *self.rest.first()?;
        let record = self.taken;
        self.taken += 1;
        let Some(wanted) = length(tag) else {
            self.rest = &[];
            return Some(Err(PackedError::Tag { record, tag }));
        };
        let Some((whole, rest)) = self.rest.split_at_checked(wanted) else {
            let found = self.rest.len();
            self.rest = &[];
            return Some(Err(PackedError::CutOff { record, found, wanted }));
        };
        self.rest = rest;
        Some(Ok(PackedRecord(whole)))
    }
}

/// Reads and checks a whole batch.
///
/// # Errors
/// [`PackedError`] for the first record that is wrong.
pub fn unpack(bytes: &[u8]) -> Result<Vec<NeighbourRecord>, PackedError> {
    if bytes.len() > BATCH_LIMIT_BYTES {
        return Err(PackedError::TooMany);
    }
    // Two records of the shortest kind are as long as the usual one.
    let mut read = Vec::with_capacity((bytes.len() / 32).min(BATCH_RECORDS));
    for (index, record) in records(bytes).enumerate() {
        if index == BATCH_RECORDS {
            return Err(PackedError::TooMany);
        }
        read.push(record?.read(index)?);
    }
    Ok(read)
}

/// Appends a record to packed ones.
pub fn pack(record: &NeighbourRecord, bytes: &mut Vec<u8>) {
    bytes.push(tag(record));
    bytes.extend_from_slice(&record.key.vni().octets());
    push_ip(record.key.ip(), bytes);
    bytes.extend_from_slice(&record.revision.to_be_bytes());
    push_location(record, bytes);
}

fn tag(record: &NeighbourRecord) -> u8 {
    let ip = if record.key.ip().is_ipv6() { TAG_IP_V6 } else { 0 };
    match &record.location {
        None => ip | TAG_TOMBSTONE,
        Some(location) if location.host_ip().is_ipv6() => ip | TAG_HOST_V6,
        Some(_) => ip,
    }
}

fn push_location(record: &NeighbourRecord, bytes: &mut Vec<u8>) {
    let Some(location) = &record.location else { return };
    bytes.extend_from_slice(&location.mac.octets());
    bytes.extend_from_slice(&location.host_mac.octets());
    push_ip(location.host_ip(), bytes);
}

fn push_ip(ip: IpAddr, bytes: &mut Vec<u8>) {
    match ip {
        IpAddr::V4(v4) => bytes.extend_from_slice(&v4.octets()),
        IpAddr::V6(v6) => bytes.extend_from_slice(&v6.octets()),
    }
}

/// Appends the first part of a record as a store keeps it, its key: vni, family (0 or 1), address.
/// In the order of their octets they are in the order of keys.
pub fn pack_key(key: &NeighbourKey, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&key.vni().octets());
    bytes.push(if key.ip().is_ipv6() { TAG_IP_V6 } else { 0 });
    push_ip(key.ip(), bytes);
}

/// Appends the second part of a record as a store keeps it, without its revision: the tag, and what
/// is found there.
pub fn pack_location(record: &NeighbourRecord, bytes: &mut Vec<u8>) {
    bytes.push(tag(record));
    push_location(record, bytes);
}

/// Whether the second part of a record is that of a tombstone.
#[must_use]
pub fn is_tombstone(location: &[u8]) -> bool {
    location.first().is_some_and(|tag| tag & TAG_TOMBSTONE != 0)
}

/// Appends a record put together of its parts; `false`, and nothing, where they are not parts of
/// one.
#[must_use]
pub fn join(key: &[u8], revision: u64, location: &[u8], bytes: &mut Vec<u8>) -> bool {
    let (Some((vni, [family, ip @ ..])), Some((tag, location))) =
        (key.split_first_chunk::<3>(), location.split_first())
    else {
        return false;
    };
    let whole = 1 + vni.len() + ip.len() + REVISION + location.len();
    let ip_length = if tag & TAG_IP_V6 == 0 { 4 } else { 16 };
    if length(*tag) != Some(whole) || ip.len() != ip_length || *family != tag & TAG_IP_V6 {
        return false;
    }
    bytes.push(*tag);
    bytes.extend_from_slice(vni);
    bytes.extend_from_slice(ip);
    bytes.extend_from_slice(&revision.to_be_bytes());
    bytes.extend_from_slice(location);
    true
}

/// Packs records into batches of at most [`BATCH_RECORDS`].
#[must_use]
pub fn pack_all<'a>(records: impl IntoIterator<Item = &'a NeighbourRecord>) -> Vec<Vec<u8>> {
    let (mut batches, mut count) = (Vec::new(), 0);
    for record in records {
        if count % BATCH_RECORDS == 0 {
            batches.push(Vec::new());
        }
        count += 1;
        if let Some(batch) = batches.last_mut() {
            pack(record, batch);
        }
    }
    batches
}

#[cfg(test)]
mod tests;
