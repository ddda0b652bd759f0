//! The JSON Schema of the kinds, by which editors complete a file and mark its mistakes. It has the names
//! and the forms of values; what depends on several values is left to `tollway apply`.

use serde_json::{Map, Value, json};
use tollway_model::egress::EGRESS_HOSTS_LIMIT;
use tollway_model::route::{
    MATCH_ENTRIES_LIMIT, ROUTE_MATCHES_LIMIT, ROUTE_RULES_LIMIT, WEIGHT_LIMIT,
};
use tollway_model::traffic_policy::LOCALITY_SPILL_OVER_LIMIT;
use tollway_model::{Level, ObjectKind};

use super::custom_resource::kind_names;
use super::route::fields::GRPC_STATUSES;

/// The schema as it is published: of one document of a file that `tollway apply` reads.
#[must_use]
pub fn schema_text() -> String {
    let text = serde_json::to_string_pretty(&schema()).expect("a value of JSON can be written");
    text + "\n"
}

/// The schema of the `spec` of a kind.
pub(super) fn spec(kind: ObjectKind) -> Value {
    let (spec, page) = match kind {
        ObjectKind::Policy => (policy(), "policy"),
        ObjectKind::Route => (route(), "routes"),
        ObjectKind::TrafficPolicy => (traffic_policy(), "traffic"),
        ObjectKind::Failover => (failover(), "failover"),
        ObjectKind::Egress => (egress(), "egress"),
    };
    spec.describe(&format!("See docs/guide/{page}.md."))
}

fn schema() -> Value {
    let names = ObjectKind::ALL.map(|kind| kind_names(kind).kind);
    let specs = ObjectKind::ALL.map(|kind| {
        let name = kind_names(kind).kind;
        json!({
            "if": { "properties": { "kind": { "const": name } }, "required": ["kind"] },
            "then": { "properties": { "spec": spec(kind) } },
        })
    });
    let metadata = object(
        &["name"],
        [("name", label()), ("namespace", label().describe("`default` if it is left out."))],
    );
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An object of Tollway",
        "type": "object",
        "additionalProperties": false,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": { "const": "tollway.dev/v1" },
            "kind": { "enum": names },
            "metadata": metadata,
            "spec": { "type": "object" },
        },
        "allOf": specs,
    })
}

fn policy() -> Value {
    let rule = || {
        object(
            &[],
            [
                ("from", filled(caller()).describe("Callers; any if it is left out.")),
                ("methods", filled(method()).describe("Any if it is left out.")),
                ("paths", filled(absolute_path()).describe("Any if it is left out.")),
            ],
        )
    };
    let namespace = text().describe("`*`, with the app `*`, for the whole network.");
    let target = object(&["app"], [("app", app_or_all()), ("namespace", namespace)]);
    object(
        &["target"],
        [
            ("target", target),
            ("mode", mode()),
            ("allow", list(rule()).describe("Only these callers; an empty list allows none.")),
            ("deny", list(rule()).describe("Not these, whatever is allowed.")),
        ],
    )
}

fn route() -> Value {
    object(
        &["service", "rules"],
        [("service", service()), ("rules", list(route_rule()).at_most(ROUTE_RULES_LIMIT))],
    )
}

fn route_rule() -> Value {
    let backend = object(
        &["service"],
        [
            ("service", service()),
            ("weight", json!({ "type": "integer", "minimum": 0, "maximum": WEIGHT_LIMIT })),
            ("requestHeaders", header_edits()),
            ("responseHeaders", header_edits()),
        ],
    );
    let mirror = object(&["service"], [("service", service()), ("percent", percent())]);
    let timeouts = object(&[], [("request", time()), ("attempt", time()), ("idle", time())]);
    let matches = filled(route_match()).at_most(ROUTE_MATCHES_LIMIT);
    let matches = matches.describe("Any request if it is left out.");
    let rule = object(
        &[],
        [
            ("name", label()),
            ("matches", matches),
            ("backends", list(backend)),
            ("redirect", redirect()),
            ("rewrite", object(&[], [("host", text()), ("path", path_edit())])),
            ("requestHeaders", header_edits()),
            ("responseHeaders", header_edits()),
            ("mirrors", list(mirror)),
            ("timeouts", timeouts),
            ("retry", retry()),
            ("affinity", affinity()),
        ],
    );
    rule.with("oneOf", json!([{ "required": ["backends"] }, { "required": ["redirect"] }]))
}

