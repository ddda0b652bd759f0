//! Decides the change of one neighbour, given the stored one.

use tollway_model::NeighbourRecord;
use tollway_model::neighbour::packed::is_tombstone;
use tollway_wire::v1::{NeighbourFailureReason, NeighbourOperation};

/// One change of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// Its place in the request.
    pub(super) index: u32,
    pub(super) operation: Operation,
    /// Without a place where it is to be deleted.
    pub(super) record: NeighbourRecord,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Create,
    Update,
    Apply,
    Delete,
}

/// What becomes of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// It is written.
    Write,
    /// It already has the requested state.
    Unchanged,
    Refuse(Refusal),
}

/// Why a change is not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    Exists,
    NotFound,
    /// The limit that the change exceeds.
    Excess {
        limit: u64,
    },
}

impl Operation {
    /// The requested operation; `None` for an unknown one.
    pub(super) fn read(stated: i32) -> Option<Self> {
        match NeighbourOperation::try_from(stated).ok()? {
            NeighbourOperation::Unspecified => None,
            NeighbourOperation::Create => Some(Self::Create),
            NeighbourOperation::Update => Some(Self::Update),
            NeighbourOperation::Apply => Some(Self::Apply),
            NeighbourOperation::Delete => Some(Self::Delete),
        }
    }
}

impl Refusal {
    pub(super) fn reason(self) -> NeighbourFailureReason {
        match self {
            Self::Exists => NeighbourFailureReason::Exists,
            Self::NotFound => NeighbourFailureReason::NotFound,
            Self::Excess { .. } => NeighbourFailureReason::Excess,
        }
    }

    pub(super) fn text(self, change: &Change) -> String {
        let key = change.record.key;
        match self {
            Self::Exists => format!("the neighbour {key} exists; update or apply it"),
            Self::NotFound => format!("there is no neighbour {key}"),
            Self::Excess { limit } => format!(
                "there is no room for the neighbour {key}: {limit} neighbours and tombstones are the most of all groups; delete some, or wait until tombstones are compacted"
            ),
        }
    }
}

/// Decides a change. Both values are second parts of packed records: `present` is the
/// stored one of its key, or a tombstone, and `wanted` the new one.
pub(super) fn decide(operation: Operation, stored: Option<&[u8]>, wanted: &[u8]) -> Decision {
    let present = stored.filter(|stored| !is_tombstone(stored));
    match (operation, present) {
        (Operation::Create, Some(_)) => Decision::Refuse(Refusal::Exists),
        (Operation::Update | Operation::Delete, None) => Decision::Refuse(Refusal::NotFound),
        (Operation::Update | Operation::Apply, Some(present)) if present == wanted => {
            Decision::Unchanged
        }
        (Operation::Create | Operation::Apply, None)
        | (Operation::Update | Operation::Apply | Operation::Delete, Some(_)) => Decision::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[u8] = &[0, 1];
    const THERE: &[u8] = &[0, 2];
    const GONE: &[u8] = &[4];

    #[test]
    fn operations_decide_by_the_stored_value() {
        use Decision::{Refuse, Unchanged, Write};
        use Operation::{Apply, Create, Delete, Update};
        let (exists, missing) = (Refuse(Refusal::Exists), Refuse(Refusal::NotFound));
        // By what stands there: nothing, a tombstone, another place, the same place.
        let table = [
            (Create, HERE, [Write, Write, exists, exists]),
            (Update, HERE, [missing, missing, Write, Unchanged]),
            (Apply, HERE, [Write, Write, Write, Unchanged]),
            (Delete, GONE, [missing, missing, Write, Write]),
        ];
        for (operation, wanted, decisions) in table {
            for (stored, decision) in
                [None, Some(GONE), Some(THERE), Some(HERE)].into_iter().zip(decisions)
            {
                assert_eq!(decide(operation, stored, wanted), decision, "{operation:?}");
            }
        }
    }
}
