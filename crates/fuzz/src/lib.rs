//! What must hold of every parser of ours whatever a peer sends.
//!
//! A target is a function of bytes that panics where something does not hold: that no input makes
//! the parser panic is the least of it. Each also compares the parser with itself (the same bytes
//! in other pieces, what was read written and read again) or with one of another project.
//! `cargo xtask fuzz` looks for bytes that break a target; those that reach new code are kept in
//! `corpus/NAME` and replayed by the tests.

mod bundle;
mod certificate;
mod frames;
mod go_files;
mod http1;
mod http1_body;
mod http2;
mod manifest;
mod messages;
mod names;
mod neighbours;
mod pieces;
mod schedule;
mod server_name;
mod token;

pub use frames::may_load as may_load_programs;

/// One parser under test.
pub struct Target {
    pub name: &'static str,
    /// Panics where a promise is broken. Keeps nothing from one call to the next.
    pub run: fn(&[u8]),
}

/// Every target, in the order in which they are fuzzed.
pub const TARGETS: &[Target] = &[
    // Heads of HTTP/1.1 requests: any pieces, written again, beside httparse.
    Target { name: "http1-request", run: http1::request },
    // Heads of HTTP/1.1 responses: any pieces, written again, beside httparse.
    Target { name: "http1-response", run: http1::response },
    // Chunked bodies and their trailers: any pieces, written again.
    Target { name: "http1-body", run: http1_body::run },
    // Join bundles: operators of other networks.
    Target { name: "bundle", run: bundle::run },
    // The identity in a certificate: every peer of the mesh.
    Target { name: "certificate", run: certificate::run },
    // Dapr's resources and Configurations: users; as JSON, and with other line ends.
    Target { name: "dapr-files", run: go_files::dapr },
    // Frames of virtual networks: guests and hosts; through the programs, beside etherparse.
    Target { name: "frames", run: frames::run },
    // Files of objects: users; written again.
    Target { name: "manifest", run: manifest::run },
    // Messages of discovery, registry, placement, reminders and state: every peer; written again.
    Target { name: "messages", run: messages::run },
    // Names of services and SPIFFE IDs: every peer; written again.
    Target { name: "names", run: names::run },
    // Packed neighbours: users, agents, the control plane; read, written again, cut anywhere.
    Target { name: "neighbours", run: neighbours::run },
    // Run files: users; as JSON, and with other line ends.
    Target { name: "run-file", run: go_files::run_file },
    // When timers and reminders of actors are due: apps; written again.
    Target { name: "schedule", run: schedule::run },
    // The server name of a ClientHello, which a gateway goes by: any pieces.
    Target { name: "server-name", run: server_name::run },
    // Join tokens: everybody who reaches a control plane; written again.
    Target { name: "token", run: token::run },
    // HTTP/2 frames from a client: sidecars, gateways, apps' calls; any pieces.
    Target { name: "http2-server", run: http2::server },
    // HTTP/2 frames from a server: other sidecars and apps; any pieces.
    Target { name: "http2-client", run: http2::client },
];

/// The target of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