fn route_match() -> Value {
    let path = one_of([("exact", absolute_path()), ("prefix", absolute_path()), ("regex", text())]);
    let grpc = object(&[], [("service", text_match()), ("method", text_match())]);
    object(
        &[],
        [
            ("path", path),
            ("method", method()),
            ("grpc", grpc),
            ("headers", filled(named_match()).at_most(MATCH_ENTRIES_LIMIT)),
            ("query", filled(named_match()).at_most(MATCH_ENTRIES_LIMIT)),
            ("from", filled(caller())),
        ],
    )
}

fn redirect() -> Value {
    object(
        &[],
        [
            ("scheme", text()),
            ("host", text()),
            ("port", port()),
            ("path", path_edit()),
            ("status", status()),
        ],
    )
}

fn retry() -> Value {
    let budget = object(&[], [("percent", whole(0)), ("minPerSecond", whole(0))]);
    object(
        &[],
        [
            ("attempts", whole(0)),
            ("statuses", list(status())),
            ("grpcStatuses", list(grpc_status())),
            ("backoff", time()),
            ("longestBackoff", time()),
            ("idempotent", json!({ "type": "boolean" })),
            ("budget", budget),
        ],
    )
}

fn affinity() -> Value {
    let cookie = object(&["name"], [("name", text()), ("ttl", time())]);
    one_of([("header", text()), ("cookie", cookie)])
}

fn header_edits() -> Value {
    let values = json!({ "type": ["string", "array"], "items": strict_text(), "minItems": 1 });
    let fields = json!({ "type": "object", "additionalProperties": values });
    object(&[], [("remove", list(text())), ("set", fields.clone()), ("add", fields)])
}

fn text_match() -> Value {
    json!({ "anyOf": [strict_text(), object(&["regex"], [("regex", text())])] })
}

fn named_match() -> Value {
    let of = object(&["name"], [("name", text()), ("value", text()), ("regex", text())]);
    of.with("oneOf", json!([{ "required": ["value"] }, { "required": ["regex"] }]))
}

fn path_edit() -> Value {
    one_of([("full", text()), ("prefix", text())])
}

fn traffic_policy() -> Value {
    let peak = object(&[], [("decay", time())]);
    let balancing = json!({
        "anyOf": [{ "const": "leastRequests" }, one_of([("peakEwma", peak)])],
    });
    let shedding = object(&[], [("target", time()), ("interval", time())]);
    object(
        &["target"],
        [
            ("target", object(&["app"], [("app", app_or_all())])),
            ("mode", mode()),
            ("balancing", balancing),
            ("locality", locality()),
            ("slowStart", time()),
            ("outlier", outlier()),
            ("panicPercent", whole_percent()),
            ("faults", list(fault())),
            ("rate", rate()),
            ("concurrencyPerCaller", whole(1)),
            ("shedding", shedding),
        ],
    )
}

fn locality() -> Value {
    let spill_over =
        json!({ "type": "integer", "minimum": 1, "maximum": LOCALITY_SPILL_OVER_LIMIT });
    object(
        &[],
        [
            ("prefer", json!({ "enum": Level::ALL.map(|level| level.to_string()) })),
            ("threshold", json!({ "type": "integer", "minimum": 1, "maximum": 100 })),
            ("spillOver", object(&["requestsPerReplica"], [("requestsPerReplica", spill_over)])),
        ],
    )
}

fn outlier() -> Value {
    let success_rate = object(
        &[],
        [
            ("interval", time()),
            ("minRequests", whole(0)),
            ("minReplicas", whole(0)),
            ("deviations", json!({ "type": "number", "minimum": 0 })),
        ],
    );
    object(
        &[],
        [
            ("consecutiveFailures", whole(0)),
            ("successRate", success_rate),
            ("ejection", time()),
            ("longestEjection", time()),
            ("maxEjectedPercent", whole_percent()),
        ],
    )
}

fn fault() -> Value {
    let delay = object(&["time"], [("time", time()), ("percent", percent())]);
    let abort =
        object(&[], [("status", status()), ("grpcStatus", grpc_status()), ("percent", percent())]);
    object(&[], [("from", filled(caller())), ("delay", delay), ("abort", abort)])
}

