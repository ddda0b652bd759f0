//! What daprd reads: its command-line flags and Dapr's files, turned into the options of a sidecar.
//!
//! Flags: `parse` reads the words as daprd does, with the table in `flags`; `options` decides what
//! they mean. Files: `files` reads Configuration, Resiliency and HTTPEndpoint, `components` the
//! components that an app may use.
//!
//! Nothing here starts a sidecar, writes a log line or ends the process; the caller does.

#![forbid(unsafe_code)]

mod access_control;
mod components;
mod configuration;
mod error;
mod files;
mod flags;
mod http_endpoint;
mod options;
mod parse;
mod resiliency;
mod values;

pub use components::{Components, read_components};
pub use configuration::Configuration;
pub use error::DaprError;
pub use files::{Files, FilesRead};
pub use flags::usage;
pub use options::{DaprdApp, DaprdOptions, check_flags};
pub use parse::{GivenFlags, ParseError, Parsed, parse};
