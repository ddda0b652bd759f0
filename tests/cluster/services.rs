//! Services of the cluster: called by apps that know nothing of the mesh, and carried by it where their
//! pods have sidecars.

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::support::{Namespace, client, deployment, need_rig, requests_during, server, west};

/// What the app beside `stock` sees of a caller that comes by the mesh.
const CALLER: &str = "curl -sS http://stock/headers | grep -io '^x-tollway-caller: .*' || true";

/// A Service whose port 80 leads to 8080 of the pods with this label.
fn service(name: &str, set: &str, spec: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"set": set}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

/// A server whose pod has the label `set`.
fn member(name: &str, set: &str, annotations: Value) -> Value {
    let mut deployment = deployment(name, annotations, server());
    deployment["spec"]["template"]["metadata"]["labels"]["set"] = json!(set);
    deployment
}

fn in_mesh() -> Value {
    json!({"tollway.dev/port": "8080"})
}

/// The Service `stock`, served by two apps, and `till`, which is captured.
fn shop<'a>(name: &'static str, cluster: Cluster<'a>) -> Namespace<'a> {
    let shop = Namespace::new(cluster, name, &[("tollway.dev/inject", "true")]);
    shop.apply(&service("stock", "stock", json!({})));
    shop.apply(&member("stock-v1", "stock", in_mesh()));
    shop.apply(&member("stock-v2", "stock", in_mesh()));
    shop.apply(&deployment("till", json!({"tollway.dev/capture": "true"}), client()));
    ["stock-v1", "stock-v2", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    shop
}

fn caller_in(namespace: &str) -> String {
    format!("x-tollway-caller: spiffe://west.tollway/ns/{namespace}/till")
}

#[test]
fn a_service_is_called_by_its_name_and_its_pods_see_who_calls() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = shop("services", cluster);
    let seen = caller_in("services");
    shop.shell_until("till", CALLER, &seen);
    for host in ["stock.services", "stock.services.svc.cluster.local"] {
        let line = CALLER.replace("http://stock/", &format!("http://{host}/"));
        assert_eq!(shop.shell("till", &line).trim_end(), seen, "{host}");
    }
    // The host is that which the app has named.
    let host = "curl -sS http://stock.services/headers | grep '^:authority: '";
    assert_eq!(shop.shell("till", host).trim_end(), ":authority: stock.services");
    // By its address, as the variables of pods have it.
    let by_variable = CALLER.replace("http://stock/", "http://$STOCK_SERVICE_HOST/");
    assert_eq!(shop.shell("till", &by_variable).trim_end(), seen);
    // A route of its name sends requests to Services.
    for version in ["v1", "v2"] {
        let of = json!({"selector": {"app": format!("stock-{version}")}});
        shop.apply(&service(version, "", of));
    }
    let split = json!({
        "apiVersion": "tollway.dev/v1", "kind": "Route", "metadata": {"name": "versions"},
        "spec": {"service": "stock", "rules": [
            {"matches": [{"headers": [{"name": "x-version", "value": "2"}]}],
             "backends": [{"service": "v2:80"}]},
            {"backends": [{"service": "v1:80"}]},
        ]},
    });
    shop.apply(&split);
    shop.kubectl(&[
        "wait",
        "--for=condition=Applied",
        "--timeout=30s",
        "routes.tollway.dev/versions",
    ]);
    let callee = "http://stock/headers | grep -i '^dapr-callee-app-id: '";
    for (version, app) in [("1", "stock-v1"), ("2", "stock-v2")] {
        let line = format!("curl -sS -H 'x-version: {version}' {callee}");
        shop.shell_until("till", &line, &format!("dapr-callee-app-id: {app}"));
    }
    shop.kubectl(&["delete", "routes.tollway.dev/versions"]);
    // Both apps are called, and a policy of one is for its pods alone.
    let policy = json!({
        "apiVersion": "tollway.dev/v1", "kind": "Policy", "metadata": {"name": "closed"},
        "spec": {"target": {"app": "stock-v2"}, "allow": []},
    });
    shop.apply(&policy);
    let wait = ["wait", "--for=condition=Applied", "--timeout=30s", "policies.tollway.dev/closed"];
    shop.kubectl(&wait);
    let line = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do \
                curl -sS -o /dev/null -w '%{http_code}\n' http://stock/echo; done | sort -u";
    assert_eq!(shop.shell("till", line), "200\n403\n");
    // A route of its name.
    let route = json!({
        "apiVersion": "tollway.dev/v1", "kind": "Route", "metadata": {"name": "moved"},
        "spec": {"service": "stock", "rules": [{
            "redirect": {"path": {"full": "/elsewhere"}, "status": 307},
        }]},
    });
    shop.apply(&route);
    shop.kubectl(&["wait", "--for=condition=Applied", "--timeout=30s", "routes.tollway.dev/moved"]);
    let line = "curl -sS -o /dev/null -w '%{http_code}' http://stock/echo";
    assert_eq!(shop.shell("till", line), "307");
    // One that is to stay out of the mesh is called as without one.
    shop.kubectl(&["annotate", "service/stock", "tollway.dev/mesh=false"]);
    shop.shell_until("till", line, "200");
    assert_eq!(shop.shell("till", CALLER), "");
}

