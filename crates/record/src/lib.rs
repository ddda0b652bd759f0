//! Run records, histograms, statistics and comparisons of the lab; pure.
//!
//! [`run`] is what a load run emits ([`neighbours`]: one of neighbours), [`record`] the document of a whole experiment, [`mod@compare`]
//! the judgement over its blocks, [`check`] the doubts about it. [`fortio`], [`k6`], [`iperf3`] and
//! [`hlog`] write a run in other tools' formats. Nothing here has a clock, a
//! socket or randomness: times and seeds are arguments.

pub mod check;
pub mod client_limit;
pub mod compare;
pub mod fortio;
pub mod histogram;
pub mod hlog;
pub mod interval;
pub mod iperf3;
pub mod k6;
mod merge;
pub mod mixture;
pub mod neighbours;
pub mod record;
pub mod redraw;
pub mod run;
pub mod search;
mod split_mix;
pub mod threshold;
pub mod throughput;
pub mod tls;
pub mod traffic;

pub use compare::{CompareError, CompareOptions, compare, compare_all};
pub use histogram::{EncodedHistogram, Histogram, HistogramError};
pub use record::{Block, Comparison, Record, RecordError, Row, Subject};
pub use run::RunResult;
pub use split_mix::SplitMix64;
pub use traffic::{LatencyUs, Traffic};
