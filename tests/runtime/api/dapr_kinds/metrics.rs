//! A14: metrics under Dapr's names, as a Configuration chooses them.

use std::collections::HashMap;

use tollway_testkit::{metric_in, retry_until};
use tollway_tests::mesh::http::{call, get, runtime};
use tollway_tests::scripted_app::App;
use tollway_tests::user::{PATIENCE, User};
use tollway_wire::dapr::proto::common::v1::StateItem;
use tollway_wire::dapr::proto::runtime::v1::{GetStateRequest, SaveStateRequest};

use super::ask;
use crate::api::daprd::{Daprd, ended, file};
use crate::api::{client, invoke, message};

const REQUESTS: &str = "dapr_http_server_request_count";
const RESPONSES: &str = "dapr_http_server_response_count";
const APP_REQUESTS: &str = "dapr_http_client_completed_count";

fn configuration(user: &User, section: &str) -> String {
    let text = format!("kind: Configuration\nspec:\n  metrics: {section}\n");
    file(user, "metrics.yaml", &text)
}

/// A sidecar with this section about metrics, and its app.
struct Measured {
    daprd: Daprd,
    app: App,
    _user: User,
}

impl Measured {
    fn start(section: &str) -> Self {
        let (user, app) = (User::new(), App::start(HashMap::new()));
        let config = configuration(&user, section);
        let flags = ["--app-port", &app.port(), "--config", &config];
        let daprd = Daprd::listening(&user, "web", &flags);
        let ready = retry_until(PATIENCE, "a sidecar that is ready", || {
            (ask(daprd.http(), "GET", "/v1.0/healthz", &[]).status == 204).then_some(())
        });
        ready.map_err(|error| error.context(daprd.log())).unwrap();
        Self { daprd, app, _user: user }
    }

    fn page(&self) -> String {
        get(self.daprd.metrics(), "/metrics")
    }

