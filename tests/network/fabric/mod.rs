//! A forwarder whose agent follows a real control plane: packets go where its neighbours are
//! written to be, and table and store are equal again whatever befalls either side.

pub(crate) mod parts;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parts::{CAPACITY, Fabric, round};
use serde_json::{Value, json};
use tollway_control::AdminClient;
use tollway_testkit::tunnels::Side;
use tollway_testkit::{TempDir, metric_in, retry_until};
use tollway_tests::mesh::PATIENCE;
use tollway_tests::mesh::http::runtime;
use tollway_tests::metrics_page::{check_documented, check_lint};

/// Rounds that are written before the connection is cut.
const UNDER_WAY: u32 = 20;
/// Rounds in which agent or control plane are killed; a hundred by `TOLLWAY_FABRIC_KILLS=100`.
const KILLS: u32 = 6;
/// For how long the connection between them is cut; a minute by `TOLLWAY_FABRIC_CUT_S=60`.
const CUT_S: u32 = 4;
/// Addresses that writers write.
const NUMBERS: u32 = 12_000;
/// The agent's admin port: the machine between the hosts has a network of its own.
const ADMIN: &str = "127.0.0.1:9090";
pub(crate) const NOT_PERMITTED: &str =
    "it needs root, network namespaces and the right to load programs";

