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
use crate::local::{self, Kept};

/// An app that does not listen for so long gets a hint.
const LISTEN_HINT_AFTER: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// An app that ends closes its port before; one that does so for longer goes on without.
const CLOSED_NOTE_AFTER: Duration = Duration::from_secs(2);

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

/// Looks after the local control plane, if it is this one's.
pub(super) async fn keep_control(
    plan: Arc<Plan>,
    voice: Voice,
    mesh: Arc<MeshClient>,
    linger: Duration,
) -> Infallible {
    if !plan.local {
        return std::future::pending().await;
    }
    local::keep(mesh, linger, |kept| match kept {
        Kept::Started(found) => voice.control_plane(&found),
        Kept::Trouble(text) => voice.error(&text),
    })
    .await
}
