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
