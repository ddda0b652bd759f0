//! Interception: an app in a cgroup of its own, of which the kernel leads connections and questions
//! for names to the sidecar.
//!
//! [`Origins`] gives the sidecar's data threads what a connection was meant for; [`begin`] makes the
//! cgroup, attaches the programs (`bpf/`) to it and serves names. What an address stands for and what
//! is done with a connection is decided in `routing` and done in `proxy`.

#![forbid(unsafe_code)]

mod cgroup;
mod layout;
mod name_server;
mod programs;
mod resolvers;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use tollway_net::netns_cookie;
use tollway_proxy::NameTable;
use tollway_routing::intercept::Spared;

use crate::cgroup::Cgroup;
pub use crate::cgroup::CgroupError;
use crate::layout::Settings;
use crate::name_server::NameServer;
use crate::programs::Programs;
pub use crate::programs::ProgramsError;
pub use crate::resolvers::Resolvers;

/// What is led to the sidecar.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Left alone, beside loopback.
    pub spared: Vec<Spared>,
    /// Connections out of the mesh are led to the sidecar, too.
    pub leads_all: bool,
    /// The port of the app that is opened on loopback alone, whatever the app asks for.
    pub closed_port: Option<u16>,
}

/// Why an app's connections cannot be intercepted.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    #[error("cannot listen on loopback for questions for names")]
    Names { source: std::io::Error },
}

/// What intercepted connections were meant for. Knows of none before [`begin`].
#[derive(Debug, Default)]
pub struct Origins(OnceLock<Programs>);

impl tollway_proxy::Origins for Origins {
    fn take(&self, source: SocketAddr) -> Option<SocketAddr> {
        self.0.get()?.take(source)
    }
}

/// Interception at work: names are served until this is dropped, and the cgroup is removed then, if no
/// process is left in it. The programs stay as long as their [`Origins`].
#[derive(Debug)]
pub struct Interception {
    cgroup: Cgroup,
    /// Ends with this value.
    _names: tokio::task::JoinSet<()>,
}

impl Interception {
    /// The file by which processes enter the cgroup, for
    /// [`Confinement`](tollway_net::spawn::Confinement).
    #[must_use]
    pub fn cgroup_processes(&self) -> BorrowedFd<'_> {
        self.cgroup.processes()
    }
}

/// Begins to intercept what is started in a new cgroup. `listener` has the addresses at which the
/// sidecar takes connections: loopback of one family or of both, at one port. Names are answered of
/// `names`, others by `resolvers`. To be called in a tokio runtime that lives as long as the result.
///
/// # Errors
/// [`InterceptError`]; nothing is left behind then.
pub async fn begin(
    origins: &Origins,
    names: Arc<NameTable>,
    listener: &[SocketAddr],
    rules: &Rules,
    resolvers: Resolvers,
) -> Result<Interception, InterceptError> {
    let failed = |source| InterceptError::Names { source };
    let server = NameServer::bind().await.map_err(failed)?;
    let cgroup = Cgroup::make()?;
    let has_ipv6 = server.has_ipv6() && listener.iter().any(SocketAddr::is_ipv6);
    let settings = Settings {
        // An older kernel has none; then sockets of other namespaces are led here, too.
        netns: netns_cookie().unwrap_or(0),
        listener: listener.first().map_or(0, SocketAddr::port),
        names_udp: server.udp_port(),
        names_tcp: server.tcp_port(),
        app_port: rules.closed_port.unwrap_or(0),
        has_ipv6,
        leads_all: rules.leads_all,
    };
    let programs = Programs::attach(&cgroup, settings, rules)?;
    // Each has one interception.
    let _ = origins.0.set(programs);
    Ok(Interception { cgroup, _names: server.serve(names, resolvers) })
}
