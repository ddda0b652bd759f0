//! Starts an app with its sidecar and ends both in order (`one_app`), the apps of one of Dapr's run
//! files (`run_file`), and this user's local control plane (`local_control`).
//!
//! An app is a process of [`tollway_net::process`] in a group of its own. The kernel ends it when
//! this process is killed, and a guard ends what the app has started. `Console` prints what happens.
//!
//! The command line, its settings and the exit of the process are left to the caller. The program
//! that uses this crate serves three hidden commands: `local-control`, `run-guard`, and
//! `sidecar --dapr`.

#![forbid(unsafe_code)]

mod access;
mod console;
mod error;
mod instance;
pub mod local_control;
mod one_app;
mod program;
pub mod run_file;
mod signals;

pub use access::{Access, WhenAbsent, local_access, refuse_unused_token};
pub use console::Console;
pub use error::{AppPortTaken, CannotStart, LaunchError};
pub use instance::random_instance;
pub use local_control::{LocalControl, LocalError};
pub use one_app::environment::{API_TOKEN_VARIABLE, APP_TOKEN_VARIABLE, state_folder};
pub use one_app::{InterceptOptions, Interceptor, Listen, RunOptions, run_app};
