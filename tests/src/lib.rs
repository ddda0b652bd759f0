//! What the tests of whole processes share: networks of real processes, clients and servers that
//! break rules on purpose, users' homes, pages of metrics.
//!
//! The tests themselves are the programs beside `src`, one folder each. Helpers that tests of single
//! crates need too are in `testkit`.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

pub mod component_files;
pub mod fickle_app;
pub mod foreign_program;
pub mod grpcio;
pub mod h2_attacker;
pub mod h2_frames;
pub mod line_service;
pub mod load_command;
pub mod mesh;
pub mod metrics_page;
pub mod name_server;
pub mod names;
pub mod network;
pub mod pki;
mod program;
pub mod scripted_app;
pub mod site;
pub mod state_contract;
pub mod tls_client;
pub mod user;

pub use program::{is_former, new_options, newest, program};
