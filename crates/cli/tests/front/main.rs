//! `tollway front` as a process, in front of apps: foreign clients over TLS 1.2 and 1.3, many
//! certificates, clients with and without their own, files that change under load.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../doors/app.rs"]
#[allow(dead_code, reason = "the tests of the other doors use more of it")]
mod app;
#[path = "../doors/h2/attacker.rs"]
#[allow(dead_code, reason = "the tests of the other doors use more of it")]
mod attacker;
mod certificates;
mod clients;
mod foreign;
#[path = "../doors/h2/frames.rs"]
#[allow(dead_code, reason = "the tests of the other doors use more of it")]
mod frames;
#[path = "../mesh/http.rs"]
#[allow(dead_code, reason = "the tests of the mesh use more of it")]
mod http;
mod http2;
#[path = "../metrics_page/mod.rs"]
mod metrics_page;
mod page;
mod pki;
mod reload;
mod requests;
mod start;
mod tls;
mod world;

use world::PATIENCE;
