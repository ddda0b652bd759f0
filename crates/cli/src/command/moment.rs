//! Moments in tables: how far they are from now, as the control plane's clock and this one agree.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_identity::span;

/// A moment as seen from another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    Ago(Duration),
    In(Duration),
    Never,
}

impl Moment {
    /// `at_unix_ms` as seen from `now_unix_ms`; 0 is never.
    pub(crate) fn of(at_unix_ms: u64, now_unix_ms: u64) -> Self {
        let apart = Duration::from_millis(at_unix_ms.abs_diff(now_unix_ms));
        match at_unix_ms {
            0 => Self::Never,
            _ if at_unix_ms <= now_unix_ms => Self::Ago(apart),
            _ => Self::In(apart),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ago(apart) => write!(f, "{} ago", span(*apart)),
            Self::In(apart) => write!(f, "in {}", span(*apart)),
            Self::Never => f.write_str("never"),
        }
    }
}

/// Milliseconds since 1970 by this machine's clock.
pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_by_their_distance() {
        let shown = |at| Moment::of(at, 100_000).to_string();
        assert_eq!(shown(100_000), "0 ms ago");
        assert_eq!(shown(40_000), "1 min ago");
        assert_eq!(shown(7_300_000), "in 2 h");
        assert_eq!(shown(0), "never");
    }
}
