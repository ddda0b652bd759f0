//! Requests over HTTP of one side: of the app to its sidecar, or of the sidecar to its app.

use super::super::catalogue::names;
use super::super::page::Metric;
use super::plan::DaprPlan;
use super::rules::LabelRules;
use super::table::{Bounds, Histogram, Mark, OTHER, OTHER_STATUS, Sheet, Table};
use super::{AnsweredCall, number};

/// The methods that have a label value of their own.
const VERBS: [&str; 9] =
    ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"];
/// The label that rules may change before a request is counted.
const PATH: &str = "path";

/// The label value of a method.
pub(super) fn verb(method: &str) -> &'static str {
    VERBS.iter().find(|verb| **verb == method).copied().unwrap_or("UNKNOWN")
}

/// The metrics of a side.
pub(super) struct HttpNames {
    pub(super) counts: &'static [&'static Metric],
    /// Counted only if every path has its label, as in Dapr.
    pub(super) detailed_counts: &'static [&'static Metric],
    pub(super) latency: &'static Metric,
    pub(super) request_bytes: &'static Metric,
    pub(super) response_bytes: &'static Metric,
}

pub(super) static SERVED: HttpNames = HttpNames {
    counts: &[&names::DAPR_HTTP_SERVER_REQUESTS],
    detailed_counts: &[&names::DAPR_HTTP_SERVER_RESPONSES],
    latency: &names::DAPR_HTTP_SERVER_LATENCY,
    request_bytes: &names::DAPR_HTTP_SERVER_REQUEST_BYTES,
    response_bytes: &names::DAPR_HTTP_SERVER_RESPONSE_BYTES,
};

pub(super) static ASKED: HttpNames = HttpNames {
    counts: &[&names::DAPR_HTTP_CLIENT_COMPLETED],
    detailed_counts: &[],
    latency: &names::DAPR_HTTP_CLIENT_LATENCY,
    request_bytes: &names::DAPR_HTTP_CLIENT_SENT_BYTES,
    response_bytes: &names::DAPR_HTTP_CLIENT_RECEIVED_BYTES,
};

/// Method and status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Answer {
    verb: &'static str,
    status: u16,
}

impl Mark for Answer {
    const OTHER: Self = Self { verb: OTHER, status: OTHER_STATUS };
}

/// A method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Verb(&'static str);

impl Mark for Verb {
    const OTHER: Self = Self(OTHER);
}

/// A count, and the times that it took.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub(super) count: u64,
    pub(super) latency: Histogram,
}

impl Timed {
    pub(super) fn new(bounds: &Bounds) -> Self {
        Self { count: 0, latency: bounds.latency() }
    }

    pub(super) fn note(&mut self, call: &AnsweredCall<'_>) {
        self.count += 1;
        self.latency.note(call.took.as_secs_f64() * 1e3);
    }
}

/// Requests of one side.
#[derive(Clone, Debug)]
pub(super) struct HttpSide {
    answered: Vec<Answered>,
    requests: RequestBytes,
    responses: Histogram,
    response_bytes: &'static Metric,
    is_used: bool,
}

/// Answered requests, by path. Metrics with rules for paths have rows of their own.
#[derive(Clone, Debug)]
struct Answered {
    counts: Vec<&'static Metric>,
    latencies: Vec<&'static Metric>,
    rules: LabelRules,
    rows: Table<Answer, Timed>,
}

/// Sizes of requests, by path and method where the metric has labels for them.
#[derive(Clone, Debug)]
enum RequestBytes {
    All(&'static Metric, Histogram),
    ByPath { metric: &'static Metric, rules: LabelRules, rows: Table<Verb, Histogram> },
}

impl HttpSide {
    pub(super) fn new(names: &HttpNames, plan: &DaprPlan) -> Self {
        let (rules, bounds) = (&plan.rules, &plan.bounds);
        let detailed: &[_] = if plan.paths.is_detailed { names.detailed_counts } else { &[] };
        let counts: Vec<_> = names.counts.iter().chain(detailed).copied().collect();
        let answered = |counts: Vec<_>, latencies: Vec<_>, rules| Answered {
            counts,
            latencies,
            rules,
            rows: Table::default(),
        };
        let of_path = |metric| rules.of(metric, PATH);
        let has_rules = counts.iter().chain([&names.latency]).any(|of| !of_path(of).is_empty());
        let answered = if has_rules {
            let counts = counts.iter().map(|of| answered(vec![*of], Vec::new(), of_path(of)));
            let latency = answered(Vec::new(), vec![names.latency], of_path(names.latency));
            counts.chain([latency]).collect()
        } else {
            vec![answered(counts, vec![names.latency], LabelRules::default())]
        };
        let metric = names.request_bytes;
        let requests = match metric.labels.contains(&PATH) {
            true => RequestBytes::ByPath { metric, rules: of_path(metric), rows: Table::default() },
            false => RequestBytes::All(metric, bounds.size()),
        };
        let (responses, response_bytes) = (bounds.size(), names.response_bytes);
        Self { answered, requests, responses, response_bytes, is_used: false }
    }

    /// Counts a request whose path has this label.
    pub(super) fn note(
        &mut self,
        call: &AnsweredCall<'_>,
        verb: &'static str,
        path: &str,
        bounds: &Bounds,
    ) {
        self.is_used = true;
        let answer = Answer { verb, status: call.status };
        for of in &mut self.answered {
            of.rows.at(&of.rules.apply(path), answer, || Timed::new(bounds)).note(call);
        }
        // Sizes are far below where whole numbers end.
        let bytes = call.request_bytes as f64;
        match &mut self.requests {
            RequestBytes::All(_, all) => all.note(bytes),
            RequestBytes::ByPath { rules, rows, .. } => {
                rows.at(&rules.apply(path), Verb(verb), || bounds.size()).note(bytes);
            }
        }
        self.responses.note(call.response_bytes as f64);
    }

    pub(super) fn add_to(&self, sheet: &mut Sheet<'_>, app_id: &str) {
        if !self.is_used {
            return;
        }
        for of in &self.answered {
            for metric in &of.counts {
                for (path, Answer { verb, status }, timed) in of.rows.rows() {
                    sheet.sample(metric, &[app_id, verb, path, &number(status)], timed.count);
                }
            }
            for metric in &of.latencies {
                for (path, Answer { verb, status }, timed) in of.rows.rows() {
                    let values = [app_id, verb, path, &number(status)];
                    sheet.histogram(metric, &values, &timed.latency);
                }
            }
        }
        match &self.requests {
            RequestBytes::All(metric, all) => sheet.histogram(metric, &[app_id], all),
            RequestBytes::ByPath { metric, rows, .. } => {
                for (path, Verb(verb), of) in rows.rows() {
                    // A request has no status yet when Dapr counts its size.
                    sheet.histogram(metric, &[app_id, verb, path, ""], of);
                }
            }
        }
        sheet.histogram(self.response_bytes, &[app_id], &self.responses);
    }
}
