//! An agent as a process: opens the forwarder, joins the mesh, serves its admin port, ends in order.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollway_identity::Credentials;
use tollway_model::Group;
use tollway_net::let_start_go;
use tollway_telemetry::serve_admin;
use tonic::transport::Channel;

use super::facts::AgentFacts;
use super::{Agent, AgentError, AgentOptions};
use crate::forwarder::{Forwarder, ForwarderError, Options, Port};
use crate::journal::{Journal, MapName};
use crate::marks::{Marks, marks, write_marks};
use crate::pins::PinsError;
use crate::{misses, pinned_counts, pins};

/// Times after the start at which memory that only the start needed is given back.
const STARTED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// What an agent's process is given.
#[derive(Debug)]
pub struct RunOptions {
    pub group: Group,
    /// Of this program, for the control plane's list of agents.
    pub version: String,
    pub forwarder: Options,
    /// The journal; without it one in `/var/lib/tollway`.
    pub journal: Option<PathBuf>,
    /// How often the table is compared with the control plane's; never when `None`.
    pub audit_every: Option<Duration>,
    /// A new file that receives a line of JSON for each revision.
    pub marks_file: Option<PathBuf>,
    /// Metrics and health; none when `None`.
    pub admin_listen: Option<SocketAddr>,
}

/// Why an agent's process ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{0}")]
    Pins(#[from] PinsError),
    #[error("{0}")]
    Forwarder(#[from] ForwarderError),
    #[error("{0}")]
    Agent(#[from] AgentError),
    /// The mesh gave no identity.
    #[error("{0}")]
    Join(#[source] Box<dyn Error + Send + Sync>),
    #[error("cannot listen on {address} (admin)")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot write {}", path.display())]
    Marks { path: PathBuf, source: io::Error },
    /// A call of the kernel failed.
    #[error("{what}")]
    Kernel { what: &'static str, source: io::Error },
}

impl RunError {
    fn kernel(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Kernel { what, source }
    }
}

/// Runs an agent until `end` completes. `join` gives the credentials of the agent's workload, and a
/// function that connects to the control plane.
///
/// # Errors
/// [`RunError`].
pub async fn run_agent<C, E>(
    options: RunOptions,
    join: impl Future<Output = Result<Joined<C>, Box<dyn Error + Send + Sync>>>,
    end: impl Future<Output = ()>,
) -> Result<(), RunError>
where
    C: AsyncFnMut() -> Result<Channel, E>,
    E: std::fmt::Display,
{
    let admin_listen = options.admin_listen;
    let Opened { agent, facts, misses: ring, _ports } = open(options)?;
    let admin = match admin_listen {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let admin = async {
        match admin {
            Some(listener) => serve_admin(facts.clone(), listener).await,
            None => std::future::pending().await,
        }
    };
    let (reports, requests) = tokio::sync::mpsc::channel(misses::QUEUE);
    let serve = async {
        let joined = join.await.map_err(RunError::Join)?;
        facts.has_joined(joined.credentials);
        Ok(agent.run(joined.connect, requests).await?)
    };
    tokio::select! {
        ended = serve => ended,
        () = admin => Ok(()),
        never = give_memory_back() => match never {},
        failed = misses::pass_on(ring, reports) => {
            failed.map_err(RunError::kernel("cannot wait for reports of the programs"))
        }
        () = end => Ok(()),
    }
}

/// An agent with its table, before it joins the mesh.
struct Opened {
    agent: Agent,
    facts: Arc<AgentFacts>,
    /// Reports of the programs about addresses that they have not found.
    misses: RingBuf<MapData>,
    /// The devices, which stay open while the agent runs.
    _ports: Vec<Port>,
}

/// Opens the forwarder, reads the journal, and starts the thread that writes the table.
fn open(options: RunOptions) -> Result<Opened, RunError> {
    let pins = pins::directory(&options.group.to_lower())?;
    let forwarder = Forwarder::open(&options.forwarder, &pins)?;
    log_ports(&forwarder);
    let capacity = forwarder.table.capacity();
    let capacity = capacity.map_err(RunError::kernel("cannot read the size of the table"))?;
    if capacity != options.forwarder.capacity {
        tracing::warn!(
            capacity,
            "the table that is pinned has another size than --capacity; `tollway fabric detach` \
             removes it"
        );
    }
    let map = forwarder.table.id().and_then(MapName::here);
    let map = map.map_err(RunError::kernel("cannot name the table"))?;
    let journal = Journal::new(journal_of(&options), map);
    let agent_options = AgentOptions {
        group: options.group,
        version: options.version,
        capacity: capacity.into(),
        audit_every: options.audit_every,
        marks: options.marks_file.map(marks_in).transpose()?,
    };
    let counts = pinned_counts(&pins);
    let counts = counts.map_err(RunError::kernel("cannot open the programs' counters"))?;
    let agent = Agent::new(agent_options, Some(journal), forwarder.table)?;
    let facts = Arc::new(AgentFacts::new(&agent, counts, capacity));
    Ok(Opened { agent, facts, misses: forwarder.misses, _ports: forwarder.ports })
}

/// The membership of the mesh.
pub struct Joined<C> {
    pub credentials: watch::Receiver<Arc<Credentials>>,
    /// Connects to the control plane.
    pub connect: C,
}

fn log_ports(forwarder: &Forwarder) {
    for port in &forwarder.ports {
        let (device, mode) = (&port.device.name, port.attached.mode);
        let far_end = port.far_end.as_ref().map(|far| far.peer.as_str());
        tracing::info!(device, %mode, far_end, replaced = port.attached.replaced, "forwarding");
    }
}

fn journal_of(options: &RunOptions) -> PathBuf {
    let name = format!("fabric-{}.journal", options.group.to_lower());
    options.journal.clone().unwrap_or_else(|| PathBuf::from("/var/lib/tollway").join(name))
}

fn marks_in(path: PathBuf) -> Result<Marks, RunError> {
    let (marks, received) = marks();
    match write_marks(&path, received) {
        Ok(()) => Ok(marks),
        Err(source) => Err(RunError::Marks { path, source }),
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    let failed = |source| RunError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    tracing::info!(address = %bound, "admin");
    Ok(listener)
}

async fn give_memory_back() -> std::convert::Infallible {
    for wait in STARTED {
        tokio::time::sleep(wait).await;
        let_start_go();
    }
    std::future::pending().await
}
