//! An emulated link: packets read from one TUN device appear on the other after a delay.
//!
//! One thread per direction reads a packet, decides when it arrives (`schedule`, pure), holds it,
//! and writes it when due. The bytes in transit are bounded by [`LINK_HELD_BYTES`]; beyond it the
//! device's own queue fills and the kernel drops, as a router does. Order is preserved. Losses and
//! slow rates need packets of one MTU: see [`Shape::wants_offload`].

mod held;
mod schedule;

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::time::ClockId;

use crate::tun::{Tun, VNET_HEADER_BYTES};
use held::HeldPackets;
use schedule::{Admission, Schedule};

/// Most bytes one direction holds at a time.
pub const LINK_HELD_BYTES: usize = 256 << 20;
/// What one direction allocates before it has to grow, bytes.
const INITIAL_HELD_BYTES: usize = 1 << 20;
/// Packets accepted in a row before due ones are sent.
const ACCEPT_BATCH: usize = 64;
/// Below this rate a 64 KB segment would be a burst of more than 5 ms.
const OFFLOAD_MIN_BITS_PER_S: u64 = 100_000_000;

/// What one direction of a link does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// One-way delay of a packet.
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
    /// Packets of more IP bytes than this are lost silently, as on a path whose MTU is below that
    /// of its ends and that filters ICMP. `None`: no limit.
    pub largest_bytes: Option<u64>,
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
            largest_bytes: None,
            seed: 1,
        }
    }

    /// Whether the devices may hand over unsegmented TCP: not when each packet is rolled for or
    /// measured, nor when a segment of 64 KB would be a visible burst.
    #[must_use]
    pub fn wants_offload(&self) -> bool {
        self.loss == 0.0
            && self.largest_bytes.is_none()
            && self.rate_bits_per_s.is_none_or(|rate| rate >= OFFLOAD_MIN_BITS_PER_S)
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

/// A shape that a direction takes over before its next packet.
#[derive(Debug, Default)]
struct NextShape {
    is_there: AtomicBool,
    shape: Mutex<Option<Shape>>,
}

impl NextShape {
    fn set(&self, shape: Shape) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Some(shape);
        self.is_there.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<Shape> {
        if !self.is_there.swap(false, Ordering::Acquire) {
            return None;
        }
        self.shape.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
struct Direction {
    next: Arc<NextShape>,
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

    /// Changes what both directions do to the packets that they read from now on. What is in transit stays
    /// so. Devices with offload hand over segments of up to 64 KB, of which each counts as one packet.
    pub fn reshape(&self, a_to_b: Shape, b_to_a: Shape) -> Result<(), LinkError> {
        a_to_b.validate()?;
        b_to_a.validate()?;
        let [forth, back] = &self.directions;
        forth.next.set(a_to_b);
        back.next.set(b_to_a);
        Ok(())
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

    /// Stops both directions; packets in transit are lost. Returns the counts of both.
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
        Self { next: Arc::default(), counters: Arc::default(), thread: None }
    }

    fn start(
        from: &Arc<Tun>,
        to: &Arc<Tun>,
        shape: Shape,
        stop: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let (counters, next) = (Arc::<Counters>::default(), Arc::<NextShape>::default());
        let forwarder = Forwarder {
            from: Arc::clone(from),
            to: Arc::clone(to),
            schedule: Schedule::new(shape),
            held: HeldPackets::new(INITIAL_HELD_BYTES, LINK_HELD_BYTES),
            counters: Arc::clone(&counters),
            next: Arc::clone(&next),
        };
        let stop = Arc::clone(stop);
        let name = format!("link {}-{}", from.name(), to.name());
        let thread =
            thread::Builder::new().name(name).spawn(move || forwarder.run(stop.as_fd()))?;
        Ok(Self { next, counters, thread: Some(thread) })
    }
}

/// One direction's thread.
struct Forwarder {
    from: Arc<Tun>,
    to: Arc<Tun>,
    schedule: Schedule,
    held: HeldPackets,
    counters: Arc<Counters>,
    next: Arc<NextShape>,
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
            if let Some(shape) = self.next.take() {
                self.schedule.reshape(shape);
            }
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

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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

    #[test]
    fn segments_are_not_offloaded_where_every_packet_counts() {
        let plain = Shape::delaying(Duration::from_millis(1));
        assert!(plain.wants_offload());
        assert!(!Shape { loss: 0.001, ..plain }.wants_offload());
        assert!(!Shape { largest_bytes: Some(1_200), ..plain }.wants_offload());
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
}
