//! A foreign OpenTelemetry collector, and what it has received.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;
use tollway_testkit::{Process, Start, TempDir, free_address, retry_until};

use tollway_tests::mesh::PATIENCE;

/// A collector that prints every request it takes as a line of JSON.
pub(crate) struct Collector {
    pub(crate) process: Process,
    pub(crate) grpc: SocketAddr,
    pub(crate) http: SocketAddr,
    _files: TempDir,
}

impl Collector {
    pub(crate) fn start(program: &PathBuf, grpc: SocketAddr, http: SocketAddr) -> Self {
        Self::with(program, grpc, http, "")
    }

    /// `tls` is added to each endpoint.
    pub(crate) fn with(program: &PathBuf, grpc: SocketAddr, http: SocketAddr, tls: &str) -> Self {
        let files = TempDir::new().unwrap();
        let config = files.path().join("config.yaml");
        let endpoint = |at: SocketAddr| format!("{{endpoint: '{at}'{tls}}}");
        let text = format!(
            "receivers: {{otlp: {{protocols: {{grpc: {}, http: {}}}}}}}\nexporters: {{print: }}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
             pipelines: {{traces: {{receivers: [otlp], exporters: [print]}}}}\n",
            endpoint(grpc),
            endpoint(http),
        );
        std::fs::write(&config, text).unwrap();
        let process = Start::new(program).arg("--config").arg(config).start().unwrap();
        let ready = retry_until(PATIENCE, "the collector", || {
            process.log().contains("Everything is ready").then_some(())
        });
        assert!(ready.is_ok(), "{}", process.log());
        Self { process, grpc, http, _files: files }
    }

    pub(crate) fn anywhere(program: &PathBuf) -> Self {
        Self::start(program, free_address().unwrap(), free_address().unwrap())
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let log = self.process.log();
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let requests = whole.lines().filter(|line| line.starts_with("{\"resourceSpans\""));
        requests.flat_map(|line| spans_of(&serde_json::from_str(line).unwrap())).collect()
    }

    /// Waits for at least so many.
    pub(crate) fn until(&self, count: usize) -> Vec<Span> {
        let found = retry_until(PATIENCE, "spans", || {
            let spans = self.spans();
            (spans.len() >= count).then_some(spans)
        });
        found.unwrap_or_else(|_| panic!("only {:#?}", self.spans()))
    }
}

/// What a collector has of one span.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// 2 is a server's, 3 a client's.
    pub(crate) kind: u64,
    pub(crate) failed: bool,
    pub(crate) duration_ns: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) resource: BTreeMap<String, String>,
}

fn spans_of(request: &Value) -> Vec<Span> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut spans = Vec::new();
    for resource in list(&request["resourceSpans"]) {
        for scope in list(&resource["scopeSpans"]) {
            assert_eq!(scope["scope"]["name"], "tollway");
            for span in list(&scope["spans"]) {
                let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
                spans.push(Span {
                    trace: text(&span["traceId"]),
                    id: text(&span["spanId"]),
                    parent: text(&span["parentSpanId"]),
                    name: text(&span["name"]),
                    kind: span["kind"].as_u64().unwrap(),
                    failed: span["status"]["code"] == 2,
                    duration_ns: time("endTimeUnixNano") - time("startTimeUnixNano"),
                    attributes: attributes(&span["attributes"]),
                    resource: attributes(&resource["resource"]["attributes"]),
                });
            }
        }
    }
    spans
}

fn attributes(list: &Value) -> BTreeMap<String, String> {
    let pairs = list.as_array().into_iter().flatten();
    pairs
        .map(|pair| {
            let value = pair["value"].as_object().unwrap().values().next().unwrap();
            (text(&pair["key"]), text(value))
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
