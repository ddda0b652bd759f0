//! How long to wait before a retry.

use std::time::Duration;

use tollway_model::route::RouteRetry;

/// Longest wait that a response may ask for.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(60);

/// The pause before the `retry`-th retry of a request, from 1. `retry_after` is what the response to
/// the attempt before asked for: the pause is never shorter, and a random part comes on top, so that
/// callers that were refused at one time do not come back at one time. `random` is uniform.
#[must_use]
pub fn pause_before(
    rule: &RouteRetry,
    retry: u32,
    retry_after: Option<Duration>,
    random: u64,
) -> Duration {
    let doublings = retry.saturating_sub(1).min(31);
    let longest = rule.longest_backoff.max(rule.backoff);
    let whole = rule.backoff.saturating_mul(1 << doublings).min(longest);
    let part = part_of(whole / 2, random);
    let asked = retry_after.map(|asked| asked.min(RETRY_AFTER_LIMIT) + part);
    (whole - part).max(asked.unwrap_or_default())
}

/// The wait that a `Retry-After` field states in seconds. `None` for a date: it would be read off the
/// clock of another machine.
#[must_use]
pub fn retry_after(value: &[u8]) -> Option<Duration> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let limit = RETRY_AFTER_LIMIT.as_secs();
    let read = |so_far: u64, digit: &u8| (so_far * 10 + u64::from(digit - b'0')).min(limit);
    Some(Duration::from_secs(digits.iter().fold(0, read)))
}

/// A part of `whole`, by a uniform number.
fn part_of(whole: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
    let part = (u128::from(random) * u128::from(nanos)) >> 64;
    Duration::from_nanos(u64::try_from(part).unwrap_or(nanos))
}

#[cfg(test)]
mod tests {
    use tollway_model::route::RetryBudget;

    use super::*;

    fn rule(backoff: u64, longest: u64) -> RouteRetry {
        RouteRetry {
            attempts: 5,
            statuses: vec![503],
            grpc_statuses: Vec::new(),
            backoff: Duration::from_millis(backoff),
            longest_backoff: Duration::from_millis(longest),
            idempotent: false,
            budget: RetryBudget::DEFAULT,
        }
    }

    fn millis(rule: &RouteRetry, retry: u32, random: u64) -> u128 {
        pause_before(rule, retry, None, random).as_millis()
    }

    #[test]
    fn it_doubles_up_to_the_longest() {
        let rule = rule(25, 1000);
        let whole: Vec<_> = (0..9).map(|retry| millis(&rule, retry, 0)).collect();
        assert_eq!(whole, [25, 25, 50, 100, 200, 400, 800, 1000, 1000]);
        let least: Vec<_> = (1..8).map(|retry| millis(&rule, retry, u64::MAX)).collect();
        assert_eq!(least, [12, 25, 50, 100, 200, 400, 500]);
        assert_eq!(millis(&rule, u32::MAX, 0), 1000);
    }

    #[test]
    fn the_part_that_is_left_out_is_spread_evenly() {
        let rule = rule(1000, 1000);
        let mut counts = [0_u32; 5];
        let mut random = 0_u64;
        for _ in 0..10_000 {
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let millis = usize::try_from(millis(&rule, 1, random)).unwrap();
            counts[(millis - 500) / 100] += 1;
        }
        assert!(counts.iter().all(|count| (1_900..2_100).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_response_that_asks_for_a_wait_gets_it_up_to_a_minute() {
        let rule = rule(25, 1000);
        let asked = |seconds: u64, random| {
            pause_before(&rule, 1, Some(Duration::from_secs(seconds)), random).as_millis()
        };
        assert_eq!(asked(0, 0), 25);
        assert_eq!(asked(2, 0), 2_000);
        assert_eq!(asked(2, u64::MAX), 2_012);
        assert_eq!(asked(3600, 0), 60_000);
    }

    #[test]
    fn seconds_are_read_and_dates_are_not() {
        let seconds = |text: &str| retry_after(text.as_bytes()).map(|wait| wait.as_secs());
        assert_eq!(seconds("7"), Some(7));
        assert_eq!(seconds(" 7 "), Some(7));
        assert_eq!(seconds("007"), Some(7));
        assert_eq!(seconds("99999999999999999999999999"), Some(60));
        for text in ["", " ", "-1", "1.5", "+1", "Fri, 31 Dec 1999 23:59:59 GMT", "1 2"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_pause_is_within_its_bounds(
            backoff in 0_u64..100_000,
            longest in 0_u64..100_000_000,
            retry: u32,
            asked in proptest::option::of(0_u64..1_000_000),
            random: u64,
        ) {
            let rule = rule(backoff, longest);
            let asked = asked.map(Duration::from_secs);
            let pause = pause_before(&rule, retry, asked, random);
            let longest = rule.longest_backoff.max(rule.backoff);
            let least = asked.unwrap_or_default().min(RETRY_AFTER_LIMIT);
            proptest::prop_assert!(pause >= rule.backoff / 2 && pause >= least);
            proptest::prop_assert!(pause <= longest.max(least + longest / 2));
        }
    }
}
