//! What is wrong with the terms of a timer or reminder.

use std::fmt;

use thiserror::Error;

/// Bytes of what was given that an error repeats.
const SHOWN_BYTES: usize = 64;

/// A registration is invalid or cannot be stored.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{field}` {problem}: \"{given}\"; it takes {}", field.takes())]
pub struct TermsError {
    pub field: Field,
    /// Its beginning.
    pub given: String,
    pub problem: TermProblem,
}

/// A part of the terms, by the name that it has in requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    DueTime,
    Period,
    Ttl,
    /// Of a failure policy.
    Interval,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TermProblem {
    #[error("is not understood")]
    Unreadable,
    #[error("is negative")]
    Negative,
    #[error("is after the year 9999")]
    TooFar,
    #[error("is longer than {} bytes", crate::schedule::TERM_LIMIT_BYTES)]
    TooLong,
    #[error("has repetitions")]
    Repetitions,
    #[error("has no repetitions, or more than 4294967295")]
    RepetitionCount,
    #[error("has repetitions, but does not say how far apart")]
    NoPeriod,
    #[error("is over before the first firing")]
    Over,
}

impl TermsError {
    pub(crate) fn new(field: Field, given: &str, problem: TermProblem) -> Self {
        let mut end = given.len().min(SHOWN_BYTES);
        while !given.is_char_boundary(end) {
            end -= 1;
        }
        Self { field, given: given[..end].escape_debug().collect(), problem }
    }
}

impl Field {
    fn takes(self) -> &'static str {
        match self {
            Self::DueTime => {
                "a duration (1h30m, PT1H30M) or a moment (2030-01-02T15:00:00Z); without it, \
                 firing begins at once"
            }
            Self::Period => {
                "a duration (1h30m, PT1H30M), or one with repetitions (R5/PT1H30M fires five \
                 times); without it, there is one firing"
            }
            Self::Ttl => {
                "a duration from the first firing (1h30m, PT1H30M) or a moment \
                 (2030-01-02T15:00:00Z) after it; without it, there is no end"
            }
            Self::Interval => "a duration (1h30m, PT1H30M)",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DueTime => "dueTime",
            Self::Period => "period",
            Self::Ttl => "ttl",
            Self::Interval => "interval",
        })
    }
}
