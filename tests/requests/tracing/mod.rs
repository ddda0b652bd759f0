//! Traces as a foreign OpenTelemetry collector sees them: one trace over both networks and both
//! forms of OTLP, the callers' decisions preserved, the ratio as configured, and an absent
//! collector costs spans and nothing else.

mod collector;
mod daprd;
mod run;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use collector::Collector;
use hyper::Request;
use tollway_testkit::{TempDir, free_port, need_tool, retry_until};
use tollway_tests::mesh::http::{Client, Version, empty, get, runtime};
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{App, AppProtocol, Mesh, PATIENCE, Sidecar, counter};

const SERVICE: &str = "echo.default.east";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const APP_SPAN: &str = "b7ad6b7169203331";
/// Two networks; the caller exports over gRPC and the callee over HTTP.
struct World {
    _mesh: Mesh,
    app: App,
    caller: Sidecar,
}

impl World {
    fn start(collector: &Collector, protocol: AppProtocol, ratio: &str) -> Self {
        let mesh = Mesh::start();
        let grpc = format!("http://{}", collector.grpc);
        let http = format!("http://{}/v1/traces", collector.http);
        let reported = ["--trace-endpoint", &http, "--trace-ratio", "0"];
        let app = mesh.east.app_with("echo", "a", protocol, &reported);
        let caller = mesh.west.caller(&["--trace-endpoint", &grpc, "--trace-ratio", ratio]);
        Self { _mesh: mesh, app, caller }
    }

    /// Waits until calls arrive, and leaves no span behind.
    fn until_served(&self) {
        let served = retry_until(PATIENCE, "the app being served", || {
            self.call("/healthz", Some("00")).starts_with("200").then_some(())
        });
        served.unwrap();
    }

    /// Ends both sidecars: what they have recorded is with the collector then.
    fn end(mut self) {
        for sidecar in [&mut self.caller, &mut self.app.sidecar] {
            let status = sidecar.process.terminate(PATIENCE).unwrap();
            assert!(status.success(), "{status}: {}", sidecar.process.log());
        }
    }

    /// The status and the body of a call with a trace context of these flags.
    fn call(&self, path: &str, flags: Option<&str>) -> String {
        let uri = format!("http://sidecar/v1.0/invoke/{SERVICE}/method{path}");
        let mut request = Request::get(uri);
        if let Some(flags) = flags {
            request = request
                .header("traceparent", format!("00-{TRACE}-{APP_SPAN}-{flags}"))
                .header("tracestate", "vendor=kept");
        }
        let request = request.body(empty()).unwrap();
        runtime().block_on(async {
            let mut client = Client::connect(Version::Http1, self.caller.http()).await;
            let answer = client.exchange(request).await;
            format!("{} {}", answer.status, answer.text())
        })
    }
}

