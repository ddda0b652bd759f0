//! Which ClientHellos a gateway has passed on lately: one that comes again goes round in a circle,
//! whichever peers and addresses are part of it.
//!
//! A hello has 32 random bytes, so no two handshakes have the same. A further dial makes
//! new ones, and a second hello that a server asks for (RFC 8446 section 4.1.4) comes on the
//! connection of the first, which is not examined any more.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use tollway_identity::HelloRandom;

/// Hellos remembered by one thread; beyond them the oldest are forgotten.
const PASSED_HELLOS: usize = 16_384;
/// How long each is remembered: longer than a hello takes round any circle in which connections can
/// be made. It outlives its connection, which may close before the hello comes again.
const PASSED_FOR: Duration = Duration::from_secs(60);

/// Hellos that were passed on.
#[derive(Default)]
pub(crate) struct LoopGuard {
    known: HashSet<HelloRandom>,
    /// The same in the order in which they came, and when.
    order: VecDeque<(HelloRandom, Instant)>,
}

impl LoopGuard {
    /// Whether a hello may be passed on, which it then is: it has not been lately.
    pub(crate) fn pass(&mut self, hello: HelloRandom, now: Instant) -> bool {
        self.forget(now);
        let is_new = self.known.insert(hello);
        if is_new {
            self.order.push_back((hello, now));
        }
        is_new
    }

    /// Makes room for one more.
    fn forget(&mut self, now: Instant) {
        while let Some((oldest, came)) = self.order.front()
            && (self.order.len() >= PASSED_HELLOS
                || now.saturating_duration_since(*came) >= PASSED_FOR)
        {
            self.known.remove(oldest);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use tollway_testkit::{check_limit, grouped};

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/limits.md");

    /// Of a ClientHello in one record.
    fn random(number: usize) -> HelloRandom {
        let mut hello = [0; 5 + 6 + 32];
        hello[..11].copy_from_slice(&[22, 3, 1, 0, 38, 1, 0, 0, 34, 3, 3]);
        hello[11..19].copy_from_slice(&number.to_be_bytes());
        HelloRandom::of(&hello).unwrap()
    }

    #[test]
    fn a_hello_passes_once_in_a_while() {
        let (mut passed, now) = (LoopGuard::default(), Instant::now());
        assert!(passed.pass(random(1), now));
        assert!(!passed.pass(random(1), now));
        assert!(passed.pass(random(2), now));
        assert!(!passed.pass(random(1), now + PASSED_FOR / 2));
        assert!(passed.pass(random(1), now + PASSED_FOR));
    }

    #[test]
    fn as_many_as_come_the_oldest_are_forgotten() {
        let (mut passed, now) = (LoopGuard::default(), Instant::now());
        assert!((0..3 * PASSED_HELLOS).all(|number| passed.pass(random(number), now)));
        assert_eq!((passed.known.len(), passed.order.len()), (PASSED_HELLOS, PASSED_HELLOS));
        assert!(!passed.pass(random(3 * PASSED_HELLOS - 1), now));
        assert!(passed.pass(random(0), now));
    }

    #[test]
    fn the_limits_are_documented() {
        check_limit(PAGE, "PASSED_HELLOS", &grouped(PASSED_HELLOS as u64));
        check_limit(PAGE, "PASSED_FOR", &format!("{} s", PASSED_FOR.as_secs()));
    }
}
