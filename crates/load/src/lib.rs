//! The load engine: arrivals, clients, recorders, echo servers.

pub mod arrival;
