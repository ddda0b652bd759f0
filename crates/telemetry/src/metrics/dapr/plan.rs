//! What a Configuration of Dapr's chooses about metrics under its names, read once.

use thiserror::Error;

use super::paths::PathLabels;
use super::patterns::PathPatterns;
use super::rules::{LabelRule, Rules};
use super::table::Bounds;

/// The choices of a Configuration, as it has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaprSettings {
    /// Every path has a label, without keys of state and ids of actors (`increasedCardinality`).
    pub labels_paths: bool,
    /// The label of methods is left empty (`excludeVerbs`).
    pub excludes_verbs: bool,
    /// Patterns of Go's `ServeMux` that are labels for the paths they match (`pathMatching`).
    pub path_patterns: Vec<String>,
    /// Upper bounds of the buckets for latencies, in milliseconds; Dapr's own without any.
    pub latency_bounds: Vec<i64>,
    /// Errors of the API are counted by their codes (`recordErrorCodes`).
    pub counts_errors: bool,
    pub rules: Vec<LabelRule>,
}

impl Default for DaprSettings {
    /// As Dapr has it without a Configuration: every path has a label.
    fn default() -> Self {
        Self {
            labels_paths: true,
            excludes_verbs: false,
            path_patterns: Vec::new(),
            latency_bounds: Vec::new(),
            counts_errors: false,
            rules: Vec::new(),
        }
    }
}

/// Patterns of paths that Go's `ServeMux` refuses, for which daprd ends.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct PathMatchingError(String);

/// [`DaprSettings`], ready for use.
#[derive(Clone, Debug)]
pub struct DaprPlan {
    settings: DaprSettings,
    pub(super) paths: PathLabels,
    pub(super) excludes_verbs: bool,
    pub(super) bounds: Bounds,
    pub(super) counts_errors: bool,
    pub(super) rules: Rules,
}

impl DaprPlan {
    /// Reads settings. Rules of which one cannot be read, and buckets that cannot be, are left out, with
    /// the reason in `notes`.
    ///
    /// # Errors
    /// [`PathMatchingError`].
    pub fn read(
        settings: &DaprSettings,
        notes: &mut Vec<String>,
    ) -> Result<Self, PathMatchingError> {
        let is_detailed = settings.labels_paths;
        let list = &settings.path_patterns;
        let patterns = match list.is_empty() {
            true => None,
            false => Some(PathPatterns::read(list, is_detailed).map_err(PathMatchingError)?),
        };
        let bounds = Bounds::of_latencies(&settings.latency_bounds).unwrap_or_else(|why| {
            notes.push(format!("latencyDistributionBuckets are left out: {why}"));
            Bounds::default()
        });
        let rules = Rules::compile(&settings.rules).unwrap_or_else(|why| {
            notes.push(format!("all rules about metrics are left out: {why}"));
            Rules::default()
        });
        Ok(Self {
            settings: settings.clone(),
            paths: PathLabels { is_detailed, patterns },
            excludes_verbs: settings.excludes_verbs,
            bounds,
            counts_errors: settings.counts_errors,
            rules,
        })
    }

    /// What it was read from.
    #[must_use]
    pub fn settings(self) -> DaprSettings {
        self.settings
    }
}
