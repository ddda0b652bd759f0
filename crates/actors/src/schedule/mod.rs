//! When timers and reminders of actors are due.
//!
//! [`Terms`] are an app's registration, as texts; [`Terms::read`] makes a [`Schedule`] of them.
//! [`Schedule::after`] computes the next firing. An [`Agenda`] holds the due times of any number of
//! keys, and what happens after a failed firing ([`FailurePolicy`]).
//!
//! Firing is at least once and never early. After a time without a host, one firing makes
//! up for all that were missed, and the rhythm goes on as if nothing had been.
//!
//! Time is an argument: a [`Moment`] by the clock on the wall, since an app may name one.

mod agenda;
mod duration;
mod error;
mod moment;
mod period;
mod policy;
mod recurrence;
mod terms;

pub use agenda::{Agenda, Due, Next, Popped, Ticket};
pub use error::{Field, TermProblem, TermsError};
pub use moment::Moment;
pub use period::Period;
pub use policy::FailurePolicy;
pub use recurrence::Schedule;
pub use terms::{TERM_LIMIT_BYTES, Terms};

#[cfg(test)]
mod tests;
