//! What strangers do at every door of a data plane: malformed and abusive HTTP, and peers that
//! are not who they should be. The shipped binary runs as processes; the callers are raw.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod aborted;
mod app;
mod circles;
mod door;
mod early;
mod fields;
mod forged;
mod framing;
mod h1;
mod h2;
mod h2spec;
mod handshakes;
mod identity;
mod interim;
mod malformed;
#[path = "../mesh/mod.rs"]
mod mesh;
mod network;
#[path = "../front/pki.rs"]
#[allow(dead_code, reason = "the tests of the front use more of it")]
mod pki;
mod relay;
mod responses;
mod share;
mod tls_client;
mod tls_door;
mod tunnel;
mod upgrades;
mod way;
