//! Two hosts and what carries the packets of their guests from one to the other: nothing, the
//! kernel, or a forwarder. Which commands make it is decided here; the site runs them.
//!
//! Each host has a VXLAN device of the kernel with one guest's addresses on it. Behind host B are
//! all the neighbours that a run of writes makes; its guest is one of them.

use std::fmt::Write as _;

use crate::scenario::Datapath;

/// The virtual network of round 0's writes, and host B's number for it if a bridge is between: two
/// tunnels of one number cannot end at one machine.
pub(super) const VNI: u32 = 1000;
const VNI_BEHIND_BRIDGE: u32 = 2000;
const VXLAN_PORT: u16 = 4789;

/// Host A, and the machine in the middle as A sees it.
pub(super) const A: Host =
    Host { device: "ag", ip: "10.1.0.2", prefix: "/24", mac: "02:00:00:00:01:02" };
pub(super) const TOWARDS_A: Host =
    Host { device: "ga", ip: "10.1.0.1", prefix: "/24", mac: "02:00:00:00:01:01" };
/// The host of the written neighbour number 1; the others have hosts of the same network.
pub(super) const B: Host =
    Host { device: "bg", ip: "172.16.0.2", prefix: "/12", mac: "02:02:00:00:00:01" };
pub(super) const TOWARDS_B: Host =
    Host { device: "gb", ip: "172.31.255.254", prefix: "/12", mac: "02:00:00:00:02:01" };

/// A's guest is in no run of writes; B's is their number 1.
pub(super) const GUEST_A: Guest = Guest { ip: "11.0.0.1", mac: "0a:00:00:00:00:01" };
pub(super) const GUEST_B: Guest = Guest { ip: "10.55.121.177", mac: "02:01:00:00:00:01" };
/// Where the guests of host B are.
const GUESTS_OF_B: &str = "10.0.0.0/8";

/// A machine's end of a cable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub(super) device: &'static str,
    pub(super) ip: &'static str,
    prefix: &'static str,
    pub(super) mac: &'static str,
}

/// An address in the virtual network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guest {
    pub(super) ip: &'static str,
    pub(super) mac: &'static str,
}

/// How a device in the middle is called: those of crossings that were before may still be there.
pub(super) fn in_the_middle(host: Host, number: u32) -> String {
    format!("{}{number}", host.device)
}

/// Lines for `ip -batch`, by machine, in the order in which they are to be run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) a: String,
    pub(super) b: String,
    /// After both, when the cables are there.
    pub(super) middle: String,
    /// After that.
    pub(super) a_then: String,
    pub(super) b_then: String,
}

/// What joins the hosts by a datapath. `middle` and `at_b` are files of network namespaces.
pub(super) fn links(datapath: Datapath, number: u32, middle: &str, at_b: &str) -> Links {
    let mut links = Links::default();
    if datapath == Datapath::Direct {
        cable(&mut links.a, A, B.device, B, at_b);
        address(&mut links.b, B.device, B);
        line(&mut links.b, &format!("route add {}/32 dev {}", A.ip, B.device));
        line(&mut links.a_then, &format!("route add {}/32 dev {}", B.ip, A.device));
    } else {
        let [towards_a, towards_b] = [TOWARDS_A, TOWARDS_B].map(|host| in_the_middle(host, number));
        cable(&mut links.a, A, &towards_a, TOWARDS_A, middle);
        cable(&mut links.b, B, &towards_b, TOWARDS_B, middle);
        address(&mut links.b, B.device, B);
        address(&mut links.middle, &towards_a, TOWARDS_A);
        address(&mut links.middle, &towards_b, TOWARDS_B);
        if datapath == Datapath::KernelRouting {
            line(&mut links.a_then, &format!("route add {}/32 via {}", B.ip, TOWARDS_A.ip));
            line(&mut links.b_then, &format!("route add {}/32 via {}", A.ip, TOWARDS_B.ip));
        }
        if datapath == Datapath::KernelBridge {
            bridge(&mut links.middle, [&towards_a, &towards_b]);
        }
    }
    address(&mut links.a, A.device, A);
    let is_end_to_end = matches!(datapath, Datapath::Direct | Datapath::KernelRouting);
    let (of_a, of_b) = if is_end_to_end { (B, A) } else { (TOWARDS_A, TOWARDS_B) };
    let vni_of_b = if datapath == Datapath::KernelBridge { VNI_BEHIND_BRIDGE } else { VNI };
    tunnel(&mut links.a_then, "vx0", (VNI, GUEST_A.mac), A, of_a);
    tunnel(&mut links.b_then, "vx0", (vni_of_b, GUEST_B.mac), B, of_b);
    guest(&mut links.a_then, GUEST_A, GUESTS_OF_B);
    guest(&mut links.b_then, GUEST_B, &format!("{}/32", GUEST_A.ip));
    links
}

