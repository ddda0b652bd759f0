//! `tollway front` as a process, in front of apps: foreign clients over TLS 1.2 and 1.3, many
//! certificates, clients with and without their own, files that change under load.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../doors/app.rs"]
#[allow(dead_code, reason = "the tests of the other doors use more of it")]
mod app;
mod certificates;
mod clients;
mod foreign;
#[path = "../metrics_page/mod.rs"]
mod metrics_page;
mod page;
mod pki;
mod reload;
mod requests;
mod start;
mod tls;
mod world;
