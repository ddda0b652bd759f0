//! Metrics under Dapr's names and labels, of a sidecar that is started as daprd, for dashboards and
//! alerts that use them: calls (here), actors and Resiliency (`runtime`), access control and health
//! of the app (`app`).
//!
//! Names are in `catalogue.rs`. As in Dapr without `increasedCardinality`, no label has a path.
//! Label values that callers choose are bounded: beyond [`SERIES`] they count as `other`.

mod app;
mod runtime;
mod table;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::app::AppCounts;
pub use self::app::Judged;
pub use self::runtime::{ActorGauges, CircuitState, Rule, Runtime};
use self::table::{Histogram, SIZES, Table, add_histogram, label_of};
use super::catalogue::names;
use super::page::{Metric, Page};

/// Most series of one kind, over all values of labels that callers choose.
pub const SERIES: usize = 1000;

/// The methods that have a label value of their own.
const VERBS: [&str; 9] =
    ["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"];
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
    /// Of gRPC, `/package.Service/Method`.
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
    calls: Mutex<Calls>,
    app_counts: AppCounts,
    runtime: Runtime,
}

#[derive(Clone, Debug, Default)]
struct Calls {
    /// Requests of the app to its sidecar.
    served: Side,
    /// Requests of the sidecar to its app.
    asked: Side,
    /// Calls of other apps, by their names.
    sent: Table<Sent>,
    /// Calls by other apps.
    received: Table<u64>,
}

/// By protocol.
#[derive(Clone, Debug, Default)]
struct Side {
    http: Table<Timed>,
    grpc: Table<Timed>,
    /// Sizes of requests and answers, by method.
    http_bytes: BTreeMap<Box<str>, Sizes>,
    grpc_bytes: BTreeMap<Box<str>, Sizes>,
}

#[derive(Clone, Debug, Default)]
struct Timed {
    count: u64,
    latency: Histogram,
}

#[derive(Clone, Debug)]
struct Sizes {
    requests: Histogram,
    responses: Histogram,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { requests: Histogram::new(&SIZES), responses: Histogram::new(&SIZES) }
    }
}

#[derive(Clone, Debug, Default)]
struct Sent {
    unary: u64,
    streaming: u64,
    latency: Histogram,
}

impl DaprMetrics {
    /// Of the sidecar of an app.
    #[must_use]
    pub fn new(app_id: &str, namespace: &str) -> Arc<Self> {
        let runtime = Runtime::new(namespace);
        let (calls, app_counts) = (Mutex::default(), AppCounts::default());
        Arc::new(Self { app_id: app_id.to_owned(), calls, app_counts, runtime })
    }

    /// The app's request to its sidecar was answered.
    pub fn served(&self, call: AnsweredCall<'_>) {
        self.calls().served.note(call);
    }

    /// The app has answered a request of its sidecar.
    pub fn asked_app(&self, call: AnsweredCall<'_>) {
        self.calls().asked.note(call);
    }

    /// An app, called by name, has answered, or the mesh in its place. `status` is that of HTTP or
    /// gRPC.
    pub fn call_sent(&self, callee: &str, streams: bool, status: u16, took: Duration) {
        let mut calls = self.calls();
        let sent = calls.sent.at(callee, status);
        *(if streams { &mut sent.streaming } else { &mut sent.unary }) += 1;
        sent.latency.note(took.as_secs_f64() * 1e3);
    }

    /// A call by another app was answered.
    pub fn call_received(&self, caller: &str, status: u16) {
        *self.calls().received.at(caller, status) += 1;
    }

    /// The access control of a Configuration has let a call in, or not.
    pub fn judged(&self, judged: Judged<'_>) {
        self.app_counts.judged(judged);
    }

