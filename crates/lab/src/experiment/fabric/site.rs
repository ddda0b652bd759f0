//! A network with a device, a control plane in it, and the agents that follow that. Dropping it stops
//! all of it and removes its tables from the kernel. Agents are in `agent`.

mod agent;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_record::neighbours::NeighbourRun;

use super::plan::{FabricCell, WARM_UP, Work};
use super::{ETCD, NO_ETCD};
use crate::cancel::Cancel;
use crate::commands::{
    CONTROL_PORT, Commands, NeighbourGets, NeighbourWrites, TokenRole, WritePace,
};
use crate::error::LabError;
use crate::process::{ProcessError, Spec, Supervisor};
use crate::scenario::Store;
use crate::topology::{Isolation, Network, Topology};
use tollway_net::ports_file::{self as ports, Ports};
use tollway_net::secret_file;

pub(super) use agent::{Agent, AgentDevices};

/// The device that the agent forwards on: one end of a virtual cable within the network.
pub(super) const DEVICE: &str = "fabric0";
const FAR_END: &str = "fabric1";
const DEVICE_ADDRESS: &str = "10.202.0.1/24";
/// How long a process may take to be ready, and a short command to end.
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);
/// Between two rounds of writes: what the round before left to do is over then.
const PAUSE: Duration = Duration::from_millis(1);
/// How long rounds may take together.
const ROUNDS_LIMIT: Duration = Duration::from_secs(900);
/// Where groups of forwarders are pinned; those of labs begin with this and a process id.
pub(super) const PINNED: &str = "/sys/fs/bpf/tollway";
const GROUP_PREFIX: &str = "lab-";

/// Names of processes.
const CONTROL: &str = "control";
const AGENT: &str = "agent";
/// etcd's own ports, for clients and for other members.
const ETCD_PORTS: [u16; 2] = [2379, 2380];

/// The network, and what runs in it.
pub(super) struct Site {
    pub(super) commands: Commands,
    pub(super) supervisor: Supervisor,
    /// Where control planes and agents are.
    pub(super) network: Network,
    /// Ends every wait.
    pub(super) cancel: Cancel,
    /// Where its program is, if it is.
    etcd: Option<PathBuf>,
    /// Of this process alone.
    pub(super) group: String,
    /// Number of the control plane that runs, or ran last.
    started: u32,
    /// Number of the agent, and of the crossing, that were made last.
    agents: u32,
    pub(super) crossings: u32,
    /// How many short commands have had names of their own.
    named: Cell<u32>,
    /// Of everything that ran, by process.
    command_lines: BTreeMap<String, String>,
}

/// A control plane with an empty table.
#[derive(Debug, Clone)]
pub(super) struct Control {
    address: SocketAddr,
    pub(super) store: PathBuf,
    token_file: PathBuf,
}

impl Site {
    pub(super) fn create(
        dir: &Path,
        (binary, etcd): (&Path, Option<PathBuf>),
        isolation: &Isolation,
        cancel: &Cancel,
    ) -> Result<Self, LabError> {
        let topology = Topology::create(isolation, &["fabric"], Vec::new())?;
        let network = topology.networks.into_iter().next();
        let network = network.ok_or_else(|| LabError::Unpublished { name: "fabric".into() })?;
        let site = Self {
            commands: Commands { program: binary.to_owned() },
            supervisor: Supervisor::new(dir, cancel),
            network,
            cancel: cancel.clone(),
            etcd,
            group: format!("{GROUP_PREFIX}{}", std::process::id()),
            started: 0,
            agents: 0,
            crossings: 0,
            named: Cell::new(0),
            command_lines: BTreeMap::new(),
        };
        site.remove_abandoned();
        site.make_device()?;
        Ok(site)
    }

    /// A name that no other command of this run has, so that each has a log of its own.
    pub(super) fn fresh_name(&self, part: &str) -> String {
        let number = self.named.get() + 1;
        self.named.set(number);
        format!("{part}-{number}")
    }

    /// Starts a server and waits for its ports.
    pub(super) fn start_server(&mut self, spec: &Spec) -> Result<Ports, LabError> {
        self.supervisor.start(spec)?;
        Ok(self.supervisor.wait_ports(&spec.name, READY_LIMIT)?)
    }

    /// Notes the command lines of what runs, for the record.
    pub(super) fn note_command_lines(&mut self) {
        self.command_lines.extend(self.supervisor.command_lines());
    }

