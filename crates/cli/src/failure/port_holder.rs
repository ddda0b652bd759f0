//! The process that listens on a port, as far as `/proc` shows it: own processes, or all for root.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A process that listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) program: String,
}

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The process whose listener occupies `address`; `None` if the system does not show it.
pub(crate) fn find(address: SocketAddr) -> Option<Holder> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, address))
        .collect();
    let processes = fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let holds = sockets(&process.path()).any(|inode| inodes.contains(&inode));
        holds.then(|| Holder { pid, program: program(&process.path()) })
    })
}

/// Inodes of the listeners of a table that collide with `address`.
fn listeners(table: &str, address: SocketAddr) -> Vec<String> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (*fields.get(1)?, *fields.get(3)?, *fields.get(9)?);
        let (ip, port) = local.split_once(':')?;
        let collides = state == LISTEN
            && u16::from_str_radix(port, 16).ok()? == address.port()
            && covers(ip_of(ip)?, address.ip());
        collides.then(|| inode.to_owned())
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Whether a listener on `held` keeps another from listening on `wanted`.
fn covers(held: IpAddr, wanted: IpAddr) -> bool {
    held == wanted || held.is_unspecified() || wanted.is_unspecified()
}

/// The kernel prints 32-bit words of the address in its own byte order.
fn ip_of(hexadecimal: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hexadecimal.get(at..at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    if hexadecimal.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(index * 8)?);
    }
    let ip = Ipv6Addr::from(bytes);
    Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
}

/// Inodes of the sockets a process holds; nothing for the processes of others.
fn sockets(process: &Path) -> impl Iterator<Item = String> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| {
        let target = fs::read_link(descriptor.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    })
}

fn program(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "a process".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_own_listener_is_found() {
        for any in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let port = listener.local_addr().unwrap().port();
            let holder = find(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
            assert_eq!(holder.pid, std::process::id());
            assert!(!holder.program.is_empty());
        }
    }

    #[test]
    fn a_free_port_has_no_holder() {
        let free = tollway_net::free_port(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(find(free), None);
    }

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let loopback = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        assert_eq!(ip_of(&loopback), Some(Ipv4Addr::LOCALHOST.into()));
        let last = format!("{:08X}", u32::from_ne_bytes([0, 0, 0, 1]));
        assert_eq!(ip_of(&format!("{:024}{last}", 0)), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(ip_of("nonsense"), None);
        assert_eq!(ip_of("00"), None);
    }

    #[test]
    fn only_listeners_that_collide_count() {
        let row = |ip: [u8; 4], port: u16, state: &str, inode: u32| {
            let ip = u32::from_ne_bytes(ip);
            format!("0: {ip:08X}:{port:04X} 00000000:0000 {state} 0:0 0:0 0 0 0 {inode} 1\n")
        };
        let table = [
            "header\n".to_owned(),
            row([127, 0, 0, 1], 80, LISTEN, 1),
            row([127, 0, 0, 1], 80, "01", 2),
            row([127, 0, 0, 2], 80, LISTEN, 3),
            row([0, 0, 0, 0], 80, LISTEN, 4),
            row([127, 0, 0, 1], 81, LISTEN, 5),
        ]
        .concat();
        assert_eq!(listeners(&table, "127.0.0.1:80".parse().unwrap()), ["1", "4"]);
        assert_eq!(listeners(&table, "0.0.0.0:80".parse().unwrap()), ["1", "3", "4"]);
    }
}
