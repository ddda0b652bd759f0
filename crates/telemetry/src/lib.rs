//! Logs and metrics of every part. All metric names stand in `metrics.rs`.

#![forbid(unsafe_code)]

mod log;
mod metrics;

pub use log::{LogFormat, init_log};
pub use metrics::{Counter, DataPlaneMetrics, Gauge};
