//! Two hosts with VXLAN tunnels of the kernel, and a machine between them that is to forward, each
//! in a network namespace of its own; all gone when the value is dropped.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use tollway_net::netns::NetNs;

use crate::Start;

/// The virtual network of the guests.
pub const VNI: u32 = 1000;
/// Where the tunnels end in the middle, by the devices there.
pub const DEVICES: [&str; 2] = ["ga", "gb"];
/// How long a transfer may make no progress.
const STILL: Duration = Duration::from_secs(20);

/// A guest's address, and where it is found: what a forwarder has to know.
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    pub ip: &'static str,
    pub mac: [u8; 6],
    pub host_ip: &'static str,
    pub host_mac: [u8; 6],
}

/// One guest on each host, each in both families: those of side A first.
pub const GUESTS: [Guest; 4] = [
    Guest { ip: "10.0.0.1", ..GUEST_A },
    Guest { ip: "fd00::1", ..GUEST_A },
    Guest { ip: "10.0.0.2", ..GUEST_B },
    Guest { ip: "fd00::2", ..GUEST_B },
];

const GUEST_A: Guest = Guest {
    ip: "",
    mac: [0x0a, 0, 0, 0, 0, 1],
    host_ip: "10.1.0.2",
    host_mac: [0x02, 0, 0, 0, 1, 2],
};
const GUEST_B: Guest = Guest {
    ip: "",
    mac: [0x0a, 0, 0, 0, 0, 2],
    host_ip: "10.2.0.2",
    host_mac: [0x02, 0, 0, 0, 2, 2],
};

/// A host.
#[derive(Clone, Copy)]
pub enum Side {
    A,
    B,
}

/// The three namespaces.
pub struct Tunnels {
    a: NetNs,
    middle: NetNs,
    b: NetNs,
    /// So that the hosts' namespaces can be found, as those of containers can.
    holders: Vec<Child>,
}

