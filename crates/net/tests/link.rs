//! A link between two real network namespaces: delay, rate, loss, order, and what is left behind.
//!
//! Needs the right to create namespaces and TUN devices; without it every test is skipped.

#![allow(clippy::unwrap_used, reason = "a test's helpers may panic as its body may")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tollway_net::link::{Link, Shape};
use tollway_net::netns::NetNs;
use tollway_net::spawn::{Confinement, spawn_confined};
use tollway_net::tun::{Tun, TunConfig};
use tollway_testkit::skip;

const WEST: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
const EAST: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);

/// The value, or the calling test ends as skipped.
macro_rules! or_skip {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// Attempts to measure a delay until it is as configured.
const ATTEMPTS: usize = 10;

/// Whether the machine wakes who sleeps in time, so that lateness is the link's own. Where a
/// hypervisor has much else to do, one in ten is woken milliseconds late.
fn keeps_time() -> bool {
    let asked = Duration::from_millis(1);
    let mut late: Vec<_> = (0..500)
        .map(|_| {
            let began = Instant::now();
            thread::sleep(asked);
            began.elapsed() - asked
        })
        .collect();
    late.sort();
    let p90 = late[450];
    eprintln!("this machine wakes one sleeper in ten {p90:?} late or more");
    p90 < Duration::from_millis(1)
}

/// Timing tests run one at a time: two at once on a small machine measure each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn one_way_delay_is_as_asked_plus_at_most_0_3_ms() {
    let _alone = alone();
    for delay_us in [0, 400, 69_000] {
        let delay = Duration::from_micros(delay_us);
        let pair = or_skip!(Pair::create(Shape::delaying(delay)));
        // A machine that others keep busy delays packets as well, though not all, and not for ever.
        let is_met = (0..ATTEMPTS).any(|_| {
            let delays = pair.one_way_delays(300, Duration::from_millis(2));
            assert_eq!(delays.len(), 300, "no packet is lost");
            let p10 = delays[delays.len() / 10];
            eprintln!("asked {delay:?}: min {:?} p10 {p10:?} max {:?}", delays[0], delays[299]);
            assert!(delays[0] >= delay, "{:?} arrived before {delay:?}", delays[0]);
            p10 <= delay + Duration::from_micros(300)
        });
        assert!(is_met || !keeps_time(), "later than asked {ATTEMPTS} times");
    }
}

#[test]
fn loss_is_rolled_for_each_packet_and_the_rest_keeps_its_order() {
    let _alone = alone();
    let shape = Shape {
        loss: 0.1,
        jitter: Duration::from_micros(500),
        ..Shape::delaying(Duration::from_millis(1))
    };
    let pair = or_skip!(Pair::create(shape));
    let arrived = pair.numbers_arrived(10_000);
    assert!(arrived.is_sorted(), "jitter must not reorder");
    // 9,000 expected, standard deviation 30.
    assert!((8_850..=9_150).contains(&arrived.len()), "{} of 10,000", arrived.len());
    let [forth, _] = pair.link.counts();
    assert_eq!(forth.lost as usize + arrived.len(), 10_000);
}

#[test]
fn rate_bounds_a_tcp_stream() {
    let _alone = alone();
    let shape =
        Shape { rate_bits_per_s: Some(50_000_000), ..Shape::delaying(Duration::from_millis(2)) };
    let pair = or_skip!(Pair::create(shape));
    let mbit_per_s = pair.tcp_mbit_per_s(6 << 20);
    eprintln!("50 Mbit/s link carried {mbit_per_s:.1} Mbit/s of TCP payload");
    assert!(mbit_per_s <= 50.0, "{mbit_per_s:.1} Mbit/s");
    assert!(mbit_per_s >= 35.0 || !keeps_time(), "{mbit_per_s:.1} Mbit/s");
}

#[test]
fn offloaded_segments_cross_intact() {
    let _alone = alone();
    let pair = or_skip!(Pair::create(Shape::delaying(Duration::from_millis(1))));
    let mbit_per_s = pair.tcp_mbit_per_s(64 << 20);
    let [forth, _] = pair.link.counts();
    let mean_bytes = forth.delivered_bytes / forth.delivered;
    eprintln!("{mbit_per_s:.0} Mbit/s in packets of {mean_bytes} bytes");
    assert!(mean_bytes > 4_000, "packets of {mean_bytes} bytes are not segments");
}

#[test]
fn a_child_is_in_its_namespace_and_dies_with_the_thread_that_started_it() {
    let ns = or_skip!(namespace("child"));
    let (inside, child) = thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            let confinement =
                Confinement { namespace: Some(&ns), inherit: &[ns.as_fd()], cgroup: None };
            let child = spawn_confined(command, confinement).unwrap();
            (link_of(&format!("/proc/{}/ns/net", child.id())), child)
        });
        starter.join().unwrap()
    });
    let mut child = child;
    assert_eq!(inside, ns.run(|| link_of("/proc/thread-self/ns/net")).unwrap());
    assert_ne!(inside, link_of("/proc/self/ns/net"));
    let status = child.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}

