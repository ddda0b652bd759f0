//! Point-to-point TUN devices: the two ends of an emulated link.
//!
//! A device is opened in the calling thread's network namespace and vanishes when its descriptor
//! is closed. Packets carry a 10-byte `virtio_net_hdr` which the link passes on untouched, so
//! that with offload a 64 KB segment crosses the link as one packet. No Ethernet, no ARP, no
//! IPv6. Limits of the kernel interface: Documentation/networking/tuntap.rst.

#![allow(unsafe_code, reason = "TUN devices are configured by ioctl")]

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::netns;

/// Length of the `virtio_net_hdr` in front of every packet, bytes.
pub const VNET_HEADER_BYTES: usize = 10;
/// The longest packet a device hands over: header, and 64 KB of IP with offload.
pub const MAX_PACKET_BYTES: usize = VNET_HEADER_BYTES + 65_536;

/// What to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the device, 1 to 15 bytes.
    pub name: String,
    /// This end's address. Several devices of a namespace may share it.
    pub local: Ipv4Addr,
    /// The other end's address; a host route to it is made.
    pub peer: Ipv4Addr,
    /// Largest IP packet on the link, bytes.
    pub mtu: u16,
    /// Packets the kernel holds for the link before it drops, a count. In a user namespace it
    /// stays at the kernel's default of 500.
    pub queue_packets: u32,
    /// Let the kernel hand over unsegmented TCP (up to 64 KB per packet) and unfinished
    /// checksums. Off, every packet is at most one MTU.
    pub offload: bool,
}

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    #[error("cannot open /dev/net/tun; the TUN driver must be present and writable for this user")]
    Open { source: io::Error },
    #[error("cannot create TUN device {name:?}; this needs CAP_NET_ADMIN in its namespace")]
    Create { name: String, source: io::Error },
    #[error("cannot set {what} of TUN device {name:?}")]
    Configure { name: String, what: &'static str, source: io::Error },
}

/// One end of a link: packets the namespace sends are read, packets written arrive in it.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
}

impl Tun {
    /// Creates, addresses and brings up a device in the calling thread's namespace. Reads and
    /// writes do not block.
    pub fn open(config: &TunConfig) -> Result<Self, TunError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|error| TunError::Open { source: error.into() })?;
        attach(&fd, &config.name)
            .map_err(|source| TunError::Create { name: config.name.clone(), source })?;
        let tun = Self { fd, name: config.name.clone() };
        tun.set_packet_format(config.offload)?;
        tun.set_addresses(config)?;
        Ok(tun)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next packet the namespace sent, with its header; `WouldBlock` when there is
    /// none. A buffer shorter than [`MAX_PACKET_BYTES`] may truncate.
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut *packet))?)
    }

    /// Delivers one packet, with its header, into the namespace.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, packet))?;
        Ok(())
    }

    fn set_packet_format(&self, offload: bool) -> Result<(), TunError> {
        let mut header_bytes = VNET_HEADER_BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads an int through the pointer and does not keep it.
        let answer = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw mut header_bytes)
        };
        self.check(answer, "the header size")?;
        let features = if offload {
            libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN
        } else {
            0
        };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        let answer = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(features))
        };
        self.check(answer, "the segmentation offload")
    }

    fn set_addresses(&self, config: &TunConfig) -> Result<(), TunError> {
        let socket =
            netns::control_socket().map_err(|source| self.failed("the address", source))?;
        let set = |what, number: libc::c_ulong, fill: &dyn Fn(&mut libc::ifreq)| {
            let mut request =
                netns::interface_request(&self.name).map_err(|source| self.failed(what, source))?;
            fill(&mut request);
            netns::interface_ioctl(&socket, number, &mut request)
                .map_err(|source| self.failed(what, source))
        };
        set("the MTU", libc::SIOCSIFMTU as libc::c_ulong, &|request| {
            request.ifr_ifru.ifru_mtu = i32::from(config.mtu);
        })?;
        let queue = set("the queue length", libc::SIOCSIFTXQLEN as libc::c_ulong, &|request| {
            // The kernel reads `ifr_qlen`, an int in the same place as the metric.
            request.ifr_ifru.ifru_metric = config.queue_packets as libc::c_int;
        });
        match queue {
            // Reserved to root of the whole machine: in a user namespace the kernel's 500 stay.
            Err(TunError::Configure { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
        set("the address", libc::SIOCSIFADDR as libc::c_ulong, &|request| {
            request.ifr_ifru.ifru_addr = netns::socket_address(config.local);
        })?;
        set("the peer's address", libc::SIOCSIFDSTADDR as libc::c_ulong, &|request| {
            request.ifr_ifru.ifru_dstaddr = netns::socket_address(config.peer);
        })?;
        netns::bring_up(&self.name).map_err(|source| self.failed("the state up", source))
    }

    fn check(&self, answer: libc::c_int, what: &'static str) -> Result<(), TunError> {
        if answer < 0 { Err(self.failed(what, io::Error::last_os_error())) } else { Ok(()) }
    }

    fn failed(&self, what: &'static str, source: io::Error) -> TunError {
        TunError::Configure { name: self.name.clone(), what, source }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn attach(fd: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = netns::interface_request(name)?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // The request number is declared with an int's size but takes an `ifreq`.
    netns::interface_ioctl(fd, libc::TUNSETIFF as libc::c_ulong, &mut request)
}
