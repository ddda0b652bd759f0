//! Agents without a table: each follows its group on a connection of its own, says that it holds
//! what it was told, and knows when it was.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tollway_model::Group;
use tollway_model::neighbour::packed::records;
use tollway_net::monotonic_ns;
use tollway_wire::v1;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tollway_wire::v1::watch_neighbours_request::Request;
use tonic::transport::Channel;

use super::{HELD_WITHIN, NeighbourLoadError};

/// Reports on their way; a newer one says all that an older one did.
const REPORTS: usize = 2;

/// How far an agent was told, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Everything up to here; 0 before the whole group was.
    revision: u64,
    received_ns: u64,
}

/// Agents that follow a group until this is dropped.
#[derive(Debug, Default)]
pub struct Followers {
    told: Vec<watch::Receiver<Told>>,
    agents: JoinSet<NeighbourLoadError>,
}

impl Followers {
    /// Starts one agent on each connection, which has the right to follow the group. It runs on
    /// the runtime that it is called on.
    #[must_use]
    pub fn start(group: &Group, channels: Vec<Channel>) -> Self {
        let mut followers = Self::default();
        for channel in channels {
            let (told, seen) = watch::channel(Told::default());
            followers.told.push(seen);
            let group = group.clone();
            followers.agents.spawn(async move {
                match follow(NeighboursClient::new(channel), &group, &told).await {
                    Ok(()) => NeighbourLoadError::WatchEnded,
                    Err(error) => error,
                }
            });
        }
        followers
    }

    /// Waits until each was told everything up to `revision`: when the last one was, by
    /// CLOCK_MONOTONIC. At once, and `None`, where there are none.
    ///
    /// # Errors
    /// [`NeighbourLoadError`]: one has ended, or they take too long.
    pub async fn hold(&mut self, revision: u64) -> Result<Option<u64>, NeighbourLoadError> {
        let told = &mut self.told;
        let all = async {
            let mut last_ns = None;
            for seen in told {
                let Ok(told) = seen.wait_for(|told| told.revision >= revision).await else {
                    return None;
                };
                last_ns = last_ns.max(Some(told.received_ns));
            }
            Some(last_ns)
        };
        match tokio::time::timeout(HELD_WITHIN, all).await {
            Ok(Some(last_ns)) => Ok(last_ns),
            // Only an agent that has ended tells no more.
            Ok(None) => match self.agents.join_next().await {
                Some(Ok(error)) => Err(error),
                Some(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
                None => Err(NeighbourLoadError::WatchEnded),
            },
            Err(_) => Err(NeighbourLoadError::NotHeld { revision, limit: HELD_WITHIN }),
        }
    }
}

/// Follows the group until the control plane ends it.
async fn follow(
    mut client: NeighboursClient<Channel>,
    group: &Group,
    told: &watch::Sender<Told>,
) -> Result<(), NeighbourLoadError> {
    let (reports, outgoing) = mpsc::channel(REPORTS);
    let start = v1::WatchNeighboursStart {
        group: group.to_lower(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Default::default()
    };
    // The channel is new and has room.
    let _ = reports.try_send(v1::WatchNeighboursRequest { request: Some(Request::Start(start)) });
    let mut watched = client.watch_neighbours(ReceiverStream::new(outgoing)).await?.into_inner();
    let (mut entries, mut unsaid) = (0, None);
    loop {
        let message = tokio::select! {
            message = watched.message() => message?,
            permit = reports.reserve(), if unsaid.is_some() => {
                if let (Ok(permit), Some(report)) = (permit, unsaid.take()) {
                    permit.send(v1::WatchNeighboursRequest { request: Some(Request::Report(report)) });
                }
                continue;
            }
        };
        let received_ns = monotonic_ns();
        let Some(message) = message else { return Ok(()) };
        let revision = message.revision;
        entries += records(&message.packed).count() as u64;
        told.send_if_modified(|told| {
            let is_new = revision > told.revision;
            if is_new {
                *told = Told { revision, received_ns };
            }
            is_new
        });
        if revision > 0 {
            unsaid = Some(v1::FabricAgentReport { revision, entries, ..Default::default() });
        }
    }
}
