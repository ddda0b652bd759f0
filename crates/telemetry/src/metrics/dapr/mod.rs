//! Metrics under Dapr's names and labels, of a sidecar that is started as daprd, for dashboards and
//! alerts that use them: calls (here and in `http`), actors and Resiliency (`runtime`), access control
//! and health of the app (`app`).
//!
//! Names are in `catalogue.rs`. What a Configuration chooses is in [`DaprPlan`]: labels of paths
//! (`paths`, `patterns`), rules about label values (`rules`), buckets. Label values that callers choose
//! are bounded: beyond [`SERIES`] they count as `other`.

mod app;
mod http;
mod paths;
mod patterns;
mod plan;
mod rules;
mod runtime;
mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::app::AppCounts;
pub use self::app::Judged;
use self::http::{HttpSide, Timed, verb};
pub use self::paths::PATH_LABEL_BYTES;
pub use self::plan::{DaprPlan, DaprSettings, PathMatchingError};
pub use self::rules::LabelRule;
pub use self::runtime::{ActorGauges, CircuitState, Rule, Runtime};
use self::table::{Bounds, Histogram, Sheet, Table, entry_or};
use super::catalogue::names;
use super::page::{Metric, Page};

/// Most series of one kind, over all values of labels that callers choose.
pub const SERIES: usize = 1000;

/// The names of the statuses of gRPC, by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredCall<'a> {
    pub method: &'a str,
    /// Of gRPC, `/package.Service/Method`. Of a request to the app, its target.
    pub path: &'a str,
    pub status: u16,
    /// Set for calls of gRPC.
    pub grpc_status: Option<u16>,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub took: Duration,
}

/// Counts of one sidecar; many writers.
#[derive(Debug)]
pub struct DaprMetrics {
    app_id: String,
    plan: DaprPlan,
    calls: Mutex<Calls>,
    errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    app_counts: AppCounts,
    runtime: Runtime,
}

#[derive(Clone, Debug)]
struct Calls {
    /// Requests of the app to its sidecar.
    served: HttpSide,
    grpc_served: GrpcSide,
    /// Requests of the sidecar to its app.
    asked: HttpSide,
    grpc_asked: GrpcSide,
    /// Calls of other apps, by their names.
    sent: Table<u16, Sent>,
    /// Calls by other apps.
    received: Table<u16, u64>,
}

/// Calls of gRPC of one side.
#[derive(Clone, Debug, Default)]
struct GrpcSide {
    calls: Table<u16, Timed>,
    /// Sizes of requests and answers, by method.
    bytes: BTreeMap<Box<str>, Sizes>,
}

#[derive(Clone, Debug)]
struct Sizes {
    requests: Histogram,
    responses: Histogram,
}

#[derive(Clone, Debug)]
struct Sent {
    unary: u64,
    streaming: u64,
    latency: Histogram,
}

impl DaprMetrics {
    /// Of the sidecar of an app.
    #[must_use]
    pub fn new(app_id: &str, plan: DaprPlan) -> Arc<Self> {
        let side = |names| HttpSide::new(names, &plan);
        let calls = Calls {
            served: side(&http::SERVED),
            grpc_served: GrpcSide::default(),
            asked: side(&http::ASKED),
            grpc_asked: GrpcSide::default(),
            sent: Table::default(),
            received: Table::default(),
        };
        Arc::new(Self {
            app_id: app_id.to_owned(),
            plan,
            calls: Mutex::new(calls),
            errors: Mutex::default(),
            app_counts: AppCounts::default(),
            runtime: Runtime::default(),
        })
    }

    /// The label for the path of the app's request to its sidecar, of its target; `None` for none.
    #[must_use]
    pub fn path_label(&self, target: &str) -> Option<Box<str>> {
        let paths = &self.plan.paths;
        paths.has_label().then(|| paths.of_request(target).into_boxed_str())
    }

