//! Fills the embedded store with entries of 40 bytes in durable batches of 1,000. Prints
//! microseconds per entry, the batch's percentiles, the size of file and memory, and the time to
//! open the store again. For comparison it writes the same bytes durably without a store: the floor
//! of this disk.
//!
//! `cargo bench -p tollway-store --bench fill -- [DIR] [ENTRIES]`
//! (DIR: where the file goes, default the system's temporary directory; it must not be a tmpfs
//! for the figures to mean anything.)

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tollway_store::{KeyRange, Limits, Store, Transaction};

const BATCH: u64 = 1000;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 24;

/// In which order keys come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Ascending,
    Random,
}

/// What is measured, each in a process of its own, so that memory is counted from nothing.
const CASES: [(&str, Order, u64); 3] = [
    ("ascending, one batch waiting", Order::Ascending, 1),
    ("random, one batch waiting", Order::Random, 1),
    ("random, four batches waiting", Order::Random, 4),
];

fn main() {
    // `cargo bench` passes flags of its own.
    let arguments: Vec<_> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let dir = arguments.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let entries = arguments.get(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    match arguments.get(2).and_then(|case| CASES.get(case.parse::<usize>().ok()?)) {
        Some((name, order, waiting)) => measure(name, &dir, entries, *order, *waiting),
        None => measure_all(&dir, entries),
    }
}

fn measure_all(dir: &Path, entries: u64) {
    println!("{entries} entries of {} bytes in batches of {BATCH}", KEY_BYTES + VALUE_BYTES);
    floor(dir, entries);
    for (case, (name, ..)) in CASES.iter().enumerate() {
        let status = Command::new(std::env::current_exe().expect("this program has a path"))
            .arg(dir)
            .args([entries.to_string(), case.to_string()])
            .status()
            .expect("this program runs");
        assert!(status.success(), "{name} failed");
    }
}

fn measure(name: &str, dir: &Path, entries: u64, order: Order, waiting: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads can be started");
    runtime.block_on(fill(name, dir, entries, order, waiting));
}

async fn fill(name: &str, dir: &Path, entries: u64, order: Order, waiting: u64) {
    let path = dir.join("tollway-store-fill.db");
    remove(&path);
    let (memory, cpu) = (resident_bytes(), cpu_time());
    let store = Store::open_embedded(&path, Limits::default()).await.expect("the file opens");
    let start = Instant::now();
    let tasks: Vec<_> = (0..waiting)
        .map(|lane| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                for batch in (lane..entries / BATCH).step_by(usize::try_from(waiting).unwrap_or(1))
                {
                    let begun = Instant::now();
                    store.transact(transaction(batch, order)).await.expect("it is written");
                    took.push(begun.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("no panic"));
    }
    let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
    print_line(name, entries, wall, &mut took);
    let memory = resident_bytes().saturating_sub(memory);
    println!(
        "    cpu {:.2} µs/entry; memory {} bytes/entry, history of {} changes included",
        per_entry(cpu, entries),
        memory / entries,
        Limits::default().history_changes.min(usize::try_from(entries).unwrap_or(usize::MAX)),
    );
    drop(store);
    reopen(&path, entries).await;
    remove(&path);
}

async fn reopen(path: &Path, entries: u64) {
    let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
    let start = Instant::now();
    let store = Store::open_embedded(path, Limits::default()).await.expect("the file opens");
    let opened = start.elapsed();
    let page = store.list(&KeyRange::all(), None, 1).await.expect("it is listed");
    assert_eq!((page.entries.len(), store.revision()), (1, entries / BATCH));
    println!("    file {} bytes/entry; opened again in {opened:.2?}", bytes / entries);
}

fn transaction(batch: u64, order: Order) -> Transaction {
    (batch * BATCH..(batch + 1) * BATCH).fold(Transaction::new(), |tx, number| {
        let spread = if order == Order::Random { mix(number) } else { number };
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&spread.to_be_bytes());
        key[8..].copy_from_slice(&number.to_be_bytes());
        let mut value = [0; VALUE_BYTES];
        value[..8].copy_from_slice(&mix(number).to_le_bytes());
        tx.put(key.to_vec(), value.to_vec())
    })
}

/// What the disk itself takes for the same bytes.
fn floor(dir: &Path, entries: u64) {
    let path = dir.join("tollway-store-floor.db");
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .expect("the directory is writable");
    let batch = vec![0x5a; 50_000];
    let bytes = u64::try_from(batch.len()).unwrap_or(0);
    write_all(&file, entries / BATCH, bytes, &vec![0; batch.len()]);
    file.sync_all().expect("the disk works");
    let start = Instant::now();
    let mut took = Vec::new();
    for number in 0..entries / BATCH {
        let begun = Instant::now();
        file.write_all_at(&batch, number * bytes).expect("there is room");
        file.sync_data().expect("the disk works");
        took.push(begun.elapsed());
    }
    print_line("the disk alone, 50,000 bytes a batch", entries, start.elapsed(), &mut took);
    remove(&path);
}

fn write_all(file: &File, batches: u64, bytes: u64, content: &[u8]) {
    for number in 0..batches {
        file.write_all_at(content, number * bytes).expect("there is room");
    }
}

fn print_line(name: &str, entries: u64, wall: Duration, took: &mut [Duration]) {
    took.sort_unstable();
    let at = |per_cent: usize| took.get(took.len() * per_cent / 100).copied().unwrap_or_default();
    println!(
        "{name}: {:.2} µs/entry; batch p50 {:.2?}, p90 {:.2?}",
        per_entry(wall, entries),
        at(50),
        at(90),
    );
}

fn per_entry(time: Duration, entries: u64) -> f64 {
    time.as_secs_f64() * 1e6 / entries as f64
}

fn remove(path: &Path) {
    // It may not be there.
    let _ = std::fs::remove_file(path);
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Spreads numbers over all numbers (the finaliser of SplitMix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