    /// Notes the command line of something that has run.
    pub(super) fn note_command_line(&mut self, name: &str, command_line: &str) {
        self.command_lines.insert(name.to_owned(), command_line.to_owned());
    }

    /// What was noted, by name.
    pub(super) fn command_lines(&self) -> &BTreeMap<String, String> {
        &self.command_lines
    }

    /// The id of a running process.
    pub(super) fn pid(&self, part: &str) -> Option<u32> {
        self.supervisor.pid(&self.name(part))
    }

    /// Starts a control plane with a store of its own.
    pub(super) fn start_control(&mut self, kind: Store) -> Result<Control, LabError> {
        self.started += 1;
        let store = self.supervisor.dir().join(format!("store-{}", self.started));
        let etcd = match kind {
            Store::Embedded => None,
            Store::Etcd => Some(self.start_etcd()?),
        };
        let name = self.name(CONTROL);
        let ports_file = self.supervisor.ports_path(&name);
        let spec = match etcd {
            None => self.commands.control(&self.network, &store, &ports_file),
            Some(etcd) => {
                self.commands.control_over_etcd(&self.network, (etcd, &store), &ports_file)
            }
        };
        let bound = self.start_server(&spec)?;
        let address = self.network.reachable(ports::port(&ports_file, &bound, CONTROL_PORT)?);
        let role = TokenRole::Fabric(&self.group);
        let token = self.commands.token(&self.network, &store, role);
        let token = self.supervisor.run(&token, READY_LIMIT)?;
        let token_file = self.supervisor.dir().join("fabric-token");
        let written = secret_file::write(&token_file, token.trim().as_bytes());
        written.map_err(|source| LabError::Write { path: token_file.clone(), source })?;
        Ok(Control { address, store, token_file })
    }

    /// Starts an etcd of one member, with its data beside the control plane's; the network is its
    /// own, so that the usual ports are free.
    fn start_etcd(&mut self) -> Result<SocketAddr, LabError> {
        let Some(program) = &self.etcd else {
            return Err(LabError::MissingProgram {
                subject: "the store".to_owned(),
                why: NO_ETCD.to_owned(),
            });
        };
        let folder = self.supervisor.dir().join(format!("etcd-{}", self.started));
        let [clients, peers] = ETCD_PORTS.map(|port| SocketAddr::new(self.network.address, port));
        let (clients_url, peers_url) = (format!("http://{clients}"), format!("http://{peers}"));
        let name = self.name(ETCD);
        let spec = Spec::new(name.clone(), program)
            .within(self.network.namespace.as_ref())
            .args(["--name", "one", "--initial-cluster", &format!("one={peers_url}")])
            .args(["--listen-client-urls", &clients_url, "--advertise-client-urls", &clients_url])
            .args(["--listen-peer-urls", &peers_url])
            .args(["--initial-advertise-peer-urls", &peers_url])
            .args(["--auto-compaction-mode=periodic", "--auto-compaction-retention=10m"])
            .args([OsString::from("--data-dir"), folder.into()]);
        self.supervisor.start(&spec)?;
        let network = &self.network;
        self.supervisor.wait_for(&name, "etcd", READY_LIMIT, || {
            Ok(network.run(|| TcpStream::connect(clients)).ok().and_then(Result::ok).map(drop))
        })?;
        Ok(clients)
    }

    /// Writes what is there before anything is measured.
    pub(super) fn fill(&self, control: &Control, entries: u32) -> Result<(), LabError> {
        let writes = self.writes(control, entries, 1);
        self.rounds(&self.commands.neighbour_writes(&self.network, &writes)).map(drop)
    }

    /// Writes the rounds of a row, for the agent that follows and for further followers.
    pub(super) fn write(
        &self,
        control: &Control,
        cell: &FabricCell,
    ) -> Result<NeighbourRun, LabError> {
        let others = cell.agents - 1;
        let is_churn = cell.work == Work::Churn;
        let writes = NeighbourWrites {
            // What is there is of round 0.
            first_round: u32::from(cell.table > 0 && !is_churn),
            moved: is_churn.then_some(cell.table),
            pace: cell.every.map_or(WritePace::Settled(PAUSE), WritePace::Every),
            followers: (others > 0).then_some((others, control.address, &control.token_file)),
            ..self.writes(control, cell.entries, cell.rounds)
        };
        self.rounds(&self.commands.neighbour_writes(&self.network, &writes))
    }

