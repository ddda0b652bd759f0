//! Decides when a packet arrives, or that it does not. Pure: time is an argument, chance comes
//! from the shape's seed.

use std::time::Duration;

use super::Shape;

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It arrives at this time, monotonic nanoseconds.
    Due(u64),
    Lost,
    Overflow,
}

/// Decides when packets arrive. Pure: time is an argument, chance comes from the seed.
#[derive(Debug)]
pub(super) struct Schedule {
    shape: Shape,
    random: SplitMix64,
    last_departure_ns: u64,
    last_due_ns: u64,
}

impl Schedule {
    pub(super) fn new(shape: Shape) -> Self {
        let random = SplitMix64(shape.seed);
        Self { shape, random, last_departure_ns: 0, last_due_ns: 0 }
    }

    /// Goes on with another shape, in the order of packets.
    pub(super) fn reshape(&mut self, shape: Shape) {
        self.random = SplitMix64(shape.seed);
        self.shape = shape;
    }

    pub(super) fn admit(&mut self, now_ns: u64, ip_bytes: u64) -> Admission {
        if self.shape.loss > 0.0 && self.random.unit() < self.shape.loss {
            return Admission::Lost;
        }
        if self.shape.largest_bytes.is_some_and(|largest| ip_bytes > largest) {
            return Admission::Lost;
        }
        let start_ns = now_ns.max(self.last_departure_ns);
        if start_ns - now_ns > nanos(self.shape.queue) {
            return Admission::Overflow;
        }
        let departure_ns = start_ns + self.transmission_ns(ip_bytes);
        self.last_departure_ns = departure_ns;
        let due_ns = (departure_ns + self.travel_ns()).max(self.last_due_ns);
        self.last_due_ns = due_ns;
        Admission::Due(due_ns)
    }

    fn transmission_ns(&self, ip_bytes: u64) -> u64 {
        let Some(rate) = self.shape.rate_bits_per_s else { return 0 };
        let bit_ns = u128::from(ip_bytes) * 8 * 1_000_000_000;
        u64::try_from(bit_ns / u128::from(rate.max(1))).unwrap_or(u64::MAX / 4)
    }

    fn travel_ns(&mut self) -> u64 {
        let (delay, jitter) = (nanos(self.shape.delay), nanos(self.shape.jitter));
        if jitter == 0 {
            return delay;
        }
        let offset = (self.random.unit() * 2.0 * jitter as f64) as u64;
        (delay + offset).saturating_sub(jitter)
    }
}

/// Vigna's splitmix64: small, seeded, more than random enough for losses and jitter.
#[derive(Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    /// The next number in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn due(schedule: &mut Schedule, now_ns: u64, ip_bytes: u64) -> u64 {
        match schedule.admit(now_ns, ip_bytes) {
            Admission::Due(due_ns) => due_ns,
            other @ (Admission::Lost | Admission::Overflow) => panic!("not delivered: {other:?}"),
        }
    }

    #[test]
    fn a_delayed_packet_is_due_exactly_one_delay_later() {
        let mut schedule = Schedule::new(Shape::delaying(Duration::from_millis(69)));
        assert_eq!(due(&mut schedule, 5 * MS, 1_000), 74 * MS);
        assert_eq!(due(&mut schedule, 6 * MS, 40), 75 * MS);
    }

    #[test]
    fn another_shape_holds_from_the_next_packet_on_and_never_reorders() {
        let mut schedule = Schedule::new(Shape::delaying(Duration::from_millis(30)));
        assert_eq!(due(&mut schedule, 0, 1_000), 30 * MS);
        schedule.reshape(Shape::delaying(Duration::from_millis(10)));
        assert_eq!(due(&mut schedule, MS, 1_000), 30 * MS);
        assert_eq!(due(&mut schedule, 25 * MS, 1_000), 35 * MS);
        schedule.reshape(Shape { loss: 1.0, ..Shape::delaying(Duration::from_millis(10)) });
        assert_eq!(schedule.admit(26 * MS, 1_000), Admission::Lost);
        schedule.reshape(Shape::delaying(Duration::from_millis(10)));
        assert_eq!(due(&mut schedule, 27 * MS, 1_000), 37 * MS);
    }

    #[test]
    fn rate_spaces_departures_and_drops_what_would_wait_too_long() {
        let shape = Shape {
            rate_bits_per_s: Some(8_000_000),
            queue: Duration::from_millis(2),
            ..Shape::delaying(Duration::from_millis(10))
        };
        let mut schedule = Schedule::new(shape);
        // 1,000 bytes take 1 ms at 8 Mbit/s.
        assert_eq!(due(&mut schedule, 0, 1_000), 11 * MS);
        assert_eq!(due(&mut schedule, 0, 1_000), 12 * MS);
        assert_eq!(due(&mut schedule, 0, 1_000), 13 * MS);
        assert_eq!(schedule.admit(0, 1_000), Admission::Overflow);
        assert_eq!(due(&mut schedule, MS, 1_000), 14 * MS);
    }

    #[test]
    fn jitter_stays_in_its_range_and_never_reorders() {
        let shape = Shape {
            jitter: Duration::from_millis(2),
            ..Shape::delaying(Duration::from_millis(30))
        };
        let mut schedule = Schedule::new(shape);
        let mut last = 0;
        let mut seen = [false; 2];
        for step in 0..10_000 {
            let now = step * 10 * MS;
            let due = due(&mut schedule, now, 100);
            assert!((28 * MS..=32 * MS).contains(&(due - now)), "{}", due - now);
            assert!(due >= last);
            last = due;
            seen[usize::from(due - now > 30 * MS)] = true;
        }
        assert_eq!(seen, [true, true], "both sides of the delay are used");
        let burst: Vec<u64> = (0..1_000).map(|_| due(&mut schedule, 1 << 60, 100)).collect();
        assert!(burst.is_sorted());
    }

    #[test]
    fn a_packet_that_is_too_large_is_lost_and_takes_no_time_of_others() {
        let shape = Shape {
            rate_bits_per_s: Some(8_000_000),
            largest_bytes: Some(1_000),
            ..Shape::delaying(Duration::ZERO)
        };
        let mut schedule = Schedule::new(shape);
        assert_eq!(schedule.admit(0, 1_001), Admission::Lost);
        assert_eq!(due(&mut schedule, 0, 1_000), MS);
    }

    #[test]
    fn losses_follow_the_share_and_the_seed() {
        let lost = |seed| -> Vec<bool> {
            let mut schedule =
                Schedule::new(Shape { loss: 0.01, seed, ..Shape::delaying(Duration::ZERO) });
            (0..100_000).map(|n| schedule.admit(n, 1_500) == Admission::Lost).collect()
        };
        let count = lost(7).iter().filter(|&&lost| lost).count();
        // 1,000 expected, standard deviation 31.
        assert!((850..=1_150).contains(&count), "{count}");
        assert_eq!(lost(7), lost(7));
        assert_ne!(lost(7), lost(8));
    }
}
