//! An agent with a control plane that a test plays: through any loss of connection, the table
//! becomes equal to the control plane's.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod store;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tollway_fabric::agent::{Agent, AgentOptions};
use tollway_fabric::batch::Stopped;
use tollway_fabric::journal::{Journal, MapName};
use tollway_fabric::layout::{Address, Neighbour};
use tollway_fabric::{Progress, Table};
use tollway_model::Group;
use tollway_testkit::TempDir;

use crate::store::{Store, channel_to, key};

const PATIENCE: Duration = Duration::from_secs(30);

/// A table that outlives the agents that write it, as the kernel's does.
#[derive(Clone, Default)]
struct Kernel(Arc<Mutex<BTreeMap<Address, Neighbour>>>);

impl Table for Kernel {
    fn update(&mut self, keys: &[Address], values: &[Neighbour]) -> Result<(), Stopped> {
        let mut entries = self.0.lock().unwrap();
        entries.extend(keys.iter().copied().zip(values.iter().copied()));
        Ok(())
    }

    fn delete(&mut self, keys: &[Address]) -> Result<(), Stopped> {
        let mut entries = self.0.lock().unwrap();
        for (done, key) in keys.iter().enumerate() {
            if entries.remove(key).is_none() {
                return Err(Stopped { done, source: io::Error::from_raw_os_error(libc::ENOENT) });
            }
        }
        Ok(())
    }

    fn look_up(&self, key: &Address) -> io::Result<Option<Neighbour>> {
        Ok(self.0.lock().unwrap().get(key).copied())
    }

    fn visit(&self, visit: &mut dyn FnMut(&Address, &Neighbour)) -> io::Result<()> {
        self.0.lock().unwrap().iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}

/// An agent at work.
struct Running {
    progress: watch::Receiver<Progress>,
    misses: mpsc::Sender<Address>,
    /// Dropped, the agent stops at whatever it is.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(kernel: &Kernel, folder: &Path, control: SocketAddr, audit: Option<Duration>) -> Self {
        Self::start_at(kernel, folder, Arc::new(Mutex::new(control)), audit)
    }

