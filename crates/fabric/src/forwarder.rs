//! A forwarder: programs on its devices, and the tables that they share.
//!
//! Everything is pinned, so that it goes on when this process ends, and the next one takes it over.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{MapData, MapError, RingBuf};
use tollway_net::device::{Device, DeviceAddress, DeviceError};

use crate::attach::{AttachError, Attached, Mode, attach};
use crate::cable::{CableError, FarEnd, make_fit};
use crate::layout::{Link, Settings, SourceCheck};
use crate::programs::{Counts, LoadError, Programs, link_key};
use crate::table::KernelTable;

/// The port of VXLAN, by IANA.
pub const VXLAN_PORT: u16 = 4789;

/// What a forwarder is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of its devices, at least one.
    pub devices: Vec<String>,
    /// How programs meet packets; by default what suits each device.
    pub mode: Option<Mode>,
    pub port: u16,
    /// How many neighbours a new table holds. One that is pinned already keeps its size.
    pub capacity: u32,
    /// What becomes of packets whose inner source does not live at their outer source.
    pub source_check: SourceCheck,
}

/// Why there is no forwarder.
#[derive(Debug, thiserror::Error)]
pub enum ForwarderError {
    #[error("a forwarder needs a device; name one with --device")]
    NoDevice,
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(
        "{device} has no address, so nobody can send VXLAN packets to it; `ip address add` gives \
         it one"
    )]
    NoAddress { device: String },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Cable(#[from] CableError),
    #[error("cannot write the table of links")]
    Links { source: Box<MapError> },
}

/// A device with its program.
#[derive(Debug)]
pub struct Port {
    pub device: Device,
    pub attached: Attached,
    /// Of a virtual cable under XDP.
    pub far_end: Option<FarEnd>,
}

/// A forwarder at work.
pub struct Forwarder {
    pub ports: Vec<Port>,
    pub table: KernelTable,
    pub counts: Counts,
    pub misses: RingBuf<MapData>,
}

impl Forwarder {
    /// Starts a forwarder in the calling thread's network namespace, with everything pinned in the
    /// directory `pins`, or takes over the one that is pinned there.
    pub fn open(options: &Options, pins: &Path) -> Result<Self, ForwarderError> {
        let devices = open_devices(&options.devices)?;
        let mut loaded = Vec::new();
        for device in &devices {
            let settings = settings_of(device, devices.len(), options.port)?
                .with_source_check(options.source_check);
            loaded.push(Programs::load(&settings, options.capacity, Some(pins))?);
        }
        let Some(first) = loaded.first_mut() else { return Err(ForwarderError::NoDevice) };
        fill_links(first.links()?, &devices)
            .map_err(|source| ForwarderError::Links { source: Box::new(source) })?;
        let table = KernelTable::new(first.neighbours()?);
        let (counts, misses) = (first.counts()?, first.misses()?);
        let mut ports = Vec::new();
        // Programs come last: what they read is there.
        for (mut programs, device) in loaded.into_iter().zip(devices) {
            let mode = options.mode.unwrap_or_else(|| Mode::for_device(&device));
            let far_end = make_fit(&mut programs, &device, mode, pins)?;
            let attached = attach(&mut programs, &device, mode, Some(pins))?;
            ports.push(Port { device, attached, far_end });
        }
        Ok(Self { ports, table, counts, misses })
    }
}

fn open_devices(names: &[String]) -> Result<Vec<Device>, ForwarderError> {
    let mut devices: Vec<Device> = Vec::new();
    for name in names {
        if devices.iter().all(|device| device.name != *name) {
            devices.push(Device::open(name)?);
        }
    }
    if devices.is_empty() { Err(ForwarderError::NoDevice) } else { Ok(devices) }
}

/// Packets are taken that go to the device's first address of each family; those that every
/// device has of itself are none that a host would send to.
fn settings_of(device: &Device, devices: usize, port: u16) -> Result<Settings, ForwarderError> {
    let mut own = device.addresses.iter().map(|address| address.ip).filter(is_reachable);
    let (mut v4, mut v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    for ip in own.by_ref() {
        match ip {
            IpAddr::V4(ip) if v4.is_unspecified() => v4 = ip,
            IpAddr::V6(ip) if v6.is_unspecified() => v6 = ip,
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
    }
    if v4.is_unspecified() && v6.is_unspecified() {
        return Err(ForwarderError::NoAddress { device: device.name.clone() });
    }
    let settings = Settings::new(device.mac, port, v4, v6);
    Ok(if devices > 1 { settings.with_several_devices() } else { settings })
}

fn is_reachable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Every network that a device is in leads to that device; what the table had before goes.
fn fill_links(
    mut links: LpmTrie<&mut MapData, [u8; 16], Link>,
    devices: &[Device],
) -> Result<(), MapError> {
    let mut wanted = Vec::new();
    for device in devices {
        let reachable = device.addresses.iter().filter(|address| is_reachable(&address.ip));
        for address in reachable {
            let key = link_key(network_of(address), address.prefix_bits);
            links.insert(&key, Link::new(device.index, device.mtu, device.mac, address.ip), 0)?;
            wanted.push((key.prefix_len(), key.data()));
        }
    }
    let found: Vec<Key<[u8; 16]>> = links.keys().collect::<Result<_, _>>()?;
    for key in found.iter().filter(|key| !wanted.contains(&(key.prefix_len(), key.data()))) {
        links.remove(key)?;
    }
    Ok(())
}

/// The address of the network that an address is in.
fn network_of(address: &DeviceAddress) -> IpAddr {
    let bits = u32::from(address.prefix_bits);
    match address.ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            Ipv4Addr::from(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            Ipv6Addr::from(ip.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(addresses: &[(&str, u8)]) -> Device {
        let addresses = addresses
            .iter()
            .map(|(ip, prefix_bits)| DeviceAddress {
                ip: ip.parse().unwrap(),
                prefix_bits: *prefix_bits,
            })
            .collect();
        Device {
            name: "eth0".into(),
            index: 2,
            mac: [2; 6],
            mtu: 1500,
            driver: "virtio_net".into(),
            addresses,
        }
    }

    #[test]
    fn networks_of_addresses() {
        let cases = [
            ("10.1.2.3", 24, "10.1.2.0"),
            ("10.1.2.3", 32, "10.1.2.3"),
            ("10.1.2.3", 0, "0.0.0.0"),
            ("fd00::1:2", 112, "fd00::1:0"),
            ("fd00::1", 0, "::"),
        ];
        for (ip, prefix_bits, network) in cases {
            let address = DeviceAddress { ip: ip.parse().unwrap(), prefix_bits };
            assert_eq!(network_of(&address).to_string(), network);
        }
    }

    #[test]
    fn first_address_of_each_family_is_the_forwarders() {
        let found = settings_of(
            &device(&[("fe80::1", 64), ("10.0.0.1", 24), ("10.0.0.2", 24), ("fd00::1", 64)]),
            1,
            4789,
        );
        let expected =
            Settings::new([2; 6], 4789, "10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(found.unwrap(), expected);
        let error = settings_of(&device(&[("fe80::1", 64)]), 1, 4789).unwrap_err();
        assert!(matches!(error, ForwarderError::NoAddress { .. }), "{error}");
    }

    #[test]
    fn mode_suits_the_device() {
        let mut device = device(&[]);
        assert_eq!(Mode::for_device(&device), Mode::Native);
        device.driver = "veth".into();
        assert_eq!(Mode::for_device(&device), Mode::Tc);
    }
}