#[test]
fn a_device_name_the_kernel_cannot_hold_is_refused_with_its_name() {
    let ns = or_skip!(namespace("names"));
    let error = ns.run(|| Tun::open(&end("a-name-of-16-byte", WEST, EAST, true))).unwrap();
    let text = format!("{:#}", error.unwrap_err());
    assert!(text.contains("a-name-of-16-byte"), "{text}");
}

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A namespace, or the reason why this machine gives none.
fn namespace(name: &str) -> Result<NetNs, String> {
    let reported = |error: &dyn std::error::Error| error.to_string();
    let ns = NetNs::create(name).map_err(|error| reported(&error))?;
    let probe = ns.run(|| Tun::open(&end("probe", WEST, EAST, true)));
    probe.map_err(|error| reported(&error))?.map_err(|error| reported(&error))?;
    Ok(ns)
}

fn end(name: &str, local: Ipv4Addr, peer: Ipv4Addr, offload: bool) -> TunConfig {
    TunConfig { name: name.into(), local, peer, mtu: 1_500, queue_packets: 10_000, offload }
}

fn link_of(path: &str) -> std::path::PathBuf {
    std::fs::read_link(path).unwrap()
}

/// Two namespaces and a link with one shape in both directions.
struct Pair {
    west: NetNs,
    east: NetNs,
    link: Link,
}

impl Pair {
    fn create(shape: Shape) -> Result<Self, String> {
        let (west, east) = (namespace("west")?, namespace("east")?);
        let offload = shape.wants_offload();
        let a = west.run(|| Tun::open(&end("to-east", WEST, EAST, offload))).unwrap().unwrap();
        let b = east.run(|| Tun::open(&end("to-west", EAST, WEST, offload))).unwrap().unwrap();
        let link = Link::start(a, b, shape, shape).unwrap();
        Ok(Self { west, east, link })
    }

    /// A socket of the west connected to one of the east.
    fn sockets(&self) -> (UdpSocket, UdpSocket) {
        let to = self.east.run(|| UdpSocket::bind((EAST, 0)).unwrap()).unwrap();
        let from = self.west.run(|| UdpSocket::bind((WEST, 0)).unwrap()).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        to.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        (from, to)
    }

    /// Sorted times from send to receipt of `count` small packets.
    fn one_way_delays(&self, count: u32, interval: Duration) -> Vec<Duration> {
        let (from, to) = self.sockets();
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..count {
                    thread::sleep(interval);
                    let sent = start.elapsed().as_nanos() as u64;
                    from.send(&sent.to_le_bytes()).unwrap();
                }
            });
            let mut delays = Vec::new();
            let mut stamp = [0; 8];
            while delays.len() < count as usize && to.recv(&mut stamp).is_ok() {
                let sent = Duration::from_nanos(u64::from_le_bytes(stamp));
                delays.push(start.elapsed() - sent);
            }
            delays.sort();
            delays
        })
    }

    /// Which of the numbers 0..count, sent in order, arrived in which order.
    fn numbers_arrived(&self, count: u32) -> Vec<u32> {
        let (from, to) = self.sockets();
        let seen = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    from.send(&number.to_le_bytes()).unwrap();
                    // No queue may fill while the machine is suspended for a moment. All in transit
                    // can be lost, so one that never arrives would be awaited in vain.
                    let waits = (0..200).take_while(|_| number > seen.load(Relaxed) + 100);
                    waits.for_each(|_| thread::sleep(Duration::from_millis(1)));
                }
            });
            let mut arrived = Vec::new();
            let mut number = [0; 4];
            while to.recv(&mut number).is_ok() {
                arrived.push(u32::from_le_bytes(number));
                seen.fetch_max(u32::from_le_bytes(number), Relaxed);
            }
            arrived
        })
    }

    fn tcp_mbit_per_s(&self, bytes: usize) -> f64 {
        let listener = self.east.run(|| TcpListener::bind((EAST, 0)).unwrap()).unwrap();
        let to: SocketAddr = listener.local_addr().unwrap();
        let pattern: Vec<u8> = (0..=255).cycle().take(1 << 16).collect();
        let reader = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = self.west.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let start = Instant::now();
        for _ in 0..bytes / pattern.len() {
            stream.write_all(&pattern).unwrap();
        }
        drop(stream);
        let received = reader.join().unwrap();
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(received.len(), bytes);
        assert!(received.chunks(pattern.len()).all(|chunk| chunk == pattern));
        bytes as f64 * 8.0 / 1e6 / seconds
    }
}
