//! The parts of event loops: readiness, timers, buffers, connections with and without TLS.
//!
//! `proxy`, `load` and `echo` build their loops from these; nothing here knows HTTP or the mesh.
//! Every socket is non-blocking and registered once, edge-triggered, for both directions: a
//! connection remembers what it may still read or write. Further parts: the lab's links between
//! network namespaces ([`netns`], [`tun`], [`link`]), processes and their supervision ([`spawn`],
//! [`process`]), the file in which they publish their ports ([`ports_file`]), free ports
//! ([`free_port()`]), reconnection ([`Backoff`]), and what stays mapped of the program
//! ([`let_start_go`]). Unsafe code is confined to this crate, and to the kernel interface of
//! `fabric`.

mod app_network;
mod backoff;
mod conn;
mod descriptors;
pub mod device;
mod free_port;
mod heap;
pub mod link;
mod listener;
#[cfg(feature = "memory")]
pub mod memory;
mod monotonic;
pub mod netns;
mod option;
mod origin;
pub mod peer;
mod poller;
pub mod ports_file;
pub mod process;
mod program;
pub mod secret_file;
mod slab;
mod source;
pub mod spawn;
mod tcp_info;
mod timer;
mod timer_slack;
mod tls;
pub mod tun;

pub use app_network::AppNetwork;
pub use backoff::Backoff;
pub use conn::{Agreed, Closed, Conn, ConnError, Flush, Peer, Read, Scratch, local_pair};
pub use descriptors::{descriptor_limit, is_among_last_descriptors, raise_descriptor_limit};
pub use free_port::free_port;
pub use heap::let_free_memory_go;
pub use listener::{AcceptError, Listener, ListenerOptions, has_waiting};
pub use monotonic::{boot_time, monotonic_ns};
pub use option::netns_cookie;
pub use origin::Origin;
pub use poller::{Poller, Readiness, Token, Waker};
pub use ports_file::write_ports;
pub use program::let_start_go;
pub use secret_file::{OpenSecretFile, SecretFile};
pub use slab::{Key, Slab};
pub use source::bind_source;
pub use tcp_info::{TcpInfo, tcp_info};
pub use timer::Wheel;
pub use timer_slack::ask_for_punctual_wakeups;
pub use tls::Tls;
