//! What a kind of measurement contributes to an experiment: its rows, its runs, how one run is
//! made, and its part of the record. The order of stages is the experiment's.

use std::collections::BTreeMap;

use tollway_record::record::{Comparison, FabricRow, IdleUsage, SeedTable, Subject};
use tollway_record::{Record, Row};

use super::journal::Entry;
use super::measure::MeasuredRow;
use crate::error::LabError;
use crate::progress::Progress;

/// One run of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Index of the row.
    pub cell: usize,
    pub block: u32,
    /// Index among the runs of its block.
    pub position: u32,
}

/// Everything of one kind of measurement that an experiment has running.
pub(super) trait Kind {
    /// Ids of the rows, in the order of the report.
    fn rows(&self) -> Vec<String>;

    /// The runs in the order of time.
    fn runs(&self) -> Vec<Run>;

    /// Before the first run.
    fn begin(&mut self, progress: &mut dyn Progress) -> Result<(), LabError>;

    /// Which round a run belongs to: [`Self::begin_round`] and [`Self::end_round`] surround the runs
    /// of each.
    fn round_of(&self, run: &Run) -> (usize, u32);

    /// Before the first run of a round.
    fn begin_round(&mut self, is_first: bool, progress: &mut dyn Progress) -> Result<(), LabError>;

    /// Makes one run. `rows` is what was measured so far.
    fn run_one(&mut self, run: &Run, rows: &[MeasuredRow]) -> Result<Entry, LabError>;

    /// After the last run of a round.
    fn end_round(&mut self);

    /// A run in a few words, for the progress.
    fn outcome(&self, run: &Run, entry: &Entry) -> String;

    /// After the last run, while everything is still running.
    fn end(&mut self) -> Result<(), LabError>;

    /// Stops everything. Returns a sentence for each part that did not end as it should.
    fn stop(&mut self) -> Vec<String>;

    /// Its part of the record.
    fn contents(&self, rows: Vec<MeasuredRow>) -> Result<Contents, LabError>;

    /// Published figures with today's, from a record that is otherwise complete.
    fn seed_table(&self, record: &Record) -> Option<SeedTable>;
}

/// What a record has of one kind of measurement.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) rows: Vec<Row>,
    pub(super) fabric: Vec<FabricRow>,
    pub(super) idle: Vec<IdleUsage>,
    pub(super) subjects: Vec<Subject>,
    pub(super) comparisons: Vec<Comparison>,
    /// Besides those of every experiment.
    pub(super) parameters: BTreeMap<String, serde_json::Value>,
    pub(super) notes: Vec<String>,
    pub(super) not_measured: Vec<String>,
    /// About what was measured, besides those of the record's check.
    pub(super) warnings: Vec<String>,
}