/// Lines for `bridge -batch`: where the guests of host B are, as many as a table has. What the
/// kernel's tunnel would need to know of many hosts is left out: all are behind B.
pub(super) fn bridge_table(entries: u32) -> String {
    let mut lines = String::with_capacity(entries as usize * 128);
    for number in 0..entries {
        let [_, b, c, d] = number.to_be_bytes();
        let mac = format!("02:01:00:{b:02x}:{c:02x}:{d:02x}");
        // Writing to a string does not fail.
        let _ = writeln!(lines, "fdb add {mac} dev vxb dst {}", B.ip);
        let _ = writeln!(lines, "fdb add {mac} dev vxb master static");
    }
    lines
}

fn line(lines: &mut String, text: &str) {
    lines.push_str(text);
    lines.push('\n');
}

/// A virtual cable from `host` to a device of another machine.
fn cable(lines: &mut String, host: Host, name_there: &str, there: Host, namespace: &str) {
    line(
        lines,
        &format!(
            "link add {} address {} type veth peer name {name_there} address {} netns {namespace}",
            host.device, host.mac, there.mac
        ),
    );
}

fn address(lines: &mut String, device: &str, host: Host) {
    line(lines, &format!("address add {}{} dev {device}", host.ip, host.prefix));
    line(lines, &format!("link set {device} up"));
}

fn tunnel(lines: &mut String, name: &str, (vni, mac): (u32, &str), own: Host, other: Host) {
    line(
        lines,
        &format!(
            "link add {name} address {mac} type vxlan id {vni} local {} remote {} dstport \
             {VXLAN_PORT} nolearning",
            own.ip, other.ip
        ),
    );
    line(lines, &format!("link set {name} up"));
}

fn guest(lines: &mut String, guest: Guest, others: &str) {
    line(lines, &format!("address add {}/32 dev vx0", guest.ip));
    line(lines, &format!("route add {others} dev vx0 src {}", guest.ip));
}

/// A tunnel to each host, bridged.
fn bridge(lines: &mut String, [towards_a, towards_b]: [&str; 2]) {
    line(lines, "link add br0 type bridge");
    line(lines, "link set br0 up");
    for (name, vni, device, own, other) in
        [("vxa", VNI, towards_a, TOWARDS_A, A), ("vxb", VNI_BEHIND_BRIDGE, towards_b, TOWARDS_B, B)]
    {
        line(
            lines,
            &format!(
                "link add {name} type vxlan id {vni} local {} remote {} dstport {VXLAN_PORT} dev \
                 {device} nolearning",
                own.ip, other.ip
            ),
        );
        line(lines, &format!("link set {name} master br0"));
        line(lines, &format!("link set {name} up"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datapath_decides_where_tunnels_end() {
        let remote = |datapath: Datapath| {
            let links = links(datapath, 3, "/middle", "/b");
            let of = |lines: &str| {
                let tunnel = lines.lines().find(|line| line.starts_with("link add vx0")).unwrap();
                tunnel.split(" remote ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
            };
            (of(&links.a_then), of(&links.b_then))
        };
        let ends = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(remote(Datapath::Direct), ends("172.16.0.2", "10.1.0.2"));
        assert_eq!(remote(Datapath::KernelRouting), ends("172.16.0.2", "10.1.0.2"));
        assert_eq!(remote(Datapath::KernelBridge), ends("10.1.0.1", "172.31.255.254"));
        assert_eq!(remote(Datapath::Tc), ends("10.1.0.1", "172.31.255.254"));
    }

    #[test]
    fn devices_of_the_middle_have_the_number_of_the_crossing() {
        let links = links(Datapath::Xdp, 7, "/middle", "/b");
        assert!(links.a.starts_with("link add ag "), "{}", links.a);
        assert!(links.a.contains("peer name ga7 ") && links.a.contains("netns /middle\n"));
        assert!(links.middle.contains("address add 172.31.255.254/12 dev gb7\n"));
        let direct = super::links(Datapath::Direct, 7, "/middle", "/b");
        assert_eq!(direct.middle, "");
        assert!(direct.a.contains("peer name bg ") && direct.a.contains("netns /b\n"));
    }

    #[test]
    fn a_bridge_knows_every_guest_twice() {
        let lines = bridge_table(300);
        assert_eq!(lines.lines().count(), 600);
        assert!(lines.contains("fdb add 02:01:00:00:01:2b dev vxb dst 172.16.0.2\n"));
    }
}
