//! Which repeated events the log has had lately, so that a peer that comes back all the time does
//! not fill it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long an event is not logged again.
const QUIET: Duration = Duration::from_secs(60);
/// Different events remembered; beyond them no other is logged until some have aged.
const REMEMBERED: usize = 256;

/// Events and when they were logged.
#[derive(Default)]
pub(crate) struct LogLimiter(HashMap<String, Instant>);

impl LogLimiter {
    /// Whether an event is to be logged now; if so, it is remembered.
    pub(crate) fn should_log(&mut self, event: String, now: Instant) -> bool {
        if self.0.get(&event).is_some_and(|logged| is_recent(*logged, now)) {
            return false;
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, logged| is_recent(*logged, now));
        }
        let has_room = self.0.len() < REMEMBERED;
        if has_room {
            self.0.insert(event, now);
        }
        has_room
    }
}

fn is_recent(logged: Instant, now: Instant) -> bool {
    now.saturating_duration_since(logged) < QUIET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_logged_once_in_a_while() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        assert!(limiter.should_log("a".to_owned(), now));
        assert!(!limiter.should_log("a".to_owned(), now + QUIET / 2));
        assert!(limiter.should_log("b".to_owned(), now + QUIET / 2));
        assert!(limiter.should_log("a".to_owned(), now + QUIET));
    }

    #[test]
    fn many_different_events_are_bounded() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        let news =
            (0..2 * REMEMBERED).filter(|event| limiter.should_log(event.to_string(), now)).count();
        assert_eq!(news, REMEMBERED);
        assert!(limiter.should_log("later".to_owned(), now + QUIET));
        assert_eq!(limiter.0.len(), 1);
    }
}
