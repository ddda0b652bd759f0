//! Which ClientHellos a gateway has passed on lately: one that comes again goes round in a circle,
//! whichever peers and addresses are part of it.
//!
//! A hello has 32 random bytes, so no two handshakes have the same. A further dial makes
//! new ones, and a second hello that a server asks for (RFC 8446 section 4.1.4) comes on the
//! connection of the first, which is not examined any more.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Hellos remembered by one thread; beyond them the oldest are forgotten.
const PASSED_HELLOS: usize = 16_384;
/// How long each is remembered: longer than a hello takes round any circle in which connections can
/// be made. It outlives its connection, which may close before the hello comes again.
const PASSED_FOR: Duration = Duration::from_secs(60);

/// Bytes of a record before its payload; the last two are the payload's length.
const RECORD_HEAD: usize = 5;
/// Type, length and version of the message, and what is random of it.
const BEFORE_RANDOM: usize = 6;
const RANDOM: usize = 32;

/// What distinguishes one hello from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HelloRandom([u8; RANDOM]);

impl HelloRandom {
    /// Of a ClientHello as it comes on the wire, over any number of records. `None` if it is not
    /// there yet.
    pub(crate) fn of(records: &[u8]) -> Option<Self> {
        let mut message = Vec::with_capacity(BEFORE_RANDOM + RANDOM);
        let mut rest = records;
        loop {
            let (head, payload) = rest.split_at_checked(RECORD_HEAD)?;
            let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
            let missing = BEFORE_RANDOM + RANDOM - message.len();
            message.extend(payload.iter().take(length.min(missing)));
            if let Some(random) = message.get(BEFORE_RANDOM..BEFORE_RANDOM + RANDOM) {
                return random.try_into().ok().map(Self);
            }
            rest = payload.get(length..)?;
        }
    }
}

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

    /// A message that begins as a ClientHello does, in records of `each` bytes.
    fn records(random: [u8; RANDOM], each: usize) -> Vec<u8> {
        let message = [&[1, 0, 0, 200, 3, 3][..], &random, &[0; 100]].concat();
        let of = |piece: &[u8]| {
            let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
            [&[22, 3, 1][..], &length, piece].concat()
        };
        message.chunks(each).flat_map(of).collect()
    }

    fn random(number: usize) -> HelloRandom {
        let mut bytes = [0; RANDOM];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        HelloRandom(bytes)
    }

    #[test]
    fn what_is_random_of_a_hello_is_found_in_any_records() {
        let random: [u8; RANDOM] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        for each in [1, 5, 6, 7, 37, 38, 39, 1000] {
            let bytes = records(random, each);
            assert_eq!(HelloRandom::of(&bytes), Some(HelloRandom(random)), "records of {each}");
            let last = 5 * 38_usize.div_ceil(each) + 38;
            assert!(HelloRandom::of(&bytes[..last]).is_some(), "records of {each}");
            for end in 0..last {
                assert_eq!(HelloRandom::of(&bytes[..end]), None, "{end} of records of {each}");
            }
        }
        // Records without content are stepped over, and end where the bytes do.
        let empty = [22, 3, 1, 0, 0].repeat(1000);
        assert_eq!(HelloRandom::of(&empty), None);
        let after_empty = [empty, records(random, 50)].concat();
        assert_eq!(HelloRandom::of(&after_empty), Some(HelloRandom(random)));
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
