//! Network devices as the kernel reports them: number, addresses, driver and checksum settings.
//!
//! All calls concern the calling thread's network namespace (see [`crate::netns`]). They use
//! sockets because `/sys` shows the namespace in which it was mounted.

#![allow(unsafe_code, reason = "interface requests have no safe form")]

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::InterfaceAddress;
use nix::sys::socket::SockaddrStorage;

use crate::netns::{control_socket, interface_ioctl, interface_request};

/// Requests of `ethtool`, from `linux/ethtool.h`.
const GET_DRIVER: u32 = 0x03;
const SET_TRANSMIT_CHECKSUMS: u32 = 0x17;
const SET_RECEIVE_MERGING: u32 = 0x2c;

/// Why nothing is known of a device, or it could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("there is no network device {name:?}; `ip link` lists them")]
    Missing { name: String },
    #[error("network device {name:?} has no hardware address: it is no Ethernet device")]
    NoEthernet { name: String },
    #[error("cannot read {what} of network device {name:?}")]
    Read { name: String, what: &'static str, source: io::Error },
    #[error("cannot find the network device with the number {index}")]
    Name { index: u32, source: io::Error },
    #[error("cannot switch transmit checksums of network device {name:?}")]
    Checksums { name: String, source: io::Error },
    #[error("cannot switch the merging of packets that network device {name:?} receives")]
    Merging { name: String, source: io::Error },
}

/// An address of a device, and the network it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceAddress {
    pub ip: IpAddr,
    pub prefix_bits: u8,
}

/// An Ethernet device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    pub name: String,
    /// The kernel's number for it, within its namespace.
    pub index: u32,
    pub mac: [u8; 6],
    /// The largest IP packet, bytes.
    pub mtu: u32,
    /// The name that `ethtool -i` shows: `veth`, `virtio_net`, `ixgbe`; empty if there is none.
    pub driver: String,
    pub addresses: Vec<DeviceAddress>,
}

impl Device {
    /// Looks up the device called `name`.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let failed = |what| move |source| DeviceError::Read { name: name.to_owned(), what, source };
        let all: Vec<InterfaceAddress> = nix::ifaddrs::getifaddrs()
            .map_err(io::Error::from)
            .map_err(failed("the addresses"))?
            .filter(|address| address.interface_name == name)
            .collect();
        if all.is_empty() {
            return Err(DeviceError::Missing { name: name.to_owned() });
        }
        let link = all.iter().find_map(|found| found.address.as_ref()?.as_link_addr().copied());
        let (index, mac) = link
            .and_then(|link| Some((u32::try_from(link.ifindex()).ok()?, link.addr()?)))
            .filter(|(_, mac)| *mac != [0; 6])
            .ok_or_else(|| DeviceError::NoEthernet { name: name.to_owned() })?;
        Ok(Self {
            name: name.to_owned(),
            index,
            mac,
            mtu: read_mtu(name).map_err(failed("the MTU"))?,
            driver: read_driver(name).map_err(failed("the driver"))?,
            addresses: all.iter().filter_map(device_address).collect(),
        })
    }

    /// Looks up the device of this number.
    pub fn with_index(index: u32) -> Result<Self, DeviceError> {
        let socket = control_socket().map_err(|source| DeviceError::Name { index, source })?;
        let name = rustix::net::netdevice::index_to_name(&socket, index)
            .map_err(|error| DeviceError::Name { index, source: error.into() })?;
        Self::open(&name)
    }

    /// Whether the device computes the checksums of what it sends (`true`), or the kernel does
    /// (`false`). A virtual device computes none: it marks the packet as valid.
    pub fn set_transmit_checksums(&self, by_device: bool) -> Result<(), DeviceError> {
        let mut value = EthtoolValue { command: SET_TRANSMIT_CHECKSUMS, data: by_device.into() };
        ethtool(&self.name, &mut value)
            .map_err(|source| DeviceError::Checksums { name: self.name.clone(), source })
    }

    /// Whether packets of one flow that arrive are merged (GRO). A virtual cable whose end does so
    /// takes frames of XDP from its other end, as a driver of hardware would receive them.
    pub fn set_receive_merging(&self, merging: bool) -> Result<(), DeviceError> {
        let mut value = EthtoolValue { command: SET_RECEIVE_MERGING, data: merging.into() };
        ethtool(&self.name, &mut value)
            .map_err(|source| DeviceError::Merging { name: self.name.clone(), source })
    }
}

#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `ethtool_drvinfo`: of its texts only the driver's name is read.
#[repr(C)]
struct EthtoolDriver {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

fn device_address(found: &InterfaceAddress) -> Option<DeviceAddress> {
    let ip = ip_of(found.address.as_ref()?)?;
    let prefix_bits = match ip_of(found.netmask.as_ref()?)? {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    Some(DeviceAddress { ip, prefix_bits: u8::try_from(prefix_bits).ok()? })
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|found| found.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|found| found.ip().into()))
}

fn read_mtu(name: &str) -> io::Result<u32> {
    let mut request = interface_request(name)?;
    interface_ioctl(&control_socket()?, libc::SIOCGIFMTU as libc::c_ulong, &mut request)?;
    // SAFETY: SIOCGIFMTU filled the `ifru_mtu` member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.unsigned_abs())
}

fn read_driver(name: &str) -> io::Result<String> {
    let mut driver = EthtoolDriver { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
    match ethtool(name, &mut driver) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(String::new()),
        Err(error) => return Err(error),
    }
    let name = driver.driver.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// One request of `ethtool`, whose first word is its number.
fn ethtool<R>(name: &str, what: &mut R) -> io::Result<()> {
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_data = std::ptr::from_mut(what).cast();
    interface_ioctl(&control_socket()?, libc::SIOCETHTOOL as libc::c_ulong, &mut request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_device_is_named() {
        let error = Device::open("no-such-device").unwrap_err().to_string();
        assert!(error.contains("no-such-device"), "{error}");
    }

    #[test]
    fn loopback_is_no_ethernet_device() {
        let error = Device::open("lo").unwrap_err();
        assert!(matches!(error, DeviceError::NoEthernet { .. }), "{error}");
    }

    #[test]
    fn texts_of_the_driver_have_the_kernels_length() {
        assert_eq!(size_of::<EthtoolDriver>(), 196);
    }
}
