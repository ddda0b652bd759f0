//! Packets of guests from host to host: the hosts are joined, and loaded.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_net::device::{Device, DeviceError};
use tollway_net::netns::NetNs;
use tollway_record::histogram::Histogram;
use tollway_record::record::{Arrival, Protocol};
use tollway_record::throughput::Direction;
use tollway_record::{RunResult, Traffic};

use super::crossing::{
    A, B, GUEST_A, GUEST_B, TOWARDS_A, TOWARDS_B, VNI, bridge_table, in_the_middle, links,
};
use super::plan::{FabricCell, Forwarded, Sent, WARM_UP};
use super::site::{AgentDevices, Control, PINNED, READY_LIMIT, Site, missing};
use crate::commands::{CountPacketsBy, Load, LoadArrival, Neighbour, Packets, TCP_PORT};
use crate::error::LabError;
use crate::process::{ProcessError, Spec};
use crate::scenario::{Datapath, MessagesSpec};
use crate::topology::{Isolation, Network, Topology};
use tollway_net::ports_file as ports;

/// How long a bridge may take to learn a table by heart.
const TABLE_LIMIT: Duration = Duration::from_secs(120);
/// Between two echoes.
const ECHO_EVERY: Duration = Duration::from_millis(2);
/// Bytes of a question and of its answer.
const CALL_BYTES: u32 = 64;
/// Of a frame of the packets.
const FRAME_BYTES: u16 = 114;
/// Of an echo, as `ping` sends it.
const PING_BYTES: u32 = 56;
pub(super) const ECHO: &str = "echo";
/// Sleeps on host A, so that its namespace can be found as those of containers can.
const HOLDER: &str = "holder";

/// Two hosts that a datapath joins.
pub(super) struct Crossing {
    datapath: Datapath,
    number: u32,
    a: Network,
    b: Network,
    middle: Network,
    /// Where B's guest answers over TCP.
    echo_port: u16,
}

impl Crossing {
    pub(super) fn datapath(&self) -> Datapath {
        self.datapath
    }
}

impl Site {
    /// Joins two hosts and waits until guests reach each other over it. A forwarder's table has what
    /// `control` has, and a bridge's as many.
    pub(super) fn cross(
        &mut self,
        datapath: Datapath,
        control: Option<&Control>,
        entries: u32,
    ) -> Result<Crossing, LabError> {
        self.crossings += 1;
        let number = self.crossings;
        let made = Topology::create(&Isolation::Namespaces, &["a", "b", "middle"], Vec::new())?;
        let Ok([a, b, empty]) = <[Network; 3]>::try_from(made.networks) else {
            return Err(LabError::Unpublished { name: "a".into() });
        };
        // The agent has reached its control plane's state.
        let middle = if datapath.mode().is_some() { self.network.clone() } else { empty };
        let links = links(datapath, number, &path_of(&middle), &path_of(&b));
        for (network, lines) in [
            (&a, &links.a),
            (&b, &links.b),
            (&middle, &links.middle),
            (&a, &links.a_then),
            (&b, &links.b_then),
        ] {
            self.batch(network, "ip", lines, READY_LIMIT)?;
        }
        let holder = Spec::new(self.name(HOLDER), Path::new("sleep")).args(["infinity"]);
        self.supervisor.start(&holder.within(a.namespace.as_ref()))?;
        let name = self.name(ECHO);
        let ports_file = self.supervisor.ports_path(&name);
        let echo = self.commands.echo(&b, &ports_file).named(&name);
        let bound = self.start_server(&echo)?;
        let echo_port = ports::port(&ports_file, &bound, TCP_PORT)?.port();
        let crossing = Crossing { datapath, number, a, b, middle, echo_port };
        match datapath {
            Datapath::KernelRouting => crossing.let_through()?,
            Datapath::KernelBridge => {
                let table = bridge_table(entries);
                self.batch(&crossing.middle, "bridge", &table, TABLE_LIMIT)?;
            }
            Datapath::Direct | Datapath::Xdp | Datapath::XdpGeneric | Datapath::Tc => {}
        }
        if let (Some(mode), Some(control)) = (datapath.mode(), control) {
            let devices = [TOWARDS_A, TOWARDS_B].map(|host| in_the_middle(host, number));
            let devices = AgentDevices { names: &devices, mode: Some(mode) };
            self.start_agent(control, entries.saturating_add(1), devices)?;
        }
        self.wait_for_guests(&crossing)?;
        Ok(crossing)
    }

