//! Options of sockets that no library sets for us.

#![allow(unsafe_code, reason = "they are set by setsockopt")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Not in `libc` for every machine.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Has a TCP socket take no more than about `bytes` that it cannot send yet: what is on the wire
/// does not count. Without this the kernel takes megabytes for a peer that reads little. A listening
/// socket hands it to every connection that it accepts.
pub(crate) fn limit_unsent(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Has a bound socket get its port when it connects.
pub(crate) fn bind_without_port(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// The number of the network namespace of this thread, which no other namespace has or had. Needs
/// Linux 5.14.
///
/// # Errors
/// The kernel's.
pub fn netns_cookie() -> io::Result<u64> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).expect("an integer is short");
    // SAFETY: the descriptor is open for the call, and the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

fn set(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).expect("an integer is short");
    // SAFETY: the descriptor is open for the call, and the value is `length` bytes long.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
