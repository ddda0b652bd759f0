//! Limits that a user may set, by the names of `docs/limits.md`; times have their unit behind.

use std::time::Duration;

use super::{Limits, Timeouts};

/// Longest time that may be set, in milliseconds: a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

/// A limit with a name.
pub struct NamedLimit {
    pub name: &'static str,
    /// The smallest and the largest value that it may have.
    pub range: (u64, u64),
    get: fn(&Limits, &Timeouts) -> u64,
    set: fn(&mut Limits, &mut Timeouts, u64),
}

impl NamedLimit {
    /// The one called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        NAMED_LIMITS.iter().find(|limit| limit.name == name)
    }

    #[must_use]
    pub fn default_value(&self) -> u64 {
        (self.get)(&Limits::default(), &Timeouts::default())
    }

    /// Gives it another value. The caller keeps to its range.
    pub fn set(&self, limits: &mut Limits, timeouts: &mut Timeouts, value: u64) {
        (self.set)(limits, timeouts, value);
    }
}

macro_rules! time {
    ($name:literal, $field:ident) => {
        NamedLimit {
            name: $name,
            range: (1, DAY_MS),
            get: |_, timeouts| u64::try_from(timeouts.$field.as_millis()).unwrap_or(u64::MAX),
            set: |_, timeouts, value| timeouts.$field = Duration::from_millis(value),
        }
    };
}

macro_rules! number {
    ($name:literal, $($field:ident).+, $least:expr, $most:expr) => {
        NamedLimit {
            name: $name,
            range: ($least, $most),
            get: |limits, _| u64::from_number(limits.$($field).+),
            set: |limits, _, value| limits.$($field).+ = u64::to_number(value),
        }
    };
}

/// Every limit that may be set, in the order of the page.
pub const NAMED_LIMITS: &[NamedLimit] = &[
    number!("waiting_per_service", waiting_per_service, 1, 1_000_000),
    number!("services", services, 1, 1_000_000),
    number!("app_connections", app_connections, 1, 100_000),
    number!("app_http2_connections", app_http2_connections, 1, 10_000),
    number!("hops", hops, 1, 1000),
    number!("bulk_connections", bulk_connections, 0, 64),
    number!("mesh_connections", mesh_connections, 1, 1024),
    number!("unread_bytes", unread_bytes, 16 << 10, 1 << 30),
    number!("buffered_bytes", buffered_bytes, 1 << 20, 1 << 40),
    number!("head_bytes", h1.head_bytes, 1 << 10, 1 << 20),
    number!("fields", h1.fields, 16, 10_000),
    number!("target_bytes", h1.target_bytes, 256, 1 << 20),
    number!("trailer_bytes", h1.trailer_bytes, 256, 1 << 20),
    number!("informational", informational, 0, 255),
    number!("max_concurrent_streams", h2.max_concurrent_streams, 1, 100_000),
    number!("header_list_bytes", h2.header_list_bytes, 1 << 10, 1 << 19),
    number!("header_fields", h2.header_fields, 16, 10_000),
    time!("handshake_ms", handshake),
    time!("head_ms", head),
    time!("downstream_idle_ms", downstream_idle),
    time!("app_idle_ms", app_idle),
    time!("discovery_ms", discovery),
    time!("far_ms", far),
    time!("linger_ms", linger),
];

/// Numbers of several kinds as one; a range above keeps each within its own.
trait Number<T> {
    fn from_number(number: T) -> u64;
    fn to_number(value: u64) -> T;
}

macro_rules! number_of {
    ($($kind:ty),+) => {$(
        impl Number<$kind> for u64 {
            fn from_number(number: $kind) -> u64 {
                Self::try_from(number).unwrap_or(Self::MAX)
            }
            fn to_number(value: u64) -> $kind {
                <$kind>::try_from(value).unwrap_or(<$kind>::MAX)
            }
        }
    )+};
}

number_of!(u8, u32, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_holds_what_it_is_set_to_and_no_other_changes() {
        for limit in NAMED_LIMITS {
            let (least, most) = limit.range;
            let default = limit.default_value();
            assert!((least..=most).contains(&default), "{}: {default}", limit.name);
            let (mut limits, mut timeouts) = (Limits::default(), Timeouts::default());
            for value in [least, most] {
                limit.set(&mut limits, &mut timeouts, value);
                assert_eq!((limit.get)(&limits, &timeouts), value, "{}", limit.name);
            }
            for other in NAMED_LIMITS.iter().filter(|other| other.name != limit.name) {
                let now = (other.get)(&limits, &timeouts);
                assert_eq!(now, other.default_value(), "{} by {}", other.name, limit.name);
            }
        }
    }
}