    /// Calls the own app at a path.
    fn call(&self, path: &str) {
        let answer = ask(self.daprd.http(), "GET", path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    /// How often a request with these labels was counted.
    fn count(&self, name: &str, method: &str, path: &str, status: u16) -> f64 {
        let labels = format!(
            "{name}{{app_id=\"web\",method=\"{method}\",path=\"{path}\",status=\"{status}\"}}"
        );
        metric_in(&self.page(), &labels).unwrap_or(0.0)
    }

    /// Makes a request until it is answered with this status.
    fn until(&self, method: &str, path: &str, body: &'static str, status: u16) {
        let json = [("content-type", "application/json")];
        let answered = retry_until(PATIENCE, path, || {
            let asked = call(self.daprd.http(), method, path, &json, body);
            let (answer, _, _) = runtime().block_on(asked);
            (answer.as_u16() == status).then_some(())
        });
        answered.map_err(|error| error.context(self.daprd.log())).unwrap();
    }
}

#[test]
fn a14_requests_have_their_path_without_keys_and_ids() {
    let of = Measured::start("{}");
    of.call("/v1.0/invoke/web/method/test?a=b");
    of.call("//v1.0/invoke/web/method/orders/7");
    of.until("POST", "/v1.0/state/statestore", r#"[{"key":"k","value":1}]"#, 204);
    of.until("GET", "/v1.0/state/statestore/k", "", 200);
    let path = "/v1.0/invoke/web/method/test";
    for name in [REQUESTS, RESPONSES] {
        assert_eq!(of.count(name, "GET", path, 200), 1.0, "{name}: {}", of.page());
        assert_eq!(of.count(name, "GET", "/v1.0/healthz", 204), 1.0, "{name}: {}", of.page());
    }
    assert_eq!(of.count(REQUESTS, "GET", "/v1.0/invoke/web/method/orders/7", 200), 1.0);
    assert_eq!(of.count(REQUESTS, "POST", "/v1.0/state/statestore", 204), 1.0);
    assert_eq!(of.count(REQUESTS, "GET", "/v1.0/state/statestore", 200), 1.0);
    assert_eq!(of.count(APP_REQUESTS, "GET", "/test", 200), 1.0, "{}", of.page());
    assert_eq!(of.count(APP_REQUESTS, "GET", "/orders/7", 200), 1.0, "{}", of.page());
}

#[test]
fn a14_without_increased_cardinality_a_path_is_empty() {
    let of = Measured::start(
        "{http: {increasedCardinality: false, excludeVerbs: true}, \
         latencyDistributionBuckets: [5, 50, 500, 5000]}",
    );
    of.call("/v1.0/invoke/web/method/test");
    let page = of.page();
    assert_eq!(of.count(REQUESTS, "", "", 200), 1.0, "{page}");
    assert_eq!(of.count(APP_REQUESTS, "", "", 200), 1.0, "{page}");
    assert!(of.count(APP_REQUESTS, "", "/dapr/config", 200) >= 1.0, "{page}");
    assert!(!page.contains(RESPONSES), "{page}");
    let latency = "dapr_http_server_latency_bucket";
    let of_calls = page.lines().filter(|l| l.starts_with(latency) && l.contains("\"200\""));
    let bounds: Vec<&str> = of_calls.filter_map(|line| line.split("le=\"").nth(1)).collect();
    let bounds: Vec<&str> = bounds.iter().filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(bounds, ["5", "50", "500", "5000", "+Inf"], "{page}");
    // The metrics of other kinds have the same buckets.
    let other = "dapr_runtime_service_invocation_res_recv_latency_ms_bucket";
    assert_eq!(page.lines().filter(|line| line.starts_with(other)).count(), 5, "{page}");
}

#[test]
fn a14_patterns_take_the_place_of_the_paths_they_match() {
    let patterns =
        "['/orders/{id}', /v1.0/invoke/web/method/orders/7, '/v1.0/state/statestore/{key}']";
    for (is_detailed, unmatched) in [("false", ""), ("true", "/v1.0/invoke/web/method/items/1")] {
        let http = format!("{{increasedCardinality: {is_detailed}, pathMatching: {patterns}}}");
        let of = Measured::start(&format!("{{http: {http}}}"));
        let calls = "/v1.0/invoke/web/method";
        for path in ["/orders/1", "/orders/2", "/orders/7", "/items/1"] {
            of.call(&format!("{calls}{path}"));
        }
        of.until("GET", "/v1.0/state/statestore/k", "", 204);
        let all = "/v1.0/invoke/{app_id}/method/orders/{id}";
        let page = of.page();
        assert_eq!(of.count(REQUESTS, "GET", all, 200), 2.0, "{page}");
        assert_eq!(of.count(REQUESTS, "GET", &format!("{calls}/orders/7"), 200), 1.0, "{page}");
        assert_eq!(of.count(REQUESTS, "GET", unmatched, 200), 1.0, "{page}");
        let state = "/v1.0/state/statestore/{key}";
        assert_eq!(of.count(REQUESTS, "GET", state, 204), 1.0, "{page}");
        assert_eq!(of.count(APP_REQUESTS, "GET", "/orders/{id}", 200), 3.0, "{page}");
    }
}

#[test]
fn a14_rules_bring_series_together() {
    let rules = "[{name: dapr_http_server_request_count, labels: [{name: path, regex: {'/orders/*': \
                 '/orders/.+'}}, {name: status, regex: {2xx: '^2..$'}}]}, {name: \
                 dapr_runtime_service_invocation_req_sent_total, labels: [{name: dst_app_id, regex: \
                 {'': .+}}]}]";
    let of = Measured::start(&format!("{{rules: {rules}}}"));
    for number in 1..4 {
        of.call(&format!("/v1.0/invoke/web/method/orders/{number}"));
    }
    let page = of.page();
    let labels = "app_id=\"web\",method=\"GET\",path=\"/v1.0/invoke/web/method/orders/*\"";
    let merged = format!("{REQUESTS}{{{labels},status=\"2xx\"}}");
    assert_eq!(metric_in::<f64>(&page, &merged).unwrap(), 3.0, "{page}");
    assert_eq!(of.count(RESPONSES, "GET", "/v1.0/invoke/web/method/orders/2", 200), 1.0, "{page}");
    let sent = "dapr_runtime_service_invocation_req_sent_total";
    let sent = format!("{sent}{{app_id=\"web\",dst_app_id=\"\",type=\"unary\"}}");
    assert_eq!(metric_in::<f64>(&page, &sent).unwrap(), 3.0, "{page}");
}

#[test]
fn a14_errors_of_the_api_are_counted_by_their_codes() {
    let of = Measured::start("{recordErrorCodes: true}");
    let http = |method: &str, path: &str, body: &'static str| {
        let json = [("content-type", "application/json")];
        runtime().block_on(call(of.daprd.http(), method, path, &json, body)).0.as_u16()
    };
    of.until("GET", "/v1.0/state/statestore/k", "", 204);
    let page = of.page();
    let count = |page: &str, category: &str, code: &str| -> f64 {
        let labels = format!("app_id=\"web\",category=\"{category}\",error_code=\"{code}\"");
        metric_in(page, &format!("dapr_error_code_total{{{labels}}}")).unwrap_or(0.0)
    };
    assert_eq!(http("POST", "/v1.0/state/statestore", "{}"), 400);
    assert_eq!(http("POST", "/v1.0/state/statestore", r#"[{"key":"a||b","value":1}]"#), 400);
    assert_eq!(http("GET", "/v1.0/state/other/k", ""), 500);
    assert_eq!(http("GET", "/v1.0/invoke/nobody/method/x", ""), 500);
    assert_eq!(http("GET", "/nowhere", ""), 404);
    assert_eq!(http("GET", "/v1.0/healthz?appid=other", ""), 500);
    assert_eq!(http("DELETE", "/v1.0/actors/Cart/1/reminders/x", ""), 403);
    runtime().block_on(async {
        let mut client = client(of.daprd.grpc_address()).await;
        let store_name = "other".to_owned();
        let unknown = client.get_state(GetStateRequest { store_name, ..Default::default() }).await;
        assert_eq!(
            unknown.unwrap_err().metadata().get("x-tollway-error").unwrap(),
            "ERR_STATE_STORE_NOT_CONFIGURED"
        );
        let item = StateItem { key: "a||b".to_owned(), ..Default::default() };
        let store_name = "statestore".to_owned();
        let illegal = SaveStateRequest { store_name, states: vec![item] };
        client.save_state(illegal).await.unwrap_err();
        let failed = invoke(of.daprd.grpc_address(), "nobody", message("x", "")).await;
        assert_eq!(
            failed.unwrap_err().metadata().get("x-tollway-error").unwrap(),
            "ERR_UNKNOWN_SERVICE"
        );
    });
    let after = of.page();
    for (category, code, expected) in [
        ("common", "ERR_MALFORMED_REQUEST", 1.0),
        ("state", "ERR_MALFORMED_REQUEST", 2.0),
        ("state", "ERR_STATE_STORE_NOT_CONFIGURED", 2.0),
        ("service-invocation", "ERR_DIRECT_INVOKE", 3.0),
        ("health", "ERR_HEALTH_APPID_NOT_MATCH", 1.0),
        ("actor", "ERR_ACTOR_REMINDER_NON_HOSTED", 1.0),
    ] {
        let since = count(&after, category, code) - count(&page, category, code);
        assert_eq!(since, expected, "{category} {code}: {after}");
    }
}

#[test]
fn a14_nothing_is_counted_where_a_configuration_switches_it_off() {
    let of = Measured::start("{enabled: false}");
    of.call("/v1.0/invoke/web/method/test");
    let page = of.page();
    assert!(page.contains("\ntollway_outbound_requests_total "), "{page}");
    assert!(!page.contains("\ndapr_"), "{page}");
    assert_eq!(of.app.requests("/test").len(), 1);
}

#[test]
fn a14_what_daprd_ends_for_ends_the_start_and_what_it_only_logs_does_not() {
    let user = User::new();
    for (section, part) in [
        (
            "{http: {pathMatching: ['GET /orders']}}",
            "spec.metrics.http.pathMatching: `/GET /orders`",
        ),
        ("{http: {pathMatching: ['/{a}', '/{b}']}}", "match the same paths"),
        ("{latencyDistributionBuckets: [many]}", "metrics.yaml:3:"),
    ] {
        let config = configuration(&user, section);
        let (code, _, reported) = ended(&user, &["--app-id", "web", "--config", &config]);
        assert_eq!(code, Some(1), "{section}: {reported}");
        assert!(reported.contains(part), "{section}: {reported}");
    }
    let of = Measured::start(
        "{colour: red, latencyDistributionBuckets: [-1], rules: [{name: m, labels: [{name: l, \
         regex: {a: '('}}]}]}",
    );
    of.call("/v1.0/invoke/web/method/test");
    assert_eq!(of.count(REQUESTS, "GET", "/v1.0/invoke/web/method/test", 200), 1.0);
    let log = of.daprd.log();
    for part in [
        "the field `colour` is not known",
        "latencyDistributionBuckets are left out: a bucket ends at -1",
        "all rules about metrics are left out: the rule for m, l",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

#[test]
fn a14_rules_of_resiliency_have_the_namespace_of_their_file() {
    let (user, app) = (User::new(), App::start(HashMap::new()));
    let rules = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata: {name: rules, namespace: \
                 default}\nspec:\n  policies:\n    timeouts: {short: 20s}\n  targets:\n    apps:\n      \
                 web: {timeout: short}\n";
    let rules = file(&user, "rules/rules.yaml", rules);
    let folder = rules.strip_suffix("/rules.yaml").unwrap();
    let flags = ["--app-port", &app.port(), "--resources-path", folder];
    let daprd = Daprd::listening(&user, "web", &flags);
    daprd.until_served("web");
    let page = get(daprd.metrics(), "/metrics");
    let loaded = "dapr_resiliency_loaded{app_id=\"web\",name=\"rules\",namespace=\"default\"}";
    assert_eq!(metric_in::<f64>(&page, loaded).unwrap(), 1.0, "{page}");
    let count = "dapr_resiliency_count{app_id=\"web\",flow_direction=\"outbound\",name=\"rules\",\
                 namespace=\"default\",policy=\"timeout\",status=\"\",target=\"app_web\"}";
    assert!(metric_in::<f64>(&page, count).unwrap() >= 1.0, "{page}");
}
