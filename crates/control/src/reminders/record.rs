//! The stored form of a reminder: a head of fixed size, which changes with every firing, followed
//! by the registration.

use std::num::NonZeroU32;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use tollway_actors::schedule::{Moment, Schedule};
use tollway_wire::{Registration, v1};

/// The one version of the form.
const FORM: u8 = 1;
const HEAD_BYTES: usize = 29;
/// No end.
const NO_END: i64 = i64::MAX;

/// What is left of a reminder, and which registration it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) version: u64,
    pub(super) due: Moment,
    pub(super) firings: Option<NonZeroU32>,
    pub(super) ends: Option<Moment>,
}

impl Head {
    /// `None` for what is no record of this form.
    pub(super) fn read(mut record: &[u8]) -> Option<Self> {
        if record.len() < HEAD_BYTES || record.get_u8() != FORM {
            return None;
        }
        let version = record.get_u64();
        let due = Moment::from_unix_micros(record.get_i64())?;
        let firings = NonZeroU32::new(record.get_u32());
        let ends = match record.get_i64() {
            NO_END => None,
            micros => Some(Moment::from_unix_micros(micros)?),
        };
        Some(Self { version, due, firings, ends })
    }

    /// The record with this head in the place of its own.
    pub(super) fn put_before(&self, record: &[u8]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(record.len().max(HEAD_BYTES));
        self.write(&mut bytes);
        bytes.put_slice(record.get(HEAD_BYTES..).unwrap_or_default());
        bytes.freeze()
    }

    fn write(&self, bytes: &mut BytesMut) {
        bytes.put_u8(FORM);
        bytes.put_u64(self.version);
        bytes.put_i64(self.due.unix_micros());
        bytes.put_u32(self.firings.map_or(0, NonZeroU32::get));
        bytes.put_i64(self.ends.map_or(NO_END, Moment::unix_micros));
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }
}

/// The record of a registration that is made now.
pub(super) fn write(version: u64, registration: Registration) -> (Head, Bytes) {
    let Schedule { due, firings, ends, .. } = registration.schedule;
    let head = Head { version, due, firings, ends };
    let mut body = v1::ReminderRegistration::from(registration);
    if let Some(schedule) = &mut body.schedule {
        // Those of the head count; what is 0 takes no bytes.
        (schedule.due_unix_us, schedule.firings, schedule.ends_unix_us) = (0, 0, None);
    }
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + body.encoded_len());
    head.write(&mut bytes);
    // A buffer that grows has room for everything.
    let _ = body.encode(&mut bytes);
    (head, bytes.freeze())
}

/// The head and what was registered, with what is left of its schedule. `None` for what is no
/// record of this form.
pub(super) fn read(record: &Bytes) -> Option<(Head, v1::ReminderRegistration)> {
    let head = Head::read(record)?;
    let mut body = v1::ReminderRegistration::decode(record.slice(HEAD_BYTES..)).ok()?;
    let schedule = body.schedule.get_or_insert_default();
    schedule.due_unix_us = head.due.unix_micros();
    schedule.firings = head.firings.map_or(0, NonZeroU32::get);
    schedule.ends_unix_us = head.ends.map(Moment::unix_micros);
    Some((head, body))
}

#[cfg(test)]
mod tests {
    use tollway_actors::schedule::{FailurePolicy, Terms};

    use super::*;

    fn registration(period: &str, ttl: &str) -> Registration {
        let terms = Terms::new("1960-01-01T00:00:00Z", period, ttl);
        let schedule = terms.read(Moment::since_unix_epoch(std::time::Duration::ZERO)).unwrap();
        let policy =
            FailurePolicy::Constant { interval: std::time::Duration::ZERO, max_retries: None };
        Registration { terms, schedule, data: b"{\"a\":1}".to_vec(), policy }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for (period, ttl) in [("", ""), ("1s", ""), ("R5/P1M", "2030-01-01T00:00:00Z")] {
            let registered = registration(period, ttl);
            let (head, record) = write(7, registered.clone());
            assert_eq!((head.version, head.ends), (7, registered.schedule.ends));
            let (read_head, body) = read(&record).unwrap();
            assert_eq!(read_head, head);
            assert_eq!(Registration::try_from(body), Ok(registered));
        }
    }

    #[test]
    fn a_new_head_leaves_the_rest() {
        let (head, record) = write(7, registration("R5/PT1S", ""));
        let due = head.due.checked_add(std::time::Duration::from_secs(1)).unwrap();
        let next = Head { due, firings: NonZeroU32::new(4), ..head };
        let (read_head, body) = read(&next.put_before(&record)).unwrap();
        assert_eq!(read_head, next);
        let body = Registration::try_from(body).unwrap();
        assert_eq!((body.schedule.due, body.schedule.firings), (due, NonZeroU32::new(4)));
        assert_eq!(body.terms, registration("R5/PT1S", "").terms);
    }

    #[test]
    fn malformed_and_newer_records_are_not_read() {
        let (_, record) = write(7, registration("", ""));
        for wrong in [&b""[..], &record[..HEAD_BYTES - 1], b"\x02", &[0xff; 60]] {
            assert_eq!(Head::read(wrong), None);
        }
        let mut later = record.to_vec();
        later[0] = 2;
        assert_eq!(read(&later.into()), None);
    }
}
