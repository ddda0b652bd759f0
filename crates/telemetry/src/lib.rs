//! What a running part tells about itself: its log, its metrics, and the admin port that shows
//! them. All metric names stand in `metrics/catalogue.rs`.

#![forbid(unsafe_code)]

mod admin;
mod log;
pub mod metrics;
mod terminal;

pub use admin::{AdminFacts, serve_admin};
pub use log::{Log, LogFilter, LogFilterError, LogFormat, init_log, start_log};
pub use metrics::{Counter, DataPlaneMetrics, Gauge, Page};
pub use terminal::init_terminal_log;
