//! `tollway neighbours` against a control plane of its own: files, mistakes, a watch; and what a
//! control plane that is killed or whose disk is full has answered.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tollway_control::AdminClient;
use tollway_model::neighbour::packed::{pack_all, unpack};
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_testkit::{Process, Start, TempDir};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{PATIENCE, start_tollway};
use tollway_tests::program;
use tollway_wire::v1;

/// Rounds in which the control plane is killed; a hundred by `TOLLWAY_NEIGHBOUR_KILLS=100`.
const KILLS: u32 = 6;
/// Largest file of the control plane with a full disk, in the shell's blocks of 512 bytes.
const FULL_BLOCKS: u32 = 4096;

struct Control {
    files: TempDir,
    process: Process,
}

impl Control {
    fn start() -> Self {
        let files = TempDir::new().unwrap();
        let process = Self::start_over(&files);
        Self { files, process }
    }

    fn start_over(files: &TempDir) -> Process {
        start_tollway("control")
            .args(["--listen", "127.0.0.1:0", "--store"])
            .arg(files.path().join("store"))
            .start_listening()
            .unwrap()
    }

    fn store(&self) -> PathBuf {
        self.files.path().join("store")
    }

    /// Runs a command; the words end before the store is named.
    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("neighbours").args(words).args(["--group", "racks", "--store"]);
        command.arg(self.store()).output().unwrap()
    }

    #[track_caller]
    fn output_of(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let file = self.files.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

fn csv(count: u32) -> String {
    let mut text = "vni,ip,mac,host_ip,host_mac\n".to_owned();
    for number in 0..count {
        let ip = Ipv4Addr::from(0x0a00_0001 + number);
        writeln!(text, "7,{ip},02:00:00:00:00:01,192.0.2.1,02:00:00:00:00:09").unwrap();
    }
    text
}

#[test]
fn a_file_is_imported_listed_and_imported_again() {
    let control = Control::start();
    let file = control.file("neighbours.csv", &csv(3000));
    let reported = control.output_of(&["import", &file]);
    assert!(
        reported.starts_with("group racks: 3000 changed, 0 unchanged, revision "),
        "{reported}"
    );
    let listed = control.output_of(&["list", "--json"]);
    assert_eq!(listed.lines().count(), 3000);
    let first: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!((&first["vni"], &first["ip"]), (&7.into(), &"10.0.0.1".into()));
    let again = control.file("again.json", &listed);
    let reported: Value =
        serde_json::from_str(&control.output_of(&["import", "--json", "--wait", &again])).unwrap();
    assert_eq!((&reported["changed"], &reported["unchanged"]), (&0.into(), &3000.into()));
    assert_eq!((&reported["held"], &reported["agents"]), (&true.into(), &0.into()));
    let reported = control.output_of(&["import", "--delete", &file]);
    assert!(reported.starts_with("group racks: 3000 changed"), "{reported}");
    assert_eq!(control.output_of(&["list", "--json"]), "");
    let refused = control.refused(&["import", "--delete", &file]);
    let expected = format!("{file}:2: there is no neighbour vni 7, 10.0.0.1");
    assert!(refused.contains(&expected), "{refused}");
    assert!(refused.contains("and 2980 more"), "{refused}");
}

#[test]
fn a_file_with_a_mistake_changes_nothing() {
    let control = Control::start();
    let text = csv(2).replacen("192.0.2.1,", "192.0.2,", 1) + "7,10.0.0.9,02:00:00,,\n";
    let file = control.file("neighbours.csv", &text);
    let refused = control.refused(&["import", &file]);
    assert!(
        refused.contains(&format!("{file}:2: the field `host_ip`: `192.0.2` is not")),
        "{refused}"
    );
    assert!(
        refused.contains(&format!("{file}:4: the field `mac`: `02:00:00` is not")),
        "{refused}"
    );
    assert_eq!(control.output_of(&["list", "--json"]), "");
    let missing = control.refused(&["import", "/nowhere/neighbours.csv"]);
    assert!(missing.contains("cannot read /nowhere/neighbours.csv"), "{missing}");
}

#[test]
fn one_is_applied_found_and_deleted_while_a_watch_prints_it() {
    let control = Control::start();
    let apply = |host: &str, more: &[&str]| {
        let key = ["apply", "--vni", "7", "--ip", "2001:db8::1", "--mac", "02:00:00:00:00:01"];
        let host = ["--host-ip", host, "--host-mac", "02:00:00:00:00:09"];
        control.run(&[&key[..], &host[..], more].concat())
    };
    assert!(apply("192.0.2.1", &["--create"]).status.success());
    let exists = apply("192.0.2.1", &["--create"]);
    let text = String::from_utf8(exists.stderr).unwrap();
    assert!(text.contains("vni 7, 2001:db8::1 exists"), "{text}");
    let mut watch = Command::new(program())
        .args(["neighbours", "watch", "--json", "--group", "racks", "--store"])
        .arg(control.store())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reported = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next =
        || -> Value { serde_json::from_str(&reported.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["host_ip"], "192.0.2.1");
    assert!(next()["told_up_to"].as_u64().unwrap() > 0);
    assert!(apply("2001:db8::9", &["--update"]).status.success());
    assert_eq!(next()["host_ip"], "2001:db8::9");
    next();
    assert!(control.output_of(&["get", "--vni", "7", "2001:db8::1"]).contains("2001:db8::9"));
    control.output_of(&["delete", "--vni", "7", "2001:db8::1"]);
    let gone = next();
    assert_eq!((&gone["ip"], &gone["deleted"]), (&"2001:db8::1".into(), &true.into()));
    watch.kill().unwrap();
    watch.wait().unwrap();
    let missing = control.refused(&["get", "--vni", "7", "2001:db8::1"]);
    assert!(missing.contains("there is no neighbour vni 7, 2001:db8::1"), "{missing}");
    control.refused(&["delete", "--vni", "7", "2001:db8::1"]);
    control.output_of(&["delete", "--ignore-missing", "--vni", "7", "2001:db8::1"]);
}

/// The neighbour of a number as of a round.
fn neighbour(number: u32, round: u32) -> NeighbourRecord {
    let ip = Ipv4Addr::from(0x0a00_0001 + number).into();
    let key = NeighbourKey::new(Vni::new(7).unwrap(), ip).unwrap();
    let [_, a, b, c] = round.to_be_bytes();
    let mac = Mac::new([2, 0, 0, a, b, c]).unwrap();
    let location = HostLocation::new(mac, Ipv4Addr::new(192, 0, 2, 1).into(), mac).unwrap();
    // Every seventh is deleted.
    let location = Some(location).filter(|_| !(number + round).is_multiple_of(7));
    NeighbourRecord { key, revision: 0, location }
}

fn request(records: &[NeighbourRecord]) -> v1::WriteNeighboursRequest {
    v1::WriteNeighboursRequest {
        group: "racks".into(),
        operation: v1::NeighbourOperation::Apply.into(),
        neighbours: Vec::new(),
        packed: pack_all(records).concat().into(),
    }
}

async fn list(store: &Path) -> BTreeMap<NeighbourKey, NeighbourRecord> {
    let mut client = AdminClient::connect(store).await.unwrap().neighbours();
    let request = v1::ListNeighboursRequest { group: "racks".into(), ..Default::default() };
    let mut pages = client.list_neighbours(request).await.unwrap().into_inner();
    let mut all = BTreeMap::new();
    while let Some(page) = pages.message().await.unwrap() {
        all.extend(unpack(&page.packed).unwrap().into_iter().map(|record| (record.key, record)));
    }
    all
}

/// Writes rounds of 500 neighbours until the control plane is gone. Returns the answered rounds,
/// and whether another one was under way.
async fn write_until_gone(store: PathBuf, mut round: u32) -> u32 {
    let mut client = AdminClient::connect(&store).await.unwrap().neighbours();
    loop {
        let records: Vec<_> = (0..500).map(|number| neighbour(number, round)).collect();
        if client.write_neighbours(request(&records)).await.is_err() {
            return round;
        }
        round += 1;
    }
}

#[test]
fn what_was_answered_survives_kill_9_at_any_moment() {
    let kills = std::env::var("TOLLWAY_NEIGHBOUR_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("a number of rounds"));
    let mut control = Control::start();
    let (store, mut round) = (control.store(), 1);
    runtime().block_on(async {
        for kill in 0..kills {
            let writing = tokio::spawn(write_until_gone(store.clone(), round));
            // Another moment of the work in each round.
            tokio::time::sleep(Duration::from_millis(60 + u64::from(kill * 37 % 150))).await;
            control.process.kill().unwrap();
            // This one was not answered: it is there whole, or not at all.
            let unanswered = writing.await.unwrap();
            control.process = Control::start_over(&control.files);
            let found = list(&store).await;
            let of = |round: u32| -> BTreeMap<_, _> {
                let records = (0..500).map(|number| neighbour(number, round));
                let present = records.filter(|record| record.location.is_some());
                present.map(|record| (record.key, record.location)).collect()
            };
            let found: BTreeMap<_, _> =
                found.into_iter().map(|(key, record)| (key, record.location)).collect();
            let expected = [unanswered.saturating_sub(1), unanswered].map(of);
            let answered_some = unanswered > 1;
            assert!(
                expected.contains(&found) || (!answered_some && found.is_empty()),
                "kill {kill}: {} neighbours are of neither round {unanswered} nor the one before",
                found.len()
            );
            assert!(kill == 0 || unanswered > round, "round {round}: nothing was written");
            round = unanswered;
        }
    });
}

fn thousand(from: u32) -> Vec<NeighbourRecord> {
    let location = neighbour(1, 1).location;
    (from..from + 1000).map(|number| NeighbourRecord { location, ..neighbour(number, 1) }).collect()
}

#[test]
fn a_full_disk_refuses_neighbours_and_loses_none() {
    let files = TempDir::new().unwrap();
    let script = format!("trap '' XFSZ; ulimit -f {FULL_BLOCKS}; exec \"$0\" \"$@\"");
    let mut process = Start::new("sh")
        .args(["-c", &script, program(), "control", "--listen", "127.0.0.1:0", "--store"])
        .arg(files.path().join("store"))
        .ready_within(PATIENCE)
        .start_listening()
        .unwrap();
    let store = files.path().join("store");
    let (full, answered) = runtime().block_on(async {
        let mut client = AdminClient::connect(&store).await.unwrap().neighbours();
        let mut answered = 0;
        let refused = loop {
            assert!(answered < 1_000_000, "the disk never filled");
            let records = thousand(answered);
            match client.write_neighbours(request(&records)).await {
                Ok(_) => answered += 1000,
                Err(refused) => break refused,
            }
        };
        let found = list(&store).await;
        assert_eq!(found.len(), usize::try_from(answered).unwrap(), "what is there is served on");
        // Those of the thousand that find no room, one by one: an answer that they are unchanged
        // did not rely on an unwritten change.
        let mut single = 0;
        for attempt in 0.. {
            if single > 0 {
                break;
            }
            assert!(attempt < 50, "there is no room even for one");
            let records = thousand(answered);
            let mut writing = tokio::task::JoinSet::new();
            for records in std::iter::once(&records[..]).chain(records[..20].chunks(1)) {
                let (mut client, request) = (client.clone(), request(records));
                writing.spawn(async move { client.write_neighbours(request).await.is_ok() });
            }
            let good = writing.join_all().await.into_iter().filter(|is_good| *is_good).count();
            single = list(&store).await.len() - found.len();
            assert!(good <= single, "{good} were answered, {single} are there");
        }
        (refused, answered + u32::try_from(single).unwrap())
    });
    assert!(answered >= 5000, "{answered}");
    assert!(full.message().contains("no room for the store"), "{full}");
    process.kill().unwrap();
    let _process = Control::start_over(&files);
    let found = runtime().block_on(list(&store));
    assert_eq!(found.len(), usize::try_from(answered).unwrap());
}
