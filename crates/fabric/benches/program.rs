//! Writes neighbours into a table of the kernel as the agent does, and prints microseconds each:
//! by single calls, in batches, through the programming thread, over those that are there; and
//! what reading and removing them takes. Then runs the XDP program on packets, with each check of
//! sources in turns, and prints nanoseconds of the processor each.
//!
//! `cargo bench -p tollway-fabric --bench program -- [ENTRIES]` (default 1,000,000; needs root)

#![allow(clippy::unwrap_used, reason = "a bench that cannot run must say why and stop")]

#[path = "../tests/packets/frames.rs"]
#[allow(dead_code, reason = "what the tests make of it is theirs")]
mod frames;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use aya::{TestRun, TestRunOptions};
use tollway_fabric::layout::{Address, Neighbour, Settings, SourceCheck};
use tollway_fabric::{BATCH, Changes, Found, KernelTable, Order, Programmer, Programs, Table};

fn main() {
    // `cargo bench` passes flags of its own.
    let entries = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"))
        .map_or(1_000_000, |text| text.parse().expect("a number of entries"));
    let (keys, values) = neighbours(entries);
    println!("{entries} neighbours, {} bytes each in the table", size_of_val(&keys[0]) + 40);
    let mut table = fresh(entries);
    print(
        "first touch of the memory, batches of 1,000",
        entries,
        fill(&mut table, &keys, &values, BATCH),
    );
    for batch in [1, 10, 100, 1000, 10_000] {
        let mut table = fresh(entries);
        print(
            &format!("new, batches of {batch}"),
            entries,
            fill(&mut table, &keys, &values, batch),
        );
    }
    print(
        "over those that are there, batches of 1,000",
        entries,
        fill(&mut table, &keys, &values, BATCH),
    );
    print("all read once", entries, read(&table));
    print("removed, batches of 1,000", entries, remove(&mut table, &keys));
    print("through the thread", entries, through_thread(table, &keys, &values));
    packets(entries);
}

const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN_MAC: frames::Mac = [2; 6];
const CHECKS: [SourceCheck; 3] = [SourceCheck::Off, SourceCheck::Known, SourceCheck::Strict];
const ROUNDS: usize = 20;
/// A packet comes back to the forwarder until its hops are used up.
const HOPS: u8 = 250;

/// Packets between guests that all live at the forwarder's own address: a rewritten one is one
/// for it again, so the kernel can run the program on it many times.
fn packets(entries: u32) {
    let mut loaded: Vec<_> = CHECKS
        .into_iter()
        .map(|check| {
            let none = std::net::Ipv6Addr::UNSPECIFIED;
            let settings = Settings::new(OWN_MAC, 4789, OWN, none).with_source_check(check);
            let mut programs = Programs::load(&settings, entries, None).unwrap();
            let mut table = KernelTable::new(programs.neighbours().unwrap());
            let keys: Vec<_> = (0..entries).map(|number| Address::new(7, guest(number))).collect();
            let here = Neighbour::new([0x0a; 6], OWN.into(), OWN_MAC, 1);
            fill(&mut table, &keys, &vec![here; keys.len()], BATCH);
            programs.xdp().unwrap().fd().unwrap();
            programs
        })
        .collect();
    let mut spent = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..ROUNDS as u32 {
        for (programs, spent) in loaded.iter_mut().zip(&mut spent) {
            let mut run = |from, to, repeat| {
                let frame = frame(guest(from % entries), guest(to % entries));
                let options =
                    TestRunOptions { data_in: Some(&frame), repeat, ..TestRunOptions::new() };
                let result = programs.xdp().unwrap().test_run(options).unwrap();
                assert_eq!(result.return_value, 3, "it leaves by the device that it came in");
                result.duration.as_nanos() as f64
            };
            let same = (0..100).map(|_| run(0, 1, HOPS.into())).sum::<f64>() / 100.0;
            let mix = |number: u32| number.wrapping_mul(0x9e37_79b1);
            let numbers = round * 10_000..(round + 1) * 10_000;
            let random = numbers.map(|n| run(mix(n), mix(n + 7), 1)).sum::<f64>() / 10_000.0;
            spent[0].push(same);
            spent[1].push(random);
        }
    }
    for (check, [same, random]) in CHECKS.into_iter().zip(spent) {
        println!(
            "packets, sources {check:?}: {:.0} ns each of one flow, {:.0} ns of random ones \
             (medians of {ROUNDS} rounds; the latter with the kernel's clock)",
            median(same),
            median(random)
        );
    }
}

