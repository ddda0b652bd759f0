//! Numbers that every part counts, and the page on which they are scraped.
//!
//! Names, types, labels and help texts are in `catalogue.rs` and nowhere else: a page takes a
//! [`Metric`], never a name. A test compares `docs/metrics.md` with it.

mod build;
mod catalogue;
mod count;
pub mod dapr;
mod data_plane;
mod durations;
mod exports;
mod page;
mod part;
mod process;
mod rules;
mod services;

pub use build::add_build;
pub use catalogue::{METRICS, names};
pub use count::{Counter, Gauge};
pub use dapr::{AnsweredCall, DaprMetrics, DaprPlan, DaprSettings, Judged, LabelRule};
pub use data_plane::DataPlaneMetrics;
pub use durations::Durations;
pub use exports::add_exports;
pub use page::{Family, Kind, Metric, Page};
pub use part::Part;
pub use process::add_process;
pub use rules::{NAMED_RULES_LIMIT, RuleCounts, RuleSeries};
pub use services::{CallEnd, NAMED_SERVICES_LIMIT, SeriesId};
