//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use thiserror::Error;

use crate::option::limit_unsent;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// How a listener is opened.
#[derive(Clone, Copy, Debug)]
pub struct ListenerOptions {
    /// Connections that the kernel queues before they are accepted, at most `net.core.somaxconn`. A
    /// client that finds the queue full gets no reply, and tries again after a second.
    pub backlog: i32,
    /// Several listeners may share the address, one per thread.
    pub shared: bool,
    /// Bytes that a connection takes before it can send them, about; the kernel's default if
    /// `None`.
    pub unsent_bytes: Option<u32>,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self { backlog: BACKLOG, shared: false, unsent_bytes: None }
    }
}

/// Why no connection was taken.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// No connection waits.
    #[error("no connection waits")]
    Empty,
    /// No descriptor or memory is left: stop accepting for a moment, the backlog keeps the rest.
    #[error("cannot accept a connection: {0}")]
    Exhausted(#[source] io::Error),
    /// This one connection failed before it was taken; the next may be fine.
    #[error("a connection failed before it was accepted: {0}")]
    Lost(#[source] io::Error),
}

/// A non-blocking listening socket.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds and listens; port 0 takes a free one.
    ///
    /// # Errors
    /// The kernel's error: the address is in use, not local, or not permitted.
    pub fn bind(address: SocketAddr, options: ListenerOptions) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if options.shared {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        if let Some(bytes) = options.unsent_bytes {
            limit_unsent(&socket, bytes)?;
        }
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, options.backlog)?;
        Self::from_socket(socket)
    }

    fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        let socket = TcpListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The bound address; the port is the chosen one if 0 was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket alone, non-blocking, for other ways to accept.
    #[must_use]
    pub fn into_socket(self) -> TcpListener {
        self.socket
    }

    /// Takes one waiting connection, non-blocking, without delay of small writes.
    ///
    /// # Errors
    /// [`AcceptError`]: nothing waits, nothing can be taken now, or this one was lost.
    pub fn accept(&self) -> Result<TcpStream, AcceptError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => {
                let stream = TcpStream::from(socket);
                // Fails only if the connection is already gone; the first read reports it.
                let _ = stream.set_nodelay(true);
                Ok(stream)
            }
            Err(Errno::AGAIN) => Err(AcceptError::Empty),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                Err(AcceptError::Exhausted(error.into()))
            }
            Err(error) => Err(AcceptError::Lost(error.into())),
        }
    }
}

/// Whether a connection waits to be accepted. Without a descriptor left the kernel refuses to accept
/// whether or not one does.
///
/// # Errors
/// The kernel's error.
pub fn has_waiting(listener: &impl AsFd) -> io::Result<bool> {
    let mut waits = [PollFd::new(listener, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut waits, Some(&Timespec::default())) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_connection_is_seen_until_it_is_accepted() {
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(address, ListenerOptions::default()).unwrap();
        assert!(!has_waiting(&listener).unwrap());
        let _client = TcpStream::connect(listener.address()).unwrap();
        assert!(has_waiting(&listener).unwrap());
        let _accepted = listener.accept().unwrap();
        assert!(!has_waiting(&listener).unwrap());
    }
}