fn guest(number: u32) -> std::net::IpAddr {
    Ipv4Addr::from(0x0a00_0000 + number).into()
}

fn frame(from: std::net::IpAddr, to: std::net::IpAddr) -> Vec<u8> {
    let outer = frames::Outer {
        to_mac: OWN_MAC,
        from_mac: OWN_MAC,
        to: OWN.into(),
        from: OWN.into(),
        hops: u8::MAX,
        from_port: 9,
        to_port: 4789,
        summed: false,
        fragment: 0,
        vni: 7,
        vxlan_flags: 0x08,
    };
    outer.around(&frames::guest_frame([0x0a; 6], [0x0a; 6], from, to, 9))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A table of its own, pinned nowhere.
fn fresh(entries: u32) -> KernelTable {
    let settings = Settings::new([2; 6], 4789, Ipv4Addr::LOCALHOST, "::1".parse().unwrap());
    let mut programs = Programs::load(&settings, entries, None).unwrap();
    KernelTable::new(programs.neighbours().unwrap())
}

/// Unique keys in random order.
fn neighbours(entries: u32) -> (Vec<Address>, Vec<Neighbour>) {
    let mix = |number: u32| number.wrapping_mul(0x9e37_79b1);
    (0..entries)
        .map(|number| {
            let key = Address::new(7 + number % 20, Ipv4Addr::from(mix(number)).into());
            let [a, b, c, d] = number.to_be_bytes();
            let host = Ipv4Addr::from(0x0a00_0000 + number % 100_000);
            (key, Neighbour::new([2, 0, a, b, c, d], host.into(), [4; 6], number.into()))
        })
        .unzip()
}

fn fill(table: &mut KernelTable, keys: &[Address], values: &[Neighbour], batch: usize) -> Duration {
    let start = Instant::now();
    for (keys, values) in keys.chunks(batch).zip(values.chunks(batch)) {
        table.update(keys, values).unwrap();
    }
    start.elapsed()
}

fn read(table: &KernelTable) -> Duration {
    let (start, mut found) = (Instant::now(), 0u64);
    table.visit(&mut |_, value| found += value.revision).unwrap();
    assert!(found > 0);
    start.elapsed()
}

fn remove(table: &mut KernelTable, keys: &[Address]) -> Duration {
    let start = Instant::now();
    keys.chunks(BATCH).for_each(|keys| table.delete(keys).unwrap());
    start.elapsed()
}

/// As a list of the whole group arrives, up to the last one being in the table.
fn through_thread(table: KernelTable, keys: &[Address], values: &[Neighbour]) -> Duration {
    let programmer = Programmer::start(table, Found::default()).unwrap();
    let progress = programmer.progress();
    let start = Instant::now();
    programmer.order_blocking(Order::BeginListing { compare: false, epoch: 0 }).unwrap();
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        let changes = Changes { keys: keys.to_vec(), values: values.to_vec(), removed: Vec::new() };
        programmer.order_blocking(Order::Write(changes)).unwrap();
    }
    programmer.order_blocking(Order::Through(1)).unwrap();
    while progress.borrow().through == 0 {
        std::thread::yield_now();
    }
    start.elapsed()
}

fn print(what: &str, entries: u32, time: Duration) {
    println!("{what}: {:.3} µs each, {time:.1?}", time.as_secs_f64() * 1e6 / f64::from(entries));
}
