//! Coarse timers: a wheel of slots, O(1) to set, never early, late by at most one tick.
//!
//! There is no cancel: the owner remembers the true deadline, and when a timer fires too soon
//! for it, sets another. A connection then costs one entry, however often it moves its deadline.

use std::time::{Duration, Instant};

const SLOTS: usize = 512;

/// Timers that carry a `T` each.
pub struct Wheel<T> {
    origin: Instant,
    tick: Duration,
    /// Every tick up to and including this one has been expired.
    done: u64,
    slots: Vec<Vec<(u64, T)>>,
    occupied: [u64; SLOTS / 64],
    len: usize,
}

impl<T> Wheel<T> {
    /// `tick` is the resolution; times before `now` count as `now`.
    #[must_use]
    pub fn new(now: Instant, tick: Duration) -> Self {
        Self {
            origin: now,
            tick,
            done: 0,
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; SLOTS / 64],
            len: 0,
        }
    }

    /// Fires `value` at or after `at`.
    pub fn set(&mut self, at: Instant, value: T) {
        let tick = self.tick_after(at).max(self.done + 1);
        let slot = slot_of(tick);
        self.slots[slot].push((tick, value));
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// Moves everything due at `now` into `due`.
    pub fn expire(&mut self, now: Instant, due: &mut Vec<T>) {
        let target = self.tick_before(now);
        if target <= self.done {
            return;
        }
        let ticks = (target - self.done).min(SLOTS as u64);
        for tick in target - ticks + 1..=target {
            let slot = slot_of(tick);
            if self.occupied[slot / 64] & (1 << (slot % 64)) == 0 {
                continue;
            }
            let entries = &mut self.slots[slot];
            let before = entries.len();
            due.extend(entries.extract_if(.., |(at, _)| *at <= target).map(|(_, value)| value));
            self.len -= before - entries.len();
            if entries.is_empty() {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
        }
        self.done = target;
    }

    /// How long from `now` until the next timer may fire; `None` when there is none.
    #[must_use]
    pub fn next(&self, now: Instant) -> Option<Duration> {
        if self.len == 0 {
            return None;
        }
        let tick = (self.done + 1..=self.done + SLOTS as u64).find(|tick| {
            let slot = slot_of(*tick);
            self.occupied[slot / 64] & (1 << (slot % 64)) != 0
        })?;
        let passed = now.saturating_duration_since(self.origin);
        Some(mul(self.tick, tick).saturating_sub(passed))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn tick_before(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.origin);
        u64::try_from(passed.as_nanos() / self.tick.as_nanos()).unwrap_or(u64::MAX)
    }

    fn tick_after(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.origin);
        u64::try_from(passed.as_nanos().div_ceil(self.tick.as_nanos())).unwrap_or(u64::MAX)
    }
}

fn slot_of(tick: u64) -> usize {
    usize::try_from(tick % SLOTS as u64).expect("smaller than the number of slots")
}

fn mul(tick: Duration, count: u64) -> Duration {
    let nanos = tick.as_nanos().saturating_mul(u128::from(count));
    u64::try_from(nanos).map_or(Duration::MAX, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(8);

    fn fired(wheel: &mut Wheel<u32>, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.expire(now, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn timers_fire_never_early_and_at_most_a_tick_late() {
        let origin = Instant::now();
        let mut wheel = Wheel::new(origin, TICK);
        for ms in [1_u32, 8, 9, 100, 4095, 4096, 10_000, 60_000] {
            wheel.set(origin + Duration::from_millis(ms.into()), ms);
        }
        let mut seen = Vec::new();
        for ms in 0..=60_008_u32 {
            for value in fired(&mut wheel, origin + Duration::from_millis(ms.into())) {
                assert!(ms >= value && ms <= value + 8, "{value} fired at {ms}");
                seen.push(value);
            }
        }
        assert_eq!(seen.len(), 8);
        assert!(wheel.is_empty());
    }

    #[test]
    fn a_long_sleep_fires_everything_once() {
        let origin = Instant::now();
        let mut wheel = Wheel::new(origin, TICK);
        for ms in 0..1000_u32 {
            wheel.set(origin + Duration::from_millis(u64::from(ms) * 31), ms);
        }
        let due = fired(&mut wheel, origin + Duration::from_secs(3600));
        assert_eq!(due, (0..1000).collect::<Vec<_>>());
        assert_eq!(wheel.next(origin), None);
    }

    #[test]
    fn next_is_no_later_than_the_first_deadline_plus_a_tick() {
        let origin = Instant::now();
        let mut wheel = Wheel::new(origin, TICK);
        wheel.set(origin + Duration::from_millis(50), 1);
        let next = wheel.next(origin).unwrap();
        assert!(next >= Duration::from_millis(50) && next <= Duration::from_millis(58), "{next:?}");
    }

    #[test]
    fn a_wheel_goes_on_after_a_year() {
        let origin = Instant::now();
        let mut wheel = Wheel::new(origin, TICK);
        let later = origin + TICK * u32::MAX + TICK * 10;
        assert!(fired(&mut wheel, later).is_empty());
        wheel.set(later + TICK, 1);
        assert_eq!(wheel.next(later), Some(TICK));
        assert_eq!(fired(&mut wheel, later + TICK), [1]);
    }

    #[test]
    fn a_deadline_in_the_past_fires_on_the_next_tick() {
        let origin = Instant::now();
        let mut wheel = Wheel::new(origin, TICK);
        assert!(fired(&mut wheel, origin + Duration::from_secs(1)).is_empty());
        wheel.set(origin, 5);
        assert_eq!(fired(&mut wheel, origin + Duration::from_millis(1016)), [5]);
    }
}
