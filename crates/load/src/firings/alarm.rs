//! A timer or reminder by its name, and one of its firings as the app saw it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What names of alarms begin with.
const PREFIX: &str = "lab";
/// Bytes of a firing in the app's list.
pub(crate) const FIRING_BYTES: usize = 24;

/// Microseconds since 1970, by the clock on the wall.
pub(crate) fn now_us() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// When an actor is to be woken, in microseconds since 1970 by the clock on the wall, and what it
/// does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alarm {
    pub(crate) due_us: u64,
    pub(crate) period_us: u64,
    /// The HTTP API of the app's sidecar on this machine, to which state is written.
    pub(crate) state_port: Option<u16>,
}

impl Alarm {
    /// The name that says so.
    pub(crate) fn name(&self) -> String {
        let Self { due_us, period_us, state_port } = self;
        format!("{PREFIX}-{due_us}-{period_us}-{}", state_port.unwrap_or(0))
    }

    /// `None` for names of others.
    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        let parts: Vec<&str> = str::from_utf8(name).ok()?.split('-').collect();
        let [PREFIX, due, period, port] = parts[..] else { return None };
        let (due_us, period_us) = (due.parse().ok()?, period.parse().ok()?);
        let state_port = Some(port.parse().ok()?).filter(|port| *port != 0);
        (period_us > 0).then_some(Self { due_us, period_us, state_port })
    }

    /// The latest moment at which it was due until then.
    pub(crate) fn due_before(&self, now_us: u64) -> u64 {
        let gone = now_us.saturating_sub(self.due_us) / self.period_us;
        self.due_us + gone * self.period_us
    }

    /// Every moment from `from_us` on and before `until_us` at which it is due.
    pub(crate) fn dues(self, from_us: u64, until_us: u64) -> impl Iterator<Item = u64> {
        let first = match from_us.checked_sub(self.due_us) {
            Some(behind) => self.due_us + behind.div_ceil(self.period_us) * self.period_us,
            None => self.due_us,
        };
        let next = move |due: &u64| due.checked_add(self.period_us);
        std::iter::successors(Some(first), next).take_while(move |due| *due < until_us)
    }
}

/// One firing: when it was due, when the app got it, and when the state that it wrote was answered
/// for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Firing {
    pub(crate) due_us: u64,
    pub(crate) seen_us: u64,
    /// `None` where no state was to be written; [`Self::FAILED`] where it was not.
    pub(crate) written_us: Option<u64>,
}

impl Firing {
    pub(crate) const FAILED: u64 = u64::MAX;

    pub(crate) fn to_bytes(self) -> [u8; FIRING_BYTES] {
        let mut bytes = [0; FIRING_BYTES];
        let numbers = [self.due_us, self.seen_us, self.written_us.unwrap_or(0)];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; FIRING_BYTES]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [due_us, seen_us, written] = [0, 1, 2].map(|at| u64::from_le_bytes(numbers[at]));
        Self { due_us, seen_us, written_us: Some(written).filter(|written| *written != 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_when_and_what() {
        for state_port in [None, Some(3500)] {
            let alarm = Alarm { due_us: 1_700_000_000_123_456, period_us: 1_000, state_port };
            assert_eq!(Alarm::parse(alarm.name().as_bytes()), Some(alarm));
        }
        for other in
            ["", "lab", "tick-1-2-0", "lab-1-0-0", "lab-1-2", "lab-1-2-70000", "lab-1-2-0-1"]
        {
            assert_eq!(Alarm::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn what_is_due_keeps_its_rhythm() {
        let alarm = Alarm { due_us: 1_000, period_us: 100, state_port: None };
        let dues = |from, until| alarm.dues(from, until).collect::<Vec<_>>();
        assert_eq!(dues(0, 1_201), [1_000, 1_100, 1_200]);
        assert_eq!(dues(1_001, 1_300), [1_100, 1_200]);
        assert_eq!(dues(1_100, 1_100), [0; 0]);
        for (now, due) in [(900, 1_000), (1_000, 1_000), (1_199, 1_100), (1_200, 1_200)] {
            assert_eq!(alarm.due_before(now), due, "{now}");
        }
    }

    #[test]
    fn a_firing_survives_its_way() {
        for written_us in [None, Some(9), Some(Firing::FAILED)] {
            let firing = Firing { due_us: 7, seen_us: 8, written_us };
            assert_eq!(Firing::from_bytes(&firing.to_bytes()), firing);
        }
    }
}