impl Tunnels {
    /// `None` where namespaces are not permitted. `name` is used in messages only.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let middle = NetNs::create(&format!("{name} middle")).ok()?;
        Self::around(name, middle, || Command::new("sh"))
    }

    /// The same around a machine that is there already. `shell` is a shell that starts where processes of the
    /// machine are seen: a program on it can find the hosts' namespaces.
    #[must_use]
    pub fn around(name: &str, middle: NetNs, shell: impl Fn() -> Command) -> Option<Self> {
        let make = |side: &str| NetNs::create(&format!("{name} {side}")).ok();
        let (a, b) = (make("a")?, make("b")?);
        let [ga, gb] = DEVICES;
        cable(&a, "ag", GUEST_A.host_mac, &middle, ga, [0x02, 0, 0, 0, 1, 1]);
        cable(&b, "bg", GUEST_B.host_mac, &middle, gb, [0x02, 0, 0, 0, 2, 1]);
        ip(&middle, "address add 10.1.0.1/24 dev ga");
        ip(&middle, "address add 10.2.0.1/24 dev gb");
        let mut tunnels = Self { a, middle, b, holders: Vec::new() };
        host(&tunnels.a, "ag", GUEST_A, "10.1.0.1", "1");
        host(&tunnels.b, "bg", GUEST_B, "10.2.0.1", "2");
        for side in [Side::A, Side::B] {
            let mut holder = shell();
            holder.args(["-c", "exec sleep 600"]).stdin(Stdio::null());
            tunnels.holders.push(spawn_in(tunnels.namespace(side), holder));
        }
        Some(tunnels)
    }

    /// The namespace of the machine between the hosts.
    #[must_use]
    pub fn middle(&self) -> &NetNs {
        &self.middle
    }

    /// A program about to be started on the machine between the hosts; arguments are to follow.
    #[must_use]
    pub fn start_in_middle(&self, program: impl AsRef<Path>) -> Start {
        let namespace = format!("--net={}", path_of(&self.middle));
        Start::new("nsenter").arg(namespace).arg(program.as_ref())
    }

    /// Ends in success: a few echoes, all but one answered, since the first resolves an address.
    #[track_caller]
    pub fn ping(&self, from: Side, to: &str) {
        let output = self.ping_on(from, to, 5, Duration::from_millis(50)).output();
        assert!(answers(&output) >= 4, "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// So many echoes, in the background.
    #[must_use]
    pub fn ping_on(&self, from: Side, to: &str, count: u32, every: Duration) -> Pinging {
        let mut command = Command::new("ping");
        command.args(["-n", "-W", "1", "-c", &count.to_string()]);
        command.args(["-i", &every.as_secs_f64().to_string(), to]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Pinging(spawn_in(self.namespace(from), command))
    }

    /// Megabytes from A to B and back, with every byte checked.
    #[track_caller]
    pub fn transfer(&self, to: &str) {
        let to: IpAddr = to.parse().expect("an address");
        let listening = self.b.run(|| TcpListener::bind((to, 0)));
        let listener = listening.expect("a namespace").expect("an address of side B");
        let address = SocketAddr::new(to, listener.local_addr().expect("its port").port());
        let echo = thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(STILL))?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all)?;
            stream.write_all(&all)
        });
        let sent: Vec<u8> = (0..4_000_003u32).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
        let exchange = || {
            let mut stream = TcpStream::connect_timeout(&address, STILL)?;
            stream.set_read_timeout(Some(STILL))?;
            stream.write_all(&sent)?;
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut back = Vec::new();
            stream.read_to_end(&mut back).map(|_| back)
        };
        let back = self.a.run(exchange).expect("a namespace").expect("an exchange");
        echo.join().expect("an echo that does not panic").expect("all of it echoed");
        assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());
    }

    /// The namespace of a host.
    #[must_use]
    pub fn namespace(&self, side: Side) -> &NetNs {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// A running `ping`.
pub struct Pinging(Child);

impl Pinging {
    /// How many echoes were answered, once all were sent.
    #[must_use]
    pub fn answers(self) -> usize {
        answers(&self.output())
    }

    fn output(self) -> Output {
        self.0.wait_with_output().expect("ping ends")
    }
}

fn answers(output: &Output) -> usize {
    String::from_utf8_lossy(&output.stdout).matches("bytes from").count()
}

fn spawn_in(namespace: &NetNs, mut command: Command) -> Child {
    namespace.run(|| command.spawn()).expect("a namespace").expect("a program that starts")
}

fn cable(one: &NetNs, name: &str, mac: [u8; 6], other: &NetNs, peer: &str, peer_mac: [u8; 6]) {
    let (mac, peer_mac, there) = (text(mac), text(peer_mac), path_of(other));
    ip(
        one,
        &format!(
            "link add {name} address {mac} type veth peer name {peer} address {peer_mac} netns \
             {there}"
        ),
    );
    ip(one, &format!("link set {name} up"));
    ip(other, &format!("link set {peer} up"));
}

/// A tunnel to the machine in the middle, with a guest's addresses on it.
fn host(namespace: &NetNs, device: &str, guest: Guest, middle: &str, number: &str) {
    let (own, mac) = (guest.host_ip, text(guest.mac));
    ip(namespace, &format!("address add {own}/24 dev {device}"));
    ip(
        namespace,
        &format!(
            "link add vx0 address {mac} type vxlan id {VNI} local {own} remote {middle} dstport \
             4789 nolearning"
        ),
    );
    let enable = || std::fs::write("/proc/sys/net/ipv6/conf/vx0/disable_ipv6", "0");
    namespace.run(enable).expect("a namespace").expect("IPv6");
    ip(namespace, "link set vx0 up");
    ip(namespace, &format!("address add 10.0.0.{number}/24 dev vx0"));
    ip(namespace, &format!("address add fd00::{number}/64 dev vx0 nodad"));
}

fn ip(namespace: &NetNs, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    let output = namespace.run(|| command.output()).expect("a namespace").expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// For programs that are not of this process.
fn path_of(namespace: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}