    fn writes<'a>(
        &'a self,
        control: &'a Control,
        entries: u32,
        rounds: u32,
    ) -> NeighbourWrites<'a> {
        NeighbourWrites {
            group: &self.group,
            store: &control.store,
            entries,
            rounds,
            first_round: 0,
            moved: None,
            pace: WritePace::AtOnce,
            followers: None,
        }
    }

    /// Lists the group into a table, in rounds.
    pub(super) fn list(
        &self,
        control: &Control,
        rounds: u32,
        capacity: u32,
    ) -> Result<NeighbourRun, LabError> {
        let access = (control.address, control.token_file.as_path());
        let spec =
            self.commands.neighbour_lists(&self.network, &self.group, access, (rounds, capacity));
        self.rounds(&spec)
    }

    /// The command of agents that look neighbours up; they end by themselves.
    pub(super) fn gets(&self, control: &Control, cell: &FabricCell, seed: u64) -> Spec {
        let gets = NeighbourGets {
            group: &self.group,
            control: control.address,
            token_file: &control.token_file,
            entries: cell.table,
            agents: cell.agents,
            rate_per_s: cell.rate_per_s,
            lasting: cell.window,
            warm_up: WARM_UP,
            seed,
        };
        let name = self.name(&self.fresh_name("get"));
        self.commands.neighbour_gets(&self.network, &gets).named(&name)
    }

    /// Stops what runs, and removes what it leaves.
    pub(super) fn clear(&mut self, control: &Control) -> Vec<String> {
        let complaints = self.supervisor.stop();
        self.detach(&self.group);
        // What cannot be removed goes with the working directory.
        let _ = fs::remove_dir_all(&control.store);
        let _ = fs::remove_dir_all(self.supervisor.dir().join(format!("etcd-{}", self.started)));
        complaints
    }

    fn rounds(&self, spec: &Spec) -> Result<NeighbourRun, LabError> {
        let output = self.supervisor.run(spec, ROUNDS_LIMIT)?;
        NeighbourRun::from_json(output.trim())
            .map_err(|source| LabError::Rounds { command: spec.command_line(), source })
    }

    pub(super) fn name(&self, part: &str) -> String {
        format!("{}/{part}", self.network.name)
    }

    fn make_device(&self) -> Result<(), LabError> {
        for arguments in [
            &["link", "add", DEVICE, "type", "veth", "peer", "name", FAR_END][..],
            &["address", "add", DEVICE_ADDRESS, "dev", DEVICE],
            &["link", "set", DEVICE, "up"],
            &["link", "set", FAR_END, "up"],
        ] {
            let spec = Spec::new(self.name("ip"), Path::new("ip"));
            let spec = spec.within(self.network.namespace.as_ref()).args(arguments.iter().copied());
            let ran = self.supervisor.run(&spec, READY_LIMIT);
            ran.map_err(|error| missing(error, "ip", "iproute2"))?;
        }
        Ok(())
    }

    /// Works also after a request to stop, which ends everything that the supervisor runs.
    fn detach(&self, group: &str) {
        if !Path::new(PINNED).join(group).exists() {
            return;
        }
        let mut command = Command::new(&self.commands.program);
        command.args(["fabric", "detach", "--group", group]);
        match command.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                tracing::warn!(group, error, "a table stays in the kernel");
            }
            Err(error) => tracing::warn!(group, %error, "a table stays in the kernel"),
        }
    }

    /// Removes what killed labs have left in the kernel.
    fn remove_abandoned(&self) {
        let Ok(entries) = fs::read_dir(PINNED) else { return };
        for entry in entries.filter_map(Result::ok) {
            let group = entry.file_name().to_string_lossy().into_owned();
            let pid = group.strip_prefix(GROUP_PREFIX).and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                self.detach(&group);
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.supervisor.stop();
        self.detach(&self.group);
    }
}

/// Says which package a program is of, where it is missing.
pub(super) fn missing(error: ProcessError, program: &str, package: &str) -> LabError {
    if let ProcessError::Spawn { source, .. } = &error
        && source.kind() == io::ErrorKind::NotFound
    {
        let why = format!("there is no program `{program}`; install {package}");
        return LabError::MissingProgram { subject: "the fabric".to_owned(), why };
    }
    error.into()
}

/// Whether this process may create tables of the kernel; `Err` has the reason.
pub(super) fn may_program(isolation: &Isolation) -> Result<(), String> {
    if let Isolation::Loopback { reason } = isolation {
        return Err(reason.clone());
    }
    // In a user namespace one is root of little: the kernel's tables are not in it.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    if words != ["0", "0", "4294967295"] {
        return Err("this process is root of a user namespace only".to_owned());
    }
    Ok(())
}
