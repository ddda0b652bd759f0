//! Telemetry of a running part: its log, its metrics and the admin port that serves them, spans for
//! a collector, and the access log. `metrics/catalogue.rs` has all metric names.

#![forbid(unsafe_code)]

mod access_log;
mod admin;
mod bounded;
mod daprd_lines;
mod handoff;
mod log;
mod log_limiter;
pub mod metrics;
mod terminal;
pub mod trace;
#[cfg(test)]
mod written;

pub use access_log::{AccessLog, AccessLogError, LineMetrics, LogTarget};
pub use admin::{AdminFacts, serve_admin};
pub use bounded::Bounded;
pub use handoff::{Batches, Handoff};
pub use log::{Log, LogFilter, LogFilterError, LogFormat, init_log, start_daprd_log, start_log};
pub use log_limiter::{LOG_LINE_EVERY, LOG_LINES, LOG_SUBJECTS, LogLimiter};
pub use metrics::{
    AnsweredCall, CallEnd, Counter, DaprMetrics, DaprPlan, DaprSettings, DataPlaneMetrics, Gauge,
    Judged, LabelRule, Page, RuleCounts, RuleSeries, SeriesId,
};
pub use terminal::init_terminal_log;
