//! A forwarder between two hosts, its agent, and the control plane with its neighbours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tollway_control::AdminClient;
use tollway_fabric::layout::Settings;
use tollway_fabric::{LoadError, Programs, Table, pinned_table, pins};
use tollway_model::neighbour::packed::{pack_all, unpack};
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_testkit::tunnels::{DEVICES, GUESTS, Guest, Tunnels, VNI};
use tollway_testkit::{Process, TempDir, retry_until};
use tollway_tests::{new_options, program};
use tollway_wire::v1;

use tollway_tests::mesh::PATIENCE;
use tollway_tests::mesh::http::get;

/// How many neighbours the table holds.
pub(crate) const CAPACITY: u32 = 20_000;
const AGENT: &str = "forwarder-1";

/// What is known of an address: its hardware address, and its host's addresses.
pub(crate) type Neighbours = BTreeMap<(u32, IpAddr), ([u8; 6], IpAddr, [u8; 6])>;

pub(crate) struct Fabric {
    pub(crate) tunnels: Tunnels,
    pub(crate) files: TempDir,
    pub(crate) control: Process,
    group: String,
    address: SocketAddr,
}

impl Fabric {
    /// `None` where namespaces or programs in the kernel are not permitted.
    pub(crate) fn start(name: &str) -> Option<Self> {
        let group = format!("test-{}-{name}", std::process::id());
        let local = Ipv4Addr::LOCALHOST;
        let settings = Settings::new([2; 6], 4789, local, local.to_ipv6_mapped());
        if let Err(LoadError::NotPermitted { .. }) = Programs::load(&settings, 1, None) {
            return None;
        }
        let (tunnels, files) = (Tunnels::new(&group)?, TempDir::new().unwrap());
        let control = start_control(&tunnels, &files, "127.0.0.1:0");
        let address = control.port("control").unwrap();
        Some(Self { tunnels, files, control, group, address })
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.files.path().join("store")
    }

    pub(crate) fn group(&self) -> &str {
        &self.group
    }

    /// Starts the control plane again at its address, over the store that it left.
    pub(crate) fn restart_control(&mut self) {
        self.control.kill().unwrap();
        self.control = start_control(&self.tunnels, &self.files, &self.address.to_string());
    }

    /// Starts the group's agent, with a journal at `journal`.
    pub(crate) fn agent(&self, journal: &str, options: &[&str]) -> Process {
        let token = self.files.path().join("token");
        if !token.exists() {
            let uses = new_options(&["--uses", "any"]);
            let made =
                self.done(&[&["token", "create", "--fabric", &self.group][..], &uses].concat());
            tollway_net::secret_file::write(&token, made.as_ref()).unwrap();
        }
        let start = self.tunnels.start_in_middle(program());
        let start = start.args(["fabric", "agent", "--group", &self.group, "--instance", AGENT]);
        let start = DEVICES.iter().fold(start, |start, device| start.args(["--device", device]));
        start
            .args(["--mode", "tc", "--capacity", &CAPACITY.to_string()])
            .args(["--control", &self.address.to_string(), "--token-file"])
            .arg(token)
            .arg("--journal")
            .arg(journal)
            .args(options)
            .start()
            .unwrap()
    }

    /// The agent's page of metrics.
    #[track_caller]
    pub(crate) fn metrics(&self, admin: &str) -> String {
        let address = admin.parse().unwrap();
        let answer = self.tunnels.middle().run(|| get(address, "/metrics")).unwrap();
        let (_, page) = answer.split_once("\r\n\r\n").expect(&answer);
        page.to_owned()
    }