    /// Makes A's guest known to the control plane, whose table has B's.
    pub(super) fn teach_guest(&self, control: &Control) -> Result<(), LabError> {
        let guest = Neighbour {
            vni: VNI,
            ip: GUEST_A.ip,
            mac: GUEST_A.mac,
            host_ip: A.ip,
            host_mac: A.mac,
        };
        let target = (self.group.as_str(), control.store.as_path());
        let spec = self.commands.neighbour(&self.network, target, &guest);
        self.supervisor.run(&spec, READY_LIMIT)?;
        Ok(())
    }

    /// The load of a row on a crossing.
    pub(super) fn load_of(
        &self,
        crossing: &Crossing,
        (cell, over): (&FabricCell, Forwarded),
        seed: u64,
    ) -> Result<Spec, LabError> {
        Ok(match over.sent {
            Sent::Packets => {
                crossing.receive_as_drivers_do(true)?;
                self.packets(crossing, over.flows, cell.window)?
            }
            Sent::Ping => ping(&crossing.a, echoes(cell.window + WARM_UP)),
            Sent::Calls => self.tcp(crossing, (over.sent, LoadArrival::Closed), cell.window, seed),
            Sent::Bulk => {
                let flow = LoadArrival::Flow(Direction::Send);
                self.tcp(crossing, (over.sent, flow), cell.window, seed)
            }
        })
    }

    /// Takes a crossing down.
    pub(super) fn end_crossing(&mut self, crossing: Crossing) -> Vec<String> {
        let complaints = self.stop_agent_and(&[ECHO, HOLDER]);
        drop(crossing);
        complaints
    }

    fn packets(&self, crossing: &Crossing, flows: u32, window: Duration) -> Result<Spec, LabError> {
        let pin;
        let count_by = match crossing.datapath {
            Datapath::Direct => CountPacketsBy::Xdp,
            Datapath::Xdp => {
                pin = crossing.far_pin(&self.group)?;
                CountPacketsBy::XdpInPlaceOf(&pin)
            }
            Datapath::XdpGeneric
            | Datapath::Tc
            | Datapath::KernelBridge
            | Datapath::KernelRouting => CountPacketsBy::Tc,
        };
        let count_in = path_of(&crossing.b);
        let (next, to) = match crossing.datapath {
            Datapath::Direct => (B, B),
            Datapath::KernelRouting => (TOWARDS_A, B),
            Datapath::Xdp | Datapath::XdpGeneric | Datapath::Tc | Datapath::KernelBridge => {
                (TOWARDS_A, TOWARDS_A)
            }
        };
        let packets = Packets {
            device: A.device,
            to_mac: next.mac,
            from: A.ip,
            to: to.ip,
            vni: VNI,
            flows,
            frame_bytes: FRAME_BYTES,
            count_at: B.device,
            count_in: &count_in,
            count_by,
            lasting: window,
            warm_up: WARM_UP,
        };
        Ok(self.commands.packets(&crossing.a, &packets).named(&self.fresh_name("packets")))
    }

