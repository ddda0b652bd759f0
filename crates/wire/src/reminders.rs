//! Reminders of actors, as hosts and the control plane exchange them.

use std::num::NonZeroU32;
use std::time::Duration;

use tollway_actors::placement::{Epoch, Shard, ShardSet};
use tollway_actors::schedule::{FailurePolicy, Moment, Period, Schedule, Terms};

use crate::v1::reminder_change::Change;
use crate::v1::reminder_failure_policy::Policy;
use crate::v1::reminder_result::Result as Outcome;
use crate::{ConvertError, actor_type, grants, read_grant, v1};

/// What names a reminder within a namespace. All three compare as they are written.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReminderKey {
    pub actor_type: String,
    pub actor_id: String,
    pub name: String,
}

/// What a reminder is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// As they were given.
    pub terms: Terms,
    /// What they mean, or what is left of that.
    pub schedule: Schedule,
    /// The app's own.
    pub data: Vec<u8>,
    pub policy: FailurePolicy,
}

/// A reminder of an actor type, as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reminder {
    pub actor_id: String,
    pub name: String,
    /// Version of the registration; registering again raises it.
    pub version: u64,
    pub registration: Registration,
}

/// A host's change of reminders; `epoch` is that of the grant of the actor's shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReminderChange {
    Put {
        key: ReminderKey,
        epoch: Epoch,
        registration: Registration,
        /// Not if there is one of this name.
        if_absent: bool,
    },
    /// A firing of the registration of this version was seen to, and this is left.
    Advance {
        key: ReminderKey,
        epoch: Epoch,
        version: u64,
        due: Moment,
        firings: Option<NonZeroU32>,
    },
    Delete {
        key: ReminderKey,
        epoch: Epoch,
        /// `None`: whichever there is.
        version: Option<u64>,
    },
    DeleteOfActor {
        actor_type: String,
        actor_id: String,
        epoch: Epoch,
    },
    DeleteOfShards {
        actor_type: String,
        grants: Vec<(Epoch, ShardSet)>,
    },
}

/// What a change came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReminderResult {
    /// It was made: `version` is that of the registration, 0 after deleting.
    Done { version: u64, deleted: u64 },
    /// There is none of this name, or of this version.
    NotFound,
    /// There is one of this name.
    Exists,
    /// The host does not hold the shard under this epoch.
    Fenced,
    /// A limit was passed.
    Excess { what: String, found: u64, limit: u64 },
}

fn key(stated: Option<v1::ReminderKey>) -> Result<ReminderKey, ConvertError> {
    let stated = stated.ok_or(ConvertError::Missing { field: "key" })?;
    actor_type(&stated.actor_type)?;
    Ok(ReminderKey {
        actor_type: stated.actor_type,
        actor_id: part("actor_id", stated.actor_id)?,
        name: part("name", stated.name)?,
    })
}

fn part(field: &'static str, text: String) -> Result<String, ConvertError> {
    if text.is_empty() || text.contains('\0') {
        return Err(ConvertError::ReminderName { field });
    }
    Ok(text)
}

fn moment(field: &'static str, micros: i64) -> Result<Moment, ConvertError> {
    Moment::from_unix_micros(micros).ok_or(ConvertError::Moment { field, micros })
}

fn schedule(stated: &v1::ReminderSchedule) -> Result<Schedule, ConvertError> {
    let (months, micros) = (stated.period_months, stated.period_us);
    let period = if (months, micros) == (0, 0) {
        None
    } else {
        let period = Period::new(months, Duration::from_micros(micros));
        Some(period.ok_or(ConvertError::Period { months, micros })?)
    };
    let ends = stated.ends_unix_us.map(|micros| moment("ends_unix_us", micros)).transpose()?;
    Ok(Schedule {
        due: moment("due_unix_us", stated.due_unix_us)?,
        period,
        firings: NonZeroU32::new(stated.firings),
        ends,
    })
}

fn policy(stated: Option<v1::ReminderFailurePolicy>) -> FailurePolicy {
    match stated.and_then(|stated| stated.policy) {
        Some(Policy::Drop(_)) => FailurePolicy::Drop,
        Some(Policy::Constant(retries)) => FailurePolicy::Constant {
            interval: Duration::from_micros(retries.interval_us),
            max_retries: retries.max_retries,
        },
        None => FailurePolicy::default(),
    }
}

