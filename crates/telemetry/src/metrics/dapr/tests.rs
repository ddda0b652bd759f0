use super::*;

/// Of an app whose Configuration chooses nothing.
pub(super) fn usual() -> Arc<DaprMetrics> {
    with(&DaprSettings::default())
}

fn with(settings: &DaprSettings) -> Arc<DaprMetrics> {
    let mut notes = Vec::new();
    let plan = DaprPlan::read(settings, &mut notes).unwrap();
    assert_eq!(notes, [""; 0]);
    DaprMetrics::new("web", plan)
}

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

fn serve(metrics: &DaprMetrics, target: &str) {
    let label = metrics.path_label(target).unwrap_or_default();
    metrics.served(call("GET", None), &label);
}

/// How many series of a metric there are, and the sum of their values.
fn series(text: &str, name: &str) -> (usize, usize) {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let counts: Vec<usize> =
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    (counts.len(), counts.iter().sum())
}

#[test]
fn calls_are_counted_under_daprs_names() {
    let metrics = usual();
    metrics.served(call("GET", None), "/v1.0/healthz");
    metrics.served(call("BREW", None), "");
    metrics.served(call("POST", Some(0)), "");
    metrics.served(call("POST", Some(14)), "");
    metrics.asked_app(AnsweredCall { path: "/hi?a=b", ..call("PUT", None) });
    metrics.call_sent("stock", false, 200, Duration::from_millis(7));
    metrics.call_sent("stock", true, 503, Duration::from_millis(7));
    metrics.call_received("shop", 404);
    metrics.failed("state", "ERR_STATE_GET");
    let text = page(&metrics);
    let get = "app_id=\"web\",method=\"GET\",path=\"/v1.0/healthz\",status=\"200\"";
    let put = "app_id=\"web\",method=\"PUT\",path=\"/hi\"";
    for line in [
        "# TYPE dapr_http_server_request_count counter",
        &format!("dapr_http_server_request_count{{{get}}} 1"),
        &format!("dapr_http_server_response_count{{{get}}} 1"),
        "dapr_http_server_request_count{app_id=\"web\",method=\"UNKNOWN\",path=\"\",status=\"200\"} 1",
        &format!("dapr_http_server_latency_bucket{{{get},le=\"4\"}} 0"),
        &format!("dapr_http_server_latency_bucket{{{get},le=\"5\"}} 1"),
        &format!("dapr_http_server_latency_sum{{{get}}} 4.5"),
        "dapr_http_server_request_bytes_bucket{app_id=\"web\",le=\"1024\"} 2",
        "dapr_http_server_response_bytes_bucket{app_id=\"web\",le=\"1024\"} 0",
        "dapr_http_server_response_bytes_sum{app_id=\"web\"} 4000",
        &format!("dapr_http_client_completed_count{{{put},status=\"200\"}} 1"),
        &format!("dapr_http_client_sent_bytes_count{{{put},status=\"\"}} 1"),
        "dapr_http_client_received_bytes_sum{app_id=\"web\"} 2000",
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
    assert!(!text.contains("dapr_error_code_total"), "no Configuration has them counted: {text}");
}

#[test]
fn whatever_callers_choose_the_page_is_bounded_and_counts_all() {
    let metrics = usual();
    for number in 0..3 * SERIES {
        let path = format!("/made.Up/Method{number}");
        metrics.served(AnsweredCall { path: &path, ..call("POST", Some(0)) }, "");
        let path = format!("/made/up/{number}");
        metrics.asked_app(AnsweredCall { path: &path, ..call("POST", None) });
        serve(&metrics, &path);
    }
    let text = page(&metrics);
    for name in [
        "dapr_grpc_io_server_completed_rpcs",
        "dapr_http_server_request_count",
        "dapr_http_client_completed_count",
        "dapr_http_client_sent_bytes_count",
    ] {
        assert_eq!(series(&text, name), (SERIES + 1, 3 * SERIES), "{name}");
    }
    let other = "grpc_server_method=\"other\",grpc_server_status=\"OK\"";
    let name = "dapr_grpc_io_server_completed_rpcs{";
    check(&text, &format!("{name}app_id=\"web\",{other}}} {}", 2 * SERIES));
    let other = "method=\"GET\",path=\"other\",status=\"200\"";
    let name = "dapr_http_server_request_count{";
    check(&text, &format!("{name}app_id=\"web\",{other}}} {}", 2 * SERIES));
}

#[test]
fn a14_an_app_that_makes_up_statuses_too_does_not_fill_the_page() {
    let metrics = usual();
    for number in 0..3 * SERIES {
        let status = u16::try_from(number).unwrap();
        let path = format!("/made/up/{}", number % 2);
        metrics.asked_app(AnsweredCall { path: &path, status, ..call("POST", None) });
    }
    let text = page(&metrics);
    let name = "dapr_http_client_completed_count";
    assert_eq!(series(&text, name), (2 * SERIES + 1, 3 * SERIES));
    let other = "method=\"other\",path=\"other\",status=\"other\"";
    check(&text, &format!("{name}{{app_id=\"web\",{other}}} {SERIES}"));
}

#[test]
fn a14_without_detail_there_is_no_path_and_no_count_of_responses() {
    let settings = DaprSettings {
        labels_paths: false,
        excludes_verbs: true,
        latency_bounds: vec![5, 50],
        counts_errors: true,
        ..DaprSettings::default()
    };
    let metrics = with(&settings);
    serve(&metrics, "/v1.0/invoke/a/method/b");
    metrics.failed("state", "ERR_STATE_GET");
    metrics.failed("state", "ERR_STATE_GET");
    let text = page(&metrics);
    let labels = "app_id=\"web\",method=\"\",path=\"\",status=\"200\"";
    check(&text, &format!("dapr_http_server_request_count{{{labels}}} 1"));
    assert!(!text.contains("dapr_http_server_response_count"), "{text}");
    let buckets = text.lines().filter(|line| line.starts_with("dapr_http_server_latency_bucket"));
    assert_eq!(buckets.count(), 3, "{text}");
    let error = "app_id=\"web\",category=\"state\",error_code=\"ERR_STATE_GET\"";
    check(&text, &format!("dapr_error_code_total{{{error}}} 2"));
}

#[test]
fn a14_a_rule_for_one_metrics_paths_leaves_the_others_as_they_are() {
    let rule = LabelRule {
        metric: "dapr_http_server_request_count".to_owned(),
        label: "path".to_owned(),
        replaced: vec![("/orders/*".to_owned(), "/orders/.+".to_owned())],
    };
    let metrics = with(&DaprSettings { rules: vec![rule], ..DaprSettings::default() });
    for number in 0..3 * SERIES {
        serve(&metrics, &format!("/v1.0/invoke/a/method/orders/{number}"));
    }
    let text = page(&metrics);
    let path =
        "app_id=\"web\",method=\"GET\",path=\"/v1.0/invoke/a/method/orders/*\",status=\"200\"";
    check(&text, &format!("dapr_http_server_request_count{{{path}}} {}", 3 * SERIES));
    assert_eq!(series(&text, "dapr_http_server_request_count"), (1, 3 * SERIES));
    assert_eq!(series(&text, "dapr_http_server_response_count"), (SERIES + 1, 3 * SERIES));
    assert_eq!(series(&text, "dapr_http_server_latency_count"), (SERIES + 1, 3 * SERIES));
}

#[test]
fn a14_what_daprd_only_logs_leaves_the_metrics_served() {
    let rule = |expression: &str| LabelRule {
        metric: "m".to_owned(),
        label: "l".to_owned(),
        replaced: vec![("-".to_owned(), expression.to_owned())],
    };
    let settings = DaprSettings {
        latency_bounds: vec![-1, 5],
        rules: vec![rule("a"), rule("(")],
        ..DaprSettings::default()
    };
    let mut notes = Vec::new();
    DaprPlan::read(&settings, &mut notes).unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("latencyDistributionBuckets are left out"), "{notes:?}");
    assert!(notes[1].contains("all rules about metrics are left out"), "{notes:?}");
    let path_patterns = vec!["/a{b}".to_owned()];
    let settings = DaprSettings { path_patterns, ..DaprSettings::default() };
    let refused = DaprPlan::read(&settings, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused.contains("`/a{b}`") || refused.contains("/a{b}`"), "{refused}");
}
