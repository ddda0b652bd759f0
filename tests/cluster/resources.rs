//! Custom resources: in effect in sidecars, with a status; mistakes are refused or named.

use serde_json::{Value, json};

use crate::support::{Namespace, client, control, deployment, need_rig, server, west};

/// A custom resource.
fn resource(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "tollway.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    })
}

/// `stock`, and `till` that calls it.
fn shop<'a>(name: &'static str, cluster: tollway_testkit::Cluster<'a>) -> Namespace<'a> {
    let shop = Namespace::restricted(cluster, name);
    shop.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    shop.apply(&deployment("till", json!({}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    shop
}

const CALL: &str =
    "curl -sS -w '%{http_code}' -o /dev/null http://127.0.0.1:3500/v1.0/invoke/stock/method/echo";

#[test]
fn a_resource_is_in_effect_once_its_status_has_that_it_is_applied() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = shop("resources", cluster);
    shop.shell_until("till", CALL, "200");
    let spec = json!({"target": {"app": "stock"}, "allow": [{"from": ["orders"]}]});
    shop.apply(&resource("Policy", "readers", spec));
    let wait = ["wait", "--for=condition=Applied", "--timeout=30s"];
    shop.kubectl(&[&wait[..], &["policies.tollway.dev/readers"]].concat());
    assert_eq!(shop.shell("till", CALL), "403");
    let row = shop.kubectl(&["get", "policies.tollway.dev"]);
    let row: Vec<&str> = row.lines().last().unwrap().split_whitespace().take(3).collect();
    assert_eq!(row, ["readers", "True", "True"]);
    // A change is in effect when the status is of its generation.
    let spec = json!({"target": {"app": "stock"}, "allow": [{"from": ["till"]}]});
    shop.apply(&resource("Policy", "readers", spec));
    let generation = "--output=jsonpath={.status.observedGeneration} {.status.conditions[?(@.type==\"Applied\")].status}";
    shop.wait_for(&["get", "policies.tollway.dev/readers", generation], |seen| seen == "2 True");
    assert_eq!(shop.shell("till", CALL), "200");
    let spec = json!({"service": "stock", "rules": [{
        "matches": [{"path": {"prefix": "/echo"}}],
        "redirect": {"path": {"full": "/elsewhere"}, "status": 307},
    }]});
    shop.apply(&resource("Route", "moved", spec));
    shop.kubectl(&[&wait[..], &["routes.tollway.dev/moved"]].concat());
    assert_eq!(shop.shell("till", CALL), "307");
    let listed = control(cluster, &["get", "routes"]);
    assert!(listed.contains("moved"), "{listed}");
    shop.kubectl(&["delete", "routes.tollway.dev/moved"]);
    shop.shell_until("till", CALL, "200");
}

#[test]
fn a_mistake_is_refused_or_named_and_hurts_no_other_resource() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::new(cluster, "odd-resources", &[]);
    let refused = |object: &Value| shop.try_apply(object).unwrap_err();
    let unknown = json!({"target": {"app": "stock"}, "alow": []});
    let unknown = refused(&resource("Policy", "odd", unknown));
    assert!(unknown.contains("spec.alow"), "{unknown}");
    let both = json!({"service": "stock", "rules": [{
        "backends": [{"service": "stock"}], "redirect": {"status": 302},
    }]});
    let both = refused(&resource("Route", "odd", both));
    assert!(both.contains("it has one of backends, redirect"), "{both}");
    let dots =
        refused(&resource("Policy", "a.b", json!({"target": {"app": "stock"}, "allow": []})));
    assert!(dots.contains("no dots"), "{dots}");
    // What no schema can say is a condition, and an event.
    let regex = json!({"service": "stock", "rules": [{
        "matches": [{"path": {"regex": "/a("}}], "backends": [{"service": "stock"}],
    }]});
    shop.apply(&resource("Route", "odd", regex));
    shop.apply(&resource("Policy", "fine", json!({"target": {"app": "stock"}, "allow": []})));
    shop.kubectl(&[
        "wait",
        "--for=condition=Accepted",
        "--timeout=30s",
        "policies.tollway.dev/fine",
    ]);
    let condition = "--output=jsonpath={.status.conditions[?(@.type==\"Accepted\")]}";
    let accepted = ["get", "routes.tollway.dev/odd", condition];
    let accepted = shop.wait_for(&accepted, |seen| !seen.is_empty());
    let accepted: Value = serde_json::from_str(&accepted).unwrap();
    assert_eq!((&accepted["status"], &accepted["reason"]), (&json!("False"), &json!("Invalid")));
    let message = accepted["message"].as_str().unwrap();
    assert!(message.contains("/a("), "{message}");
    let of = "--field-selector=involvedObject.name=odd";
    let events = ["get", "events", of, "--output=jsonpath={.items[*].message}"];
    shop.wait_for(&events, |seen| seen.contains("/a("));
}

/// What an operator has applied by a command and what is in the cluster do not replace each other.
#[test]
fn commands_do_not_change_what_is_a_resource() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::new(cluster, "owned", &[]);
    shop.apply(&resource("Policy", "own", json!({"target": {"app": "stock"}, "allow": []})));
    let wait = "--for=condition=Accepted";
    shop.kubectl(&["wait", wait, "--timeout=30s", "policies.tollway.dev/own"]);
    let listed = control(cluster, &["get", "policies"]);
    assert!(listed.contains("own"), "{listed}");
    let exec = ["--namespace=tollway", "exec", "tollway-control-0", "--", "/tollway"];
    let delete = ["delete", "policy", "owned/own", "--store=/var/lib/tollway/control"];
    let refused = cluster.kubectl(&[&exec[..], &delete].concat()).unwrap_err();
    assert!(format!("{refused:#}").contains("change it there, with kubectl"), "{refused:#}");
    drop(shop);
    // With the namespace goes the object.
    let listing = [&exec[..], &["get", "policies", "--store=/var/lib/tollway/control"]].concat();
    cluster.wait_for(crate::support::SOON, &listing, |seen| !seen.contains("own")).unwrap();
}
