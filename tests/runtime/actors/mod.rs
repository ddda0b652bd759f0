//! Actors: apps that run them over HTTP, with real sidecars and a real control plane.

pub(crate) mod access;
mod app;
mod as_daprd;
mod belonging;
mod callers;
mod calls;
mod faults;
mod held_bodies;
mod hosts;
mod moves;
mod refusals;
mod relay;
mod reminders;
mod rows;
mod sdk;
mod state;
mod stores;
mod streams;
mod timer_load;
mod timers;

use std::net::SocketAddr;
use std::time::Duration;

use app::{ActorApp, Log};
use serde_json::Value;
use tollway_tests::mesh::http::call;
use tollway_tests::mesh::{Network, PATIENCE, Sidecar, start_tollway};

/// Types as an app without wishes offers them.
const CONFIG: &str = r#"{"entities":["Cart"]}"#;

/// A replica of an app that runs actors, and its sidecar.
struct Replica {
    sidecar: Sidecar,
    app: ActorApp,
}

impl Replica {
    async fn start(network: &Network, app: &str, replica: &str, config: &str, log: &Log) -> Self {
        Self::with(network, app, replica, config, log, &[]).await
    }

    async fn with(
        network: &Network,
        app: &str,
        replica: &str,
        config: &str,
        log: &Log,
        options: &[&str],
    ) -> Self {
        Self::behind(network, network.control_address, app, replica, config, log, options).await
    }

    /// The same, with its control plane behind another address.
    async fn behind(
        network: &Network,
        control: SocketAddr,
        app: &str,
        replica: &str,
        config: &str,
        log: &Log,
        options: &[&str],
    ) -> Self {
        let served = ActorApp::serve(replica, config, log).await;
        let port = served.address.port().to_string();
        let options = [&["--app-port", &port], options].concat();
        let sidecar = tokio::task::block_in_place(|| {
            network.sidecar_of_control(
                &control.to_string(),
                start_tollway("sidecar"),
                app,
                &options,
            )
        });
        served.beside(sidecar.http());
        Self { sidecar, app: served }
    }

    fn api(&self) -> SocketAddr {
        self.sidecar.http()
    }
}

/// Calls a method of an actor; status and body of the answer.
async fn invoke(listener: SocketAddr, actor: &str, method: &str, body: &str) -> (u16, String) {
    let path = format!("/v1.0/actors/{actor}/method/{method}");
    let (status, _, text) = call(listener, "POST", &path, &[], body.to_owned()).await;
    (status.as_u16(), text)
}

/// Waits until a type is offered and an actor of it answers.
async fn until_hosted(listener: SocketAddr, actor: &str) {
    let began = std::time::Instant::now();
    loop {
        let (status, text) = invoke(listener, actor, "hello", "").await;
        if status == 200 {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{actor} is not hosted: {status} {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Code and message of an envelope.
#[track_caller]
fn envelope(text: &str) -> (String, String) {
    let reported: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
    let word = |name: &str| reported[name].as_str().unwrap().to_owned();
    (word("errorCode"), word("message"))
}
