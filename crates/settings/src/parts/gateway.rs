//! The settings of `tollway gateway`.

use std::net::SocketAddr;

use tollway_model::AddressRange;
use tollway_proxy::mesh::Targets;

use super::Member;
use crate::Settings;
use crate::serial::part;

/// A gateway at the edge of a network.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Gateway {
    /// The one port that other networks connect to.
    #[setting(form = "IP:PORT", default = "127.0.0.1:15443")]
    pub listen: SocketAddr,
    /// Address at which other networks reach it, if not the one it listens on; or several with commas
    /// between them. A name stands for all its addresses, and is looked up again while the gateway runs.
    #[setting(form = "HOST:PORT")]
    pub advertise: Option<Targets>,
    /// Address for workloads of its own network that call other networks through it (`tollway control
    /// --remote-calls gateway`); only they should reach it [default: none].
    #[setting(form = "IP:PORT")]
    pub inside_listen: Option<SocketAddr>,
    /// A range of addresses from which connections at `--inside-listen` are led to other networks, such as
    /// 10.2.0.0/16 [default: private, shared, unique local, link-local and loopback ones].
    #[setting(form = "RANGE", needs(&["inside_listen"]))]
    pub inside_allow: Vec<AddressRange>,
    /// Address at which they reach it, if not the one it listens on; or several, as with `--advertise`.
    #[setting(form = "HOST:PORT", needs(&["inside_listen"]))]
    pub advertise_inside: Option<Targets>,
    /// Only dial out: other networks reach this one by the connections that its gateways open to theirs.
    /// Nothing listens at `--listen` then.
    #[setting()]
    pub dial_out: bool,
    #[setting(flatten)]
    pub member: Member,
}

part!(Gateway, "gateway");
