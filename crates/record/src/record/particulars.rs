//! What runs of TLS, of streams of messages and of raw throughput have besides their traffic.

use serde::{Deserialize, Serialize};

use crate::run::{RunResult, Streaming};
use crate::search::SearchResult;
use crate::throughput::ThroughputTotals;
use crate::tls::TlsFacts;

/// The parts of a run's result that only some kinds of runs have; in a row all blocks together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Particulars {
    /// What the generator's TLS connections agreed on; absent without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_facts: Option<TlsFacts>,
    /// Absent in runs of anything but streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<Streaming>,
    /// Absent in runs of anything but raw throughput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<ThroughputTotals>,
    /// Absent unless the run searched for the highest rate; of a row the first block's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchResult>,
}

impl From<&RunResult> for Particulars {
    fn from(run: &RunResult) -> Self {
        Self {
            tls_facts: run.tls_facts.clone(),
            streaming: run.streaming.clone(),
            throughput: run.throughput.as_ref().map(ThroughputTotals::from),
            search: run.search.clone(),
        }
    }
}
