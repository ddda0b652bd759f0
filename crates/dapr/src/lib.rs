//! What daprd reads: its command-line flags and Dapr's files, turned into the options of a sidecar.
//!
//! Flags: `parse` reads the words as daprd does, with the table in `flags`; `options` decides what
//! they mean. Files: `resources` finds the documents of folders, `components` reads the components
//! that an app may use, `files` the rest. `dapr_run` reads the words of `dapr run`.
//!
//! Nothing here starts a sidecar, writes a log line or ends the process; the caller does.

#![forbid(unsafe_code)]

mod access_control;
mod components;
mod configuration;
#[cfg(test)]
mod corpus;
mod dapr_run;
mod error;
mod files;
mod flags;
mod http_endpoint;
mod metrics;
mod options;
mod parse;
mod resiliency;
mod resources;
mod values;

pub use configuration::Configuration;
pub use dapr_run::{DaprRun, DaprRunError, keys_of_options, option_of_key, parse_dapr_run};
pub use error::DaprError;
pub use files::{FileTexts, Files, FilesRead};
pub use flags::usage;
pub use options::{DaprdApp, DaprdOptions, check_flags};
pub use parse::{GivenFlags, ParseError, Parsed, parse};
