//! Comparisons by purpose: each judged row with its baseline; pairs with one question and one
//! baseline are grouped.

use tollway_record::compare::BASELINE_SUBJECT;
use tollway_record::record::{Comparison, Metric, Question, Record, Row};

/// The subject whose added latency is in question, unless a variant is named.
pub(crate) const TOLLWAY: &str = "tollway";

/// A judged row, and all that was compared of it and its baseline.
pub(crate) struct Pair<'a> {
    pub(crate) row: &'a Row,
    pub(crate) baseline: Option<&'a Row>,
    pub(crate) question: Question,
    comparisons: Vec<&'a Comparison>,
}

/// Pairs that are summarised together.
pub(crate) struct Contest<'a> {
    pub(crate) question: Question,
    /// The label of the subject that the others are held against.
    pub(crate) baseline: String,
    pub(crate) pairs: Vec<Pair<'a>>,
}

/// The record's comparisons, what the network and Tollway add first, then the other baselines in
/// their order.
pub(crate) fn contests(record: &Record) -> Vec<Contest<'_>> {
    let mut pairs = pairs(record);
    pairs.sort_by_key(|pair| pair.question);
    let mut found: Vec<Contest<'_>> = Vec::new();
    for pair in pairs {
        let (question, baseline) = (pair.question, pair.baseline_label());
        let known = |contest: &&mut Contest<'_>| {
            let one_baseline = question != Question::AgainstBaseline;
            contest.question == question && (one_baseline || contest.baseline == baseline)
        };
        match found.iter_mut().find(known) {
            Some(contest) => contest.pairs.push(pair),
            None => found.push(Contest { question, baseline, pairs: vec![pair] }),
        }
    }
    found
}

fn pairs(record: &Record) -> Vec<Pair<'_>> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for comparison in &record.comparisons {
        let (row, base) = (&comparison.row, &comparison.baseline_row);
        let known = |pair: &&mut Pair<'_>| {
            pair.question == comparison.question
                && pair.comparisons[0].row == *row
                && pair.comparisons[0].baseline_row == *base
        };
        if let Some(pair) = pairs.iter_mut().find(known) {
            pair.comparisons.push(comparison);
        } else if let Some(row) = record.row(row) {
            let (question, comparisons) = (comparison.question, vec![comparison]);
            pairs.push(Pair { row, baseline: record.row(base), question, comparisons });
        }
    }
    pairs
}

impl<'a> Pair<'a> {
    pub(crate) fn find(&self, metric: Metric) -> Option<&'a Comparison> {
        self.comparisons.iter().copied().find(|comparison| comparison.metric == metric)
    }

    pub(crate) fn mean(&self) -> Option<&'a Comparison> {
        self.find(Metric::LatencyMean)
    }

    /// Of what goes as fast as it can: the time that one more answer, megabyte or packet takes.
    pub(crate) fn full_load(&self) -> Option<&'a Comparison> {
        const TIMES: [Metric; 3] =
            [Metric::TimePerAnswer, Metric::TimePerMegabyte, Metric::TimePerPacket];
        TIMES.into_iter().find_map(|metric| self.find(metric))
    }

    /// What the pair is judged by: at full load the rate, at a given rate the mean response.
    pub(crate) fn primary(&self) -> Option<&'a Comparison> {
        self.full_load().or_else(|| self.mean())
    }

    pub(crate) fn label(&self) -> String {
        super::clipped(&self.row.conditions.label())
    }

    /// What the row is held against; a row that is in another record is called as this one.
    pub(crate) fn baseline_label(&self) -> String {
        let baseline = self.baseline.unwrap_or(self.row);
        super::clipped(&baseline.conditions.label())
    }
}

impl Contest<'_> {
    /// Whether the subject's name must be given for each pair.
    pub(crate) fn names_subjects(&self) -> bool {
        match self.question {
            Question::AgainstBaseline => true,
            Question::AddedByTollway => self.pairs.iter().any(|pair| pair.label() != TOLLWAY),
            Question::AddedByNetwork => false,
        }
    }

    pub(crate) fn title(&self) -> String {
        match self.question {
            Question::AddedByNetwork => "Added by the network".to_owned(),
            Question::AddedByTollway => "Added by Tollway".to_owned(),
            Question::AgainstBaseline => format!("Against {}", self.baseline),
        }
    }

    /// What is subtracted from what, and divided by what.
    pub(crate) fn note(&self) -> String {
        match self.question {
            Question::AddedByNetwork => {
                "direct over this path minus direct in the same network, without Tollway in either"
                    .to_owned()
            }
            Question::AddedByTollway => {
                "tollway minus direct over the same path, interleaved".to_owned()
            }
            Question::AgainstBaseline => {
                format!("subject minus {} over the same path, interleaved", self.baseline)
            }
        }
    }

    /// What the ratios are ratios to.
    pub(crate) fn ratio_to(&self) -> String {
        match self.question {
            Question::AddedByNetwork => "the same subject in the same network".to_owned(),
            Question::AddedByTollway => "the same path without Tollway (direct)".to_owned(),
            Question::AgainstBaseline => format!("{} over the same path", self.baseline),
        }
    }

    pub(crate) fn is_against_direct(&self) -> bool {
        self.baseline == BASELINE_SUBJECT
    }
}
