//! Network namespaces held by a file descriptor: made and entered.
//!
//! The lab's networks are such namespaces. Nothing is mounted under `/run` and no holder process
//! exists: the kernel frees a namespace when the last descriptor and process in it are gone, so
//! a crash leaves nothing behind. This module does not create devices (see `tun`) nor start
//! processes in them (see `spawn`).

#![allow(unsafe_code, reason = "unshare and ioctl have no safe form")]

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Why a namespace could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error(
        "cannot create network namespace {name:?}; this needs root, or a kernel that lets users \
         create user namespaces"
    )]
    Create { name: String, source: io::Error },
    #[error("cannot enter network namespace {name:?}")]
    Enter { name: String, source: io::Error },
    #[error("cannot start a thread for network namespace {name:?}")]
    Thread { name: String, source: io::Error },
    #[error("cannot bring up the loopback device of network namespace {name:?}")]
    Loopback { name: String, source: io::Error },
    #[error("cannot give {address} to network namespace {name:?}")]
    Address { name: String, address: Ipv4Addr, source: io::Error },
    #[error("cannot open the namespace file descriptor {fd} handed over by the parent process")]
    Inherited { fd: RawFd, source: io::Error },
    #[error(
        "cannot create a user namespace; the kernel may forbid it to users (see \
         kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)"
    )]
    UserNamespace { source: io::Error },
    #[error("cannot write {path} to map this user to root in a new user namespace")]
    Map { path: &'static str, source: io::Error },
}

/// A network namespace, alive as long as this value or a process in it.
#[derive(Debug)]
pub struct NetNs {
    name: String,
    fd: OwnedFd,
}

impl NetNs {
    /// Creates a namespace whose loopback device is up and whose new devices have no IPv6 (so that
    /// no router solicitations disturb a measurement). `name` is used in messages only.
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let made = run_on_thread(name, || {
            // SAFETY: CLONE_NEWNET changes only this thread's network namespace; file
            // descriptors and memory stay shared as every other thread expects.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| NetnsError::Create { name: name.into(), source: error.into() })?;
            bring_up_loopback()
                .map_err(|source| NetnsError::Loopback { name: name.into(), source })?;
            // Without IPv6 in the kernel the file is missing, and there is nothing to disable.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            open_own_namespace().map_err(|source| NetnsError::Create { name: name.into(), source })
        })??;
        Ok(Self { name: name.into(), fd: made })
    }

    /// The namespace the calling thread is in.
    pub fn current(name: &str) -> Result<Self, NetnsError> {
        let fd = open_own_namespace()
            .map_err(|source| NetnsError::Enter { name: name.into(), source })?;
        Ok(Self { name: name.into(), fd })
    }

    /// The namespace behind a descriptor that the parent process left open for this one
    /// (see [`crate::spawn::Confinement::inherit`]). The descriptor itself is left as it is.
    pub fn from_inherited(name: &str, fd: RawFd) -> Result<Self, NetnsError> {
        let path = format!("/proc/self/fd/{fd}");
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| NetnsError::Inherited { fd, source: error.into() })?;
        Ok(Self { name: name.into(), fd })
    }

    /// The namespace behind an open file of it.
    #[must_use]
    pub fn from_fd(name: &str, fd: OwnedFd) -> Self {
        Self { name: name.into(), fd }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the namespace one further address, on its loopback device: for a network that no
    /// link leads to. A second call replaces the first's address.
    pub fn set_own_address(&self, address: Ipv4Addr) -> Result<(), NetnsError> {
        let failed = |source| NetnsError::Address { name: self.name.clone(), address, source };
        self.run(|| add_loopback_address(address))?.map_err(failed)
    }

    /// The same namespace once more.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub(crate) fn try_clone(&self) -> Result<Self, NetnsError> {
        let failed = |source| NetnsError::Enter { name: self.name.clone(), source };
        Ok(Self { name: self.name.clone(), fd: self.fd.try_clone().map_err(failed)? })
    }

    /// Has the calling thread enter the namespace for good.
    pub(crate) fn enter(&self) -> Result<(), NetnsError> {
        let kind = Some(LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), kind)
            .map_err(|error| NetnsError::Enter { name: self.name.clone(), source: error.into() })
    }

    /// Runs `work` inside the namespace, on a thread of its own, and waits for it. Sockets and
    /// devices that `work` opens stay in the namespace wherever they are used later. A panic in
    /// `work` continues in the caller.
    pub fn run<T, F>(&self, work: F) -> Result<T, NetnsError>
    where
        T: Send,
        F: FnOnce() -> T + Send,
    {
        run_on_thread(&self.name, || {
            self.enter()?;
            Ok(work())
        })?
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes this process root of a new user and network namespace. Needs no privilege where the
/// kernel allows user namespaces, but only works while the process has a single thread.
pub fn become_namespace_root() -> Result<(), NetnsError> {
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    unshare_user_and_network().map_err(|source| NetnsError::UserNamespace { source })?;
    let write = |path: &'static str, text: String| {
        fs::write(path, text).map_err(|source| NetnsError::Map { path, source })
    };
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("0 {user} 1"))?;
    write("/proc/self/gid_map", format!("0 {group} 1"))?;
    bring_up_loopback()
        .map_err(|source| NetnsError::Loopback { name: "of this process".into(), source })
}

