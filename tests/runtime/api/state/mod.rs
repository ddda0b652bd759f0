//! The state API: statuses, fields, envelopes and codes are Dapr's, over HTTP and over gRPC.

mod api;
mod component;
mod rpc;
mod sdk;

use std::net::SocketAddr;

use serde_json::Value;
use tollway_testkit::TempDir;

use super::call;
use tollway_tests::component_files::{component, resources};
use tollway_tests::mesh::{Mesh, Sidecar};

/// A sidecar of `caller` with the resources of a folder.
fn sidecar(mesh: &Mesh, folder: &TempDir) -> Sidecar {
    mesh.west.caller(&["--resources-path", folder.path().to_str().unwrap()])
}

/// A sidecar with the store `statestore` in memory.
fn in_memory(mesh: &Mesh) -> Sidecar {
    sidecar(mesh, &resources(&[component("statestore", "state.in-memory", &[])]))
}

/// The envelope of a refusal: status, code and message, and the details by the ends of their
/// types.
async fn refused(
    listener: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> (u16, String, String, Value) {
    let (status, fields, text) = call(listener, method, path, fields, body.to_owned()).await;
    assert_eq!(fields["content-type"], "application/json", "{text}");
    let reported: Value = serde_json::from_str(&text).unwrap();
    let word = |name: &str| reported[name].as_str().unwrap().to_owned();
    assert_eq!(fields["x-tollway-error"], word("errorCode"));
    (status.as_u16(), word("errorCode"), word("message"), reported["details"].clone())
}
