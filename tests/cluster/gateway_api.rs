//! Routes of the Gateway API: its own conformance tests for meshes as they are, and what these do not look at:
//! the status of a route that is attached to Services.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::support::{Namespace, SOON, client, control, deployment, need_rig, server, state, west};

/// What the tests of meshes can be asked for: all that there is for them.
const FEATURES: &[&str] = &[
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteNamedRouteRule",
    "HTTPRoute",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "GRPCRoute",
];

fn of_environment(name: &str) -> PathBuf {
    let path = std::env::var_os(name);
    path.unwrap_or_else(|| panic!("{name}: `cargo xtask cluster test` names it")).into()
}

/// Applies the definitions of the kinds that have to do with a mesh.
fn define(cluster: Cluster<'_>) {
    let folder = of_environment("TOLLWAY_GATEWAY_DEFINITIONS");
    let kinds = ["httproutes", "grpcroutes"];
    for kind in kinds {
        let file = folder.join(format!("gateway.networking.k8s.io_{kind}.yaml"));
        // They are too large for the annotation of a plain `apply`.
        let apply = ["apply", "--server-side", "-f", file.to_str().unwrap()];
        cluster.kubectl(&apply).unwrap();
    }
    let definitions = kinds.map(|kind| format!("crd/{kind}.gateway.networking.k8s.io"));
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    let definitions: Vec<&str> = definitions.iter().map(String::as_str).collect();
    cluster.kubectl(&[&wait[..], &definitions].concat()).unwrap();
}

#[test]
fn the_conformance_tests_of_the_gateway_api_for_meshes_pass() {
    let rig = need_rig!();
    let cluster = west(&rig);
    define(cluster);
    let report = std::env::var_os("TOLLWAY_GATEWAY_REPORT");
    let report = report.map_or_else(|| std::env::temp_dir().join("gateway-api.yaml"), Into::into);
    let mut tests = cluster.command(of_environment("TOLLWAY_GATEWAY_CONFORMANCE"));
    tests.env("KUBECONFIG", cluster.kubeconfig()).args([
        "-test.run=TestConformance",
        "-test.v",
        "-test.timeout=20m",
        "-conformance-profiles=MESH-HTTP,MESH-GRPC",
        "-namespace-labels=tollway.dev/inject=true,tollway.dev/capture=true",
        "-organization=tollway",
        "-project=tollway",
        "-url=https://tollway.dev",
        "-contact=https://tollway.dev",
    ]);
    tests.arg(format!("-supported-features={}", FEATURES.join(",")));
    tests.arg(format!("-version=v{}", env!("CARGO_PKG_VERSION")));
    tests.arg(format!("-report-output={}", report.display()));
    let output = tests.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        failures(&printed),
        state(cluster, "gateway-conformance-mesh"),
        control(cluster, &["get", "routes"])
    );
    eprintln!("{}", summary(&report));
}

/// The lines of the tests that failed, and those about them.
fn failures(printed: &str) -> String {
    let is_told = |line: &&str| {
        let line = line.trim_start();
        ["--- FAIL", "Error:", "panic:"].iter().any(|start| line.starts_with(start))
            || line.contains("not ready yet")
    };
    let lines: Vec<&str> = printed.lines().filter(is_told).collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// What the report counts.
fn summary(report: &Path) -> String {
    let report = std::fs::read_to_string(report).unwrap();
    let counts = report.lines().map(str::trim);
    let counts = counts.filter(|line| {
        ["name:", "result:", "Passed:", "Failed:", "Skipped:"].iter().any(|of| line.starts_with(of))
    });
    counts.collect::<Vec<_>>().join(", ")
}

fn route(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name}, "spec": spec,
    })
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {
            "selector": {"app": "stock"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    })
}

fn parent(name: &str) -> Value {
    json!({"group": "", "kind": "Service", "name": name})
}

#[test]
fn the_status_of_a_route_shows_what_has_become_of_it() {
    let rig = need_rig!();
    let cluster = west(&rig);
    define(cluster);
    let shop = Namespace::new(
        cluster,
        "gateway-routes",
        &[
            ("pod-security.kubernetes.io/enforce", "privileged"),
            ("tollway.dev/inject", "true"),
            ("tollway.dev/capture", "true"),
        ],
    );
    shop.apply(&deployment("stock", json!({}), server()));
    shop.apply(&service("stock"));
    shop.apply(&deployment("till", json!({}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let call = "curl -sS -w '%{http_code}' -o /dev/null http://stock/echo";
    shop.shell_until("till", call, "200");
    let rules = json!([{
        "matches": [{"path": {"type": "PathPrefix", "value": "/echo"}}],
        "filters": [{"type": "RequestRedirect", "requestRedirect": {"statusCode": 307}}],
    }]);
    shop.apply(&route("moved", json!({"parentRefs": [parent("stock")], "rules": rules})));
    let conditions = |name: &str| {
        let path = "--output=jsonpath={range .status.parents[*].conditions[*]}{.type}={.status}/{.reason} {end}";
        shop.kubectl(&["get", &format!("httproutes/{name}"), path])
    };
    let applied = |name: &'static str, expected: &'static str| {
        let path = "--output=jsonpath={range .status.parents[*].conditions[*]}{.type}={.status}/{.reason} {end}";
        shop.wait_for(&["get", &format!("httproutes/{name}"), path], |seen| {
            seen.trim() == expected
        });
    };
    let done =
        "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs tollway.dev/Applied=True/Everywhere";
    applied("moved", done);
    assert_eq!(shop.shell("till", call), "307", "it is in effect as soon as its status says so");
    let listed = control(cluster, &["get", "routes"]);
    assert!(listed.contains("http_moved_stock_80"), "{listed}");
    // One that is odd hurts no other, and says what is odd.
    let odd = json!({"parentRefs": [parent("gone")]});
    shop.apply(&route("odd", odd));
    let odd = "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs tollway.dev/Applied=False/NotAccepted";
    applied("odd", odd);
    let events = [
        "get",
        "events",
        "--output=jsonpath={range .items[*]}{.involvedObject.name}: {.message}{\"\\n\"}{end}",
    ];
    shop.wait_for(&events, |seen| seen.contains("odd: there is no Service gateway-routes/gone"));
    let parents = json!([parent("stock")]);
    let rules = json!([{"backendRefs": [{"name": "gone", "port": 80}]}]);
    shop.apply(&route("moved", json!({"parentRefs": parents, "rules": rules})));
    let unresolved = "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound tollway.dev/Applied=True/Everywhere";
    applied("moved", unresolved);
    assert_eq!(shop.shell("till", call), "500", "{}", conditions("moved"));
    // What a route leads to may come later.
    shop.apply(&service("gone"));
    applied("moved", done);
    shop.shell_until("till", call, "200");
    shop.kubectl(&["delete", "httproutes/moved"]);
    let is_gone = || !control(cluster, &["get", "routes"]).contains("http_moved_stock_80");
    let begun = Instant::now();
    while !is_gone() {
        assert!(begun.elapsed() < SOON, "the route stays");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(shop.shell("till", call), "200");
}
