//! Timers and reminders of actors that fire: who asks for them, and what the actors see.
//!
//! [`run_firings`] has a sidecar wake actors at a steady rate. The app is `tollway echo --actors`,
//! which notes when each firing comes, and where asked to, writes state of the actor within that
//! turn (`echo/firings.rs`). When a firing is due and what is to be done stands in the name of the
//! timer or reminder (`alarm`), so that the app need not be told.

mod alarm;
mod client;
mod run;

pub(crate) use self::alarm::{Alarm, FIRING_BYTES, Firing, now_us};
pub(crate) use self::client::Client;
pub use self::run::{AlarmKind, FiringOptions, FiringsError, MAX_ALARMS, run_firings};
