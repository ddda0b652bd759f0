//! What a sidecar in daprd's place counts under Dapr's names, after real calls.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tollway_testkit::{metric_in, retry_until};
use tollway_wire::dapr::proto::common::v1::InvokeRequest;
use tollway_wire::dapr::proto::runtime::v1::app_callback_client::AppCallbackClient;
use tonic::transport::Endpoint;

use super::app::GrpcApp;
use super::daprd::Daprd;
use super::resilience::Ruled;
use tollway_tests::mesh::http::{get, runtime};
use tollway_tests::user::{PATIENCE, User};

fn page(of: &Daprd) -> String {
    let answer = get(of.metrics(), "/metrics");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    page.to_owned()
}

#[track_caller]
fn value(page: &str, name: &str, labels: &str) -> f64 {
    metric_in(page, &format!("{name}{{{labels}}}")).unwrap()
}

/// The sum of the series with all of these labels.
fn sum(page: &str, name: &str, labels: &[&str]) -> f64 {
    let is_one = |line: &&str| {
        let is_named = line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
        is_named && labels.iter().all(|label| line.contains(label))
    };
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    page.lines().filter(is_one).map(value).sum()
}

#[test]
fn calls_over_http_actors_and_rules_are_counted_under_daprs_names() {
    let ruled = Ruled::start();
    let before = page(&ruled.caller);
    let of_caller = ["app_id=\"caller\"", "method=\"POST\"", "status=\"200\""];
    let served = sum(&before, "dapr_http_server_request_count", &of_caller);
    for number in 0..3 {
        assert_eq!(ruled.call(&format!("invoke/picky/method/a/{number}"), "hello").0, 200);
    }
    assert_eq!(ruled.call("invoke/flaky/method/fails/2/k", "hello").0, 200);
    let caller = page(&ruled.caller);
    let name = "dapr_http_server_request_count";
    assert_eq!(sum(&caller, name, &of_caller) - served, 4.0, "{caller}");
    let path = "path=\"/v1.0/invoke/picky/method/a/2\"";
    let of_path = format!("app_id=\"caller\",method=\"POST\",{path},status=\"200\"");
    assert_eq!(value(&caller, name, &of_path), 1.0, "{caller}");
    let latency = "dapr_http_server_latency";
    let took = sum(&caller, &format!("{latency}_sum"), &of_caller);
    // Two pauses of 20 ms are in it, and no minute.
    assert!((40.0..60_000.0).contains(&took), "{took} ms");
    assert_eq!(sum(&caller, &format!("{latency}_count"), &of_caller), 4.0 + served);
    // Each attempt is a call, and has an answer.
    let invocation = "dapr_runtime_service_invocation";
    let to = |status: u16| {
        format!("app_id=\"caller\",src_app_id=\"flaky\",status=\"{status}\",type=\"unary\"")
    };
    assert_eq!(value(&caller, &format!("{invocation}_res_recv_total"), &to(503)), 2.0);
    let rule = |policy: &str, target: &str, status: &str| {
        format!(
            "app_id=\"caller\",flow_direction=\"outbound\",name=\"rules\",namespace=\"\",\
             policy=\"{policy}\",status=\"{status}\",target=\"{target}\""
        )
    };
    let loaded = "app_id=\"caller\",name=\"rules\",namespace=\"\"";
    assert_eq!(value(&caller, "dapr_resiliency_loaded", loaded), 1.0);
    let activations = "dapr_resiliency_activations_total";
    assert_eq!(value(&caller, activations, &rule("retry", "app_flaky", "")), 2.0);
    assert!(value(&caller, "dapr_resiliency_count", &rule("timeout", "app_flaky", "")) >= 3.0);
    // At last the breaker is open.
    for status in [503, 503, 503, 500] {
        assert_eq!(ruled.call("invoke/broken/method/fails/9/b", "").0, status);
    }
    let caller = page(&ruled.caller);
    let open = rule("circuitbreaker", "app_broken", "open");
    assert_eq!(value(&caller, "dapr_resiliency_cb_state", &open), 1.0);
    assert_eq!(value(&caller, activations, &open), 1.0);
    // At the callee: the calls as they came, and its app's answers.
    let callee = page(ruled.callee("flaky"));
    let from = "app_id=\"flaky\",src_app_id=\"caller\"";
    assert!(value(&callee, &format!("{invocation}_req_recv_total"), from) >= 3.0);
    let answered = "app_id=\"flaky\",dst_app_id=\"caller\",status=\"503\"";
    assert_eq!(value(&callee, &format!("{invocation}_res_sent_total"), answered), 2.0);
    let asked = ["app_id=\"flaky\"", "method=\"POST\"", "status=\"503\""];
    assert_eq!(sum(&callee, "dapr_http_client_completed_count", &asked), 2.0);
    assert!(sum(&callee, "dapr_http_client_sent_bytes_sum", &asked[..2]) >= 15.0);
}

