//! `tollway` as a user types it: run, call, check, help and errors.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod call;
mod check;
mod dapr_files;
mod explain;
mod intercept;
mod kube;
mod newcomer;
mod run;
mod run_file;
mod settings;
mod state;
mod terminal;
