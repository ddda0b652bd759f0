//! Agents without a table: each follows its group on a connection of its own and reports what it
//! received, and when.

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

/// Reports under way; a newer one replaces an older one.
const REPORTS: usize = 2;

/// The last revision that an agent received, and when.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    /// Everything up to here; 0 before the whole group was.
    revision: u64,
    received_ns: u64,
}

/// Agents that follow a group until this is dropped.
#[derive(Debug, Default)]
pub struct Followers {
    received: Vec<watch::Receiver<Received>>,
    agents: JoinSet<NeighbourLoadError>,
}

impl Followers {
    /// Starts one agent on each connection, which has the right to follow the group. It runs on
    /// the runtime that it is called on.
    #[must_use]
    pub fn start(group: &Group, channels: Vec<Channel>) -> Self {
        let mut followers = Self::default();
        for channel in channels {
            let (received, seen) = watch::channel(Received::default());
            followers.received.push(seen);
            let group = group.clone();
            followers.agents.spawn(async move {
                match follow(NeighboursClient::new(channel), &group, &received).await {
                    Ok(()) => NeighbourLoadError::WatchEnded,
                    Err(error) => error,
                }
            });
        }
        followers
    }

    /// Waits until each has received everything up to `revision`; when the last one had, by
    /// CLOCK_MONOTONIC. At once, and `None`, where there are none.
    ///
    /// # Errors
    /// [`NeighbourLoadError`]: one has ended, or they take too long.
    pub async fn hold(&mut self, revision: u64) -> Result<Option<u64>, NeighbourLoadError> {
        let received = &mut self.received;
        let all = async {
            let mut last_ns = None;
            for seen in received {
                let Ok(received) = seen.wait_for(|received| received.revision >= revision).await
                else {
                    return None;
                };
                last_ns = last_ns.max(Some(received.received_ns));
            }
            Some(last_ns)
        };
        match tokio::time::timeout(HELD_WITHIN, all).await {
            Ok(Some(last_ns)) => Ok(last_ns),
            // The channel closes only when the agent has ended.
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
    received: &watch::Sender<Received>,
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
        received.send_if_modified(|received| {
            let is_new = revision > received.revision;
            if is_new {
                *received = Received { revision, received_ns };
            }
            is_new
        });
        if revision > 0 {
            unsaid = Some(v1::FabricAgentReport { revision, entries, ..Default::default() });
        }
    }
}
