//! A process is killed at random moments while it writes; what it acknowledged must be there.
//!
//! The test runs itself as the victim: a child that writes from several tasks, prints each
//! acknowledged revision, and compacts often. And: a disk that is full refuses writes, loses
//! nothing and takes writes again.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_store::{KeyRange, Limits, Store, TransactError, Transaction};

const VICTIM: &str = "TOLLWAY_STORE_VICTIM";
/// Largest file the victim of the full disk may write, in the shell's blocks of 512 bytes.
const FULL_BLOCKS: u32 = 1024;
const ROUNDS: u64 = 8;
const WRITERS: u64 = 4;

fn limits() -> Limits {
    Limits { compact_from_bytes: 32 << 10, ..Limits::default() }
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut acknowledged = [0; WRITERS as usize];
    let mut total = 0;
    for round in 0..ROUNDS {
        let seen = run_and_kill(&file, Duration::from_millis(40 + round * 37 % 200));
        total += seen.len();
        for (writer, number) in seen {
            acknowledged[writer] = acknowledged[writer].max(number);
        }
        check(&file, &acknowledged);
    }
    assert!(total > 50, "only {total} writes in {ROUNDS} rounds: the test proves little");
}

/// Lets a victim write until it is killed `after` its first acknowledgement; returns what it
/// acknowledged.
fn run_and_kill(file: &Path, after: Duration) -> Vec<(usize, u64)> {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env(VICTIM, file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(victim.stdout.take().unwrap());
    let mut seen = Vec::new();
    let mut killer = None;
    for line in output.lines() {
        // The line being written at the moment of death may be cut; those before are whole.
        let Ok(line) = line else { break };
        let Some(rest) = line.strip_prefix("ack ") else { continue };
        let Some((writer, number)) = rest.split_once(' ') else { continue };
        let Some(number) = number.strip_suffix(" done") else { continue };
        seen.push((writer.parse().unwrap(), number.parse().unwrap()));
        if killer.is_none() {
            let id = victim.id().to_string();
            killer = Some(std::thread::spawn(move || {
                std::thread::sleep(after);
                Command::new("kill").args(["-9", &id]).status().unwrap()
            }));
        }
    }
    let killed = killer.expect("the victim wrote nothing").join().unwrap();
    assert!(killed.success());
    assert!(!victim.wait().unwrap().success());
    seen
}

/// Every writer's counter is at least what was acknowledged, and its pair is equal: a
/// transaction is there whole or not at all.
fn check(file: &Path, acknowledged: &[u64]) {
    runtime().block_on(async {
        let store = Store::open_embedded(file, limits()).await.unwrap();
        for (writer, least) in acknowledged.iter().enumerate() {
            let number = async |side: &str| {
                let entry = store.get(format!("{side}/{writer}").as_bytes()).await.unwrap();
                entry.map_or(0, |entry| u64::from_le_bytes(entry.value[..8].try_into().unwrap()))
            };
            let (left, right) = (number("left").await, number("right").await);
            assert!(left >= *least, "writer {writer}: {least} was acknowledged, {left} is there");
            assert_eq!(left, right, "writer {writer}: half a transaction");
        }
        let page = store.list(&KeyRange::all(), None, 100).await.unwrap();
        assert!(page.entries.iter().all(|entry| entry.revision <= store.revision()));
    });
}

#[test]
#[ignore = "the victim of acknowledged_writes_survive_kill_9, not a test of its own"]
fn victim() {
    let Ok(file) = std::env::var(VICTIM) else { return };
    runtime().block_on(async {
        let store = Store::open_embedded(Path::new(&file), limits()).await.unwrap();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| tokio::spawn(write_until_killed(store.clone(), writer)))
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    // A limit on the file's size fails as a full disk does, and needs no privileges.
    let script = format!("ulimit -f {FULL_BLOCKS} && trap '' XFSZ && exec \"$0\" \"$@\"");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "victim_of_a_full_disk", "--ignored", "--nocapture"])
        .env(VICTIM, &file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let stored: u64 =
        text.split("stored ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(stored > 10, "{stored}");
    runtime().block_on(async {
        let store = Store::open_embedded(&file, limits()).await.unwrap();
        assert_eq!(store.revision(), stored);
        assert!(store.get(b"small").await.unwrap().is_some());
    });
}

#[test]
#[ignore = "the victim of a_full_disk_refuses_writes_and_loses_nothing, not a test of its own"]
fn victim_of_a_full_disk() {
    let Ok(file) = std::env::var(VICTIM) else { return };
    runtime().block_on(async {
        let limits = Limits { compact_from_bytes: u64::MAX, ..Limits::default() };
        let store = Store::open_embedded(Path::new(&file), limits).await.unwrap();
        let refused = loop {
            let number = store.revision();
            assert!(number < 1000, "the disk never filled");
            let tx = Transaction::new().put(format!("large/{number}"), vec![1; 20_000]);
            match store.transact(tx).await {
                Ok(revision) => assert_eq!(revision, number + 1),
                Err(refused) => break refused,
            }
        };
        assert!(matches!(refused, TransactError::NoRoom { .. }), "{refused:?}");
        let full = store.revision();
        let key = format!("large/{full}");
        assert_eq!(store.get(key.as_bytes()).await.unwrap(), None);
        let small = Transaction::new().put("small", "fits").delete("large/1");
        assert_eq!(store.transact(small).await.unwrap(), full + 1);
        println!("stored {} ", full + 1);
    });
}

async fn write_until_killed(store: Store, writer: u64) {
    let left = format!("left/{writer}");
    let start = store.get(left.as_bytes()).await.unwrap();
    let start = start.map_or(0, |e| u64::from_le_bytes(e.value[..8].try_into().unwrap()));
    // Bounded, in case it is not killed.
    for number in start + 1..start + 100_000 {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(8 + usize::try_from(number % 500).unwrap(), 7);
        let tx = Transaction::new()
            .put(left.clone(), value.clone())
            .put(format!("right/{writer}"), value);
        store.transact(tx).await.unwrap();
        println!("ack {writer} {number} done");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
