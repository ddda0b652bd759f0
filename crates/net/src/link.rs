//! An emulated link: packets read from one TUN device appear on the other after a delay.
//!
//! One thread per direction reads a packet, decides when it arrives (`Schedule`, pure), holds
//! it, and writes it when due. What is held is bounded by [`LINK_HELD_BYTES`]; beyond it the
//! device's own queue fills and the kernel drops, as a router does. Order is kept. Losses and
//! slow rates need packets of one MTU: see [`Shape::wants_offload`].

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::time::ClockId;

use crate::tun::{MAX_PACKET_BYTES, Tun, VNET_HEADER_BYTES};

/// Most bytes one direction holds at a time.
pub const LINK_HELD_BYTES: usize = 256 << 20;
/// What one direction allocates before it has to grow, bytes.
const INITIAL_HELD_BYTES: usize = 1 << 20;
/// Packets accepted in a row before due ones are looked at again.
const ACCEPT_BATCH: usize = 64;
/// Below this rate a 64 KB segment would be a burst of more than 5 ms.
const OFFLOAD_MIN_BITS_PER_S: u64 = 100_000_000;

/// What one direction of a link does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Time a packet spends on the way.
    pub delay: Duration,
    /// The delay varies evenly within ± this, but never reorders: a packet due before its
    /// predecessor arrives right after it.
    pub jitter: Duration,
    /// IP bytes leave no faster than this; `None` is unlimited.
    pub rate_bits_per_s: Option<u64>,
    /// With a rate: a packet that would have to wait longer than this is dropped.
    pub queue: Duration,
    /// Share of packets lost, 0 to 1, each rolled for on its own.
    pub loss: f64,
    /// Seed of jitter and loss.
    pub seed: u64,
}

impl Shape {
    /// A link that only delays.
    #[must_use]
    pub fn delaying(delay: Duration) -> Self {
        Self {
            delay,
            jitter: Duration::ZERO,
            rate_bits_per_s: None,
            queue: Duration::from_millis(100),
            loss: 0.0,
            seed: 1,
        }
    }

    /// Whether the devices may hand over unsegmented TCP: not when each packet is rolled for,
    /// nor when a segment of 64 KB would be a visible burst.
    #[must_use]
    pub fn wants_offload(&self) -> bool {
        self.loss == 0.0 && self.rate_bits_per_s.is_none_or(|rate| rate >= OFFLOAD_MIN_BITS_PER_S)
    }

    /// Says what is wrong with the shape, if anything.
    pub fn validate(&self) -> Result<(), LinkError> {
        const LONGEST: Duration = Duration::from_secs(60);
        let refuse = |reason| Err(LinkError::Shape { reason });
        if !(0.0..=1.0).contains(&self.loss) {
            return refuse("loss must be a share from 0 to 1");
        }
        if self.rate_bits_per_s == Some(0) {
            return refuse("rate must be above 0; leave it out for an unlimited link");
        }
        if self.jitter > self.delay {
            return refuse("jitter must not exceed the delay");
        }
        if self.delay > LONGEST || self.queue > LONGEST {
            return refuse("delay and queue must be at most 60 s");
        }
        Ok(())
    }
}

/// Why a link could not start or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("link refused: {reason}")]
    Shape { reason: &'static str },
    #[error("cannot set up the link's threads")]
    Start { source: io::Error },
    #[error("device {device:?} of the link failed")]
    Device { device: String, source: io::Error },
}

/// What one direction has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounts {
    /// Packets that arrived at the other end.
    pub delivered: u64,
    /// Their IP bytes.
    pub delivered_bytes: u64,
    /// Packets lost on purpose.
    pub lost: u64,
    /// Packets dropped because the rate's queue was full.
    pub overflowed: u64,
    /// Packets the other end's device did not take (it is down or its stack is full).
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    delivered: AtomicU64,
    delivered_bytes: AtomicU64,
    lost: AtomicU64,
    overflowed: AtomicU64,
    refused: AtomicU64,
}