/// A number that an environment variable may set.
fn chosen(variable: &str, otherwise: u32) -> u32 {
    let said = std::env::var(variable).ok();
    said.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Leaves figures of a test in the folder that the variable `TOLLWAY_FABRIC_RECORD` names.
fn record(name: &str, figures: &Value) {
    if let Ok(folder) = std::env::var("TOLLWAY_FABRIC_RECORD") {
        std::fs::write(Path::new(&folder).join(name), figures.to_string()).unwrap();
    }
}

/// Waits until an agent has noted how far it is.
fn until_kept(journal: &str) {
    let kept = || std::fs::read_to_string(journal).is_ok_and(|text| !text.is_empty()).then_some(());
    retry_until(PATIENCE, "a journal", kept).unwrap();
}

#[test]
fn packets_go_to_the_hosts_that_the_control_plane_lists() {
    let Some(mut fabric) = Fabric::start("packets") else {
        tollway_testkit::skip!("{NOT_PERMITTED}");
    };
    let journal = fabric.files.path().join("journal");
    let journal = journal.to_str().unwrap();
    let mut agent = fabric.agent(journal, &["--admin-listen", ADMIN]);
    fabric.teach();
    let holds = fabric.settled();
    let page = fabric.metrics(ADMIN);
    check_documented("fabric", &page);
    if let Some(promlint) = tollway_testkit::tool("promlint") {
        check_lint(&promlint, "fabric", &page);
    }
    let value = |name: &str| metric_in(&page, name).unwrap();
    assert_eq!((value("tollway_fabric_connected"), value("tollway_fabric_neighbours")), (1.0, 4.0));
    assert!(value("tollway_certificate_expiry_timestamp_seconds") > 1e9, "{page}");
    assert_eq!((&holds["neighbours"], &holds["capacity"]), (&4.into(), &CAPACITY.into()));
    assert_eq!(holds["troubles"], json!([]));
    fabric.tunnels.ping(Side::A, "10.0.0.2");
    fabric.tunnels.ping(Side::B, "fd00::1");
    fabric.tunnels.transfer("10.0.0.2");
    let status = fabric.status();
    assert_eq!((&status["neighbours"], &status["capacity"]), (&4.into(), &CAPACITY.into()));
    let forwarded = status["packets"]["forwarded"].as_u64().unwrap();
    assert!(forwarded > 100, "{status}");
    let page = fabric.metrics(ADMIN);
    let counted: f64 =
        metric_in(&page, "tollway_fabric_packets_total{outcome=\"forwarded\"}").unwrap();
    assert!(counted >= forwarded as f64, "{page}");

    until_kept(journal);
    // There is no agent to update; packets are still forwarded.
    agent.kill().unwrap();
    fabric.tunnels.ping(Side::A, "10.0.0.2");
    fabric.agent_that("an agent that has gone", |agent| agent["connected"] == false);
    fabric.neighbours(&["delete", "--vni", "1000", "10.0.0.2"]);
    fabric.tunnels.ping(Side::A, "10.0.0.2");
    let agent = fabric.agent(journal, &[]);
    assert_eq!(fabric.settled()["neighbours"], 3);
    let lost = fabric.tunnels.ping_on(Side::A, "10.0.0.2", 3, Duration::from_millis(200));
    assert_eq!(lost.answers(), 0, "it was deleted");
    let held = fabric.teach();
    assert!(held.contains("held by 1 agents"), "{held}");
    fabric.tunnels.ping(Side::A, "10.0.0.2");
    assert!(!agent.log().contains("from=0"), "it goes on from its journal: {}", agent.log());

    // There is no control plane; packets are still forwarded, and the agent runs.
    fabric.control.kill().unwrap();
    fabric.tunnels.ping(Side::B, "10.0.0.1");
    fabric.restart_control();
    fabric.settled();
    fabric.neighbours(&["delete", "--wait", "--vni", "1000", "10.0.0.1"]);
    assert_eq!(fabric.status()["neighbours"], 3);
    drop(agent);
    let reported = fabric.detach();
    assert!(reported.contains("took off") && reported.contains("removed the table"), "{reported}");
    assert!(fabric.detach().contains("there is no forwarder of group"));
}

/// Writes rounds until it is stopped, through all failures of the control plane; each is written
/// again until it is answered.
struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    fn start(store: PathBuf, group: &str) -> Self {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (is_over, count, group) = (stop.clone(), written.clone(), group.to_owned());
        let task = tokio::spawn(async move {
            let mut client = None;
            while !is_over.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed);
                let numbers = (0..400).map(|at| (number * 977 + at * 29) % NUMBERS);
                let known = match client.take() {
                    Some(known) => Ok(known),
                    None => AdminClient::connect(&store).await.map(|admin| admin.neighbours()),
                };
                if let Ok(mut known) = known
                    && known.write_neighbours(round(&group, number, numbers)).await.is_ok()
                {
                    count.fetch_add(1, Ordering::Relaxed);
                    client = Some(known);
                    continue;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { stop, written, task }
    }

    /// Waits until so many rounds are written.
    async fn until(&self, rounds: u32) {
        let deadline = Instant::now() + PATIENCE;
        while self.written.load(Ordering::Relaxed) < rounds {
            assert!(Instant::now() < deadline, "fewer than {rounds} rounds are written");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.written.load(Ordering::Relaxed)
    }
}

#[test]
fn tables_are_equal_whichever_process_was_killed_and_whenever() {
    let Some(mut fabric) = Fabric::start("kills") else {
        tollway_testkit::skip!("{NOT_PERMITTED}");
    };
    let journal = fabric.files.path().join("journal");
    let journal = journal.to_str().unwrap();
    let kills = chosen("TOLLWAY_FABRIC_KILLS", KILLS);
    let mut agent = fabric.agent(journal, &[]);
    let (mut transactions, mut longest) = (0, Duration::ZERO);
    runtime().block_on(async {
        for kill in 0..kills {
            let writer = Writer::start(fabric.store(), fabric.group());
            let wait = 100 + u64::from(kill * 139 % 900);
            // Another moment of the work in each round.
            tokio::time::sleep(Duration::from_millis(wait)).await;
            if kill % 3 != 1 {
                agent.kill().unwrap();
            }
            if kill % 3 != 0 {
                fabric.restart_control();
            }
            if kill % 3 != 1 {
                agent = fabric.agent(journal, &[]);
            }
            tokio::time::sleep(Duration::from_millis(wait / 2)).await;
            let written = writer.stop().await;
            assert!(written > 0, "round {kill}: nothing was written");
            transactions += written;
            let stopped = Instant::now();
            fabric.settled();
            longest = longest.max(stopped.elapsed());
            let (kernel, store) = (fabric.in_kernel(), fabric.in_store().await);
            assert_eq!(kernel.len(), store.len(), "round {kill}");
            assert!(kernel == store, "round {kill}: same addresses, other places");
        }
    });
    let longest_ms = longest.as_millis();
    let figures = json!({ "kills": kills, "transactions": transactions, "longest_ms": longest_ms });
    record("kills.json", &figures);
}

#[test]
fn nothing_is_lost_while_the_way_is_cut() {
    let Some(fabric) = Fabric::start("cut") else {
        tollway_testkit::skip!("{NOT_PERMITTED}");
    };
    let seconds = chosen("TOLLWAY_FABRIC_CUT_S", CUT_S);
    let journal = fabric.files.path().join("journal");
    let _agent = fabric.agent(journal.to_str().unwrap(), &[]);
    fabric.teach();
    fabric.settled();
    runtime().block_on(async {
        let writer = Writer::start(fabric.store(), fabric.group());
        writer.until(UNDER_WAY).await;
        set_loopback(&fabric, "down");
        // Received records may still be under way into the table.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = fabric.status()["newest_revision"].clone();
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        assert_eq!(fabric.status()["newest_revision"], before, "nothing comes through");
        set_loopback(&fabric, "up");
        let written = writer.stop().await;
        assert!(written > 10, "{written}");
        let stopped = Instant::now();
        fabric.settled();
        let settled_ms = stopped.elapsed().as_millis();
        assert!(fabric.in_kernel() == fabric.in_store().await);
        let figures =
            json!({ "seconds": seconds, "transactions": written, "settled_ms": settled_ms });
        record("cut.json", &figures);
    });
}

/// Takes the device between agent and control plane down, or up.
fn set_loopback(fabric: &Fabric, state: &str) {
    let set = || Command::new("ip").args(["link", "set", "lo", state]).status();
    assert!(fabric.tunnels.middle().run(set).unwrap().unwrap().success());
}

/// A file system of a few pages.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        let disk = Self(TempDir::new().unwrap());
        let options = ["-t", "tmpfs", "-o", "size=16k", "none"];
        let done = Command::new("mount").args(options).arg(disk.0.path()).status().unwrap();
        assert!(done.success());
        disk
    }

    fn fill(&self) {
        assert!(std::fs::write(self.0.path().join("filler"), [0; 65536]).is_err(), "it is small");
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn full_disk_costs_the_journal_and_nothing_else() {
    let Some(fabric) = Fabric::start("disk") else {
        tollway_testkit::skip!("{NOT_PERMITTED}");
    };
    let disk = SmallDisk::mount();
    disk.fill();
    let journal = disk.0.path().join("journal");
    let mut agent = fabric.agent(journal.to_str().unwrap(), &[]);
    fabric.teach();
    fabric.settled();
    fabric.tunnels.ping(Side::A, "10.0.0.2");
    let reported = || agent.log().contains("the journal is not kept").then_some(());
    retry_until(PATIENCE, "a word about the journal", reported).unwrap();
    let log = agent.log();
    assert_eq!(log.matches("the journal is not kept").count(), 1, "told once: {log}");
    assert!(log.contains("No space left on device"), "{log}");
    disk.empty();
    fabric.neighbours(&["delete", "--wait", "--vni", "1000", "fd00::1"]);
    let kept =
        || std::fs::read_to_string(&journal).is_ok_and(|text| !text.is_empty()).then_some(());
    retry_until(PATIENCE, "a journal", kept).unwrap();
    agent.kill().unwrap();
    let agent = fabric.agent(journal.to_str().unwrap(), &[]);
    assert_eq!(fabric.settled()["neighbours"], 3);
    assert!(!agent.log().contains("from=0"), "it goes on from there: {}", agent.log());
}