#[test]
fn a_call_to_another_network_is_one_trace_from_the_app_on() {
    let otelcol = need_tool!("otelcol");
    let collector = Collector::anywhere(&otelcol);
    let world = World::start(&collector, AppProtocol::Http, "0");
    world.until_served();
    let seen = world.call("/headers?secret=1", Some("01"));
    let spans = collector.until(2);
    assert_eq!(spans.len(), 2, "{spans:#?}");
    let client = spans.iter().find(|span| span.kind == 3).unwrap();
    let server = spans.iter().find(|span| span.kind == 2).unwrap();
    assert_eq!((client.trace.as_str(), server.trace.as_str()), (TRACE, TRACE));
    assert_eq!((client.parent.as_str(), &server.parent), (APP_SPAN, &client.id));
    // What the callee's app gets is the callee's sidecar's span as its parent.
    assert!(seen.contains(&format!("traceparent: 00-{TRACE}-{}-01", server.id)), "{seen}");
    assert!(seen.contains("tracestate: vendor=kept"), "{seen}");
    assert!(client.duration_ns >= server.duration_ns, "{spans:#?}");
    for (span, wanted) in [
        (client, ("caller", "default", "2", "echo.default.east.mesh")),
        (server, ("echo", "default", "2", "echo.default.east.mesh")),
    ] {
        let (service, namespace, version, address) = wanted;
        assert_eq!(span.name, "GET");
        assert!(!span.failed, "{span:#?}");
        assert_eq!(span.resource["service.name"], service);
        assert_eq!(span.resource["service.namespace"], namespace);
        assert!(!span.resource["service.instance.id"].is_empty());
        assert_eq!(span.attributes["http.request.method"], "GET");
        assert_eq!(span.attributes["http.response.status_code"], "200");
        assert_eq!(span.attributes["url.path"], "/headers");
        assert_eq!(span.attributes["server.address"], address);
        assert_eq!(span.attributes["network.protocol.version"], version);
        assert_eq!(span.attributes["tollway.caller"], "spiffe://west.tollway/ns/default/caller");
        assert_eq!(span.attributes["tollway.callee"], "spiffe://east.tollway/ns/default/echo");
        let instance = &server.resource["service.instance.id"];
        assert_eq!(&span.attributes["tollway.instance"], instance);
        assert!(!format!("{span:?}").contains("secret"), "{span:#?}");
    }

    world.call("/status/503", Some("01"));
    let failed: Vec<_> = collector.until(4).into_iter().skip(2).collect();
    assert!(failed.iter().all(|span| span.failed), "{failed:#?}");
    assert!(failed.iter().all(|span| span.attributes["error.type"] == "503"), "{failed:#?}");

    let unknown = "/v1.0/invoke/nobody.default.east/method/x";
    let request = format!(
        "GET {unknown} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         traceparent: 00-{TRACE}-{APP_SPAN}-01\r\n\r\n"
    );
    tollway_testkit::RawClient::exchange(world.caller.http(), request, PATIENCE).unwrap();
    let refused = collector.until(5).pop().unwrap();
    assert_eq!(refused.attributes["error.type"], "ERR_UNKNOWN_SERVICE", "{refused:#?}");
    assert_eq!(refused.attributes["server.address"], "nobody.default.east.mesh");
}

#[test]
fn a_collector_is_reached_over_tls_if_its_authority_is_trusted() {
    let otelcol = need_tool!("otelcol");
    let files = TempDir::new().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = format!(", tls: {{cert_file: '{}', key_file: '{}'}}", cert.display(), key.display());
    // The address of `localhost`.
    let local = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let collector = Collector::with(&otelcol, local(), local(), &tls);
    let ca = cert.to_str().unwrap();
    let mesh = Mesh::start();
    let http = format!("https://localhost:{}/v1/traces", collector.http.port());
    let app = mesh.east.app_with(
        "echo",
        "a",
        AppProtocol::Http,
        // Its own requests to its app begin no trace.
        &["--trace-endpoint", &http, "--trace-ca", ca, "--trace-ratio", "0"],
    );
    let grpc = format!("https://localhost:{}", collector.grpc.port());
    let reported = ["--trace-endpoint", &grpc, "--trace-ratio", "1"];
    let trusting = mesh.west.caller(&[&reported[..], &["--trace-ca", ca]].concat());
    let other = mesh.west.app_with("other", "b", AppProtocol::Http, &reported);
    trusting.until_served(SERVICE);
    let spans = collector.until(2);
    assert!([2, 3].iter().all(|kind| spans.iter().any(|span| span.kind == *kind)), "{spans:#?}");
    other.sidecar.until_served(SERVICE);
    let refused = retry_until(PATIENCE, "the refusal of an unknown authority", || {
        other.sidecar.process.log().contains("invalid peer certificate").then_some(())
    });
    assert!(refused.is_ok(), "{}", other.sidecar.process.log());
    drop(app);
}

