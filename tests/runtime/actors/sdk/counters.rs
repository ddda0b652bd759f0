//! An app on one SDK that runs the actors `Counter`, and its callers, for the SDKs of several
//! languages. The programs define what a counter does, and how it is called.

use std::process::Command;

use tollway_testkit::{Process, free_port, retry_until};

use tollway_tests::foreign_program::{beside, printed, started};
use tollway_tests::mesh::{Mesh, PATIENCE, Sidecar, http};

pub(crate) struct Counters {
    host: Sidecar,
    _app: Process,
    caller: Sidecar,
    _mesh: Mesh,
}

impl Counters {
    /// `app` is the program that runs the actors at a port, where it has one. An SDK may ask its
    /// sidecar for its health as soon as it is loaded, so the ports are fixed before either is started.
    pub(crate) fn start(has_port: bool, app: impl Fn(&str) -> Command) -> Self {
        let mesh = Mesh::start();
        let port = free_port().unwrap().to_string();
        let options: &[&str] = if has_port { &["--app-port", &port] } else { &[] };
        let host = mesh.west.sidecar("counter", options);
        let mut program = app(&port);
        let app = started(beside(&host, program.env("APP_PORT", &port)));
        until_hosting(&host);
        let caller = mesh.west.caller(&[]);
        Self { host, _app: app, caller, _mesh: mesh }
    }

    /// Counts with an actor of its own from another app, and with one from the app that runs them.
    /// `client` is the program that calls the actor with an id and prints its count.
    #[track_caller]
    pub(crate) fn check(&self, name: &str, client: impl Fn(&str) -> Command) {
        let at_home = format!("{name} at home");
        for (sidecar, id) in [(&self.caller, name), (&self.host, &at_home)] {
            let reported = printed(beside(sidecar, &mut client(id)));
            // An SDK may print something first.
            assert_eq!(reported.lines().last(), Some("7"), "{id}: {reported}");
        }
    }
}

/// Waits until the app has sent its configuration, and the sidecar hosts its actors. Some languages
/// load for a while on a busy machine.
fn until_hosting(sidecar: &Sidecar) {
    let hosting = retry_until(PATIENCE * 4, "a host of actors", || {
        let reported = http::get(sidecar.http(), "/v1.0/metadata");
        reported.contains(r#""hostReady":true"#).then_some(())
    });
    hosting.unwrap();
}