    fn tcp(
        &self,
        crossing: &Crossing,
        (sent, arrival): (Sent, LoadArrival),
        window: Duration,
        seed: u64,
    ) -> Spec {
        let load = Load {
            protocol: Protocol::Tcp,
            url: format!("tcp://{}:{}", GUEST_B.ip, crossing.echo_port),
            headers: Vec::new(),
            tls: None,
            payload_bytes: payload_bytes(sent),
            arrival,
            connections: 1,
            streams: None,
            messages: MessagesSpec::default(),
            handshakes: None,
            timers: None,
            duration: window,
            warm_up: WARM_UP,
            method: None,
            body: None,
            seed,
            json: "-".into(),
        };
        let name = self.fresh_name("tcp");
        self.commands.load(&crossing.a, "load", &load).args(["--quiet"]).named(&name)
    }

    /// Runs lines of one of iproute2's programs.
    fn batch(
        &self,
        network: &Network,
        program: &str,
        lines: &str,
        limit: Duration,
    ) -> Result<(), LabError> {
        if lines.is_empty() {
            return Ok(());
        }
        let file = self.supervisor.dir().join(format!("{}.batch", self.fresh_name(program)));
        let failed = |source| LabError::Write { path: file.clone(), source };
        fs::write(&file, lines).map_err(failed)?;
        let spec = Spec::new(self.fresh_name(program), Path::new(program))
            .within(network.namespace.as_ref())
            .args(["-batch".as_ref(), file.as_os_str()]);
        let ran = self.supervisor.run(&spec, limit);
        // A bridge's are many.
        let _ = fs::remove_file(&file);
        ran.map(drop).map_err(|error| missing(error, program, "iproute2"))
    }

    fn wait_for_guests(&mut self, crossing: &Crossing) -> Result<(), LabError> {
        let begun = Instant::now();
        loop {
            // The first may be lost while addresses are resolved.
            let spec = ping(&crossing.a, 2);
            match self.supervisor.run(&spec, READY_LIMIT) {
                Ok(_) => return Ok(()),
                Err(ProcessError::Exited { .. }) if begun.elapsed() < READY_LIMIT => {
                    self.supervisor.check_alive()?;
                }
                Err(error) => return Err(missing(error, "ping", "iputils-ping")),
            }
        }
    }
}

impl Crossing {
    /// The result of a load from its output.
    pub(super) fn result_of(
        &self,
        (cell, sent): (&FabricCell, Sent),
        load: &Spec,
        output: &str,
    ) -> Result<RunResult, LabError> {
        match sent {
            Sent::Ping => return Ok(echoed(output, cell.window)),
            Sent::Packets => self.receive_as_drivers_do(false)?,
            Sent::Calls | Sent::Bulk => {}
        }
        RunResult::from_json(output.trim()).map_err(|source| LabError::Result {
            row: cell.id.clone(),
            path: PathBuf::from(&load.name),
            source,
        })
    }

    /// Packets of others are routed in the middle.
    fn let_through(&self) -> Result<(), LabError> {
        let path = Path::new("/proc/sys/net/ipv4/ip_forward");
        let written = self.middle.run(|| fs::write(path, "1"))?;
        written.map_err(|source| LabError::Write { path: path.to_owned(), source })
    }

    /// Whether the middle's end of A's cable takes frames as a driver of hardware does, which
    /// merges what it can, also without a program of XDP on it.
    fn receive_as_drivers_do(&self, merging: bool) -> Result<(), LabError> {
        if matches!(self.datapath, Datapath::Direct | Datapath::Xdp) {
            return Ok(());
        }
        let name = in_the_middle(TOWARDS_A, self.number);
        let switch = || Device::open(&name)?.set_receive_merging(merging);
        self.middle.run(switch)?.map_err(|source: DeviceError| LabError::Device { source })
    }

    /// Where the agent has pinned the program that lets everything pass at B's end.
    fn far_pin(&self, group: &str) -> Result<PathBuf, LabError> {
        let name = in_the_middle(TOWARDS_B, self.number);
        let device = self.middle.run(|| Device::open(&name))?;
        let device = device.map_err(|source| LabError::Device { source })?;
        // In a folder by the version of the tables.
        let pin = format!("link-far-{}", device.index);
        let folder = Path::new(PINNED).join(group);
        let versions = fs::read_dir(&folder)
            .map_err(|source| LabError::Write { path: folder.clone(), source })?;
        let mut pins = versions.filter_map(Result::ok).map(|version| version.path().join(&pin));
        Ok(pins.find(|pin| pin.exists()).unwrap_or_else(|| folder.join(&pin)))
    }
}