    /// Runs a command on what the control plane stores.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        Command::new(program()).args(arguments).arg("--store").arg(self.store()).output().unwrap()
    }

    /// As [`Self::command`], which has to succeed; gives what it printed.
    #[track_caller]
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments);
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {reported}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `tollway neighbours …` of the group.
    #[track_caller]
    pub(crate) fn neighbours(&self, words: &[&str]) -> String {
        self.done(&[&["neighbours"], words, &["--group", &self.group]].concat())
    }

    /// Puts the guests where they are.
    pub(crate) fn teach(&self) -> String {
        self.teach_of(&GUESTS)
    }

    /// The same of these guests.
    pub(crate) fn teach_of(&self, guests: &[Guest]) -> String {
        let file = self.files.path().join("guests.csv");
        std::fs::write(&file, csv(guests)).unwrap();
        self.neighbours(&["import", "--wait", file.to_str().unwrap()])
    }

    /// The one agent in `tollway fabric status --agents`, once it `is` as awaited.
    pub(crate) fn agent_that(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        retry_until(PATIENCE, what, || {
            let reported =
                self.command(&["fabric", "status", "--agents", "--json", "--group", &self.group]);
            let status: Value = serde_json::from_slice(&reported.stdout).ok()?;
            let agent = status["agents"].get(0).cloned()?;
            is(&agent).then_some(agent)
        })
        .unwrap()
    }

    /// Waits until the agent is there and has all that was written.
    pub(crate) fn settled(&self) -> Value {
        self.agent_that("an agent that holds everything", |agent| agent["holds"] == true)
    }

    /// `tollway fabric status`, which reads the kernel.
    pub(crate) fn status(&self) -> Value {
        let status = ["fabric", "status", "--json", "--group", &self.group];
        let output = Command::new(program()).args(status).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The content of the kernel's table.
    pub(crate) fn in_kernel(&self) -> Neighbours {
        let table = pinned_table(&pins::path_of(&self.group).unwrap()).unwrap();
        let mut found = Neighbours::new();
        let mut note = |key: &tollway_fabric::layout::Address, value: &_| {
            let tollway_fabric::layout::Neighbour { mac, host_mac, .. } = *value;
            found.insert((key.vni(), key.ip()), (mac, value.host_ip(), host_mac));
        };
        table.visit(&mut note).unwrap();
        found
    }

    /// The content of the control plane's table.
    pub(crate) async fn in_store(&self) -> Neighbours {
        let mut client = AdminClient::connect(&self.store()).await.unwrap().neighbours();
        let request = v1::ListNeighboursRequest { group: self.group.clone(), ..Default::default() };
        let mut pages = client.list_neighbours(request).await.unwrap().into_inner();
        let mut found = Neighbours::new();
        while let Some(page) = pages.message().await.unwrap() {
            for NeighbourRecord { key, location, .. } in unpack(&page.packed).unwrap() {
                let location = location.unwrap();
                let says = (location.mac.octets(), location.host_ip(), location.host_mac.octets());
                found.insert((key.vni().number(), key.ip()), says);
            }
        }
        found
    }

    pub(crate) fn detach(&self) -> String {
        let words = ["fabric", "detach", "--group", &self.group];
        let output = Command::new(program()).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // The namespaces' devices go with them; what is pinned would stay.
        let _ = Command::new(program()).args(["fabric", "detach", "--group", &self.group]).output();
    }
}

fn start_control(tunnels: &Tunnels, files: &TempDir, listen: &str) -> Process {
    tunnels
        .start_in_middle(program())
        .ready_within(PATIENCE)
        .args(["control", "--listen", listen, "--store"])
        .arg(files.path().join("store"))
        .start_listening()
        .unwrap()
}

fn csv(guests: &[Guest]) -> String {
    let text = |mac: [u8; 6]| Mac::new(mac).unwrap().to_string();
    let mut csv = "vni,ip,mac,host_ip,host_mac\n".to_owned();
    for Guest { ip, mac, host_ip, host_mac } in guests {
        writeln!(csv, "{VNI},{ip},{},{host_ip},{}", text(*mac), text(*host_mac)).unwrap();
    }
    csv
}

/// A transaction that puts these numbers behind a host of the round, and removes every third.
pub(crate) fn round(
    group: &str,
    round: u32,
    numbers: impl Iterator<Item = u32>,
) -> v1::WriteNeighboursRequest {
    let [_, a, b, c] = round.to_be_bytes();
    let mac = Mac::new([2, 0, 0, a, b, c]).unwrap();
    let records: Vec<_> = numbers
        .map(|number| {
            let ip = Ipv4Addr::from(0x0a40_0000 + number).into();
            let key = NeighbourKey::new(Vni::new(7).unwrap(), ip).unwrap();
            let host = Ipv4Addr::new(192, 0, 2, 1 + (round % 250) as u8).into();
            let location = HostLocation::new(mac, host, mac).unwrap();
            let is_kept = !(number + round).is_multiple_of(3);
            NeighbourRecord { key, revision: 0, location: is_kept.then_some(location) }
        })
        .collect();
    v1::WriteNeighboursRequest {
        group: group.to_owned(),
        operation: v1::NeighbourOperation::Apply.into(),
        neighbours: Vec::new(),
        packed: pack_all(&records).concat().into(),
    }
}