    /// The app's health was probed over HTTP; a probe without an answer has the status 500.
    pub fn probed(&self, status: u16, took: Duration) {
        self.app_counts.probed(status, took);
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
        calls.served.add_to(page, app_id, &SERVER);
        calls.asked.add_to(page, app_id, &CLIENT);
        calls.add_invocations(page, app_id);
        self.app_counts.add_to(page, app_id);
        self.runtime.add_to(page, app_id);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The metrics of one side.
struct Names {
    http_counts: &'static [&'static Metric],
    http_latency: &'static Metric,
    http_bytes: [&'static Metric; 2],
    grpc_count: &'static Metric,
    grpc_latency: &'static Metric,
    grpc_bytes: [&'static Metric; 2],
}

static SERVER: Names = Names {
    http_counts: &[&names::DAPR_HTTP_SERVER_REQUESTS, &names::DAPR_HTTP_SERVER_RESPONSES],
    http_latency: &names::DAPR_HTTP_SERVER_LATENCY,
    http_bytes: [&names::DAPR_HTTP_SERVER_REQUEST_BYTES, &names::DAPR_HTTP_SERVER_RESPONSE_BYTES],
    grpc_count: &names::DAPR_GRPC_SERVER_COMPLETED,
    grpc_latency: &names::DAPR_GRPC_SERVER_LATENCY,
    grpc_bytes: [&names::DAPR_GRPC_SERVER_RECEIVED_BYTES, &names::DAPR_GRPC_SERVER_SENT_BYTES],
};

static CLIENT: Names = Names {
    http_counts: &[&names::DAPR_HTTP_CLIENT_COMPLETED],
    http_latency: &names::DAPR_HTTP_CLIENT_LATENCY,
    http_bytes: [&names::DAPR_HTTP_CLIENT_SENT_BYTES, &names::DAPR_HTTP_CLIENT_RECEIVED_BYTES],
    grpc_count: &names::DAPR_GRPC_CLIENT_COMPLETED,
    grpc_latency: &names::DAPR_GRPC_CLIENT_LATENCY,
    grpc_bytes: [&names::DAPR_GRPC_CLIENT_SENT_BYTES, &names::DAPR_GRPC_CLIENT_RECEIVED_BYTES],
};

impl Side {
    fn note(&mut self, call: AnsweredCall<'_>) {
        let (table, bytes, name, status) = match call.grpc_status {
            Some(code) => (&mut self.grpc, &mut self.grpc_bytes, call.path, code),
            None => {
                let verb = VERBS.iter().find(|verb| **verb == call.method);
                let verb = verb.copied().unwrap_or("UNKNOWN");
                (&mut self.http, &mut self.http_bytes, verb, call.status)
            }
        };
        let timed = table.at(name, status);
        timed.count += 1;
        timed.latency.note(call.took.as_secs_f64() * 1e3);
        let sizes = table::entry(bytes, name);
        // Sizes are far below where whole numbers end.
        sizes.requests.note(call.request_bytes as f64);
        sizes.responses.note(call.response_bytes as f64);
    }

    fn add_to(&self, page: &mut Page, app_id: &str, names: &Names) {
        for metric in names.http_counts {
            for (method, status, timed) in self.http.rows() {
                let labels = [("app_id", app_id), ("method", method), ("status", &*number(status))];
                page.family(metric).sample(&labels, timed.count);
            }
        }
        for (method, status, timed) in self.http.rows() {
            let values = [app_id, method, &*number(status)];
            add_histogram(page, names.http_latency, &values, &timed.latency);
        }
        for (method, status, timed) in self.grpc.rows() {
            let values = [app_id, method, code(status)];
            page.family(names.grpc_count).sample(&label_of(names.grpc_count, &values), timed.count);
        }
        for (method, status, timed) in self.grpc.rows() {
            let values = [app_id, method, code(status)];
            add_histogram(page, names.grpc_latency, &values, &timed.latency);
        }
        let [requests, responses] = names.http_bytes;
        add_sizes(page, app_id, requests, &self.http_bytes, |sizes| &sizes.requests);
        add_sizes(page, app_id, responses, &self.http_bytes, |sizes| &sizes.responses);
        let [requests, responses] = names.grpc_bytes;
        add_sizes(page, app_id, requests, &self.grpc_bytes, |sizes| &sizes.requests);
        add_sizes(page, app_id, responses, &self.grpc_bytes, |sizes| &sizes.responses);
    }
}

/// Sizes by method, or of all methods where the metric has no label for them.
fn add_sizes(
    page: &mut Page,
    app_id: &str,
    metric: &'static Metric,
    sizes: &BTreeMap<Box<str>, Sizes>,
    of: fn(&Sizes) -> &Histogram,
) {
    if metric.labels.len() > 1 {
        for (method, sizes) in sizes {
            add_histogram(page, metric, &[app_id, method], of(sizes));
        }
    } else if !sizes.is_empty() {
        let mut all = Histogram::new(&SIZES);
        sizes.values().for_each(|sizes| all.add(of(sizes)));
        add_histogram(page, metric, &[app_id], &all);
    }
}

impl Calls {
    fn add_invocations(&self, page: &mut Page, app_id: &str) {
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
        let mut add = |metric: &'static Metric, values: &[&str], value: u64| {
            page.family(metric).sample(&label_of(metric, values), value);
        };
        for ((callee, kind), count) in sent {
            add(&names::DAPR_INVOCATION_REQUESTS_SENT, &[app_id, callee, kind], count);
        }
        for (caller, count) in received {
            add(&names::DAPR_INVOCATION_REQUESTS_RECEIVED, &[app_id, caller], count);
        }
        for (caller, status, count) in self.received.rows() {
            let values = [app_id, caller, &*number(status)];
            add(&names::DAPR_INVOCATION_RESPONSES_SENT, &values, *count);
        }
        for ((callee, status, kind), count) in answered {
            let values = [app_id, callee, &*number(status), kind];
            add(&names::DAPR_INVOCATION_RESPONSES_RECEIVED, &values, count);
        }
        for (callee, status, row) in self.sent.rows() {
            let values = [app_id, callee, &*number(status)];
            add_histogram(page, &names::DAPR_INVOCATION_LATENCY, &values, &row.latency);
        }
    }
}

/// A status; that of what found no place of its own is `other`.
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
mod tests {
    use super::*;

    fn page(metrics: &DaprMetrics) -> String {
        let mut page = Page::default();
        metrics.add_to(&mut page);
        page.into_text()
    }

    #[track_caller]
    fn check(text: &str, line: &str) {
        assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
    }

    fn call(method: &'static str, grpc_status: Option<u16>) -> AnsweredCall<'static> {
        AnsweredCall {
            method,
            path: "/shop.Orders/Put",
            status: 200,
            grpc_status,
            request_bytes: 5,
            response_bytes: 2000,
            took: Duration::from_micros(4500),
        }
    }

    #[test]
    fn calls_are_counted_under_daprs_names() {
        let metrics = DaprMetrics::new("web", "default");
        metrics.served(call("GET", None));
        metrics.served(call("BREW", None));
        metrics.served(call("POST", Some(0)));
        metrics.served(call("POST", Some(14)));
        metrics.asked_app(call("PUT", None));
        metrics.call_sent("stock", false, 200, Duration::from_millis(7));
        metrics.call_sent("stock", true, 503, Duration::from_millis(7));
        metrics.call_received("shop", 404);
        let text = page(&metrics);
        for line in [
            "# TYPE dapr_http_server_request_count counter",
            "dapr_http_server_request_count{app_id=\"web\",method=\"GET\",status=\"200\"} 1",
            "dapr_http_server_request_count{app_id=\"web\",method=\"UNKNOWN\",status=\"200\"} 1",
            "dapr_http_server_latency_bucket{app_id=\"web\",method=\"GET\",status=\"200\",le=\"4\"} 0",
            "dapr_http_server_latency_bucket{app_id=\"web\",method=\"GET\",status=\"200\",le=\"5\"} 1",
            "dapr_http_server_latency_sum{app_id=\"web\",method=\"GET\",status=\"200\"} 4.5",
            "dapr_http_server_request_bytes_bucket{app_id=\"web\",le=\"1024\"} 2",
            "dapr_http_server_response_bytes_bucket{app_id=\"web\",le=\"1024\"} 0",
            "dapr_http_server_response_bytes_sum{app_id=\"web\"} 4000",
            "dapr_http_client_completed_count{app_id=\"web\",method=\"PUT\",status=\"200\"} 1",
            "dapr_http_client_sent_bytes_count{app_id=\"web\",method=\"PUT\"} 1",
            "dapr_grpc_io_server_completed_rpcs{app_id=\"web\",grpc_server_method=\"/shop.Orders/Put\",grpc_server_status=\"Unavailable\"} 1",
            "dapr_runtime_service_invocation_req_sent_total{app_id=\"web\",dst_app_id=\"stock\",type=\"unary\"} 1",
            "dapr_runtime_service_invocation_res_recv_total{app_id=\"web\",src_app_id=\"stock\",status=\"503\",type=\"streaming\"} 1",
            "dapr_runtime_service_invocation_res_recv_latency_ms_count{app_id=\"web\",src_app_id=\"stock\",status=\"200\"} 1",
            "dapr_runtime_service_invocation_req_recv_total{app_id=\"web\",src_app_id=\"shop\"} 1",
            "dapr_runtime_service_invocation_res_sent_total{app_id=\"web\",dst_app_id=\"shop\",status=\"404\"} 1",
        ] {
            check(&text, line);
        }
        assert_eq!(text.matches("# TYPE dapr_http_server_latency ").count(), 1);
    }

    #[test]
    fn whatever_callers_choose_the_page_is_bounded_and_counts_all() {
        let metrics = DaprMetrics::new("web", "default");
        for number in 0..3 * SERIES {
            let path = format!("/made.Up/Method{number}");
            metrics.served(AnsweredCall { path: &path, ..call("POST", Some(0)) });
        }
        let text = page(&metrics);
        let name = "dapr_grpc_io_server_completed_rpcs{";
        let counts = text.lines().filter(|line| line.starts_with(name));
        let counts: Vec<usize> =
            counts.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!((counts.len(), counts.iter().sum()), (SERIES + 1, 3 * SERIES));
        let other = "grpc_server_method=\"other\",grpc_server_status=\"other\"";
        check(&text, &format!("{name}app_id=\"web\",{other}}} {}", 2 * SERIES));
    }
}
