//! What an app registers, and what it means.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::schedule::duration::{self, Span};
use crate::schedule::error::{Field, TermProblem, TermsError};
use crate::schedule::{Moment, Period, Schedule};

/// Bytes of each text; a moment with all its digits has 35.
pub const TERM_LIMIT_BYTES: usize = 128;

/// The terms of a timer or reminder, as they were given; one that was left out is empty.
///
/// The app gets them back when it reads its reminder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// When the first firing is due: so long from now, or a moment.
    pub due_time: Box<str>,
    /// How far apart firings are, and how many there are.
    pub period: Box<str>,
    /// When it is over: so long after the first firing, or a moment. Means nothing without a
    /// period, as Dapr's API reference has it.
    pub ttl: Box<str>,
}

impl Terms {
    #[must_use]
    pub fn new(due_time: &str, period: &str, ttl: &str) -> Self {
        Self { due_time: due_time.into(), period: period.into(), ttl: ttl.into() }
    }

    /// What the terms mean when they are given at `now`.
    ///
    /// - No `dueTime`, or one of no length: at once. A moment that has passed: at once too, and
    ///   the rhythm counts from that moment.
    /// - No `period`, or one of no length: one firing. `R5/PT10S`: five, ten seconds apart; `R5`
    ///   alone lacks the interval.
    /// - Durations are those of Go (`1h30m`, `0.5s`) and of ISO 8601 (`PT1H30M`, `P2W`, `P1Y2M`).
    ///   Repetitions go with the latter only.
    ///
    /// # Errors
    /// [`TermsError`] for the first term that is not so.
    pub fn read(&self, now: Moment) -> Result<Schedule, TermsError> {
        let due = named(Field::DueTime, &self.due_time, point(&self.due_time, now))?;
        let (period, firings) = named(Field::Period, &self.period, period(&self.period))?;
        let ends = named(Field::Ttl, &self.ttl, point(&self.ttl, due))?;
        let ends = (!self.ttl.is_empty() && period.is_some()).then_some(ends);
        if ends.is_some_and(|ends| ends <= due || ends <= now) {
            return Err(TermsError::new(Field::Ttl, &self.ttl, TermProblem::Over));
        }
        Ok(Schedule { due, period, firings, ends })
    }
}

/// Reads the interval of a failure policy: a duration without months.
///
/// # Errors
/// [`TermsError`].
pub(crate) fn interval(text: &str) -> Result<Duration, TermsError> {
    let read = bounded(text).and_then(duration::parse).and_then(|Span { months, time }| {
        if months > 0 { Err(TermProblem::Unreadable) } else { Ok(time) }
    });
    named(Field::Interval, text, read)
}

fn named<T>(field: Field, given: &str, read: Result<T, TermProblem>) -> Result<T, TermsError> {
    read.map_err(|fault| TermsError::new(field, given, fault))
}

fn bounded(text: &str) -> Result<&str, TermProblem> {
    if text.len() > TERM_LIMIT_BYTES {
        return Err(TermProblem::TooLong);
    }
    Ok(text)
}

/// A moment, or a duration from `start`; nothing is no time at all.
fn point(text: &str, start: Moment) -> Result<Moment, TermProblem> {
    let text = bounded(text)?;
    if text.is_empty() {
        return Ok(start);
    }
    if text.starts_with(['R', 'r']) && text.contains('/') {
        return Err(TermProblem::Repetitions);
    }
    // No duration has a colon.
    if text.contains(':') {
        return Moment::parse_rfc3339(text).ok_or(TermProblem::Unreadable);
    }
    let Span { months, time } = duration::parse(text)?;
    let shifted = if months > 0 { start.add_months(months) } else { Some(start) };
    shifted.and_then(|start| start.checked_add(time)).ok_or(TermProblem::TooFar)
}

/// A duration, or `R`, a number, a slash and a duration of ISO 8601.
fn period(text: &str) -> Result<(Option<Period>, Option<NonZeroU32>), TermProblem> {
    let text = bounded(text)?;
    if text.is_empty() {
        return Ok((None, None));
    }
    let Some(counted) = text.strip_prefix(['R', 'r']) else {
        return Ok((read_period(text)?, None));
    };
    let (count, rest) = counted.split_once('/').unwrap_or((counted, ""));
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TermProblem::Unreadable);
    }
    let count: NonZeroU32 = count.parse().map_err(|_| TermProblem::RepetitionCount)?;
    let period = match rest.strip_prefix(['P', 'p']) {
        Some(_) => read_period(rest)?,
        None if rest.is_empty() => None,
        None => return Err(TermProblem::Unreadable),
    };
    match period {
        Some(_) => Ok((period, Some(count))),
        None if count == NonZeroU32::MIN => Ok((None, None)),
        None => Err(TermProblem::NoPeriod),
    }
}

fn read_period(text: &str) -> Result<Option<Period>, TermProblem> {
    let Span { months, time } = duration::parse(text)?;
    if months == 0 && time.is_zero() {
        return Ok(None);
    }
    Period::new(months, time).map(Some).ok_or(TermProblem::TooFar)
}
