//! Writes neighbours into a table of the kernel as the agent does, and prints microseconds each:
//! by single calls, in batches, through the programming thread, over those that are there; and
//! what reading and removing them takes.
//!
//! `cargo bench -p tollway-fabric --bench program -- [ENTRIES]` (default 1,000,000; needs root)

#![allow(clippy::unwrap_used, reason = "a bench that cannot run must say why and stop")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tollway_fabric::layout::{Address, Neighbour, Settings};
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
