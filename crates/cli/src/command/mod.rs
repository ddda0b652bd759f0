//! One module for each command: its options, and what it does. `args` collects them.

pub(crate) mod access;
pub(crate) mod actors;
pub(crate) mod api_tokens;
pub(crate) mod apply;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod demo;
pub(crate) mod echo;
pub(crate) mod fabric;
pub(crate) mod front;
pub(crate) mod gateway;
pub(crate) mod get;
pub(crate) mod join;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod local_control;
pub(crate) mod log;
pub(crate) mod mesh;
pub(crate) mod neighbours;
pub(crate) mod resources;
pub(crate) mod run;
pub(crate) mod sidecar;
pub(crate) mod store;
mod store_location;
pub(crate) mod telemetry;
pub(crate) mod token;
