//! The network namespace of an app whose sidecar, in this process, is not in it: what is listened on and
//! dialled there.
//!
//! A socket belongs to the namespace in which it was made. Those for dialling are made ahead by threads
//! that stay in the namespace, so that a data thread never enters it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::netns::{NetNs, NetnsError};

/// Sockets of a family that wait to be taken. The first ones may be failures of a moment ago.
const MADE_AHEAD: usize = 8;

type Made = Mutex<Receiver<io::Result<OwnedFd>>>;

/// A network namespace that an app has for itself. It goes when this value, and the last process in it,
/// are gone.
#[derive(Debug)]
pub struct AppNetwork {
    namespace: NetNs,
    ipv4: Made,
    ipv6: Made,
}

impl AppNetwork {
    /// Makes the namespace; it has nothing but loopback. `name` is used in messages only.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub fn create(name: &str) -> Result<Self, NetnsError> {
        let namespace = NetNs::create(name)?;
        let make = |family| -> Result<Made, NetnsError> {
            let (sockets, made) = sync_channel(MADE_AHEAD);
            start_making(&namespace, family, sockets)?;
            Ok(Mutex::new(made))
        };
        Ok(Self { ipv4: make(AddressFamily::INET)?, ipv6: make(AddressFamily::INET6)?, namespace })
    }

    /// The namespace, for the processes of the app and for what is opened in it.
    #[must_use]
    pub fn namespace(&self) -> &NetNs {
        &self.namespace
    }

    /// A TCP socket of the namespace that does not block, to dial `address` there.
    ///
    /// # Errors
    /// The kernel's: no descriptor is left, or the machine does not have the family.
    pub fn socket(&self, address: SocketAddr) -> io::Result<OwnedFd> {
        let made = if address.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        let made = made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = made.recv().map_err(io::Error::other)?;
        for _ in 0..MADE_AHEAD {
            if last.is_ok() {
                break;
            }
            last = made.recv().map_err(io::Error::other)?;
        }
        last
    }
}

/// Starts the thread that makes sockets of a family until `sockets` has no receiver.
fn start_making(
    namespace: &NetNs,
    family: AddressFamily,
    sockets: SyncSender<io::Result<OwnedFd>>,
) -> Result<(), NetnsError> {
    let entered = namespace.try_clone()?;
    let name = namespace.name().to_owned();
    let make = move || {
        if let Err(error) = entered.enter() {
            let _ = sockets.send(Err(io::Error::other(error)));
            return;
        }
        drop(entered);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let made = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
            if sockets.send(made.map_err(io::Error::from)).is_err() {
                return;
            }
        }
    };
    let started = thread::Builder::new().name("app sockets".to_owned()).spawn(make);
    started.map(drop).map_err(|source| NetnsError::Thread { name, source })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::Conn;

    #[test]
    fn what_is_dialled_is_within_the_namespace() {
        let network = tollway_testkit::need_right!(AppNetwork::create("app"));
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = network.namespace().run(listen).unwrap();
        let address = listener.local_addr().unwrap();
        // More than are made ahead.
        for _ in 0..3 * MADE_AHEAD {
            let socket = network.socket(address).unwrap();
            let _dialled = Conn::connect_from(socket, address).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(accepted.local_addr().unwrap(), address);
        }
    }
}