    /// The app's request to its sidecar was answered. `path` is the label for its path.
    pub fn served(&self, call: AnsweredCall<'_>, path: &str) {
        let plan = &self.plan;
        let mut calls = self.calls();
        match call.grpc_status {
            Some(code) => calls.grpc_served.note(&call, code, &plan.bounds),
            None => calls.served.note(&call, self.verb(call.method), path, &plan.bounds),
        }
    }

    /// The app has answered a request of its sidecar.
    pub fn asked_app(&self, call: AnsweredCall<'_>) {
        let plan = &self.plan;
        if let Some(code) = call.grpc_status {
            return self.calls().grpc_asked.note(&call, code, &plan.bounds);
        }
        let path = plan.paths.of_app(call.path);
        self.calls().asked.note(&call, self.verb(call.method), &path, &plan.bounds);
    }

    fn verb(&self, method: &str) -> &'static str {
        if self.plan.excludes_verbs { "" } else { verb(method) }
    }

    /// An app, called by name, has answered, or the mesh in its place. `status` is that of HTTP or
    /// gRPC.
    pub fn call_sent(&self, callee: &str, streams: bool, status: u16, took: Duration) {
        let new = || Sent { unary: 0, streaming: 0, latency: self.plan.bounds.latency() };
        let mut calls = self.calls();
        let sent = calls.sent.at(callee, status, new);
        *(if streams { &mut sent.streaming } else { &mut sent.unary }) += 1;
        sent.latency.note(took.as_secs_f64() * 1e3);
    }

    /// A call by another app was answered.
    pub fn call_received(&self, caller: &str, status: u16) {
        *self.calls().received.at(caller, status, || 0) += 1;
    }

    /// Whether errors of the API are counted by their codes.
    #[must_use]
    pub fn counts_errors(&self) -> bool {
        self.plan.counts_errors
    }

    /// A request of the app was refused or has failed, with a code of Dapr's categories.
    pub fn failed(&self, category: &'static str, code: &'static str) {
        if self.plan.counts_errors {
            let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
            *errors.entry((category, code)).or_default() += 1;
        }
    }

    /// The access control of a Configuration has let a call in, or not.
    pub fn judged(&self, judged: Judged<'_>) {
        self.app_counts.judged(judged);
    }

    /// The app's health was probed over HTTP; a probe without an answer has the status 500.
    pub fn probed(&self, status: u16, took: Duration) {
        self.app_counts.probed(status, took, &self.plan.bounds);
    }

    /// What the runtime counts: actors, and rules about calls that fail.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Puts everything on a page.
    pub fn add_to(&self, page: &mut Page) {
        // Counting a call does not wait until the page is written.
        let calls = self.calls().clone();
        let app_id = self.app_id.as_str();
        let mut sheet = Sheet::new(page, &self.plan.rules);
        calls.served.add_to(&mut sheet, app_id);
        calls.grpc_served.add_to(&mut sheet, app_id, &SERVER);
        calls.asked.add_to(&mut sheet, app_id);
        calls.grpc_asked.add_to(&mut sheet, app_id, &CLIENT);
        calls.add_invocations(&mut sheet, app_id);
        self.app_counts.add_to(&mut sheet, app_id);
        self.runtime.add_to(&mut sheet, app_id);
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((category, code), count) in errors {
            sheet.sample(&names::DAPR_ERRORS, &[app_id, category, code], count);
        }
        sheet.finish();
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The metrics of one side's calls of gRPC.
struct GrpcNames {
    count: &'static Metric,
    latency: &'static Metric,
    request_bytes: &'static Metric,
    response_bytes: &'static Metric,
}

static SERVER: GrpcNames = GrpcNames {
    count: &names::DAPR_GRPC_SERVER_COMPLETED,
    latency: &names::DAPR_GRPC_SERVER_LATENCY,
    request_bytes: &names::DAPR_GRPC_SERVER_RECEIVED_BYTES,
    response_bytes: &names::DAPR_GRPC_SERVER_SENT_BYTES,
};

static CLIENT: GrpcNames = GrpcNames {
    count: &names::DAPR_GRPC_CLIENT_COMPLETED,
    latency: &names::DAPR_GRPC_CLIENT_LATENCY,
    request_bytes: &names::DAPR_GRPC_CLIENT_SENT_BYTES,
    response_bytes: &names::DAPR_GRPC_CLIENT_RECEIVED_BYTES,
};

impl GrpcSide {
    fn note(&mut self, call: &AnsweredCall<'_>, code: u16, bounds: &Bounds) {
        self.calls.at(call.path, code, || Timed::new(bounds)).note(call);
        let new = || Sizes { requests: bounds.size(), responses: bounds.size() };
        let sizes = entry_or(&mut self.bytes, call.path, new);
        // Sizes are far below where whole numbers end.
        sizes.requests.note(call.request_bytes as f64);
        sizes.responses.note(call.response_bytes as f64);
    }

    fn add_to(&self, sheet: &mut Sheet<'_>, app_id: &str, names: &GrpcNames) {
        for (method, status, timed) in self.calls.rows() {
            sheet.sample(names.count, &[app_id, method, code(status)], timed.count);
        }
        for (method, status, timed) in self.calls.rows() {
            sheet.histogram(names.latency, &[app_id, method, code(status)], &timed.latency);
        }
        for (method, sizes) in &self.bytes {
            sheet.histogram(names.request_bytes, &[app_id, method], &sizes.requests);
        }
        for (method, sizes) in &self.bytes {
            sheet.histogram(names.response_bytes, &[app_id, method], &sizes.responses);
        }
    }
}

impl Calls {
    fn add_invocations(&self, sheet: &mut Sheet<'_>, app_id: &str) {
        let mut sent: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        let mut answered: BTreeMap<(&str, u16, &str), u64> = BTreeMap::new();
        for (callee, status, row) in self.sent.rows() {
            for (kind, count) in [("unary", row.unary), ("streaming", row.streaming)] {
                if count > 0 {
                    *sent.entry((callee, kind)).or_default() += count;
                    *answered.entry((callee, status, kind)).or_default() += count;
                }
            }
        }
        let mut received: BTreeMap<&str, u64> = BTreeMap::new();
        for (caller, _, count) in self.received.rows() {
            *received.entry(caller).or_default() += count;
        }
        for ((callee, kind), count) in sent {
            sheet.sample(&names::DAPR_INVOCATION_REQUESTS_SENT, &[app_id, callee, kind], count);
        }
        for (caller, count) in received {
            sheet.sample(&names::DAPR_INVOCATION_REQUESTS_RECEIVED, &[app_id, caller], count);
        }
        for (caller, status, count) in self.received.rows() {
            let values = [app_id, caller, &*number(status)];
            sheet.sample(&names::DAPR_INVOCATION_RESPONSES_SENT, &values, *count);
        }
        for ((callee, status, kind), count) in answered {
            let values = [app_id, callee, &*number(status), kind];
            sheet.sample(&names::DAPR_INVOCATION_RESPONSES_RECEIVED, &values, count);
        }
        for (callee, status, row) in self.sent.rows() {
            let values = [app_id, callee, &*number(status)];
            sheet.histogram(&names::DAPR_INVOCATION_LATENCY, &values, &row.latency);
        }
    }
}

/// A status; that of what has no series of its own is `other`.
fn number(status: u16) -> String {
    if status == table::OTHER_STATUS { table::OTHER.to_owned() } else { status.to_string() }
}

fn code(status: u16) -> &'static str {
    match status {
        table::OTHER_STATUS => table::OTHER,
        status => CODES.get(usize::from(status)).copied().unwrap_or("Unknown"),
    }
}

#[cfg(test)]
mod tests;