/// A server at 8080, and three others in containers beside it.
#[test]
fn every_port_of_a_pod_to_which_a_service_leads_is_called_by_the_mesh() {
    let rig = need_rig!();
    let shop = Namespace::new(west(&rig), "ports-services", &[("tollway.dev/inject", "true")]);
    let mut stock = member("stock", "stock", in_mesh());
    for port in [8081, 8082, 8083] {
        let mut beside = stock["spec"]["template"]["spec"]["containers"][0].clone();
        beside["name"] = json!(format!("at-{port}"));
        beside["args"] = json!(["echo", format!("--http=0.0.0.0:{port}")]);
        stock["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(beside);
    }
    shop.apply(&stock);
    let ports = json!([
        {"name": "web", "port": 80, "targetPort": 8080},
        {"name": "http-admin", "port": 81, "targetPort": 8081},
        {"name": "db", "port": 82, "targetPort": 8082},
        {"name": "api", "port": 83, "targetPort": 8083, "appProtocol": "kubernetes.io/h2c"},
    ]);
    shop.apply(&service("stock", "stock", json!({"ports": ports})));
    shop.apply(&deployment("till", json!({"tollway.dev/capture": "true"}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let seen = caller_in("ports-services");
    for port in ["80", "81", "83"] {
        let line = CALLER.replace("http://stock/", &format!("http://stock:{port}/"));
        shop.shell_until("till", &line, &seen);
    }
    // What the Service does not call HTTP are bytes: the caller is not added to them.
    let line = "curl -sS -o /dev/null -w '%{http_code}' http://stock:82/echo";
    shop.shell_until("till", line, "200");
    assert_eq!(shop.shell("till", &CALLER.replace("http://stock/", "http://stock:82/")), "");
    // A policy of the app is for all its ports.
    let policy = json!({
        "apiVersion": "tollway.dev/v1", "kind": "Policy", "metadata": {"name": "closed"},
        "spec": {"target": {"app": "stock"}, "allow": []},
    });
    shop.apply(&policy);
    let wait = ["wait", "--for=condition=Applied", "--timeout=30s", "policies.tollway.dev/closed"];
    shop.kubectl(&wait);
    for (port, code) in [("80", "403"), ("81", "403"), ("83", "403"), ("82", "000")] {
        let line = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}' http://stock:{port}/echo 2> /dev/null || true"
        );
        assert_eq!(shop.shell("till", &line), code, "port {port}");
    }
    // A port of the pod itself, and one to which no Service leads, which is called as without a mesh.
    shop.kubectl(&["delete", "policies.tollway.dev/closed"]);
    let path = "--output=jsonpath={.items[0].status.podIP}";
    let pod = shop.kubectl(&["get", "pods", "--selector=app=stock", path]);
    let line = CALLER.replace("http://stock/", &format!("http://{pod}:8081/"));
    shop.shell_until("till", &line, &seen);
    // A Service that leads elsewhere from now on.
    let moved = json!([{"name": "http", "port": 81, "targetPort": 8082}]);
    shop.apply(&service("stock", "stock", json!({"ports": moved})));
    shop.shell_until("till", &CALLER.replace("http://stock/", "http://stock:81/"), &seen);
}

/// The commands of a section of the guide, as they stand there.
fn commands(section: &str) -> Vec<String> {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/kubernetes.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, from) = guide.split_once(&format!("\n## {section}\n")).unwrap();
    let text = from.split("\n## ").next().unwrap();
    let blocks = text.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn two_apps_are_taken_into_the_mesh_by_the_commands_of_the_guide() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let level = ("pod-security.kubernetes.io/enforce", "restricted");
    let shop = Namespace::new(cluster, "shop", &[level]);
    shop.apply(&deployment("stock", json!({}), server()));
    ["orders", "other"].iter().for_each(|name| shop.apply(&deployment(name, json!({}), client())));
    let ports = json!([{"port": 8080}]);
    let selector = json!({"app": "stock"});
    shop.apply(&service("stock", "", json!({"selector": selector, "ports": ports})));
    ["stock", "orders", "other"].iter().for_each(|name| shop.wait_rolled_out(name));
    let call = "curl -sS -o /dev/null -w '%{http_code}' http://stock:8080/echo";
    shop.shell_until("orders", call, "200");
    let [join, policy] = &commands("Two apps, step by step")[..] else { panic!("two blocks") };
    cluster.shell(join).unwrap();
    let line = "curl -sS http://stock:8080/headers | grep '^x-tollway-caller: ' || true";
    shop.shell_until("orders", line, "x-tollway-caller: spiffe://west.tollway/ns/shop/orders");
    cluster.shell(policy).unwrap();
    shop.shell_until("orders", call, "200");
    let captured = json!({"tollway.dev/inject": "true", "tollway.dev/capture": "true"});
    shop.apply(&deployment("other", captured, client()));
    shop.wait_rolled_out("other");
    shop.shell_until("other", call, "403");
}

#[test]
fn a_service_goes_by_the_mesh_once_all_its_pods_have_sidecars() {
    let rig = need_rig!();
    let shop = shop("mixed-services", west(&rig));
    let seen = caller_in("mixed-services");
    shop.shell_until("till", CALLER, &seen);
    let without = json!({"tollway.dev/inject": "false"});
    shop.apply(&member("plain", "stock", without));
    shop.wait_rolled_out("plain");
    shop.shell_until("till", CALLER, "");
    // All of them are called, and none fails.
    let line = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do \
                curl -sS -o /dev/null -w '%{http_code}\n' http://stock/echo; done | sort -u";
    assert_eq!(shop.shell("till", line), "200\n");
    shop.kubectl(&["delete", "deployment/plain"]);
    shop.shell_until("till", CALLER, &seen);
}

/// The harm: what an app sends to a Service fails while the pods behind it change.
#[test]
fn no_request_to_a_service_fails_while_its_pods_are_replaced() {
    let rig = need_rig!();
    let shop = shop("replaced-services", west(&rig));
    let seen = caller_in("replaced-services");
    shop.shell_until("till", CALLER, &seen);
    let captured = json!({"tollway.dev/capture": "true"});
    let calls = requests_during(
        &shop,
        |load| shop.apply(load),
        ("http://stock/echo", captured),
        20,
        || {
            shop.kubectl(&["rollout", "restart", "deployment/stock-v1", "deployment/stock-v2"]);
            ["stock-v1", "stock-v2"].iter().for_each(|name| shop.wait_rolled_out(name));
            shop.kubectl(&["scale", "deployment/stock-v2", "--replicas=3"]);
            shop.wait_rolled_out("stock-v2");
            shop.kubectl(&["scale", "deployment/stock-v2", "--replicas=0"]);
        },
    );
    assert_eq!((calls.answered, calls.failed), (2_000, 0), "{calls:?}");
}

#[test]
fn headless_services_pods_and_names_outside_are_as_apps_expect() {
    let rig = need_rig!();
    let shop = shop("headless-services", west(&rig));
    let seen = caller_in("headless-services");
    shop.apply(&service("pods", "stock", json!({"clusterIP": "None"})));
    // The port is that of the pods.
    let line = CALLER.replace("http://stock/", "http://pods:8080/");
    shop.shell_until("till", &line, &seen);
    // The one pod that is called, of another namespace.
    let other = Namespace::new(west(&rig), "other-services", &[("tollway.dev/inject", "true")]);
    other.apply(&deployment("till", json!({"tollway.dev/capture": "true"}), client()));
    other.wait_rolled_out("till");
    let path = "--output=jsonpath={.items[0].status.podIP}";
    let pod = shop.kubectl(&["get", "pods", "--selector=app=stock-v1", path]);
    let line = CALLER.replace("http://stock/", &format!("http://{pod}:8080/"));
    other.shell_until("till", &line, &caller_in("other-services"));
    let line = CALLER.replace("http://stock/", "http://stock.headless-services/");
    other.shell_until("till", &line, &caller_in("other-services"));
    // Names of the cluster that lead elsewhere, and Services without sidecars.
    let external = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "api"},
        "spec": {
            "type": "ExternalName", "externalName": "kubernetes.default.svc.cluster.local",
            "ports": [{"port": 443}],
        },
    });
    shop.apply(&external);
    shop.apply(&service("plain", "plain", json!({})));
    shop.apply(&member("plain", "plain", json!({"tollway.dev/inject": "false"})));
    shop.wait_rolled_out("plain");
    for url in ["https://api/healthz", "https://kubernetes.default/healthz", "http://plain/echo"] {
        let line = format!("curl -sSk -o /dev/null -w '%{{http_code}}' {url}");
        shop.shell_until("till", &line, "200");
    }
}
