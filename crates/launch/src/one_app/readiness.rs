//! What is watched while the app runs: whether it takes calls, and whether there is a control
//! plane. Both futures run until they are dropped.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tollway_proxy::mesh::MeshClient;

use super::messages;
use super::plan::Plan;
use crate::console::Console;
use crate::local_control::{ControlEvent, restart_when_absent};

/// An app that does not listen for so long gets a hint.
const LISTEN_HINT_AFTER: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// An app that ends closes its port before; one that does so for longer goes on without.
const CLOSED_NOTE_AFTER: Duration = Duration::from_secs(2);

/// Prints when the app takes calls, when it stops to, and when it does not after a time.
pub(super) async fn print_readiness(
    plan: Arc<Plan>,
    console: Console,
    mut ready: watch::Receiver<bool>,
) -> Infallible {
    if plan.app.is_none() {
        return std::future::pending().await;
    }
    let listens = ready.wait_for(|ready| *ready);
    if tokio::time::timeout(LISTEN_HINT_AFTER, listens).await.is_err() {
        let elsewhere = listens_on_ipv6(&plan).await;
        messages::app_late(console, &plan, LISTEN_HINT_AFTER.as_secs(), elsewhere);
    }
    loop {
        if ready.wait_for(|ready| *ready).await.is_err() {
            return std::future::pending().await;
        }
        messages::app_ready(console, &plan);
        loop {
            if ready.wait_for(|ready| !*ready).await.is_err() {
                return std::future::pending().await;
            }
            let open_again = ready.wait_for(|ready| *ready);
            if tokio::time::timeout(CLOSED_NOTE_AFTER, open_again).await.is_err() {
                break;
            }
        }
        messages::app_not_ready(console, &plan);
    }
}

/// Whether the app took `localhost` for the other loopback address.
async fn listens_on_ipv6(plan: &Plan) -> bool {
    let Some((address, _)) = plan.app else { return false };
    let other = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    let network = plan.app_network();
    let other = async {
        match network {
            Some(network) => {
                let socket = network.socket(other)?;
                TcpSocket::from_std_stream(socket.into()).connect(other).await
            }
            None => TcpStream::connect(other).await,
        }
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, other).await;
    address.ip() == Ipv4Addr::LOCALHOST && matches!(connected, Ok(Ok(_)))
}

/// Starts the local control plane again when it is absent, if the app uses it.
pub(super) async fn watch_control(
    plan: Arc<Plan>,
    console: Console,
    mesh: Arc<MeshClient>,
    linger: Duration,
) -> Infallible {
    if !plan.local {
        return std::future::pending().await;
    }
    restart_when_absent(mesh, linger, |event| match event {
        ControlEvent::Started(found) => console.control_plane(&found),
        ControlEvent::Failed(error) => console.failure(&error),
    })
    .await
}