impl Counters {
    fn read(&self) -> LinkCounts {
        LinkCounts {
            delivered: self.delivered.load(Ordering::Relaxed),
            delivered_bytes: self.delivered_bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// A running link. Dropping it stops both directions and removes both devices.
#[derive(Debug)]
pub struct Link {
    stop: Arc<OwnedFd>,
    directions: [Direction; 2],
}

#[derive(Debug)]
struct Direction {
    counters: Arc<Counters>,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
}

impl Link {
    /// Starts to forward between the devices, each direction with its own shape.
    pub fn start(a: Tun, b: Tun, a_to_b: Shape, b_to_a: Shape) -> Result<Self, LinkError> {
        a_to_b.validate()?;
        b_to_a.validate()?;
        let start = |source: io::Error| LinkError::Start { source };
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| start(error.into()))?;
        let (stop, a, b) = (Arc::new(stop), Arc::new(a), Arc::new(b));
        let forth = Direction::start(&a, &b, a_to_b, &stop).map_err(start)?;
        let mut link = Self { stop, directions: [forth, Direction::idle()] };
        link.directions[1] = Direction::start(&b, &a, b_to_a, &link.stop).map_err(start)?;
        Ok(link)
    }

    /// Counts of a→b and b→a.
    #[must_use]
    pub fn counts(&self) -> [LinkCounts; 2] {
        [self.directions[0].counters.read(), self.directions[1].counters.read()]
    }

    /// Whether both directions still run; a device that failed ends its direction.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.directions.iter().all(|d| d.thread.as_ref().is_some_and(|t| !t.is_finished()))
    }

    /// Stops both directions; packets on the way are gone. Tells how it ended.
    pub fn stop(mut self) -> Result<[LinkCounts; 2], LinkError> {
        let results = self.halt();
        let counts = self.counts();
        results.into_iter().collect::<Result<Vec<()>, LinkError>>()?;
        Ok(counts)
    }

    fn halt(&mut self) -> Vec<Result<(), LinkError>> {
        // The counter is far from its limit, so the write cannot block or fail.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let threads = self.directions.iter_mut().filter_map(|d| d.thread.take());
        threads.map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.halt();
        }
    }
}

impl Direction {
    fn idle() -> Self {
        Self { counters: Arc::default(), thread: None }
    }

    fn start(
        from: &Arc<Tun>,
        to: &Arc<Tun>,
        shape: Shape,
        stop: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let counters = Arc::<Counters>::default();
        let forwarder = Forwarder {
            from: Arc::clone(from),
            to: Arc::clone(to),
            schedule: Schedule::new(shape),
            held: HeldPackets::new(INITIAL_HELD_BYTES, LINK_HELD_BYTES),
            counters: Arc::clone(&counters),
        };
        let stop = Arc::clone(stop);
        let name = format!("link {}-{}", from.name(), to.name());
        let thread =
            thread::Builder::new().name(name).spawn(move || forwarder.run(stop.as_fd()))?;
        Ok(Self { counters, thread: Some(thread) })
    }
}

/// One direction's thread.
struct Forwarder {
    from: Arc<Tun>,
    to: Arc<Tun>,
    schedule: Schedule,
    held: HeldPackets,
    counters: Arc<Counters>,
}

