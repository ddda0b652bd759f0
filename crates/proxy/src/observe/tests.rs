use std::collections::HashMap;
use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::ScopeSpans;
use prost::Message;
use tollway_http::Method;
use tollway_model::{Label, ServiceName};
use tollway_telemetry::trace::Spans;

use super::running::TelemetryIdentity;
use super::*;

const CONTEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn observer(share: f64) -> Observer {
    let tracing = Tracing {
        ratio: SamplingRatio::new(share).unwrap(),
        ids: TraceIds::new([1, 2]),
        spans: Handoff::new().0,
    };
    Observer { tracing: Some(tracing), lines: None }
}

fn head(traceparent: Option<&str>) -> RequestHead {
    let mut head = RequestHead::default();
    if let Some(value) = traceparent {
        head.fields.push(b"traceparent", value.as_bytes());
    }
    head.fields.push(b"tracestate", b"vendor=1");
    head
}

fn field(head: &RequestHead, name: &[u8]) -> Option<String> {
    head.fields.value(name).map(|value| String::from_utf8_lossy(value).into_owned())
}

#[test]
fn a_recorded_request_names_its_own_span_to_the_next_hop() {
    let mut head = head(Some(&format!("{CONTEXT}-01")));
    let observed = observer(0.0).begin(&mut head, Instant::now()).unwrap();
    let recorded = observed.recorded.unwrap();
    assert_eq!(recorded.parent.unwrap().to_string(), &CONTEXT[36..]);
    let sent = field(&head, b"traceparent").unwrap();
    assert_eq!(sent.as_bytes(), recorded.context.to_field());
    assert_eq!(&sent[..35], &CONTEXT[..35]);
    assert_ne!(&sent[36..52], &CONTEXT[36..]);
    assert_eq!(field(&head, b"tracestate").unwrap(), "vendor=1");
}

#[test]
fn what_a_caller_does_not_record_goes_on_as_it_came() {
    let mut head = head(Some(&format!("{CONTEXT}-00")));
    let before = head.clone();
    assert!(observer(1.0).begin(&mut head, Instant::now()).is_none());
    assert_eq!(head, before);
}

#[test]
fn a_trace_that_begins_here_takes_no_state_of_another() {
    for (share, flags) in [(0.0, "-00"), (1.0, "-01")] {
        let mut head = head(Some("garbage"));
        assert_eq!(observer(share).begin(&mut head, Instant::now()).is_some(), share > 0.5);
        assert!(field(&head, b"traceparent").unwrap().ends_with(flags));
        assert_eq!(head.fields.values(b"traceparent").count(), 1);
        assert_eq!(field(&head, b"tracestate"), None);
    }
}

#[test]
fn an_attempt_that_is_made_again_has_a_span_of_its_own() {
    let (mut observer, mut head) = (observer(1.0), head(None));
    let now = Instant::now();
    let first = observer.begin(&mut head, now).unwrap().recorded.unwrap();
    let mut second = first;
    observer.begin_again(&mut second, &mut head, now + Duration::from_millis(5));
    assert_eq!((second.context.trace, second.parent), (first.context.trace, first.parent));
    assert_ne!(second.context.span, first.context.span);
    assert_eq!((second.resends, second.started), (1, now + Duration::from_millis(5)));
    assert_eq!(field(&head, b"traceparent").unwrap().as_bytes(), second.context.to_field());
}

fn service(name: &str) -> ServiceName {
    let label = |text| Label::new(text).unwrap();
    ServiceName::parse_in(name, &label("default"), &label("west")).unwrap()
}

fn own() -> TelemetryIdentity {
    TelemetryIdentity {
        service: Some(service("web")),
        spiffe_id: Some("spiffe://west.tollway/ns/default/web".to_owned()),
        instance: Some("web-1".to_owned()),
    }
}

fn finished(path: &[u8], is_grpc: bool) -> Finished {
    let started = Instant::now();
    Finished {
        kind: Kind::Request,
        inbound: false,
        method: Method::Post,
        path: path.to_vec(),
        service: Some(service("stock.shop.east")),
        status: 200,
        outcome: Outcome::Answered,
        request_bytes: 3,
        response_bytes: 5,
        started,
        ended: started + Duration::from_micros(1500),
        attempts: 1,
        is_grpc,
        grpc_status: None,
        peer: None,
        client: None,
        remote: None,
        version: "2",
        recorded: None,
    }
}

/// The attributes of its span that are texts, as another implementation reads them.
fn texts_of(finished: &Finished) -> HashMap<String, String> {
    let context = TraceContext::parse(format!("{CONTEXT}-01").as_bytes()).unwrap();
    let recorded = Recorded { context, parent: None, started: finished.started, resends: 0 };
    let mut spans = Spans::new();
    span::write_span(finished, recorded, &own(), &mut spans);
    let mut read = ScopeSpans::decode(spans.as_bytes()).unwrap().spans;
    let attributes = read.remove(0).attributes.into_iter();
    let text = |attribute: KeyValue| {
        let Value::StringValue(text) = attribute.value?.value? else { return None };
        Some((attribute.key, text))
    };
    attributes.filter_map(text).collect()
}

#[test]
fn errors_are_named_by_what_refused() {
    let error_of = |finished: &Finished| texts_of(finished).remove("error.type");
    let mut request = finished(b"/a", false);
    assert_eq!(error_of(&request), None);
    request.status = 404;
    assert_eq!(error_of(&request).as_deref(), Some("404"));
    request.inbound = true;
    assert_eq!(error_of(&request), None, "the server did what it was asked");
    request.outcome = Outcome::Failed(ErrorCode::UnknownService);
    assert_eq!(error_of(&request).as_deref(), Some("ERR_UNKNOWN_SERVICE"));
    let mut call = finished(b"/a.B/C", true);
    call.grpc_status = Some(5);
    assert_eq!(error_of(&call).as_deref(), Some("5"));
    call.inbound = true;
    assert_eq!(error_of(&call), None);
}

#[test]
fn a_line_is_one_line_of_json_whatever_the_path_holds() {
    let mut line = Vec::new();
    line::write_line(&finished(b"/a\"\n\x1b\xff", false), &own(), &mut line);
    assert!(!line.contains(&b'\n') && !line.contains(&0x1b));
    let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(value["path"], "/a\"\n\u{1b}\u{fffd}");
    assert_eq!(value["service"], "stock.shop.east");
    assert_eq!(value["duration_us"], 1500);
    assert_eq!(value["instance"], serde_json::Value::Null);
}
