//! Measures how late timers and reminders of actors fire.
//!
//! [`run_timers`] sets them through the sidecar of an app at a steady rate and reads from the app when
//! each fire came. The app is `tollway echo --actors`; the name of a timer carries its schedule
//! ([`tollway_echo::actor_timer`]).

mod run;

pub use self::run::{MAX_TIMERS, TimerKind, TimerOptions, TimersError, run_timers};
