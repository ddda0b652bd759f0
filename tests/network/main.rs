//! A network over time: its control plane, stores, certificates, fabric and gateways, and what it survives.

#![allow(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod attacks;
mod away;
mod control_addresses;
mod databases;
mod dial_out;
mod etcd;
mod fabric;
mod failover;
mod failures;
mod foreign_tls;
mod ipv6;
mod key_exchange;
mod lifecycle;
mod mesh_client;
mod names;
mod neighbours;
mod network_store;
mod reliability;
mod reload;
mod restarts;
mod silent;
mod taking_back;
