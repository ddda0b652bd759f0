//! Shared by the tests.

mod agenda;
mod grammar;
mod next;

use std::time::Duration;

use super::*;

fn at(text: &str) -> Moment {
    Moment::parse_rfc3339(text).unwrap_or_else(|| panic!("{text}"))
}

/// 2026-01-31, noon.
fn now() -> Moment {
    at("2026-01-31T12:00:00Z")
}

fn later(duration: Duration) -> Moment {
    now().checked_add(duration).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn read(due_time: &str, period: &str, ttl: &str) -> Schedule {
    Terms::new(due_time, period, ttl).read(now()).unwrap_or_else(|error| panic!("{error}"))
}
