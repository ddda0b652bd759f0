//! Decides the change of one reminder, given the stored one.

use std::num::NonZeroU32;

use tollway_actors::schedule::{Moment, TERM_LIMIT_BYTES};
use tollway_wire::{
    REMINDER_ACTOR_ID_BYTES, REMINDER_DATA_BYTES, REMINDER_NAME_BYTES, Registration, ReminderKey,
    ReminderResult,
};

use super::record::Head;

/// Refuses what is too large.
pub(super) fn check_size(
    key: &ReminderKey,
    registration: &Registration,
) -> Result<(), ReminderResult> {
    let terms = &registration.terms;
    let term = [&terms.due_time, &terms.period, &terms.ttl].map(|text| text.len());
    let checks = [
        ("the id of an actor in bytes", key.actor_id.len(), REMINDER_ACTOR_ID_BYTES),
        ("the name of a reminder in bytes", key.name.len(), REMINDER_NAME_BYTES),
        ("the data of a reminder in bytes", registration.data.len(), REMINDER_DATA_BYTES),
        ("a term of a reminder in bytes", term.into_iter().max().unwrap_or(0), TERM_LIMIT_BYTES),
    ];
    for (what, found, limit) in checks {
        if found > limit {
            let (found, limit) = (found as u64, limit as u64);
            return Err(ReminderResult::Excess { what: what.to_owned(), found, limit });
        }
    }
    Ok(())
}

/// Whether a registration may replace the stored one.
pub(super) fn may_put(
    present: Option<&Head>,
    if_absent: bool,
    now: Moment,
) -> Result<(), ReminderResult> {
    let is_there = present.is_some_and(|present| !present.is_over(now));
    if is_there && if_absent { Err(ReminderResult::Exists) } else { Ok(()) }
}

/// What becomes of a reminder of which a firing was seen to.
pub(super) fn advance(
    present: Option<Head>,
    version: u64,
    due: Moment,
    firings: Option<NonZeroU32>,
) -> Result<Head, ReminderResult> {
    let present = present.filter(|present| present.version == version);
    present.map(|present| Head { due, firings, ..present }).ok_or(ReminderResult::NotFound)
}

/// Whether there is something to delete.
pub(super) fn may_delete(
    present: Option<&Head>,
    version: Option<u64>,
) -> Result<(), ReminderResult> {
    let is_meant = |head: &&Head| version.is_none_or(|version| head.version == version);
    present.filter(is_meant).map(|_| ()).ok_or(ReminderResult::NotFound)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_actors::schedule::{FailurePolicy, Terms};

    use super::*;

    fn moment(seconds: u64) -> Moment {
        Moment::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn head(version: u64, ends: Option<u64>) -> Head {
        Head { version, due: moment(10), firings: None, ends: ends.map(moment) }
    }

    /// The harm: what is a byte too large fills the memory of the control plane, many times.
    #[test]
    fn each_part_of_a_reminder_has_a_limit_that_it_may_reach() {
        let check = |id: usize, name: usize, data: usize, term: [usize; 3]| {
            let text = |bytes: usize| "x".repeat(bytes);
            let key =
                ReminderKey { actor_type: "Cart".into(), actor_id: text(id), name: text(name) };
            let [due_time, period, ttl] = term.map(|bytes| text(bytes).into());
            let schedule = Terms::new("1s", "", "").read(moment(0)).unwrap();
            let terms = Terms { due_time, period, ttl };
            let policy = FailurePolicy::Drop;
            check_size(&key, &Registration { terms, schedule, data: vec![0; data], policy })
        };
        let (id, name, data) = (REMINDER_ACTOR_ID_BYTES, REMINDER_NAME_BYTES, REMINDER_DATA_BYTES);
        let term = TERM_LIMIT_BYTES;
        assert_eq!(check(id, name, data, [term; 3]), Ok(()));
        let excess = |what: &str, limit: usize| {
            let limit = limit as u64;
            Err(ReminderResult::Excess { what: what.to_owned(), found: limit + 1, limit })
        };
        assert_eq!(check(id + 1, 1, 1, [1; 3]), excess("the id of an actor in bytes", id));
        assert_eq!(check(1, name + 1, 1, [1; 3]), excess("the name of a reminder in bytes", name));
        assert_eq!(check(1, 1, data + 1, [1; 3]), excess("the data of a reminder in bytes", data));
        for long in [[term + 1, 0, 0], [0, term + 1, 0], [0, 0, term + 1]] {
            assert_eq!(check(1, 1, 1, long), excess("a term of a reminder in bytes", term));
        }
    }

    #[test]
    fn a_reminder_that_is_there_is_replaced_unless_it_may_not_be() {
        for (present, if_absent, expected) in [
            (None, true, Ok(())),
            (Some(head(7, None)), false, Ok(())),
            (Some(head(7, None)), true, Err(ReminderResult::Exists)),
            (Some(head(7, Some(21))), true, Err(ReminderResult::Exists)),
            (Some(head(7, Some(20))), true, Ok(())),
        ] {
            assert_eq!(may_put(present.as_ref(), if_absent, moment(20)), expected, "{present:?}");
        }
    }

    #[test]
    fn a_firing_or_a_deletion_of_a_former_registration_changes_nothing() {
        let present = || Some(head(7, None));
        let next = advance(present(), 7, moment(11), NonZeroU32::new(3));
        let expected = Head { due: moment(11), firings: NonZeroU32::new(3), ..head(7, None) };
        assert_eq!(next, Ok(expected));
        for (present, version) in [(present(), 6), (present(), 8), (None, 7)] {
            let refused = advance(present, version, moment(11), None);
            assert_eq!(refused, Err(ReminderResult::NotFound));
        }
        assert_eq!(may_delete(present().as_ref(), None), Ok(()));
        assert_eq!(may_delete(present().as_ref(), Some(7)), Ok(()));
        assert_eq!(may_delete(present().as_ref(), Some(6)), Err(ReminderResult::NotFound));
        assert_eq!(may_delete(None, None), Err(ReminderResult::NotFound));
    }
}
