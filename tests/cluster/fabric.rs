//! Agents of the fabric as pods: packets of a virtual network between two hosts, which a machine of the cluster
//! forwards.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tollway_net::netns::NetNs;
use tollway_testkit::tunnels::{DEVICES, GUESTS, Guest, Side, Tunnels, VNI};
use tollway_testkit::{Cluster, Rig};

use crate::support::{OwnInstall, SOON, need_rig, state, tollway_kube};

/// The namespace of the install, and that of the agents.
const NAME: &str = "fabric";
const AGENTS: &str = "forwarders";
const GROUP: &str = "racks";

/// Two hosts around the machine `a1`.
fn tunnels(rig: &Rig) -> Tunnels {
    let pid = rig.first_process("a1").unwrap().as_raw_nonzero();
    let network = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let shell = || {
        let mut command = Command::new("nsenter");
        // With `nsenter` it ends, too.
        command.args([
            "--target",
            &pid.to_string(),
            "--pid",
            "setpriv",
            "--pdeathsig",
            "KILL",
            "sh",
        ]);
        command
    };
    Tunnels::around(NAME, NetNs::from_fd("a1", network.into()), shell).unwrap()
}

/// Of the chart, with agents that run in this mode.
fn values(mode: &str) -> [String; 8] {
    let [left, right] = DEVICES;
    let of_group = |value: String| format!("fabric.groups[0].{value}");
    [
        "control.store=memory".to_owned(),
        format!("network={NAME}"),
        format!("fabric.namespace={AGENTS}"),
        of_group(format!("name={GROUP}")),
        of_group(format!("devices={{{left},{right}}}")),
        of_group(format!("args={{--mode={mode},--capacity=20000}}")),
        of_group("hostPID=true".to_owned()),
        of_group("nodeSelector.kubernetes\\.io/hostname=a1".to_owned()),
    ]
}

struct Fabric<'a> {
    cluster: Cluster<'a>,
    install: OwnInstall<'a>,
}

impl<'a> Fabric<'a> {
    fn start(cluster: Cluster<'a>, mode: &str) -> Self {
        let values = values(mode);
        let install = OwnInstall::new(cluster, NAME, &values.each_ref().map(String::as_str));
        let fabric = Self { cluster, install };
        fabric.wait_rolled_out();
        fabric
    }

    /// Has the agents run in another mode.
    fn change(&self, mode: &str) {
        self.install.apply(&values(mode).each_ref().map(String::as_str));
        self.wait_rolled_out();
    }

    fn wait_rolled_out(&self) {
        let set = "daemonset/tollway-fabric-racks";
        self.kubectl(&["rollout", "status", set, "--timeout=60s"]);
    }

    /// `kubectl` in the namespace of the agents.
    fn kubectl(&self, arguments: &[&str]) -> String {
        let here = [&["--namespace", AGENTS], arguments].concat();
        let printed = self.cluster.kubectl(&here);
        printed.unwrap_or_else(|error| panic!("{error:#}\n{}", state(self.cluster, AGENTS)))
    }

    /// A command in the pod of the agent.
    fn at_agent(&self, command: &[&str]) -> String {
        let exec = ["exec", "daemonset/tollway-fabric-racks", "--", "/tollway"];
        self.kubectl(&[&exec, command].concat())
    }

    /// The programs in the kernel.
    fn programs(&self) -> Vec<String> {
        let status = self.at_agent(&["fabric", "status", "--json", "--group", GROUP]);
        let status: Value = serde_json::from_str(&status).unwrap();
        let programs = status["programs"].as_array().unwrap();
        programs.iter().map(|program| program.as_str().unwrap().to_owned()).collect()
    }

    fn teach(&self, Guest { ip, mac, host_ip, host_mac }: Guest) {
        let text = |mac: [u8; 6]| mac.map(|octet| format!("{octet:02x}")).join(":");
        let (vni, mac, host_mac) = (VNI.to_string(), text(mac), text(host_mac));
        let to = ["neighbours", "apply", "--group", GROUP, "--vni", &vni, "--wait"];
        let what = ["--ip", ip, "--mac", &mac, "--host-ip", host_ip, "--host-mac", &host_mac];
        self.install.control(&[&to[..], &what].concat());
    }

    fn pod(&self) -> String {
        self.kubectl(&["get", "pods", "--output=jsonpath={.items[*].metadata.name}"])
    }
}

/// XDP in the driver of a virtual cable, and tc, as pods of a namespace that is not that of the install.
#[test]
fn pods_forward_packets_of_a_virtual_network_between_hosts() {
    let rig = need_rig!();
    let tunnels = tunnels(&rig);
    let fabric = Fabric::start(rig.cluster("a"), "native");
    for guest in GUESTS {
        fabric.teach(guest);
    }
    let cluster = fabric.cluster;
    let (_, printed) = tollway_kube(cluster, &[cluster], &["check", "--namespace=fabric"]);
    assert!(printed.contains("agents tollway-fabric-racks: 1 of 1 pods are ready"), "{printed}");
    for mode in ["native", "tc"] {
        if mode == "tc" {
            fabric.change(mode);
        }
        let programs = fabric.programs();
        let of_mode = programs.iter().filter(|program| program.starts_with(mode));
        assert_eq!(of_mode.count(), DEVICES.len(), "{programs:?}");
        for to in ["10.0.0.2", "fd00::2"] {
            tunnels.ping(Side::A, to);
            tunnels.transfer(to);
        }
        // What the kernel has forwards while there is no pod, and the next one takes it over.
        let former = fabric.pod();
        let pings = tunnels.ping_on(Side::A, "10.0.0.2", 500, Duration::from_millis(20));
        fabric.kubectl(&["delete", "pod", &former, "--force", "--grace-period=0"]);
        let ready =
            ["get", "pods", "--output=jsonpath={.items[*].status.containerStatuses[*].ready}"];
        let ready = [&["--namespace", AGENTS], &ready[..]].concat();
        fabric.cluster.wait_for(SOON, &ready, |ready| ready == "true").unwrap();
        assert_ne!(fabric.pod(), former);
        assert_eq!(pings.answers(), 500);
        // It follows its group by an identity of its own.
        fabric.teach(Guest { ip: "10.0.0.3", ..GUESTS[2] });
    }
    let left = fabric.at_agent(&["fabric", "detach", "--group", GROUP]);
    assert!(left.contains("removed the table"), "{left}");
}
