//! The time of day, as it is stored and sent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970.
pub(crate) fn unix_now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// How long ago `at_unix_ms` was at `now_unix_ms`, for messages: in whole seconds once it is a
/// second; `None` before that moment.
pub(crate) fn ago(now_unix_ms: u64, at_unix_ms: u64) -> Option<Duration> {
    let ago = Duration::from_millis(now_unix_ms.checked_sub(at_unix_ms)?);
    Some(if ago.as_secs() == 0 { ago } else { Duration::from_secs(ago.as_secs()) })
}

/// The moment `after` from `now_unix_ms`, in milliseconds since 1970.
pub(crate) fn later(now_unix_ms: u64, after: Duration) -> u64 {
    now_unix_ms.saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_that_passed_is_given_in_whole_seconds_from_the_first_on() {
        assert_eq!(ago(999, 1_000), None);
        assert_eq!(ago(1_000, 1_000), Some(Duration::ZERO));
        assert_eq!(ago(1_999, 1_000), Some(Duration::from_millis(999)));
        assert_eq!(ago(4_999, 1_000), Some(Duration::from_secs(3)));
    }
}
