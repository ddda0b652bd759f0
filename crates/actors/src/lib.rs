//! Decisions about actors, without clock, network or store: time is an argument.
//!
//! [`placement`] decides which host holds which actors, and when a turn of one may run.
//! [`schedule`] decides when timers and reminders are due. Callers carry the decisions out: the
//! control plane grants shards and stores reminders, the runtime runs turns and fires.

#![forbid(unsafe_code)]

pub mod placement;
pub mod schedule;