#[test]
fn firings_of_actors_are_counted_under_daprs_names() {
    let ruled = Ruled::start();
    let hosted = retry_until(PATIENCE, "a host of actors", || {
        (ruled.call("actors/Cart/1/method/hello", "").0 == 200).then_some(())
    });
    hosted.unwrap();
    // Whichever of the three runs the actor.
    let all = |metric: &str, more: &str| -> f64 {
        let of = |name: &str| {
            let labels = format!("{metric}{{actor_type=\"Cart\",app_id=\"{name}\"{more}}}");
            metric_in::<f64>(&page(ruled.callee(name)), &labels).unwrap_or(0.0)
        };
        ["flaky", "picky", "broken"].into_iter().map(of).sum()
    };
    let reminder = r#"{"dueTime": "1h", "period": "", "data": 1}"#;
    let (status, reported) = ruled.call_host("actors/Cart/1/reminders/later", reminder);
    assert_eq!(status, 204, "{reported}");
    assert_eq!(all("dapr_runtime_actor_reminders", ""), 1.0);
    assert_eq!(all("dapr_runtime_actor_pending_actor_calls", ""), 0.0);
    let reminder = r#"{"dueTime": "0s", "period": "", "data": 1}"#;
    let (status, reported) = ruled.call_host("actors/Cart/1/reminders/now", reminder);
    assert_eq!(status, 204, "{reported}");
    let fired = retry_until(PATIENCE, "a firing that is counted", || {
        let taken = all("dapr_runtime_actor_reminders_fired_total", ",success=\"true\"");
        (taken == 1.0).then_some(())
    });
    fired.unwrap();
}

#[test]
fn calls_of_grpc_are_counted_under_daprs_names() {
    let (user, runtime, app) = (User::new(), runtime(), GrpcApp::default());
    let port = runtime.block_on(app.serve()).port().to_string();
    let beside = ["--app-port", &port, "--app-protocol", "grpc"];
    let callee = Daprd::listening(&user, "greeter", &beside);
    let caller = Daprd::listening(&user, "caller", &[]);
    caller.until_served("greeter");
    // Those that waited for the app were translated to calls of gRPC.
    let before = page(&callee);
    runtime.block_on(async {
        let listener = format!("http://{}", SocketAddr::from(([127, 0, 0, 1], caller.grpc)));
        let endpoint = Endpoint::from_shared(listener).unwrap();
        let mut proxied = AppCallbackClient::new(endpoint.connect().await.unwrap());
        for method in ["order", "order", "fail/5"] {
            let asked = InvokeRequest { method: method.to_owned(), ..Default::default() };
            let mut request = tonic::Request::new(asked);
            request.metadata_mut().insert("dapr-app-id", "greeter".parse().unwrap());
            let _ = proxied.on_invoke(request).await;
        }
    });
    let method = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";
    let of = |app: &str, side: &str, status: &str| {
        format!("app_id=\"{app}\",grpc_{side}_method=\"{method}\",grpc_{side}_status=\"{status}\"")
    };
    let (calling, called) = (page(&caller), page(&callee));
    let completed = "dapr_grpc_io_server_completed_rpcs";
    assert_eq!(value(&calling, completed, &of("caller", "server", "OK")), 2.0);
    assert_eq!(value(&calling, completed, &of("caller", "server", "NotFound")), 1.0);
    let completed = "dapr_grpc_io_client_completed_rpcs";
    let since =
        |name: &str, labels: &str| value(&called, name, labels) - value(&before, name, labels);
    assert_eq!(since(completed, &of("greeter", "client", "OK")), 2.0);
    assert_eq!(value(&called, completed, &of("greeter", "client", "NotFound")), 1.0);
    let latency = "dapr_grpc_io_client_roundtrip_latency";
    assert_eq!(since(&format!("{latency}_count"), &of("greeter", "client", "OK")), 2.0);
}

#[test]
fn prometheus_own_parser_takes_the_page() {
    let promlint = tollway_testkit::need_tool!("promlint");
    let ruled = Ruled::start();
    for path in ["invoke/flaky/method/fails/2/k", "invoke/broken/method/fails/9/b"] {
        ruled.call(path, "hello");
    }
    for daprd in [&ruled.caller, ruled.callee("flaky")] {
        let page = page(daprd);
        assert!(page.contains("dapr_http_"), "{page}");
        // Its linter has something against names, which are Dapr's.
        let problems = lint(&promlint, &page);
        let foreign: Vec<_> = problems.lines().filter(|l| !l.starts_with("dapr_")).collect();
        assert!(foreign.is_empty(), "{foreign:#?}\n{page}");
    }
}

fn lint(promlint: &Path, page: &str) -> String {
    let mut linter =
        Command::new(promlint).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    linter.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    String::from_utf8(linter.wait_with_output().unwrap().stdout).unwrap()
}