impl TryFrom<v1::ReminderRegistration> for Registration {
    type Error = ConvertError;

    /// Fails for the first field that is wrong.
    fn try_from(stated: v1::ReminderRegistration) -> Result<Self, ConvertError> {
        let left = stated.schedule.as_ref().ok_or(ConvertError::Missing { field: "schedule" })?;
        Ok(Self {
            schedule: schedule(left)?,
            terms: Terms {
                due_time: stated.due_time.into(),
                period: stated.period.into(),
                ttl: stated.ttl.into(),
            },
            data: stated.data,
            policy: policy(stated.failure_policy),
        })
    }
}

impl From<&Schedule> for v1::ReminderSchedule {
    fn from(schedule: &Schedule) -> Self {
        let micros = |period: Period| u64::try_from(period.time().as_micros()).unwrap_or(u64::MAX);
        Self {
            due_unix_us: schedule.due.unix_micros(),
            period_months: schedule.period.map_or(0, Period::months),
            period_us: schedule.period.map_or(0, micros),
            firings: schedule.firings.map_or(0, NonZeroU32::get),
            ends_unix_us: schedule.ends.map(Moment::unix_micros),
        }
    }
}

impl From<FailurePolicy> for v1::ReminderFailurePolicy {
    fn from(policy: FailurePolicy) -> Self {
        let policy = match policy {
            FailurePolicy::Drop => Policy::Drop(v1::DropFiring {}),
            FailurePolicy::Constant { interval, max_retries } => {
                let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
                Policy::Constant(v1::ConstantRetries { interval_us, max_retries })
            }
        };
        Self { policy: Some(policy) }
    }
}

impl From<Registration> for v1::ReminderRegistration {
    fn from(registration: Registration) -> Self {
        let Registration { terms, schedule, data, policy } = registration;
        Self {
            due_time: terms.due_time.into(),
            period: terms.period.into(),
            ttl: terms.ttl.into(),
            schedule: Some((&schedule).into()),
            data,
            failure_policy: Some(policy.into()),
        }
    }
}

impl From<ReminderKey> for v1::ReminderKey {
    fn from(key: ReminderKey) -> Self {
        Self { actor_type: key.actor_type, actor_id: key.actor_id, name: key.name }
    }
}

impl From<Reminder> for v1::Reminder {
    fn from(reminder: Reminder) -> Self {
        Self {
            actor_id: reminder.actor_id,
            name: reminder.name,
            version: reminder.version,
            registration: Some(reminder.registration.into()),
        }
    }
}

/// Reads a reminder of a list.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn reminder(stated: v1::Reminder) -> Result<Reminder, ConvertError> {
    let registration =
        stated.registration.ok_or(ConvertError::Missing { field: "registration" })?;
    Ok(Reminder {
        actor_id: part("actor_id", stated.actor_id)?,
        name: part("name", stated.name)?,
        version: stated.version,
        registration: registration.try_into()?,
    })
}

impl From<ReminderChange> for v1::ReminderChange {
    fn from(change: ReminderChange) -> Self {
        let change = match change {
            ReminderChange::Put { key, epoch, registration, if_absent } => {
                Change::Put(v1::PutReminder {
                    key: Some(key.into()),
                    epoch: epoch.0,
                    registration: Some(registration.into()),
                    if_absent,
                })
            }
            ReminderChange::Advance { key, epoch, version, due, firings } => {
                Change::Advance(v1::AdvanceReminder {
                    key: Some(key.into()),
                    epoch: epoch.0,
                    version,
                    due_unix_us: due.unix_micros(),
                    firings: firings.map_or(0, NonZeroU32::get),
                })
            }
            ReminderChange::Delete { key, epoch, version } => Change::Delete(v1::DeleteReminder {
                key: Some(key.into()),
                epoch: epoch.0,
                version: version.unwrap_or(0),
            }),
            ReminderChange::DeleteOfActor { actor_type, actor_id, epoch } => {
                Change::DeleteOfActor(v1::DeleteRemindersOfActor {
                    actor_type,
                    actor_id,
                    epoch: epoch.0,
                })
            }
            ReminderChange::DeleteOfShards { actor_type, grants: stated } => {
                let held = stated
                    .iter()
                    .flat_map(|(epoch, shards)| shards.iter().map(|shard| (shard, *epoch)));
                Change::DeleteOfShards(v1::DeleteRemindersOfShards {
                    actor_type,
                    grants: grants(&held.collect()),
                })
            }
        };
        Self { change: Some(change) }
    }
}