impl Forwarder {
    fn run(mut self, stop: BorrowedFd<'_>) -> Result<(), LinkError> {
        // The default slack of 50 us would be added to every delay. Without it the link is only
        // less exact, so a refusal is no reason to stop.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        loop {
            let more = self.accept_ready()?;
            self.deliver_due();
            if !more && self.wait(stop)? {
                return Ok(());
            }
        }
    }

    /// Reads what the device has, up to a batch. True if there may be more to read now.
    fn accept_ready(&mut self) -> Result<bool, LinkError> {
        for _ in 0..ACCEPT_BATCH {
            let Some(space) = self.held.space() else { return Ok(false) };
            let length = match self.from.read(space) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(source) => {
                    return Err(LinkError::Device { device: self.from.name().into(), source });
                }
            };
            let ip_bytes = length.saturating_sub(VNET_HEADER_BYTES) as u64;
            match self.schedule.admit(now_ns(), ip_bytes) {
                Admission::Due(due_ns) => self.held.commit(length, due_ns),
                Admission::Lost => add(&self.counters.lost, 1),
                Admission::Overflow => add(&self.counters.overflowed, 1),
            }
        }
        Ok(true)
    }

    fn deliver_due(&mut self) {
        while let Some((due_ns, packet)) = self.held.first() {
            if due_ns > now_ns() {
                return;
            }
            // EIO while the other end is down, EAGAIN or ENOBUFS while its stack is full: on a
            // real link such a packet is gone as well.
            if self.to.write(packet).is_ok() {
                add(&self.counters.delivered, 1);
                let ip_bytes = packet.len().saturating_sub(VNET_HEADER_BYTES);
                add(&self.counters.delivered_bytes, ip_bytes as u64);
            } else {
                add(&self.counters.refused, 1);
            }
            self.held.pop();
        }
    }

    /// Sleeps until a packet can be read or delivered. True when the link should stop.
    fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<bool, LinkError> {
        let timeout =
            self.held.first().map(|(due_ns, _)| timespec(due_ns.saturating_sub(now_ns())));
        let readable = if self.held.space().is_some() { PollFlags::IN } else { PollFlags::empty() };
        let mut ready =
            [PollFd::new(&*self.from, readable), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match rustix::event::poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!ready[1].revents().is_empty()),
            Err(error) => {
                Err(LinkError::Device { device: self.from.name().into(), source: error.into() })
            }
        }
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// It arrives at this time, monotonic nanoseconds.
    Due(u64),
    Lost,
    Overflow,
}

/// Decides when packets arrive. Pure: time is an argument, chance comes from the seed.
#[derive(Debug)]
struct Schedule {
    shape: Shape,
    random: SplitMix64,
    last_departure_ns: u64,
    last_due_ns: u64,
}

impl Schedule {
    fn new(shape: Shape) -> Self {
        let random = SplitMix64(shape.seed);
        Self { shape, random, last_departure_ns: 0, last_due_ns: 0 }
    }

