//! A request's stages: listeners, protocols, forwarding, policies, and its records.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod access_log;
mod balance;
mod bodies;
mod clients;
mod crossing;
mod decisions;
mod egress;
mod front;
mod grpc;
mod listeners;
mod locality;
mod metrics;
mod objects;
mod outliers;
mod policy;
mod routes;
mod steering;
mod tracing;
mod traffic;
mod transport;
