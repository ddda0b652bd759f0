//! What requests ask for, read and checked.

use tollway_model::neighbour::packed::{self, BATCH_RECORDS, PackedError};
use tollway_model::{NeighbourKey, NeighbourRecord, chain};
use tollway_wire::v1::{NeighbourFailure, NeighbourFailureReason, WriteNeighboursRequest};
use tollway_wire::{neighbour, neighbour_key, neighbour_to_delete, v1};
use tonic::Status;

use super::decide::{Change, Operation};

/// The changes of one request.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) valid: Vec<Change>,
    /// Those that are no neighbours.
    pub(super) invalid: Vec<NeighbourFailure>,
}

impl Changes {
    /// Reads the changes of a request.
    ///
    /// # Errors
    /// The request has no known operation, exceeds a limit, or is truncated.
    pub(super) fn read(request: &WriteNeighboursRequest) -> Result<Self, Status> {
        let operation = Operation::read(request.operation).ok_or_else(|| {
            Status::invalid_argument(
                "the field `operation` says nothing that is known; say create, update, apply or delete",
            )
        })?;
        let mut changes = Self::default();
        for stated in &request.neighbours {
            let read = match operation {
                Operation::Delete => neighbour_to_delete(stated),
                Operation::Create | Operation::Update | Operation::Apply => neighbour(stated),
            };
            changes.add(operation, read.map_err(|error| chain(&error)))?;
        }
        for (index, record) in packed::records(&request.packed).enumerate() {
            let read = record.and_then(|record| record.read(index));
            match read {
                Err(error @ (PackedError::Tag { .. } | PackedError::CutOff { .. })) => {
                    return Err(malformed(&error));
                }
                read => changes.add(operation, read.map_err(|error| chain(&error)))?,
            }
        }
        Ok(changes)
    }

    /// Adds the next one.
    fn add(
        &mut self,
        operation: Operation,
        read: Result<NeighbourRecord, String>,
    ) -> Result<(), Status> {
        let count = self.valid.len() + self.invalid.len();
        if count >= BATCH_RECORDS {
            return Err(Status::invalid_argument(format!(
                "there are more than {BATCH_RECORDS} neighbours; send several requests"
            )));
        }
        let index = u32::try_from(count).unwrap_or(u32::MAX);
        match read {
            Ok(record) => {
                let is_delete = operation == Operation::Delete || record.location.is_none();
                let operation = if is_delete { Operation::Delete } else { operation };
                let location = record.location.filter(|_| !is_delete);
                let record = NeighbourRecord { location, ..record };
                self.valid.push(Change { index, operation, record });
            }
            Err(text) => {
                let reason = NeighbourFailureReason::Invalid.into();
                self.invalid.push(NeighbourFailure { index, reason, text });
            }
        }
        Ok(())
    }
}

/// Reads the keys of a look-up.
pub(super) fn keys(stated: &[v1::NeighbourKey]) -> Result<Vec<NeighbourKey>, Status> {
    if stated.len() > BATCH_RECORDS {
        let count = stated.len();
        return Err(Status::invalid_argument(format!(
            "{count} keys; ask for at most {BATCH_RECORDS} at once"
        )));
    }
    let read = stated.iter().map(neighbour_key).collect::<Result<_, _>>();
    read.map_err(|error| Status::invalid_argument(chain(&error)))
}

fn malformed(error: &PackedError) -> Status {
    Status::invalid_argument(format!("the field `packed` is malformed: {}", chain(error)))
}

#[cfg(test)]
mod tests {
    use tollway_wire::v1::NeighbourOperation;

    use super::*;

    fn stated(last: u8) -> v1::Neighbour {
        v1::Neighbour {
            key: Some(v1::NeighbourKey { vni: 7, ip: vec![10, 0, 0, last] }),
            mac: vec![2, 0, 0, 0, 0, last],
            host_ip: vec![192, 0, 2, last],
            host_mac: vec![2, 0, 0, 0, 1, last],
        }
    }

    fn packed_of(neighbours: &[v1::Neighbour]) -> Vec<u8> {
        let records: Vec<_> = neighbours.iter().map(|stated| neighbour(stated).unwrap()).collect();
        packed::pack_all(&records).concat()
    }

    fn request(
        operation: NeighbourOperation,
        neighbours: Vec<v1::Neighbour>,
    ) -> WriteNeighboursRequest {
        WriteNeighboursRequest { operation: operation.into(), neighbours, ..Default::default() }
    }

    #[test]
    fn both_forms_are_counted_on() {
        let mut wrong = stated(2);
        wrong.mac.clear();
        let mut request = request(NeighbourOperation::Create, vec![stated(1), wrong]);
        let mut packed = packed_of(&[stated(3), stated(4)]);
        packed[32 + 4] = 127;
        request.packed = packed.into();
        let changes = Changes::read(&request).unwrap();
        let valid: Vec<_> = changes.valid.iter().map(|change| change.index).collect();
        let invalid: Vec<_> =
            changes.invalid.iter().map(|failure| (failure.index, &*failure.text)).collect();
        assert_eq!(valid, [0, 2]);
        assert_eq!(
            invalid,
            [
                (1, "the field `mac` holds a hardware address of 0 bytes; it must be 6"),
                (
                    3,
                    "record 1 is not a neighbour: 127.0.0.4 is a loopback address; a neighbour has an address of its own"
                ),
            ]
        );
    }

    #[test]
    fn a_key_is_enough_to_delete() {
        let bare = v1::Neighbour { key: stated(1).key, ..Default::default() };
        let read = |operation| Changes::read(&request(operation, vec![bare.clone()])).unwrap();
        let deleted = read(NeighbourOperation::Delete).valid;
        assert_eq!((deleted[0].operation, deleted[0].record.location), (Operation::Delete, None));
        assert!(read(NeighbourOperation::Apply).valid.is_empty());
        // A tombstone among packed ones is deleted, whatever the rest is for.
        let mut mixed = request(NeighbourOperation::Apply, vec![]);
        let mut packed = packed_of(&[stated(1)]);
        let gone = NeighbourRecord { location: None, ..deleted[0].record };
        packed::pack(&gone, &mut packed);
        mixed.packed = packed.into();
        let operations: Vec<_> =
            Changes::read(&mixed).unwrap().valid.iter().map(|change| change.operation).collect();
        assert_eq!(operations, [Operation::Apply, Operation::Delete]);
    }

    #[track_caller]
    fn check_refused(request: &WriteNeighboursRequest, text: &str) {
        assert_eq!(Changes::read(request).unwrap_err().message(), text);
    }

    #[test]
    fn a_request_that_cannot_be_read_is_refused_whole() {
        check_refused(
            &WriteNeighboursRequest::default(),
            "the field `operation` says nothing that is known; say create, update, apply or delete",
        );
        let mut cut_off = request(NeighbourOperation::Apply, vec![]);
        cut_off.packed = packed_of(&[stated(1)])[..9].to_vec().into();
        check_refused(
            &cut_off,
            "the field `packed` is malformed: record 0 is cut off: it has 9 of 32 octets",
        );
        let many = request(NeighbourOperation::Apply, vec![stated(1); BATCH_RECORDS + 1]);
        check_refused(&many, "there are more than 1024 neighbours; send several requests");
    }
}
