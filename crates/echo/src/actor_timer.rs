//! Actor timers and reminders whose name carries their schedule, and one fire as the app saw it.
//!
//! The load generator sets them and the app parses the name, so the two share no other state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// First part of every name.
const PREFIX: &str = "lab";
/// Bytes of one fire in the app's list.
pub const FIRE_BYTES: usize = 24;

/// Wall-clock time in microseconds since 1970.
#[must_use]
pub fn now_us() -> u64 {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The duration in microseconds, at most [`u64::MAX`].
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The schedule of a timer or reminder, and what the actor does when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActorTimer {
    /// First fire, wall-clock microseconds since 1970.
    pub due_us: u64,
    pub period_us: u64,
    /// HTTP API port of the app's sidecar on this machine, to which the actor writes state; `None`:
    /// it writes none.
    pub state_port: Option<u16>,
}

impl ActorTimer {
    /// The name that carries the schedule.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { due_us, period_us, state_port } = self;
        format!("{PREFIX}-{due_us}-{period_us}-{}", state_port.unwrap_or(0))
    }

    /// Reads a name; `None` if it is not one that [`Self::name`] makes.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let parts: Vec<&str> = str::from_utf8(name).ok()?.split('-').collect();
        let [PREFIX, due, period, port] = parts[..] else { return None };
        let (due_us, period_us) = (due.parse().ok()?, period.parse().ok()?);
        let state_port = Some(port.parse().ok()?).filter(|port| *port != 0);
        (period_us > 0).then_some(Self { due_us, period_us, state_port })
    }

    /// The latest due time that is not after `now_us`.
    #[must_use]
    pub fn due_before(&self, now_us: u64) -> u64 {
        let gone = now_us.saturating_sub(self.due_us) / self.period_us;
        self.due_us + gone * self.period_us
    }

    /// Every due time in `from_us..until_us`.
    pub fn dues(self, from_us: u64, until_us: u64) -> impl Iterator<Item = u64> {
        let first = match from_us.checked_sub(self.due_us) {
            Some(behind) => self.due_us + behind.div_ceil(self.period_us) * self.period_us,
            None => self.due_us,
        };
        let next = move |due: &u64| due.checked_add(self.period_us);
        std::iter::successors(Some(first), next).take_while(move |due| *due < until_us)
    }
}

/// One fire of a timer or reminder. Times are wall-clock microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerFire {
    pub due_us: u64,
    /// When the app got it.
    pub seen_us: u64,
    /// When the write of state was answered; `None` if the timer writes none, [`Self::FAILED`] if
    /// the write failed.
    pub written_us: Option<u64>,
}

impl TimerFire {
    pub const FAILED: u64 = u64::MAX;

    #[must_use]
    pub fn to_bytes(self) -> [u8; FIRE_BYTES] {
        let mut bytes = [0; FIRE_BYTES];
        let numbers = [self.due_us, self.seen_us, self.written_us.unwrap_or(0)];
        for (field, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    #[must_use]
    pub fn from_bytes(bytes: &[u8; FIRE_BYTES]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [due_us, seen_us, written] = [0, 1, 2].map(|at| u64::from_le_bytes(numbers[at]));
        Self { due_us, seen_us, written_us: Some(written).filter(|written| *written != 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_carries_the_schedule() {
        for state_port in [None, Some(3500)] {
            let timer = ActorTimer { due_us: 1_700_000_000_123_456, period_us: 1_000, state_port };
            assert_eq!(ActorTimer::parse(timer.name().as_bytes()), Some(timer));
        }
        for other in
            ["", "lab", "tick-1-2-0", "lab-1-0-0", "lab-1-2", "lab-1-2-70000", "lab-1-2-0-1"]
        {
            assert_eq!(ActorTimer::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn due_times_keep_their_rhythm() {
        let timer = ActorTimer { due_us: 1_000, period_us: 100, state_port: None };
        let dues = |from, until| timer.dues(from, until).collect::<Vec<_>>();
        assert_eq!(dues(0, 1_201), [1_000, 1_100, 1_200]);
        assert_eq!(dues(1_001, 1_300), [1_100, 1_200]);
        assert_eq!(dues(1_100, 1_100), [0; 0]);
        for (now, due) in [(900, 1_000), (1_000, 1_000), (1_199, 1_100), (1_200, 1_200)] {
            assert_eq!(timer.due_before(now), due, "{now}");
        }
    }

    #[test]
    fn a_fire_survives_encoding() {
        for written_us in [None, Some(9), Some(TimerFire::FAILED)] {
            let fire = TimerFire { due_us: 7, seen_us: 8, written_us };
            assert_eq!(TimerFire::from_bytes(&fire.to_bytes()), fire);
        }
    }
}