fn rate() -> Value {
    let limit = || [("requests", whole(1)), ("per", time()), ("burst", whole(1))];
    let of_callers = [("from", filled(caller()))].into_iter().chain(limit());
    object(
        &[],
        [
            ("service", object(&["requests"], limit())),
            ("caller", object(&["requests"], limit())),
            ("callers", list(object(&["from", "requests"], of_callers))),
        ],
    )
}

fn failover() -> Value {
    let network =
        object(&["network"], [("network", label()), ("priority", whole(0)), ("weight", whole(1))]);
    let spill_over = object(&["requestsPerReplica"], [("requestsPerReplica", whole(1))]);
    object(
        &["service", "networks"],
        [
            ("service", app_or_all()),
            ("networks", list(network)),
            ("threshold", json!({ "type": "integer", "minimum": 1, "maximum": 100 })),
            ("spillOver", spill_over),
        ],
    )
}

fn egress() -> Value {
    let begins_tls = json!({ "required": ["tls"] });
    let host = object(
        &["host"],
        [
            (
                "host",
                text().describe("A name, `*.` and an end of names, `*`, an address, a range."),
            ),
            ("port", port().describe("Every port if it is left out; with `tls`, 443.")),
            ("tls", json!({ "const": "begin" })),
            ("plainPort", port()),
            ("authorities", text().describe("Certificates in PEM.")),
        ],
    );
    let host =
        host.with("dependencies", json!({ "plainPort": begins_tls, "authorities": begins_tls }));
    object(
        &["hosts"],
        [
            ("mode", mode()),
            ("from", filled(text()).describe("Apps; all of the namespace if it is left out.")),
            ("hosts", list(host).at_most(EGRESS_HOSTS_LIMIT)),
        ],
    )
}

trait Described {
    fn with(self, key: &str, value: Value) -> Self;
    fn describe(self, text: &str) -> Self;
    fn at_most(self, count: usize) -> Self;
}

impl Described for Value {
    fn with(mut self, key: &str, value: Value) -> Self {
        self[key] = value;
        self
    }

    fn describe(self, text: &str) -> Self {
        self.with("description", json!(text))
    }

    fn at_most(self, count: usize) -> Self {
        self.with("maxItems", json!(count))
    }
}

/// A mapping of these fields and no others.
fn object<'a>(required: &[&str], fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields: Map<String, Value> =
        fields.into_iter().map(|(name, form)| (name.to_owned(), form)).collect();
    let mut object = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": fields,
    });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

/// A mapping of one of these fields.
fn one_of<const COUNT: usize>(fields: [(&str, Value); COUNT]) -> Value {
    object(&[], fields).with("minProperties", json!(1)).with("maxProperties", json!(1))
}

fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn filled(items: Value) -> Value {
    list(items).with("minItems", json!(1))
}

/// A text. Where no number can be meant, one is taken as the text that was written.
fn text() -> Value {
    json!({ "type": TEXT })
}

const TEXT: [&str; 3] = ["string", "number", "boolean"];

fn pattern(pattern: &str) -> Value {
    json!({ "type": TEXT, "pattern": pattern })
}

/// A text that is in quotation marks if it could be a number.
fn strict_text() -> Value {
    json!({ "type": "string" })
}

/// A name of an app, a namespace or a network.
fn label() -> Value {
    pattern("^[^\\s./]+$")
}

fn app_or_all() -> Value {
    label().describe("The name of an app, or `*` for every app of the namespace.")
}

fn service() -> Value {
    pattern("^[^\\s./]+(\\.[^\\s./]+){0,2}$").describe("`app`, `app.namespace` or with a network.")
}

fn caller() -> Value {
    text().describe(
        "`app`, `app.namespace`, `app.namespace.network`, parts of it `*`; or a SPIFFE ID.",
    )
}

fn method() -> Value {
    pattern("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
}

fn absolute_path() -> Value {
    pattern("^/")
}

fn mode() -> Value {
    json!({ "enum": ["enforce", "shadow"], "default": "enforce" })
}

fn time() -> Value {
    const FORM: &str = "^\\+?(0|(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
    let form = strict_text().with("pattern", json!(FORM));
    form.describe("A time such as 250ms, 5s or 1m30s.")
}

fn whole(least: u32) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": u32::MAX })
}

fn port() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": u16::MAX })
}

fn status() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": u16::MAX })
}

fn grpc_status() -> Value {
    json!({ "enum": GRPC_STATUSES })
}

fn percent() -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": 100 })
}

fn whole_percent() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 100 })
}
