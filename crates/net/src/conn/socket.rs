//! What a connection requests from its socket.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};

use super::ConnError;
#[cfg(feature = "memory")]
use crate::memory;
use crate::tcp_info::tcp_info;

/// What carries the bytes of a connection; it does not block.
pub(super) enum Socket {
    Kernel(OwnedFd),
    #[cfg(feature = "memory")]
    Memory(memory::End),
}

impl Socket {
    /// How connecting has ended, once the socket can be written to.
    pub(super) fn dialled(&self) -> Result<(), ConnError> {
        let dialled = match self {
            Self::Kernel(socket) => sockopt::socket_error(socket).flatten(),
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.dialled(),
        };
        dialled.map_err(no_connect)
    }

    /// Appends received bytes, as far as there is space; returns how many.
    pub(super) fn receive(&self, buffer: &mut Vec<u8>) -> Result<usize, Errno> {
        match self {
            Self::Kernel(socket) => {
                let room = rustix::buffer::spare_capacity(buffer);
                let (count, _) = rustix::net::recv(socket, room, RecvFlags::empty())?;
                Ok(count)
            }
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.receive(buffer),
        }
    }

    /// Says how many bytes were taken.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::Kernel(socket) => {
                rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            }
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.send(bytes),
        }
    }

    /// Ends our side. Fails only if the connection is gone, which the next read reports.
    pub(super) fn finish(&self) {
        match self {
            Self::Kernel(socket) => {
                let _ = rustix::net::shutdown(socket, Shutdown::Write);
            }
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.finish(),
        }
    }

    /// Lets the close be a reset. Fails only if the connection is gone.
    pub(super) fn reset_on_close(&self) {
        match self {
            Self::Kernel(socket) => {
                let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            }
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.reset_on_close(),
        }
    }

    /// How long a round trip takes.
    pub(super) fn round_trip(&self) -> io::Result<Duration> {
        match self {
            Self::Kernel(socket) => Ok(Duration::from_micros(tcp_info(socket)?.rtt_us)),
            #[cfg(feature = "memory")]
            Self::Memory(end) => Ok(end.round_trip()),
        }
    }

    /// What the connection was meant for before the kernel redirected it here; `None` if it was not.
    pub(super) fn original_destination(&self) -> Option<SocketAddr> {
        let socket = match self {
            Self::Kernel(socket) => socket,
            #[cfg(feature = "memory")]
            Self::Memory(_) => return None,
        };
        let own = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        let meant: SocketAddr = match own {
            SocketAddr::V4(_) => sockopt::ip_original_dst(socket).ok()?.into(),
            SocketAddr::V6(_) => sockopt::ipv6_original_dst(socket).ok()?.into(),
        };
        (meant != own).then_some(meant)
    }

    /// `None` for a connection in memory.
    pub(super) fn into_stream(self) -> Option<TcpStream> {
        match self {
            Self::Kernel(socket) => Some(socket.into()),
            #[cfg(feature = "memory")]
            Self::Memory(_) => None,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(socket) => socket.as_fd(),
            #[cfg(feature = "memory")]
            Self::Memory(end) => end.as_fd(),
        }
    }
}

/// A non-blocking socket that has begun to connect.
pub(super) fn dial(address: SocketAddr) -> Result<OwnedFd, ConnError> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(no_connect)?;
    dial_from(socket, address)
}

/// The socket, which does not block, once it has begun to connect.
pub(super) fn dial_from(socket: OwnedFd, address: SocketAddr) -> Result<OwnedFd, ConnError> {
    sockopt::set_tcp_nodelay(&socket, true).map_err(no_connect)?;
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

fn no_connect(error: Errno) -> ConnError {
    ConnError::Connect(io::Error::from(error))
}