#[test]
fn a_grpc_call_is_a_trace_with_the_words_of_rpc() {
    let otelcol = need_tool!("otelcol");
    let collector = Collector::anywhere(&otelcol);
    let world = World::start(&collector, AppProtocol::Grpc, "1");
    world.caller.until_served(SERVICE);
    let calls = Load::grpc(world.caller.grpc(), SERVICE, 50, Duration::from_secs(1));
    calls.assert_no_errors();
    world.end();
    let spans = collector.spans();
    let calls: Vec<_> = spans.iter().filter(|s| s.attributes.contains_key("rpc.system")).collect();
    assert!(calls.len() >= 20, "{spans:#?}");
    for call in calls {
        assert_eq!(call.name, "tollway.lab.v1.Echo/Unary");
        assert_eq!(call.attributes["rpc.service"], "tollway.lab.v1.Echo");
        assert_eq!(call.attributes["rpc.method"], "Unary");
        assert_eq!(call.attributes["rpc.grpc.status_code"], "0");
        assert!(!call.failed, "{call:#?}");
    }
}

#[test]
fn callers_decisions_and_the_ratio_are_kept() {
    let otelcol = need_tool!("otelcol");
    let collector = Collector::anywhere(&otelcol);
    let world = World::start(&collector, AppProtocol::Http, "0.25");
    world.until_served();
    // A caller that does not record: no span, and its context goes on as it came.
    let seen = world.call("/headers", Some("00"));
    assert!(seen.contains(&format!("traceparent: 00-{TRACE}-{APP_SPAN}-00")), "{seen}");
    assert!(seen.contains("tracestate: vendor=kept"), "{seen}");
    let total = 2000;
    let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", world.caller.http());
    let sent = Load::http(&url, 400, Duration::from_millis(2500 * total / 1000)).assert_no_errors();
    // A request that is not recorded reports that to all hops after it.
    let own = world.call("/headers", None);
    let line = own.lines().find(|line| line.starts_with("traceparent: ")).unwrap();
    assert!(line.ends_with("-00") || line.ends_with("-01"), "{line}");
    world.end();
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace != TRACE), "{spans:#?}");
    let of = |kind| spans.iter().filter(|span| span.kind == kind).collect::<Vec<_>>();
    let (clients, servers) = (of(3), of(2));
    let sigma = (sent as f64 * 0.25 * 0.75).sqrt();
    let far = (clients.len() as f64 - sent as f64 * 0.25).abs();
    assert!(far < 5.0 * sigma, "{} of {sent} requests were recorded", clients.len());
    // The callee's own ratio is 0, and counts for nothing.
    assert_eq!(servers.len(), clients.len());
    for server in servers {
        assert!(clients.iter().any(|c| c.trace == server.trace && c.id == server.parent));
    }
}

#[test]
fn a_collector_that_is_away_costs_spans_and_no_request() {
    let otelcol = need_tool!("otelcol");
    let mut collector = Collector::anywhere(&otelcol);
    let (grpc, http) = (collector.grpc, collector.http);
    let world = World::start(&collector, AppProtocol::Http, "1");
    world.caller.until_served(SERVICE);
    collector.until(1);
    collector.process.kill().unwrap();
    let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", world.caller.http());
    // More than wait for a collector: 2,048 in the queue, and a batch under way.
    let sent = Load::http(&url, 1000, Duration::from_secs(5)).assert_no_errors();
    assert!(sent > 4000, "{sent}");
    let dropped = "tollway_spans_dropped_total{reason=\"queue_full\"}";
    let count = retry_until(PATIENCE, "drops being counted", || {
        let count = counter(&world.caller.process, dropped);
        (count > 0).then_some(count)
    });
    assert!(count.unwrap() < sent, "some wait for the collector");
    assert!(counter(&world.caller.process, "tollway_span_export_failures_total") > 0);
    let exported = counter(&world.caller.process, "tollway_spans_exported_total");

    let collector = Collector::start(&otelcol, grpc, http);
    collector.until(1000);
    let again = counter(&world.caller.process, "tollway_spans_exported_total");
    assert!(again > exported, "{again} after {exported}");
    // Each side reports each change once.
    for process in [&world.caller.process, &world.app.sidecar.process] {
        let log = process.log();
        assert_eq!(log.matches("spans cannot be exported").count(), 1, "{log}");
        assert_eq!(log.matches("spans are exported again").count(), 1, "{log}");
    }
    assert!(get(world.caller.http(), "/v1.0/healthz").starts_with("HTTP/1.1 204"));
}