    fn admit(&mut self, now_ns: u64, ip_bytes: u64) -> Admission {
        if self.shape.loss > 0.0 && self.random.unit() < self.shape.loss {
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
struct SplitMix64(u64);

impl SplitMix64 {
    /// The next number in 0..1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Packets on the way, first in first out, in one ring of bytes that grows up to a limit.
/// Packets lie in one piece each: where one may not fit before the end, the rest stays unused.
#[derive(Debug)]
struct HeldPackets {
    bytes: Vec<u8>,
    limit: usize,
    queue: VecDeque<Held>,
    tail: usize,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    due_ns: u64,
    start: usize,
    length: usize,
}

impl HeldPackets {
    fn new(initial: usize, limit: usize) -> Self {
        Self { bytes: vec![0; initial], limit, queue: VecDeque::new(), tail: 0 }
    }

    /// Room for one packet of any length, or nothing while the limit is reached.
    fn space(&mut self) -> Option<&mut [u8]> {
        if !self.make_room() {
            return None;
        }
        self.bytes.get_mut(self.tail..self.tail + MAX_PACKET_BYTES)
    }

    /// Keeps the first `length` bytes of what [`Self::space`] gave.
    fn commit(&mut self, length: usize, due_ns: u64) {
        self.queue.push_back(Held { due_ns, start: self.tail, length });
        self.tail += length;
    }

    fn first(&self) -> Option<(u64, &[u8])> {
        let held = self.queue.front()?;
        Some((held.due_ns, self.bytes.get(held.start..held.start + held.length)?))
    }

    fn pop(&mut self) {
        self.queue.pop_front();
    }

    fn make_room(&mut self) -> bool {
        let Some(first) = self.queue.front() else {
            self.tail = 0;
            return true;
        };
        // Strictly less: head and tail may only meet when nothing is held.
        let fits_before = |end: usize, tail: usize| tail + MAX_PACKET_BYTES < end;
        if self.tail > first.start {
            if self.tail + MAX_PACKET_BYTES <= self.bytes.len() {
                return true;
            }
            if fits_before(first.start, 0) {
                self.tail = 0;
                return true;
            }
        } else if fits_before(first.start, self.tail) {
            return true;
        }
        self.grow()
    }

    fn grow(&mut self) -> bool {
        let size = self.bytes.len() * 2;
        if size > self.limit {
            return false;
        }
        let mut bytes = vec![0; size];
        let mut tail = 0;
        for held in &mut self.queue {
            let from = held.start..held.start + held.length;
            bytes[tail..tail + held.length].copy_from_slice(&self.bytes[from]);
            held.start = tail;
            tail += held.length;
        }
        self.bytes = bytes;
        self.tail = tail;
        true
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
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

    #[test]
    fn segments_are_not_offloaded_where_every_packet_counts() {
        let plain = Shape::delaying(Duration::from_millis(1));
        assert!(plain.wants_offload());
        assert!(!Shape { loss: 0.001, ..plain }.wants_offload());
        assert!(!Shape { rate_bits_per_s: Some(99_999_999), ..plain }.wants_offload());
        assert!(Shape { rate_bits_per_s: Some(1_000_000_000), ..plain }.wants_offload());
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        let plain = Shape::delaying(Duration::from_millis(1));
        assert!(plain.validate().is_ok());
        assert!(Shape { loss: 1.5, ..plain }.validate().is_err());
        assert!(Shape { loss: f64::NAN, ..plain }.validate().is_err());
        assert!(Shape { rate_bits_per_s: Some(0), ..plain }.validate().is_err());
        assert!(Shape { jitter: Duration::from_millis(2), ..plain }.validate().is_err());
        assert!(Shape { delay: Duration::from_secs(61), ..plain }.validate().is_err());
    }

    #[test]
    fn held_packets_come_out_in_order_and_intact_while_the_ring_wraps_and_grows() {
        let mut held = HeldPackets::new(4 * MAX_PACKET_BYTES, 32 * MAX_PACKET_BYTES);
        let mut random = SplitMix64(42);
        let (mut next_in, mut next_out) = (0u64, 0u64);
        for round in 0..20_000u64 {
            let fill = round % 200 < 100;
            if fill == (random.unit() < 0.7) {
                if let Some(space) = held.space() {
                    let length = 8 + (random.unit() * (MAX_PACKET_BYTES - 8) as f64) as usize;
                    space[..length].fill(next_in as u8);
                    space[..8].copy_from_slice(&next_in.to_le_bytes());
                    held.commit(length, next_in);
                    next_in += 1;
                }
            } else if let Some((due_ns, packet)) = held.first() {
                assert_eq!(due_ns, next_out);
                assert_eq!(packet[..8], next_out.to_le_bytes());
                assert!(packet[8..].iter().all(|&byte| byte == next_out as u8));
                held.pop();
                next_out += 1;
            }
        }
        assert!(next_out > 5_000);
        assert!(held.bytes.len() <= 32 * MAX_PACKET_BYTES);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_something_left() {
        let mut held = HeldPackets::new(2 * MAX_PACKET_BYTES, 4 * MAX_PACKET_BYTES);
        let mut count = 0;
        while held.space().is_some() {
            held.commit(MAX_PACKET_BYTES, 0);
            count += 1;
        }
        assert!((3..=4).contains(&count), "{count}");
        while held.first().is_some() {
            held.pop();
        }
        assert!(held.space().is_some());
    }
}
