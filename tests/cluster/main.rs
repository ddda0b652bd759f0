//! The product in real Kubernetes clusters: installed by its chart, its sidecars in pods.
//!
//! `cargo xtask cluster test` brings the clusters up with the image of the program and runs these; each
//! test has namespaces of its own, and the first one installs the chart.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod dapr;
mod etcd;
mod fabric;
mod figures;
mod gateway_api;
mod identity;
mod injection;
mod install;
mod joined;
mod killed;
mod resources;
mod services;
mod support;
mod trouble;
mod volume;
