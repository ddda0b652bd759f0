//! Interception: an app of which the kernel leads connections and questions for names to the sidecar.
//!
//! There are two ways. In one the app is in a cgroup of its own: [`begin`] makes it, attaches the programs
//! (`bpf/`) to it and serves names, and [`Origins`] gives the sidecar's data threads what a connection was
//! meant for. In the other the app is in a network namespace of its own, where [`begin_in`] has nftables
//! redirect. A sidecar that shares the namespace of its app has no such process of its own: [`capture`] has
//! nftables redirect there, once, and [`serve_names`] serves names in the sidecar.
//!
//! What an address stands for and what is done with a connection is decided in `routing` and done
//! in `proxy`.

#![forbid(unsafe_code)]

mod cgroup;
mod layout;
mod name_server;
mod netlink;
mod programs;
mod redirection;
mod resolvers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tollway_net::netns::{NetNs, NetnsError};
use tollway_net::spawn::Confinement;
use tollway_net::{AppNetwork, Conn, netns_cookie};
use tollway_proxy::NameTable;
use tollway_routing::intercept::Spared;

use crate::cgroup::Cgroup;
pub use crate::cgroup::CgroupError;
use crate::layout::Settings;
use crate::name_server::NameServer;
use crate::programs::Programs;
pub use crate::programs::ProgramsError;
use crate::redirection::{Redirection, check};
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

/// What is redirected in a network namespace that an app and its sidecar share, such as that of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capture {
    /// Port of loopback at which the sidecar takes connections.
    pub listener: u16,
    /// Port of loopback at which it answers questions for names, over UDP and TCP.
    pub names: u16,
    /// The user of the sidecar, whose own connections are left alone.
    pub sidecar_user: u32,
}

/// A server of names, which ends with this value.
#[derive(Debug)]
pub struct NameService {
    _tasks: tokio::task::JoinSet<()>,
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
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("the kernel does not redirect connections by nftables")]
    Redirection { source: std::io::Error },
}

/// What intercepted connections were meant for. Knows of none before [`begin`].
#[derive(Debug, Default)]
pub struct Origins(OnceLock<Programs>);

impl tollway_proxy::Origins for Origins {
    fn take(&self, source: SocketAddr, _: &Conn) -> Option<SocketAddr> {
        self.0.get()?.take(source)
    }
}

/// Interception at work: names are served until this is dropped, and the cgroup is removed then, if no
/// process is left in it. The programs stay as long as their [`Origins`], and a namespace as long as its
/// [`AppNetwork`].
#[derive(Debug)]
pub struct Interception {
    ground: Ground,
    /// Ends with this value.
    _names: tokio::task::JoinSet<()>,
}

/// What the app is in.
#[derive(Debug)]
enum Ground {
    Cgroup(Cgroup),
    Namespace(Arc<AppNetwork>),
}

impl Interception {
    /// Where the app is started.
    #[must_use]
    pub fn confinement(&self) -> Confinement<'_> {
        match &self.ground {
            Ground::Cgroup(cgroup) => {
                Confinement { cgroup: Some(cgroup.processes()), ..Confinement::default() }
            }
            Ground::Namespace(network) => {
                Confinement { namespace: Some(network.namespace()), ..Confinement::default() }
            }
        }
    }
}

/// Finds out whether the kernel takes the programs, by a cgroup that goes at once.
///
/// # Errors
/// [`InterceptError`].
pub fn check_programs() -> Result<(), InterceptError> {
    let cgroup = Cgroup::make()?;
    Programs::attach(&cgroup, Settings::default(), &Rules::default())?;
    Ok(())
}

/// Makes the network namespace of an app, for [`begin_in`], where the kernel can redirect in one.
///
/// # Errors
/// [`InterceptError`].
pub fn make_network() -> Result<Arc<AppNetwork>, InterceptError> {
    let tried = NetNs::create("to be tried")?.run(check)?;
    tried.map_err(|source| InterceptError::Redirection { source })?;
    Ok(Arc::new(AppNetwork::create("of the app")?))
}

/// Begins to intercept what is started in a new cgroup. `listener` has the addresses at which the
/// sidecar takes connections: loopback of one family or of both, at one port. Names are answered of
/// `names`, others by `resolvers`. To be called in a tokio runtime that lives as long as the result.
///
/// # Errors
/// [`InterceptError`]; nothing is left behind then.
pub fn begin(
    origins: &Origins,
    names: Arc<NameTable>,
    listener: &[SocketAddr],
    rules: &Rules,
    resolvers: Resolvers,
) -> Result<Interception, InterceptError> {
    let failed = |source| InterceptError::Names { source };
    let server = NameServer::bind(0).map_err(failed)?;
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
    let names = server.serve(names, resolvers).map_err(failed)?;
    Ok(Interception { ground: Ground::Cgroup(cgroup), _names: names })
}

/// Begins to redirect what is started in a network namespace, all of it: nothing else leaves the
/// namespace. `listener` has the addresses at which the sidecar takes connections there, and `of_sidecar`
/// the ports of loopback at which it listens in its own namespace, which the app reaches by the same
/// addresses. For `names`, `resolvers` and the runtime see [`begin`].
///
/// # Errors
/// [`InterceptError`].
pub fn begin_in(
    network: &Arc<AppNetwork>,
    names: Arc<NameTable>,
    listener: &[SocketAddr],
    of_sidecar: Vec<u16>,
    resolvers: Resolvers,
) -> Result<Interception, InterceptError> {
    let failed = |source| InterceptError::Names { source };
    let namespace = network.namespace();
    let server = namespace.run(|| NameServer::bind(0))?.map_err(failed)?;
    let redirection = Redirection {
        listener: listener.first().map_or(0, SocketAddr::port),
        names_udp: server.udp_port(),
        names_tcp: server.tcp_port(),
        of_sidecar,
        shared_with: None,
        has_ipv6: server.has_ipv6() && listener.iter().any(SocketAddr::is_ipv6),
    };
    let redirected = namespace.run(|| redirection.begin())?;
    redirected.map_err(|source| InterceptError::Redirection { source })?;
    let names = server.serve(names, resolvers).map_err(failed)?;
    Ok(Interception { ground: Ground::Namespace(Arc::clone(network)), _names: names })
}

/// Has nftables redirect in the network namespace of this thread, until the namespace goes. What is on
/// loopback and what the sidecar's user connects to is left alone.
///
/// # Errors
/// [`InterceptError::Redirection`].
pub fn capture(capture: &Capture) -> Result<(), InterceptError> {
    let &Capture { listener, names, sidecar_user } = capture;
    let redirection = Redirection {
        listener,
        names_udp: names,
        names_tcp: names,
        of_sidecar: Vec::new(),
        shared_with: Some(sidecar_user),
        has_ipv6: true,
    };
    redirection.begin().map_err(|source| InterceptError::Redirection { source })
}

/// Serves names at a port of loopback, over UDP and TCP: those of `names`, others by `resolvers`. To be
/// called in a tokio runtime that lives as long as the result.
///
/// # Errors
/// [`InterceptError::Names`].
pub fn serve_names(
    port: u16,
    names: Arc<NameTable>,
    resolvers: Resolvers,
) -> Result<NameService, InterceptError> {
    let serve = || NameServer::bind(port)?.serve(names, resolvers);
    serve()
        .map(|tasks| NameService { _tasks: tasks })
        .map_err(|source| InterceptError::Names { source })
}
