//! Topologies, links, limits, subjects and scenarios that measure shipped binaries.

pub mod calibrate;
pub mod cancel;
pub mod link_command;
pub mod ping;
pub mod ports;
pub mod process;
pub mod relay;
pub mod sample;