/// A finished thread can stay in its thread group for a moment after it was joined, and the
/// kernel answers EINVAL while it does: hence the bounded retry.
fn unshare_user_and_network() -> io::Result<()> {
    const ATTEMPTS: u32 = 50;
    for _ in 1..ATTEMPTS {
        // SAFETY: neither flag changes the descriptor table, memory or file system view that
        // other code relies on.
        match unsafe {
            rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)
        } {
            Err(rustix::io::Errno::INVAL) => thread::sleep(Duration::from_millis(1)),
            other => return other.map_err(io::Error::from),
        }
    }
    Err(io::Error::other("the process has more than one thread"))
}

/// Sets the flags of a device in the calling thread's namespace so that it is up.
pub(crate) fn bring_up(device: &str) -> io::Result<()> {
    let socket = control_socket()?;
    let mut request = interface_request(device)?;
    interface_ioctl(&socket, libc::SIOCGIFFLAGS as libc::c_ulong, &mut request)?;
    // SAFETY: SIOCGIFFLAGS filled the `ifru_flags` member of the union.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    interface_ioctl(&socket, libc::SIOCSIFFLAGS as libc::c_ulong, &mut request)
}

/// Any socket of the namespace, to hand interface requests to.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?)
}

/// An interface request naming `device`; fails when the name is too long for the kernel.
pub(crate) fn interface_request(device: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain data for which all zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.is_empty() || device.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("device name {device:?} must have 1 to 15 bytes"),
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Issues one interface request.
pub(crate) fn interface_ioctl(
    socket: &OwnedFd,
    number: libc::c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: every request number used in this crate takes a pointer to an `ifreq`, which
    // `request` is; the kernel does not keep it.
    let answer =
        unsafe { libc::ioctl(socket.as_raw_fd(), number as libc::Ioctl, &raw mut *request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// An IPv4 address in the form interface requests carry.
pub(crate) fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let inet = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain data of 16 bytes; the kernel reads one as the other by its family.
    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) }
}

fn bring_up_loopback() -> io::Result<()> {
    bring_up("lo")
}

/// An alias of the loopback device, for exactly this address.
fn add_loopback_address(address: Ipv4Addr) -> io::Result<()> {
    const ALIAS: &str = "lo:1";
    let socket = control_socket()?;
    let mut request = interface_request(ALIAS)?;
    request.ifr_ifru.ifru_addr = socket_address(address);
    interface_ioctl(&socket, libc::SIOCSIFADDR as libc::c_ulong, &mut request)?;
    request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::BROADCAST);
    interface_ioctl(&socket, libc::SIOCSIFNETMASK as libc::c_ulong, &mut request)
}

fn open_own_namespace() -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?)
}

fn run_on_thread<T, F>(name: &str, work: F) -> Result<T, NetnsError>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    thread::scope(|scope| {
        let running = thread::Builder::new()
            .name(format!("netns {name}"))
            .spawn_scoped(scope, work)
            .map_err(|source| NetnsError::Thread { name: name.into(), source })?;
        running.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}
