//! What is watched while the app runs: whether it takes calls, and whether there is a control
//! plane. Neither ever ends by itself.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tollway_proxy::mesh::MeshClient;

use super::plan::Plan;
use super::voice::Voice;
use crate::failure::Report;
use crate::local;

/// An app that does not listen for so long gets a hint.
const LISTEN_HINT_AFTER: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// An app that ends closes its port before; one that does so for longer goes on without.
const CLOSED_NOTE_AFTER: Duration = Duration::from_secs(2);
/// A control plane that is away for so long is looked after.
const CONTROL_AWAY: Duration = Duration::from_secs(1);
/// Pause between two looks after it.
const CONTROL_PAUSE: Duration = Duration::from_secs(5);

/// Says when the app takes calls, when it does not any more, and when it should long do.
pub(super) async fn tell_readiness(
    plan: Arc<Plan>,
    voice: Voice,
    mut ready: watch::Receiver<bool>,
) -> Infallible {
    if plan.app.is_none() {
        return std::future::pending().await;
    }
    let listens = ready.wait_for(|ready| *ready);
    if tokio::time::timeout(LISTEN_HINT_AFTER, listens).await.is_err() {
        let elsewhere = listens_on_ipv6(&plan).await;
        voice.app_late(&plan, LISTEN_HINT_AFTER.as_secs(), elsewhere);
    }
    loop {
        if ready.wait_for(|ready| *ready).await.is_err() {
            return std::future::pending().await;
        }
        voice.app_ready(&plan);
        loop {
            if ready.wait_for(|ready| !*ready).await.is_err() {
                return std::future::pending().await;
            }
            let open_again = ready.wait_for(|ready| *ready);
            if tokio::time::timeout(CLOSED_NOTE_AFTER, open_again).await.is_err() {
                break;
            }
        }
        voice.app_not_ready(&plan);
    }
}

/// Whether the app took `localhost` for the other loopback address.
async fn listens_on_ipv6(plan: &Plan) -> bool {
    let Some((address, _)) = plan.app else { return false };
    let other = TcpStream::connect((Ipv6Addr::LOCALHOST, address.port()));
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, other).await;
    address.ip() == Ipv4Addr::LOCALHOST && matches!(connected, Ok(Ok(_)))
}

/// A local control plane that crashed is started again by the first who misses it; it comes back
/// with what it knew, and is looked for where it is now.
pub(super) async fn keep_control(
    plan: Arc<Plan>,
    voice: Voice,
    mesh: Arc<MeshClient>,
    linger: Duration,
) -> Infallible {
    if !plan.local {
        return std::future::pending().await;
    }
    let mut status = mesh.status();
    let mut told = String::new();
    loop {
        if status.wait_for(|status| !status.connected).await.is_err() {
            return std::future::pending().await;
        }
        let back = status.wait_for(|status| status.connected);
        if tokio::time::timeout(CONTROL_AWAY, back).await.is_ok() {
            continue;
        }
        let trouble = match local::find_or_start(linger).await {
            Ok(found) => {
                if found.started {
                    voice.control_plane(&found);
                }
                // Somebody may have taken its port while it was away.
                mesh.move_control(found.address());
                String::new()
            }
            Err(error) => Report::of(&error.into()).text(),
        };
        // The same trouble is told once.
        if !trouble.is_empty() && trouble != told {
            voice.error(&trouble);
        }
        told = trouble;
        let back = status.wait_for(|status| status.connected);
        // Without a control plane there is nothing to wait for but the next look.
        let _ = tokio::time::timeout(CONTROL_PAUSE, back).await;
    }
}
