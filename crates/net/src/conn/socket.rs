//! What a connection requests from its socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::ConnError;

/// A non-blocking socket that has begun to connect.
pub(super) fn dial(address: SocketAddr) -> Result<OwnedFd, ConnError> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(no_connect)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true).map_err(no_connect)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(no_connect(error)),
    }
}

/// Both ends of a connection within the process, which do not block.
///
/// # Errors
/// When no descriptor is left.
pub fn local_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

/// How connecting has ended, once the socket can be written to.
pub(super) fn dialled(socket: &OwnedFd) -> Result<(), ConnError> {
    rustix::net::sockopt::socket_error(socket).and_then(|result| result).map_err(no_connect)
}

fn no_connect(error: Errno) -> ConnError {
    ConnError::Connect(io::Error::from(error))
}

/// Appends received bytes, as far as there is space; returns how many.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
    let room = rustix::buffer::spare_capacity(buffer);
    let (count, _) = rustix::net::recv(socket, room, RecvFlags::empty())?;
    Ok(count)
}

/// Says how many bytes the kernel took.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}