/// Reads a change. The lengths of names and data are not checked here: the store refuses a change
/// that is too large.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn reminder_change(stated: v1::ReminderChange) -> Result<ReminderChange, ConvertError> {
    let change = stated.change.ok_or(ConvertError::Missing { field: "change" })?;
    Ok(match change {
        Change::Put(put) => ReminderChange::Put {
            key: key(put.key)?,
            epoch: Epoch(put.epoch),
            registration: put
                .registration
                .ok_or(ConvertError::Missing { field: "registration" })?
                .try_into()?,
            if_absent: put.if_absent,
        },
        Change::Advance(advance) => ReminderChange::Advance {
            key: key(advance.key)?,
            epoch: Epoch(advance.epoch),
            version: advance.version,
            due: moment("due_unix_us", advance.due_unix_us)?,
            firings: NonZeroU32::new(advance.firings),
        },
        Change::Delete(delete) => ReminderChange::Delete {
            key: key(delete.key)?,
            epoch: Epoch(delete.epoch),
            version: (delete.version != 0).then_some(delete.version),
        },
        Change::DeleteOfActor(delete) => ReminderChange::DeleteOfActor {
            actor_type: actor_type(&delete.actor_type)?.to_owned(),
            actor_id: part("actor_id", delete.actor_id)?,
            epoch: Epoch(delete.epoch),
        },
        Change::DeleteOfShards(delete) => ReminderChange::DeleteOfShards {
            actor_type: actor_type(&delete.actor_type)?.to_owned(),
            grants: delete.grants.iter().map(read_grant).collect::<Result<_, _>>()?,
        },
    })
}

impl From<ReminderResult> for v1::ReminderResult {
    fn from(result: ReminderResult) -> Self {
        let result = match result {
            ReminderResult::Done { version, deleted } => {
                Outcome::Done(v1::ReminderDone { version, deleted })
            }
            ReminderResult::NotFound => Outcome::NotFound(v1::ReminderNotFound {}),
            ReminderResult::Exists => Outcome::Exists(v1::ReminderExists {}),
            ReminderResult::Fenced => Outcome::Fenced(v1::ReminderFenced {}),
            ReminderResult::Excess { what, found, limit } => {
                Outcome::Excess(v1::ReminderExcess { what, found, limit })
            }
        };
        Self { result: Some(result) }
    }
}

/// Reads what a change came to.
///
/// # Errors
/// [`ConvertError::Missing`].
pub fn reminder_result(stated: v1::ReminderResult) -> Result<ReminderResult, ConvertError> {
    let result = stated.result.ok_or(ConvertError::Missing { field: "result" })?;
    Ok(match result {
        Outcome::Done(v1::ReminderDone { version, deleted }) => {
            ReminderResult::Done { version, deleted }
        }
        Outcome::NotFound(_) => ReminderResult::NotFound,
        Outcome::Exists(_) => ReminderResult::Exists,
        Outcome::Fenced(_) => ReminderResult::Fenced,
        Outcome::Excess(v1::ReminderExcess { what, found, limit }) => {
            ReminderResult::Excess { what, found, limit }
        }
    })
}

