//! The forwarder of a virtual network: neighbours in the kernel, and the programs that forward by
//! them.
//!
//! Programs take VXLAN packets, look up the host of the inner address, and forward them to it
//! ([`Programs`]); their C sources are in `bpf/`. They stay on their devices when this process ends
//! ([`Forwarder`]). A thread of its own ([`Programmer`]) writes the table in batches ([`batch`],
//! [`Writer`]), with the changes that [`Ledger`] finds new; [`agent`] keeps the table equal to what
//! the control plane lists.

pub mod agent;
mod attach;
pub mod batch;
mod bpf;
mod cable;
mod forwarder;
pub mod journal;
pub mod layout;
mod ledger;
pub mod marks;
pub mod misses;
pub mod pins;
mod programmer;
mod programs;
mod status;
mod table;
mod writer;

pub use attach::{AttachError, Attached, Mode, attach, detach_all};
pub use cable::{CableError, FarEnd};
pub use forwarder::{Forwarder, ForwarderError, Options, Port, VXLAN_PORT};
pub use ledger::{Ledger, MAX_AHEAD};
pub use programmer::{Ended, Found, Lasting, Order, Programmer, Progress};
pub use programs::{Counts, LoadError, Programs, link_key};
pub use status::{Status, StatusError, pinned_counts, pinned_table, read_status};
pub use table::{BATCH, KernelTable, Table};
pub use writer::{Changes, GaveUp, MAX_WAITING, Patience, Trouble, Writer, Written};
