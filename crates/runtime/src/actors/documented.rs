//! `docs/limits.md` has the limits of the runtime with their defaults.

use std::time::Duration;

use tollway_testkit::{check_limit, grouped};

use super::TYPES_WITHIN;
use super::host::ACTOR_TURNS_WAITING;
use super::location::{OFFERED_WITHIN, OWNERS_WITHIN, PLACED_WITHIN};
use super::names::ACTOR_NAME_BYTES;
use super::stream::ACTOR_STREAMS;
use super::timers::ACTOR_TIMERS;
use crate::body_collector::MESSAGE_BYTES;
use crate::metadata::{METADATA_ENTRIES, METADATA_VALUE_BYTES};

const PAGE: &str = include_str!("../../../../docs/limits.md");

#[test]
fn limits_of_the_runtime_are_documented() {
    use tollway_wire::{
        ACTOR_TYPE_LIMIT_BYTES, ACTOR_TYPES_PER_HOST_LIMIT, ACTOR_TYPES_PER_STREAM_LIMIT,
        REMINDER_ACTOR_ID_BYTES, REMINDER_DATA_BYTES, REMINDER_NAME_BYTES,
    };
    for (name, limit) in [
        ("ACTOR_NAME_BYTES", ACTOR_NAME_BYTES),
        ("ACTOR_STREAMS", ACTOR_STREAMS),
        ("ACTOR_TIMERS", ACTOR_TIMERS),
        ("ACTOR_TURNS_WAITING", ACTOR_TURNS_WAITING),
        ("ACTOR_TYPE_LIMIT_BYTES", ACTOR_TYPE_LIMIT_BYTES),
        ("ACTOR_TYPES_PER_HOST_LIMIT", ACTOR_TYPES_PER_HOST_LIMIT),
        ("ACTOR_TYPES_PER_STREAM_LIMIT", ACTOR_TYPES_PER_STREAM_LIMIT),
        ("MESSAGE_BYTES", MESSAGE_BYTES),
        ("METADATA_ENTRIES", METADATA_ENTRIES),
        ("METADATA_VALUE_BYTES", METADATA_VALUE_BYTES),
        ("REMINDER_ACTOR_ID_BYTES", REMINDER_ACTOR_ID_BYTES),
        ("REMINDER_DATA_BYTES", REMINDER_DATA_BYTES),
        ("REMINDER_NAME_BYTES", REMINDER_NAME_BYTES),
        ("TERM_LIMIT_BYTES", tollway_actors::schedule::TERM_LIMIT_BYTES),
    ] {
        check_limit(PAGE, name, &grouped(limit as u64));
    }
    let times: [(&str, Duration); 4] = [
        ("PLACED_WITHIN", PLACED_WITHIN),
        ("OWNERS_WITHIN", OWNERS_WITHIN),
        ("OFFERED_WITHIN", OFFERED_WITHIN),
        ("TYPES_WITHIN", TYPES_WITHIN),
    ];
    for (name, time) in times {
        check_limit(PAGE, name, &format!("{} s", time.as_secs()));
    }
}