impl ReminderKey {
    /// Where its actor lives.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard::of(&self.actor_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_key() -> ReminderKey {
        ReminderKey { actor_type: "cart".into(), actor_id: "a|b@c d".into(), name: "pay up".into() }
    }

    fn now() -> Moment {
        Moment::parse_rfc3339("2026-01-31T12:00:00Z").unwrap()
    }

    fn registration(terms: Terms, policy: FailurePolicy) -> Registration {
        let schedule = terms.read(now()).unwrap();
        Registration { terms, schedule, data: b"\"x\"\0".to_vec(), policy }
    }

    fn registrations() -> Vec<Registration> {
        let constant = |max_retries| FailurePolicy::Constant {
            interval: Duration::from_millis(1_500),
            max_retries,
        };
        vec![
            registration(Terms::default(), FailurePolicy::default()),
            registration(Terms::new("1h", "R5/P1MT1.5S", "P1Y"), FailurePolicy::Drop),
            registration(Terms::new("1960-01-01T00:00:00Z", "1us", ""), constant(None)),
            registration(Terms::new("9999-12-31T23:59:59Z", "", ""), constant(Some(0))),
        ]
    }

    #[test]
    fn changes_read_back() {
        let (key, epoch) = (a_key(), Epoch(1 << 52));
        let mut all = vec![
            ReminderChange::Advance {
                key: key.clone(),
                epoch,
                version: 7,
                due: now(),
                firings: NonZeroU32::new(3),
            },
            ReminderChange::Advance {
                key: key.clone(),
                epoch,
                version: 7,
                due: Moment::MIN,
                firings: None,
            },
            ReminderChange::Delete { key: key.clone(), epoch, version: Some(9) },
            ReminderChange::Delete { key: key.clone(), epoch, version: None },
            ReminderChange::DeleteOfActor {
                actor_type: key.actor_type.clone(),
                actor_id: key.actor_id.clone(),
                epoch,
            },
            ReminderChange::DeleteOfShards {
                actor_type: key.actor_type.clone(),
                grants: vec![
                    (Epoch(1), [Shard::of("a")].into_iter().collect()),
                    (Epoch(2), [Shard::of("b"), Shard::of("c")].into_iter().collect()),
                ],
            },
        ];
        all.extend(registrations().into_iter().map(|registration| ReminderChange::Put {
            key: key.clone(),
            epoch,
            registration,
            if_absent: true,
        }));
        for change in all {
            assert_eq!(reminder_change(change.clone().into()), Ok(change));
        }
    }

    #[test]
    fn reminders_and_results_read_back() {
        for registration in registrations() {
            let stated =
                Reminder { actor_id: "a".into(), name: "b".into(), version: 5, registration };
            assert_eq!(reminder(stated.clone().into()), Ok(stated));
        }
        for result in [
            ReminderResult::Done { version: 4, deleted: 0 },
            ReminderResult::NotFound,
            ReminderResult::Exists,
            ReminderResult::Fenced,
            ReminderResult::Excess { what: "data".into(), found: 2, limit: 1 },
        ] {
            assert_eq!(reminder_result(result.clone().into()), Ok(result));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_the_name_of_its_field() {
        let put = |adjust: &dyn Fn(&mut v1::PutReminder)| {
            let mut put = v1::PutReminder {
                key: Some(a_key().into()),
                registration: Some(registrations().remove(0).into()),
                ..Default::default()
            };
            adjust(&mut put);
            reminder_change(v1::ReminderChange { change: Some(Change::Put(put)) })
        };
        let named =
            |adjust: &dyn Fn(&mut v1::ReminderKey)| put(&|put| adjust(put.key.as_mut().unwrap()));
        let due = |adjust: &dyn Fn(&mut v1::ReminderSchedule)| {
            put(&|put| {
                adjust(put.registration.as_mut().unwrap().schedule.as_mut().unwrap());
            })
        };
        let cases = [
            (put(&|_| ()), None),
            (reminder_change(v1::ReminderChange::default()), Some("`change` is missing")),
            (put(&|put| put.key = None), Some("`key` is missing")),
            (put(&|put| put.registration = None), Some("`registration` is missing")),
            (named(&|key| key.actor_type.clear()), Some("actor type has 0 bytes")),
            (named(&|key| key.actor_id.clear()), Some("`actor_id` of a reminder is empty")),
            (named(&|key| key.name = "a\0".into()), Some("`name` of a reminder is empty or holds")),
            (due(&|left| left.due_unix_us = i64::MAX), Some("`due_unix_us` of a reminder")),
            (due(&|left| left.ends_unix_us = Some(i64::MIN)), Some("`ends_unix_us` of a reminder")),
            (due(&|left| left.period_us = u64::MAX), Some("period of a reminder has no length")),
        ];
        for (read, reason) in cases {
            match reason {
                None => assert!(read.is_ok(), "{read:?}"),
                Some(reason) => {
                    let error = read.unwrap_err().to_string();
                    assert!(error.contains(reason), "{error}");
                }
            }
        }
    }
}