/// Of what is sent, each time.
pub(super) fn payload_bytes(sent: Sent) -> u32 {
    match sent {
        Sent::Ping => PING_BYTES,
        Sent::Calls => CALL_BYTES,
        Sent::Packets => FRAME_BYTES.into(),
        Sent::Bulk => 0,
    }
}

/// A file of a network's namespace, for programs that are not of this process.
fn path_of(network: &Network) -> String {
    let fd = network
        .namespace
        .as_ref()
        .map_or(-1, |namespace: &Arc<NetNs>| namespace.as_fd().as_raw_fd());
    format!("/proc/{}/fd/{fd}", std::process::id())
}

fn echoes(during: Duration) -> u32 {
    during.div_duration_f64(ECHO_EVERY).ceil() as u32
}

/// So many echoes to B's guest.
fn ping(a: &Network, count: u32) -> Spec {
    Spec::new("a/ping", Path::new("ping"))
        .within(a.namespace.as_ref())
        .args(["-n", "-W", "1", "-i", &ECHO_EVERY.as_secs_f64().to_string()])
        .args(["-c", &count.to_string(), GUEST_B.ip])
}

/// A run from the echoes that `ping` printed, without those of the warm-up.
fn echoed(output: &str, window: Duration) -> RunResult {
    let mut latencies = Histogram::new();
    let first = echoes(WARM_UP);
    for line in output.lines() {
        let value = |name: &str| line.split_once(name)?.1.split(' ').next();
        let number = value("icmp_seq=").and_then(|text| text.parse::<u32>().ok());
        let ms = value("time=").and_then(|text| text.parse::<f64>().ok());
        if let (Some(number), Some(ms)) = (number, ms)
            && number > first
        {
            latencies.record((ms * 1e6) as u64);
        }
    }
    let sent = u64::from(echoes(window));
    let mut traffic = Traffic {
        requested_rps: Some(1.0 / ECHO_EVERY.as_secs_f64()),
        achieved_rps: latencies.n() as f64 / window.as_secs_f64(),
        duration_s: window.as_secs_f64(),
        requests: latencies.n(),
        errors: sent.saturating_sub(latencies.n()),
        ..Traffic::default()
    };
    if traffic.errors > 0 {
        traffic.errors_by_kind.insert("lost".to_owned(), traffic.errors);
    }
    traffic.set_latencies(&latencies);
    traffic.set_services(&latencies);
    RunResult {
        target: GUEST_B.ip.to_owned(),
        protocol: Protocol::Icmp,
        arrival: Arrival::OpenUniform,
        connections: 1,
        warm_up_s: WARM_UP.as_secs_f64(),
        traffic,
        ..RunResult::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echoes_of_the_warm_up_are_left_out() {
        let first = echoes(WARM_UP);
        let mut output = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n".to_owned();
        for number in [1, first, first + 1, first + 2, first + 4] {
            output.push_str(&format!(
                "64 bytes from 10.0.0.2: icmp_seq={number} ttl=64 time=0.04{} ms\n",
                number % 10
            ));
        }
        output.push_str("\n--- 10.0.0.2 ping statistics ---\n");
        let run = echoed(&output, ECHO_EVERY * 4);
        assert_eq!((run.traffic.requests, run.traffic.errors), (3, 1));
        let mean_us = run.traffic.latency_us.mean.unwrap();
        let expected = [first + 1, first + 2, first + 4].map(|n| f64::from(40 + n % 10));
        assert!((mean_us - expected.iter().sum::<f64>() / 3.0).abs() < 0.1, "{mean_us}");
    }
}
