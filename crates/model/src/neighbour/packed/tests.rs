//! Records through their packed form and back, and what is refused.

use proptest::prelude::*;

use super::super::tests_support::{any_record, key, location};
use super::*;

fn tombstone(number: u32, revision: u64) -> NeighbourRecord {
    NeighbourRecord { key: key(number), revision, location: None }
}

fn parts(record: &NeighbourRecord) -> (Vec<u8>, Vec<u8>) {
    let (mut key, mut location) = (Vec::new(), Vec::new());
    pack_key(&record.key, &mut key);
    pack_location(record, &mut location);
    (key, location)
}

#[track_caller]
fn check_refused(bytes: &[u8], text: &str) {
    assert_eq!(crate::chain(&unpack(bytes).unwrap_err()), text);
}

/// A neighbour with IPv4 addresses, as any client can pack it.
const IPV4: [u8; 32] = [
    0, 0, 0, 7, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 192, 0, 2,
    1,
];

#[test]
fn a_record_has_the_octets_of_the_table() {
    let read = unpack(&IPV4).unwrap();
    assert_eq!(read.len(), 1);
    let (record, location) = (read[0], read[0].location.unwrap());
    assert_eq!(record.key.to_string(), "vni 7, 10.0.0.1");
    assert_eq!(record.revision, 258);
    assert_eq!(location.mac.to_string(), "02:00:00:00:00:01");
    assert_eq!(location.host_mac.to_string(), "02:00:00:00:00:09");
    assert_eq!(location.host_ip().to_string(), "192.0.2.1");
    let mut again = Vec::new();
    pack(&record, &mut again);
    assert_eq!(again, IPV4);
}

#[test]
fn what_is_no_neighbour_is_refused_with_its_place() {
    let mut second = [IPV4, IPV4].concat();
    second[32] = 8;
    check_refused(&second, "record 1 begins with the octet 8, which this version does not know");
    second[32] = 6;
    check_refused(&second, "record 1 begins with the octet 6, which this version does not know");
    check_refused(&IPV4[..31], "record 0 is cut off: it has 31 of 32 octets");
    let mut group = IPV4;
    group[16] = 3;
    check_refused(
        &group,
        "record 0 is not a neighbour: 03:00:00:00:00:01 is a group or broadcast address; a neighbour and its host have one of their own",
    );
    let mut nowhere = IPV4;
    nowhere[28..].fill(0);
    check_refused(
        &nowhere,
        "record 0 is not a neighbour: 0.0.0.0 is the address of none; a host has an address of its own",
    );
}

#[test]
fn a_batch_is_bounded() {
    let many: Vec<_> = (0..1025).map(|number| tombstone(number, 1)).collect();
    let batches = pack_all(&many);
    assert_eq!(batches.len(), 2);
    let read: Vec<_> = batches.iter().flat_map(|batch| unpack(batch).unwrap()).collect();
    assert_eq!(read, many);
    let one = batches.concat();
    check_refused(&one, "there are more than 1024 records; send several batches");
    check_refused(
        &vec![0; BATCH_LIMIT_BYTES + 1],
        "there are more than 1024 records; send several batches",
    );
}

#[test]
fn the_longest_record_bounds_a_batch() {
    let longest = (0..=u8::MAX).filter_map(length).max();
    assert_eq!(longest, Some(RECORD_LIMIT_BYTES));
}

#[test]
fn no_records_are_no_batch() {
    assert_eq!(pack_all(&[]), Vec::<Vec<u8>>::new());
    assert_eq!(unpack(&[]), Ok(vec![]));
}

proptest! {
    #[test]
    fn what_was_packed_is_read_again(
        written in proptest::collection::vec(any_record(), 0..20),
    ) {
        let bytes = pack_all(&written).concat();
        prop_assert_eq!(unpack(&bytes), Ok(written.clone()));
        for (record, packed) in written.iter().zip(records(&bytes)) {
            let packed = packed.unwrap();
            prop_assert_eq!(packed.revision(), record.revision);
            prop_assert_eq!(packed.is_tombstone(), record.location.is_none());
        }
    }

    #[test]
    fn keys_sort_as_their_octets_do(
        mut written in proptest::collection::vec(any_record(), 2..20),
    ) {
        written.sort_by_key(|record| record.key);
        let octets: Vec<_> = written.iter().map(|record| parts(record).0).collect();
        prop_assert!(octets.is_sorted());
    }

    #[test]
    fn parts_make_the_record_they_were_of(record in any_record()) {
        let (key, location) = parts(&record);
        let mut joined = Vec::new();
        prop_assert!(join(&key, record.revision, &location, &mut joined));
        prop_assert_eq!(unpack(&joined), Ok(vec![record]));
        prop_assert_eq!(is_tombstone(&location), record.location.is_none());
    }

    #[test]
    fn what_are_no_parts_is_no_record(
        key in proptest::collection::vec(any::<u8>(), 0..24),
        location in proptest::collection::vec(any::<u8>(), 0..34),
    ) {
        let mut joined = Vec::new();
        if join(&key, 1, &location, &mut joined) {
            prop_assert_eq!(records(&joined).filter(Result::is_ok).count(), 1);
        } else {
            prop_assert!(joined.is_empty());
        }
    }
}

#[test]
fn moving_a_neighbour_changes_its_place_only() {
    let before = NeighbourRecord { key: key(1), revision: 1, location: Some(location(1)) };
    let after = NeighbourRecord { location: Some(location(2)), ..before };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    pack(&before, &mut first);
    pack(&after, &mut second);
    assert_eq!(first[..16], second[..16]);
    assert_ne!(first, second);
}