    /// With a control plane that may be elsewhere at the next connection.
    fn start_at(
        kernel: &Kernel,
        folder: &Path,
        control: Arc<Mutex<SocketAddr>>,
        audit: Option<Duration>,
    ) -> Self {
        let options = AgentOptions {
            group: Group::new("g1").unwrap(),
            version: "test".into(),
            capacity: 1_000_000,
            audit_every: audit,
            marks: None,
        };
        let map = MapName { boot: "this".into(), map: 1 };
        let journal = Journal::new(folder.join("journal"), map);
        let agent = Agent::new(options, Some(journal), kernel.clone()).unwrap();
        let progress = agent.programmer().progress();
        let (misses, queue) = mpsc::channel(100);
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let connect = async || {
                let address = *control.lock().unwrap();
                channel_to(address).await
            };
            runtime.unwrap().block_on(async {
                tokio::select! {
                    ended = agent.run(connect, queue) => ended.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Self { progress, misses, stop, thread }
    }

    /// Waits until the table has come as far as the store.
    async fn reach(&mut self, store: &Store) -> Progress {
        let wanted = store.revision();
        let reached = self.progress.wait_for(|progress| progress.through == wanted);
        tokio::time::timeout(PATIENCE, reached).await.unwrap().unwrap().clone()
    }

    /// As by a kill: at whatever it is.
    async fn stop(self) {
        drop(self.stop);
        tokio::task::spawn_blocking(|| self.thread.join().unwrap()).await.unwrap();
    }
}

fn check_equal(kernel: &Kernel, store: &Store) {
    let entries = kernel.0.lock().unwrap();
    let found: BTreeMap<_, _> = entries
        .iter()
        .map(|(address, value)| ((address.vni(), address.ip()), (value.mac, value.host_ip())))
        .collect();
    let expected: BTreeMap<_, _> = store
        .present()
        .iter()
        .map(|(key, location)| {
            ((key.vni().number(), key.ip()), (location.mac.octets(), location.host_ip()))
        })
        .collect();
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "same keys, other values");
}

/// Waits until `holds`.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_follows_the_store_and_the_agent_reports_it() {
    for shuffles in [false, true] {
        let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
        let store = Store::new(7, shuffles);
        store.change(0..5000, Some(1));
        let mut agent = Running::start(&kernel, folder.path(), store.serve().await, None);
        agent.reach(&store).await;
        check_equal(&kernel, &store);
        // Created, moved, deleted, created again.
        store.change(4000..6000, Some(2));
        store.change(0..100, None);
        store.change(50..60, Some(3));
        agent.reach(&store).await;
        check_equal(&kernel, &store);
        until("the last report", || store.report().revision == store.revision()).await;
        until("the count", || store.report().entries == 5910).await;
        assert_eq!((store.report().pending, store.report().capacity), (0, 1_000_000));
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_goes_on_from_the_journal_and_writes_nothing_anew() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, false);
    let control = store.serve().await;
    store.change(0..3000, Some(1));
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    agent.reach(&store).await;
    let journal = folder.path().join("journal");
    until("a journal", || journal.exists()).await;
    agent.stop().await;
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    store.change([5, 6], None);
    let progress = agent.reach(&store).await;
    assert_eq!(store.starts(), [(0, 0), (1, 7)]);
    assert_eq!((progress.written, progress.removed, progress.entries), (0, 2, 2998));
    check_equal(&kernel, &store);
    agent.stop().await;
    // Another map under the same name: the journal does not apply to it.
    let empty = Kernel::default();
    std::fs::write(&journal, std::fs::read_to_string(&journal).unwrap().replace("map 1", "map 2"))
        .unwrap();
    let mut agent = Running::start(&empty, folder.path(), control, None);
    agent.reach(&store).await;
    check_equal(&empty, &store);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_that_breaks_off_anywhere_loses_nothing() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, true);
    store.change(0..20_000, Some(1));
    let mut agent = Running::start(&kernel, folder.path(), store.serve().await, None);
    for round in 0..30u32 {
        let (first, host) = (round * 613 % 20_000, u8::try_from(round).unwrap() + 2);
        store.change(first..first + 900, Some(host));
        store.break_off();
        store.change(first + 450..first + 700, None);
        tokio::time::sleep(Duration::from_millis(u64::from(round % 4) * 20)).await;
    }
    agent.reach(&store).await;
    check_equal(&kernel, &store);
    assert!(store.starts().len() > 2, "{:?}", store.starts());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_moment_leaves_a_table_that_comes_right() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, true);
    let control = store.serve().await;
    store.change(0..10_000, Some(1));
    for round in 0..20u32 {
        let agent = Running::start(&kernel, folder.path(), control, None);
        let first = round * 997 % 10_000;
        for step in 0..5u32 {
            let host = u8::try_from(round * 5 + step).unwrap() + 2;
            store.change(first..first + 300, (step % 2 == 0).then_some(host));
            tokio::time::sleep(Duration::from_millis(u64::from(round % 5) * 60)).await;
        }
        agent.stop().await;
    }
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    agent.reach(&store).await;
    check_equal(&kernel, &store);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_that_the_store_has_forgotten_are_carried_out() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, false);
    let control = store.serve().await;
    store.change(0..3000, Some(1));
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    agent.reach(&store).await;
    until("a journal", || folder.path().join("journal").exists()).await;
    agent.stop().await;
    store.change(1000..2000, None);
    store.change([1], Some(2));
    store.compact();
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    agent.reach(&store).await;
    check_equal(&kernel, &store);
    assert_eq!(store.starts(), [(0, 0), (1, 7)]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_store_replaces_everything_and_the_journal_never_leads() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let former = Store::new(7, false);
    for _ in 0..50 {
        former.change(0..10, Some(1));
    }
    let mut agent = Running::start(&kernel, folder.path(), former.serve().await, None);
    agent.reach(&former).await;
    let journal = folder.path().join("journal");
    until("a journal", || journal.exists()).await;
    agent.stop().await;
    let present = Store::new(8, false);
    present.change(5..2000, Some(2));
    let control = present.serve().await;
    let mut agent = Running::start(&kernel, folder.path(), control, None);
    agent.reach(&present).await;
    check_equal(&kernel, &present);
    let says =
        |text: &str| std::fs::read_to_string(&journal).is_ok_and(|found| found.contains(text));
    until("the other table's journal", || says("table 8\nrevision 1\n")).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn miss_is_asked_for_and_the_answer_written() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, false);
    store.change(0..100, Some(1));
    let mut agent = Running::start(&kernel, folder.path(), store.serve().await, None);
    agent.reach(&store).await;
    let wanted = Address::new(key(5).vni().number(), key(5).ip());
    // As if it had been lost: the watch does not send it again.
    kernel.0.lock().unwrap().remove(&wanted);
    agent.misses.send(wanted).await.unwrap();
    agent.misses.send(Address::new(1, "10.200.0.1".parse().unwrap())).await.unwrap();
    until("the answer", || kernel.0.lock().unwrap().contains_key(&wanted)).await;
    assert!(store.questions() > 0);
    check_equal(&kernel, &store);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_repairs_what_differs_and_counts_it() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, false);
    store.change(0..3000, Some(1));
    let control = store.serve().await;
    let every = Some(Duration::from_secs(2));
    let mut agent = Running::start(&kernel, folder.path(), control, every);
    agent.reach(&store).await;
    {
        let mut entries = kernel.0.lock().unwrap();
        entries.pop_first();
        entries.first_entry().unwrap().get_mut().mac = [9; 6];
        entries.insert(Address::new(9, "10.99.0.1".parse().unwrap()), Neighbour::default());
    }
    let repaired = agent.progress.wait_for(|progress| progress.repaired > 0);
    tokio::time::timeout(PATIENCE, repaired).await.unwrap().unwrap();
    let whole = agent.progress.wait_for(|progress| progress.listings == 2);
    let progress = tokio::time::timeout(PATIENCE, whole).await.unwrap().unwrap().clone();
    assert_eq!(progress.repaired, 3);
    check_equal(&kernel, &store);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_that_meets_another_table_believes_it() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let former = Store::new(7, false);
    for _ in 0..50 {
        former.change(0..10, Some(1));
    }
    let present = Store::new(8, false);
    present.change(5..2000, Some(2));
    let (first, second) = (former.serve().await, present.serve().await);
    let control = Arc::new(Mutex::new(first));
    let every = Some(Duration::from_secs(1));
    let mut agent = Running::start_at(&kernel, folder.path(), Arc::clone(&control), every);
    agent.reach(&former).await;
    // The next connection, which an audit opens, leads to another store.
    *control.lock().unwrap() = second;
    agent.reach(&present).await;
    check_equal(&kernel, &present);
    assert_eq!(present.starts()[0], (0, 0), "the audit has asked for everything");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_come_although_connections_do_not_last() {
    let (kernel, folder) = (Kernel::default(), TempDir::new().unwrap());
    let store = Store::new(7, false);
    store.change(0..100, Some(1));
    let every = Some(Duration::from_secs(3));
    let mut agent = Running::start(&kernel, folder.path(), store.serve().await, every);
    agent.reach(&store).await;
    until("an audit", || {
        store.break_off();
        thread::sleep(Duration::from_millis(500));
        store.starts().iter().filter(|(from, _)| *from == 0).count() > 1
    })
    .await;
    agent.stop().await;
}
