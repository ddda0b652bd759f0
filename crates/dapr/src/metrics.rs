//! What Configurations choose about metrics: `spec.metrics`, and its former name `spec.metric`.

use std::collections::BTreeMap;

use serde::Deserialize;
use tollway_telemetry::{DaprPlan, DaprSettings, LabelRule};

/// A section, as one document has it or as several add up to.
#[derive(Clone, Default, Deserialize, Debug)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Section {
    enabled: Option<bool>,
    record_error_codes: Option<bool>,
    http: Option<Http>,
    latency_distribution_buckets: Option<Vec<i64>>,
    rules: Vec<Rule>,
}

#[derive(Clone, Default, Deserialize, Debug)]
#[serde(default, rename_all = "camelCase")]
struct Http {
    increased_cardinality: Option<bool>,
    path_matching: Option<Vec<String>>,
    exclude_verbs: Option<bool>,
}

#[derive(Clone, Default, Deserialize, Debug)]
#[serde(default)]
struct Rule {
    name: String,
    labels: Vec<Label>,
}

#[derive(Clone, Default, Deserialize, Debug)]
#[serde(default)]
struct Label {
    name: String,
    /// By what takes their place.
    regex: BTreeMap<String, String>,
}

impl Section {
    /// Whether it chooses anything.
    pub(crate) fn is_filled(&self) -> bool {
        let Self { enabled, record_error_codes, http, latency_distribution_buckets, rules } = self;
        enabled.is_some()
            || record_error_codes.is_some()
            || http.is_some()
            || latency_distribution_buckets.is_some()
            || !rules.is_empty()
    }

    /// Takes in the section of a later document: what that has counts.
    pub(crate) fn add(&mut self, later: Self) {
        self.http = match (self.http.take(), later.http) {
            (Some(former), Some(later)) => Some(Http {
                increased_cardinality: later.increased_cardinality.or(former.increased_cardinality),
                path_matching: later.path_matching.or(former.path_matching),
                exclude_verbs: later.exclude_verbs.or(former.exclude_verbs),
            }),
            (former, later) => later.or(former),
        };
        self.enabled = later.enabled.or(self.enabled);
        self.record_error_codes = later.record_error_codes.or(self.record_error_codes);
        let former = self.latency_distribution_buckets.take();
        self.latency_distribution_buckets = later.latency_distribution_buckets.or(former);
        if !later.rules.is_empty() {
            self.rules = later.rules;
        }
    }

    /// The section under the former name with that under the present one: what the latter has counts,
    /// and its `http` as a whole.
    pub(crate) fn with(mut self, present: Self) -> Self {
        if present.http.is_some() {
            self.http = None;
        }
        self.add(present);
        self
    }

    /// The plan for metrics under Dapr's names; `None` where there are none. What daprd passes over is
    /// in `notes`.
    ///
    /// # Errors
    /// A pattern that daprd does not start with, and why.
    pub(crate) fn plan(self, notes: &mut Vec<String>) -> Result<Option<DaprPlan>, String> {
        if self.enabled == Some(false) {
            return Ok(None);
        }
        let http = self.http.unwrap_or_default();
        let of_rule = |Rule { name, labels }: Rule| {
            labels.into_iter().map(move |label| LabelRule {
                metric: name.clone(),
                label: label.name,
                replaced: label.regex.into_iter().collect(),
            })
        };
        let settings = DaprSettings {
            labels_paths: http.increased_cardinality.unwrap_or(true),
            excludes_verbs: http.exclude_verbs.unwrap_or(false),
            path_patterns: http.path_matching.unwrap_or_default(),
            latency_bounds: self.latency_distribution_buckets.unwrap_or_default(),
            counts_errors: self.record_error_codes.unwrap_or(false),
            rules: self.rules.into_iter().flat_map(of_rule).collect(),
        };
        let plan = DaprPlan::read(&settings, notes)
            .map_err(|why| format!("spec.metrics.http.pathMatching: {why}; change the pattern"))?;
        Ok(Some(plan))
    }
}
