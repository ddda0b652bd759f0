//! Two apps on one SDK in east, one over HTTP and one over gRPC, and a sidecar in west for who calls
//! them, as the SDKs of several languages are tried.

use std::process::Command;

use tollway_testkit::{Process, free_port, retry_until};

use super::super::call;
use tollway_tests::foreign_program::{beside, printed, started};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar};

/// Where the apps are called.
pub(crate) const HTTP: &str = "shop-http.default.east";
pub(crate) const GRPC: &str = "shop-grpc.default.east";
/// A service that is not registered.
pub(crate) const NOBODY: &str = "nobody.default.east";

/// The output for a caller there.
pub(crate) const UNKNOWN: &str = "sidecar caller.default.west: service nobody.default.east is not \
     known; check its name and that it runs";

/// An app and its sidecar.
struct App {
    _sidecar: Sidecar,
    _process: Process,
}

pub(crate) struct Shop {
    _http: App,
    _grpc: App,
    caller: Sidecar,
    _mesh: Mesh,
}

impl Shop {
    /// `app` is the program of an app that takes calls over `http` or `grpc` at a port.
    pub(crate) fn open(app: impl Fn(&str, &str) -> Command) -> Self {
        let mesh = Mesh::start();
        let start = |protocol, word: &str| {
            let port = free_port().unwrap();
            let sidecar = mesh.east.sidecar_of(&format!("shop-{word}"), port, protocol);
            let mut program = app(word, &port.to_string());
            program.env("APP_PORT", port.to_string());
            let process = started(beside(&sidecar, &mut program));
            App { _sidecar: sidecar, _process: process }
        };
        let (http, grpc) = (start(AppProtocol::Http, "http"), start(AppProtocol::Grpc, "grpc"));
        let caller = mesh.west.caller(&[]);
        for id in [HTTP, GRPC] {
            until_answered(&caller, id);
        }
        Self { _http: http, _grpc: grpc, caller, _mesh: mesh }
    }

    /// The output of a client that runs at the caller's sidecar.
    pub(crate) fn printed_by(&self, client: &mut Command) -> String {
        printed(beside(&self.caller, client))
    }
}

/// Waits until an app answers, with any content.
fn until_answered(caller: &Sidecar, id: &str) {
    let path = format!("/v1.0/invoke/{id}/method/nothing");
    let mut last = None;
    let answered = retry_until(PATIENCE, id, || {
        let (_, fields, body) = runtime().block_on(call(caller.http(), "GET", &path, &[], ""));
        let is_apps = !fields.contains_key("x-tollway-error");
        last = Some(body);
        is_apps.then_some(())
    });
    assert!(answered.is_ok(), "{id} does not answer: {last:?}");
}
